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
    async def open(self, clock: VirtualClock) -> BatchedStorage:
        return VirtualRedis(self.url, namespace=self.namespace, clock=clock)

    async def test_an_eta_follows_the_wall_clock(self) -> None:
        pytest.skip("the wall that counts is the server's; tests/redis/test_clocks.py sets that one")

    test_what_is_due_later_again_hides_nobody = test_an_eta_follows_the_wall_clock
    test_a_task_without_an_eta_is_due_whatever_the_clock_says = test_an_eta_follows_the_wall_clock
