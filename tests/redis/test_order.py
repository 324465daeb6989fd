"""The order of claims where many come due at once."""

from datetime import timedelta

from omniq import Task
from omniq.testing import VirtualClock
from tests.redis.stores import VirtualRedis

JOB = "jobs.a"


async def test_priority_is_exact_among_thousands_that_came_due_at_once(
    redis_url: str, namespace: str
) -> None:
    clock = VirtualClock()
    async with VirtualRedis(redis_url, namespace=namespace, clock=clock) as store:
        soon, later = (clock.now() + timedelta(seconds=n) for n in (1, 2))
        await store.enqueue_many([Task(JOB, (n,), priority=1, eta=soon) for n in range(3_000)])
        await store.enqueue_many([Task(JOB, (n,), priority=9, eta=later) for n in range(2)])
        await clock.advance(5)
        assert [task.priority for task in await store.claim("ann", limit=3)] == [9, 9, 1]
        assert await store.verify() == []
