"""The shipped suite, unchanged, on a real server: by its clock, and with one that the tests move."""

import asyncio
from collections.abc import Iterator

import pytest

from omniq.storage.batched import BatchedStorage
from omniq.storage.postgres import PostgresStorage
from omniq.testing import VirtualClock
from omniq.testing.conformance import RealTime, StorageConformance
from omniq.testing.conformance.waiting import WaitingForResults, WaitingForWork
from tests.postgres.stores import VirtualPostgres, empty_schema, fresh_schema


@pytest.fixture(scope="module")
def real_schema(postgres_dsn: str) -> Iterator[str]:
    with fresh_schema(postgres_dsn) as name:
        yield name


@pytest.fixture(scope="module")
def virtual_schema(postgres_dsn: str) -> Iterator[str]:
    with fresh_schema(postgres_dsn, virtual=True) as name:
        yield name


class OnTheServersClock(RealTime):
    @pytest.fixture(autouse=True)
    def _schema(self, postgres_dsn: str, real_schema: str) -> None:
        self.dsn, self.schema = postgres_dsn, real_schema
        asyncio.run(empty_schema(postgres_dsn, real_schema))

    async def open(self, clock: VirtualClock) -> BatchedStorage:
        return PostgresStorage(self.dsn, schema=self.schema)


class TestPostgresTime(OnTheServersClock, WaitingForWork, WaitingForResults):
    """Where the server's clock and the client's timers meet; everything else is below, without waiting."""

    tick_s = 0.2


@pytest.mark.soak
class TestPostgresInRealTime(OnTheServersClock, StorageConformance):
    """Everything, as it is."""


class TestPostgres(StorageConformance):
    follows_wall = False

    @pytest.fixture(autouse=True)
    def _schema(self, postgres_dsn: str, virtual_schema: str) -> None:
        self.dsn, self.schema = postgres_dsn, virtual_schema
        asyncio.run(empty_schema(postgres_dsn, virtual_schema))

    async def open(self, clock: VirtualClock) -> BatchedStorage:
        store = VirtualPostgres(self.dsn, schema=self.schema, clock=clock)
        store.follows_wall = self.follows_wall
        return store

    # The server's own clock is set. Leases count by it, so the tests of those keep to the steady count.
    def test_an_eta_follows_the_wall_clock(self) -> None:
        self.follows_wall = True
        super().test_an_eta_follows_the_wall_clock()

    def test_a_wall_clock_that_is_set_back_fires_nothing_twice(self) -> None:
        self.follows_wall = True
        super().test_a_wall_clock_that_is_set_back_fires_nothing_twice()

    def test_what_is_due_later_again_hides_nobody(self) -> None:
        self.follows_wall = True
        super().test_what_is_due_later_again_hides_nobody()

    def test_a_task_without_an_eta_is_due_whatever_the_clock_says(self) -> None:
        self.follows_wall = True
        super().test_a_task_without_an_eta_is_due_whatever_the_clock_says()
