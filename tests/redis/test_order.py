"""The order of claims where many come due at once, and that of lists."""

from datetime import timedelta

from omniq import Task
from omniq.storage.redis import RedisStorage
from omniq.testing import VirtualClock
from tests.redis.stores import VirtualRedis, wired

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


async def test_lists_go_from_stretch_to_stretch(redis_url: str, namespace: str) -> None:
    """Newest first, whatever was deleted meanwhile; a stretch that is empty is gone."""
    async with RedisStorage(redis_url, namespace=namespace) as store, wired(redis_url) as wire:
        ids = [str(one) for one in await store.enqueue_many([Task(JOB, (n,)) for n in range(600)])]
        for task_id in ids:
            await store.cancel(task_id)
        # The first order number is 1: 127 to 254 are a whole stretch, 300 is one of many.
        gone = {*ids[127:255], ids[300]}
        for task_id in gone:
            await store.delete(task_id)
        left = [task_id for task_id in reversed(ids) if task_id not in gone]
        assert [task.id for task in await store.list_tasks(limit=1000)] == left
        found: list[str] = []
        after = None
        for _ in range(len(left) // 7 + 1):
            page = await store.page(after=after, limit=7)
            found += [task.id for task in page.tasks]
            after = page.after
        assert found == left
        assert after is None
        assert await wire.call("ZRANGE", store._key(b"order"), 0, -1) == [b"0", b"2", b"3", b"4"]
        assert await store.verify() == []


async def test_what_stands_in_line_twice_is_listed_once(redis_url: str, namespace: str) -> None:
    """As after an enqueue that failed half way and was repeated."""
    async with RedisStorage(redis_url, namespace=namespace) as store, wired(redis_url) as wire:
        [_, _, task_id] = [str(one) for one in await store.enqueue_many([Task(JOB, (n,)) for n in range(3)])]
        await wire.call("RPUSH", store._key(b"stretch:9"), task_id)
        await wire.call("ZADD", store._key(b"order"), 9, 9)
        assert [task.id for task in await store.list_tasks()].count(task_id) == 1
        assert len(await store.list_tasks()) == 3
