"""Nothing grows for ever: after as many rounds as one likes there is as much as after a few.

Measured in keys and in the bytes that the server says each of them takes.
"""

from datetime import timedelta

from omniq import Task
from omniq.storage.redis import RedisStorage
from omniq.storage.redis.wire import Wire
from omniq.task import Settlement, TaskError, WorkerInfo, new_id
from omniq.testing import VirtualClock
from tests.redis.stores import VirtualRedis, wired

JOB = "jobs.a"
BOOM = TaskError("ValueError", "boom")
# These go by themselves, by the server's own clock, which does not move here.
PASSING = (b"gone", b"claim", b"ear", b"test-clock")


async def one_round(store: RedisStorage, clock: VirtualClock) -> None:
    """Every way that a task, a worker or a claim may take, with names that nobody has used before."""
    worker = f"worker-{new_id()}"
    await store.beat(WorkerInfo(worker, "ann", "host", 1))
    soon = clock.now() + timedelta(hours=1)
    await store.enqueue_many([Task(JOB, (n,), unique_key=new_id(), max_losses=1) for n in range(40)])
    await store.enqueue_many([Task(JOB, (n,), expires_at=soon, queue="other") for n in range(10)])
    await store.enqueue_many([Task(JOB, (n,), eta=soon, queue="later") for n in range(10)])
    claims = await store.claim(worker, ["default"], 40, lease=30.0)
    await store.progress(claims[0].id, claims[0].epoch, 1, 2)
    await store.settle(
        [
            *(Settlement.success(task, b"\xc0") for task in claims[:10]),
            *(Settlement.failed(task, BOOM) for task in claims[10:15]),
            *(Settlement.retry(task, 1.0, BOOM) for task in claims[15:20]),
            *(Settlement.give_back(task) for task in claims[20:25]),
        ]
    )
    await store.cancel(claims[25].id)
    await store.cancel(claims[20].id)
    await store.delete(claims[0].id)
    await store.pause("other")
    await clock.advance(hours=2)  # what nobody settled lapses, what nobody took expires
    while await store.lapse(1000):
        pass
    await store.resume("other")
    for task in await store.claim(worker, None, 1000):
        await store.settle([Settlement.success(task, b"\xc0")])
    assert not [task for task in await store.list_tasks(limit=1000) if not task.status.final]
    await store.release(worker)


async def fill_timings(store: RedisStorage) -> None:
    """How long the latest thousand took is kept, so there are more than that."""
    await store.enqueue_many([Task(JOB, (n,)) for n in range(1_500)])
    for _ in range(3):
        claims = await store.claim("first", None, 500)
        await store.settle([Settlement.success(task, b"\xc0") for task in claims])


async def after_a_month(store: RedisStorage, clock: VirtualClock) -> None:
    """Workers that never said goodbye are forgotten, minutes are put together, what ended is pruned."""
    await clock.advance(days=31)
    while await store.prune():
        pass
    await store.claim("somebody", None, 1)


async def weight(store: RedisStorage, wire: Wire) -> dict[bytes, int]:
    _, keys = await wire.call("SCAN", 0, "MATCH", store._key(b"*"), "COUNT", 1_000_000)
    kept = sorted(key for key in keys if key.split(b":")[1] not in PASSING)
    return {key: await wire.call("MEMORY", "USAGE", key, "SAMPLES", 0) for key in kept}


async def test_ten_rounds_leave_no_more_than_two(redis_url: str, namespace: str) -> None:
    clock = VirtualClock()
    async with VirtualRedis(redis_url, namespace=namespace, clock=clock) as store, wired(redis_url) as wire:
        await fill_timings(store)
        weights: list[dict[bytes, int]] = []
        for _ in range(10):
            await one_round(store, clock)
            await after_a_month(store, clock)
            weights.append(await weight(store, wire))
        assert await store.counts() == {}
        early, late = weights[1], weights[-1]
        names = {key.split(b":")[1] for key in late}
        assert names <= {b"seq", b"version", b"minutes", b"tally", b"timings"}
        assert len(late) <= len(early) + 1  # the minute of the last calls may or may not have begun
        assert sum(late.values()) <= sum(early.values()) * 1.1 + 200
