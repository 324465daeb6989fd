"""One clock: the server's. What hosts believe, and what people do to the server's, harms nobody."""

from datetime import timedelta

from omniq import Task
from omniq.storage.redis import RedisStorage
from omniq.storage.redis.records import microseconds
from omniq.task import Settlement
from omniq.testing import VirtualClock
from tests.redis.stores import VirtualRedis, wired

JOB = "jobs.a"


async def test_the_server_clock_counts_and_not_the_hosts(redis_url: str, namespace: str) -> None:
    """Hosts whose clocks are a year apart hand each other tasks as if they were one."""
    ahead, behind = VirtualClock(), VirtualClock()
    ahead.set_wall(ahead.now() + timedelta(days=365))
    async with (
        RedisStorage(redis_url, namespace=namespace, clock=ahead) as one,
        RedisStorage(redis_url, namespace=namespace, clock=behind) as other,
    ):
        await one.enqueue(Task(JOB))
        [claimed] = await other.claim("ann", lease=30.0)
        assert await one.lapse() == 0
        assert await other.settle([Settlement.retry(claimed, 60.0, error=None)]) == ["held"]  # type: ignore[arg-type]
        assert await one.claim("bob") == await other.claim("bob") == []


async def test_a_server_clock_that_was_set_back_hides_nothing_that_was_due(
    redis_url: str, namespace: str
) -> None:
    """What is due stands in the index of what is due, whatever the clock says later."""
    clock = VirtualClock()
    async with VirtualRedis(redis_url, namespace=namespace, clock=clock) as store, wired(redis_url) as wire:
        first = await store.enqueue(Task(JOB, (1,)))
        assert store._server is not None
        back = microseconds(clock.now() - timedelta(hours=2))
        await wire.call("SET", store._address.prefix + b"test-clock", back)
        later = await store.enqueue(Task(JOB, (2,)))
        assert [task.id for task in await store.claim("ann", limit=3)] == [later, first]
        assert await store.verify() == []
