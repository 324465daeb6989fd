"""What goes the short way (one plain task, its first claim, its success) ends as what goes the long way."""

import pytest

from omniq import Task
from omniq.storage.redis import RedisStorage, records
from omniq.storage.redis.wire import Wire
from omniq.task import Answer, Held, Settlement, StoredTask, TaskStatus
from omniq.testing import VirtualClock
from tests.redis.stores import VirtualRedis, wired

JOB = "jobs.a"
SEQ = slice(records._SEQ_AT, records._SEQ_AT + 8)


async def state_of(wire: Wire, store: RedisStorage, task_id: str) -> bytes:
    """Its record, all but the order number."""
    raw = bytearray(await wire.call("HGET", store._key(b"state"), task_id))
    raw[SEQ] = bytes(8)
    return bytes(raw)


def alike(task: StoredTask) -> dict[str, object]:
    mine = {name: getattr(task, name) for name in task.__struct_fields__}
    return {name: value for name, value in mine.items() if name not in ("id", "seq", "unique_key")}


async def test_one_enqueued_is_as_one_of_several(redis_url: str, namespace: str) -> None:
    async with VirtualRedis(redis_url, namespace=namespace, clock=VirtualClock()) as store:
        async with wired(redis_url) as wire:
            made = [Task(JOB, (1,), queue="q", priority=7, result_ttl=5, max_losses=2) for _ in range(3)]
            await store.enqueue(made[0])
            alone = await wire.call("HGETALL", store._key(b"count"))
            await store.enqueue_many(made[1:])
            states = {await state_of(wire, store, task.id) for task in made}
            assert len(states) == 1
            assert alone == [b"0:q", b"1"]
        assert (await store.counts())["q"][TaskStatus.PENDING] == 3
        assert [task.id for task in await store.claim("ann", ["q"], 9)] == [task.id for task in made]
        assert await store.verify() == []


async def test_claims_and_successes_are_the_same_by_both_ways(redis_url: str, namespace: str) -> None:
    """A key, and the first success of a call, make it the long way."""
    async with VirtualRedis(redis_url, namespace=namespace, clock=VirtualClock()) as store:
        async with wired(redis_url) as wire:
            await store.enqueue_many([Task(JOB, (1,)), Task(JOB, (1,)), Task(JOB, (1,), unique_key="k")])
            claimed = await store.claim("ann", ["default"], 3)
            assert len({str(alike(task)) for task in claimed if isinstance(task, StoredTask)}) == 1
            await store.settle([Settlement.success(task, b"\x07") for task in claimed])
            first, second, _ = [await state_of(wire, store, task.id) for task in claimed]
            assert first == second
        assert (await store.counts())["default"][TaskStatus.SUCCESS] == 3
        assert [timing.queue for timing in await store.timings()] == ["default"] * 3
        assert await store.verify() == []


async def test_each_of_a_batch_is_fenced_by_its_own_epoch(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await store.enqueue_many([Task(JOB, (number,)) for number in range(3)])
        one, two, three = await store.claim("ann", ["default"], 3)
        stale = Held(two.id, two.epoch + 1)
        said = [Settlement.success(task, b"\xc0") for task in (one, stale, three, three)]
        assert await store.settle(said) == [Answer.HELD, Answer.STALE, Answer.HELD, Answer.ALREADY]
        assert (await store.counts())["default"][TaskStatus.RUNNING] == 1
        assert await store.verify() == []


@pytest.mark.parametrize("again", [b"\x04" + bytes(16), b"\x05" + bytes(16)])
async def test_what_stands_twice_in_an_index_is_handed_out_once(
    redis_url: str, namespace: str, again: bytes
) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store, wired(redis_url) as wire:
        task_id = await store.enqueue(Task(JOB))
        await wire.call("ZADD", store._key(b"ready:default"), 0, again + task_id.encode())
        assert [task.id for task in await store.claim("ann", ["default"], 5)] == [task_id]
        assert await store.claim("ann", ["default"], 5) == []
        assert await store.verify() == []
