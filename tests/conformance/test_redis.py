"""The shipped suite, unchanged, on a real server: by its clock, and with one that the tests move."""

import asyncio
from collections.abc import Iterator

import pytest

from omniq.storage.batched import BatchedStorage
from omniq.storage.redis import RedisStorage
from omniq.testing import VirtualClock
from omniq.testing.conformance import RealTime, StorageConformance
from omniq.testing.conformance.waiting import WaitingForResults, WaitingForWork
from tests.conformance.server_clocks import OnAMovedClock
from tests.redis.server import NoServer, find_programs, missing, private
from tests.redis.stores import VirtualRedis, empty_namespace, new_namespace


class InANamespace:
    @pytest.fixture(autouse=True)
    def _namespace(self, redis_url: str) -> Iterator[None]:
        self.url, self.namespace = redis_url, new_namespace()
        yield
        asyncio.run(empty_namespace(redis_url, self.namespace))


class OnTheServersClock(InANamespace, RealTime):
    async def open(self, clock: VirtualClock) -> BatchedStorage:
        return RedisStorage(self.url, namespace=self.namespace)


class TestRedisTime(OnTheServersClock, WaitingForWork, WaitingForResults):
    """Where the server's clock and the client's timers meet; everything else is below, without waiting."""

    # Between two statements of a test a machine at work may need more of the clock than a short tick has.
    tick_s = 1.0


@pytest.mark.soak
class TestRedisInRealTime(OnTheServersClock, StorageConformance):
    """Everything, as it is."""


class TestRedis(InANamespace, OnAMovedClock):
    async def open(self, clock: VirtualClock) -> BatchedStorage:
        store = VirtualRedis(self.url, namespace=self.namespace, clock=clock)
        store.follows_wall = self.follows_wall
        return store


@pytest.fixture(scope="class")
def other_url() -> Iterator[str]:
    """The next server program here: the wheel's is the first, so it is the system's."""
    others = find_programs()[1:]
    if not others:
        missing(NoServer("the system has none beside the first"))
    with private(program=others[0]) as server:
        yield server.url


@pytest.mark.soak
class TestSystemRedis(TestRedis):
    """All of it once more. Its access, its scripts and its Cluster are tried in every run: tests/redis."""

    @pytest.fixture(autouse=True)
    def _namespace(self, other_url: str) -> None:
        self.url, self.namespace = other_url, new_namespace()
