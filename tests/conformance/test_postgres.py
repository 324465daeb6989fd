"""The shipped suite, unchanged, on a real server: by its clock, and with one that the tests move."""

import asyncio
from collections.abc import Iterator

import pytest

from omniq.storage.batched import BatchedStorage
from omniq.storage.postgres import PostgresStorage, waking
from omniq.testing import VirtualClock
from omniq.testing.conformance import RealTime, StorageConformance
from omniq.testing.conformance.waiting import WaitingForResults, WaitingForWork
from tests.conformance.server_clocks import OnAMovedClock
from tests.postgres.pooler import pooled
from tests.postgres.stores import VirtualPostgres, empty_schema, fresh_schema


@pytest.fixture(scope="module")
def real_schema(postgres_dsn: str) -> Iterator[str]:
    with fresh_schema(postgres_dsn) as name:
        yield name


@pytest.fixture(scope="module")
def virtual_schema(postgres_dsn: str) -> Iterator[str]:
    with fresh_schema(postgres_dsn, virtual=True) as name:
        yield name


@pytest.fixture(scope="module")
def pooler_dsn(postgres_dsn: str) -> Iterator[str]:
    with pooled(postgres_dsn, "transaction", 3) as dsn:
        yield dsn


class OnTheServersClock(RealTime):
    @pytest.fixture(autouse=True)
    def _schema(self, postgres_dsn: str, real_schema: str) -> None:
        self.dsn, self.schema = postgres_dsn, real_schema
        asyncio.run(empty_schema(postgres_dsn, real_schema))

    async def open(self, clock: VirtualClock) -> BatchedStorage:
        return PostgresStorage(self.dsn, schema=self.schema)


class TestPostgresTime(OnTheServersClock, WaitingForWork, WaitingForResults):
    """Where the server's clock and the client's timers meet; everything else is below, without waiting."""

    # Between two statements of a test a machine at work may need more of the clock than a short tick has.
    tick_s = 1.0


@pytest.mark.soak
class TestPostgresInRealTime(OnTheServersClock, StorageConformance):
    """Everything, as it is."""


class TestPostgres(OnAMovedClock):
    @pytest.fixture(autouse=True)
    def _schema(self, postgres_dsn: str, virtual_schema: str) -> None:
        self.dsn, self.schema = postgres_dsn, virtual_schema
        asyncio.run(empty_schema(postgres_dsn, virtual_schema))

    async def open(self, clock: VirtualClock) -> BatchedStorage:
        store = VirtualPostgres(self.dsn, schema=self.schema, clock=clock)
        store.follows_wall = self.follows_wall
        return store


@pytest.mark.soak
class TestPostgresThroughAPooler(TestPostgres):
    """The same behind a real PgBouncer, which lends a session of the server for every transaction."""

    @pytest.fixture(autouse=True)
    def _through(self, _schema: None, pooler_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dsn = pooler_dsn
        monkeypatch.setattr(waking, "TRIAL_S", 0.02)  # nothing comes through here, however long one listens

    @pytest.mark.skip(reason="through such a pooler the server tells nobody; tasks wait for the poll")
    def test_needs_a_wake_up(self) -> None: ...

    test_wait_wakes_when_a_task_is_enqueued = test_needs_a_wake_up
    test_everybody_who_waits_is_woken = test_needs_a_wake_up
    test_a_task_that_fires_wakes_who_sleeps = test_needs_a_wake_up
    test_what_arrives_wakes_who_sleeps = test_needs_a_wake_up
