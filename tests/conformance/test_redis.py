"""The shipped suite, unchanged, on a real server: by its clock, and with one that the tests move."""

import asyncio
from collections.abc import Iterator

import pytest

from omniq.storage.batched import BatchedStorage
from omniq.storage.redis import RedisStorage
from omniq.testing import VirtualClock
from omniq.testing.conformance import RealTime, StorageConformance
from omniq.testing.conformance.waiting import WaitingForResults, WaitingForWork
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

    tick_s = 0.2


@pytest.mark.soak
class TestRedisInRealTime(OnTheServersClock, StorageConformance):
    """Everything, as it is."""


class TestRedis(InANamespace, StorageConformance):
    follows_wall = False

    async def open(self, clock: VirtualClock) -> BatchedStorage:
        store = VirtualRedis(self.url, namespace=self.namespace, clock=clock)
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
