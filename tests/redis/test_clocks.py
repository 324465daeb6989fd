"""One clock: the server's. What hosts believe, and what people do to the server's, harms nobody."""

from datetime import timedelta

from omniq import Task
from omniq.storage.redis import RedisStorage
from omniq.task import Settlement
from omniq.testing import VirtualClock
from tests.redis.stores import VirtualRedis

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


class Wall(VirtualRedis):
    follows_wall = True


async def test_a_run_over_which_the_clock_was_set_back_took_no_less_than_nothing(
    redis_url: str, namespace: str
) -> None:
    clock = VirtualClock()
    async with Wall(redis_url, namespace=namespace, clock=clock) as store:
        await store.enqueue(Task(JOB))
        [task] = await store.claim("ann")
        clock.set_wall(clock.now() - timedelta(hours=1))
        assert await store.settle([Settlement.success(task, b"\xc0")]) == ["held"]
        assert [(one.wait_s, one.run_s) for one in await store.timings()] == [(0.0, 0.0)]
