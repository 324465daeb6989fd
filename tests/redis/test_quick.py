"""What goes the short way (one plain task, its first claim, its success) ends as what goes the long way."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omniq import Task
from omniq.errors import QueueFull
from omniq.storage.redis import RedisStorage, records
from omniq.storage.redis.wire import Wire
from omniq.task import Answer, Held, Settlement, StoredTask, TaskError, TaskFilter, TaskStatus, Timing
from omniq.testing import VirtualClock
from tests.redis.stores import VirtualRedis, wired

JOB = "jobs.a"
SEQ = slice(records._PLAIN_SEQ_AT, records._PLAIN_SEQ_AT + 6)


async def state_of(wire: Wire, store: RedisStorage, task_id: str) -> bytes:
    """Its record, all but the order number; a short one."""
    raw = bytearray(await wire.call("HGET", store._key(b"state"), task_id))
    assert raw[0] >= records._PLAIN_FROM
    raw[SEQ] = bytes(6)
    return bytes(raw)


async def tallied(wire: Wire, store: RedisStorage) -> dict[bytes, int]:
    [minute] = await wire.call("ZRANGE", store._key(b"minutes"), 0, -1)
    flat = await wire.call("HGETALL", store._key(b"tally:" + minute))
    return {field: int(number) for field, number in zip(flat[::2], flat[1::2], strict=True)}


def alike(task: StoredTask) -> dict[str, object]:
    mine = {name: getattr(task, name) for name in task.__struct_fields__}
    return {name: value for name, value in mine.items() if name not in ("id", "seq", "unique_key")}


async def test_one_enqueued_is_as_one_of_several(redis_url: str, namespace: str) -> None:
    async with VirtualRedis(redis_url, namespace=namespace, clock=VirtualClock()) as store:
        async with wired(redis_url) as wire:
            made = [Task(JOB, (1,), queue="q", priority=7, result_ttl=5, max_losses=2) for _ in range(3)]
            await store.enqueue(made[0])
            alone = await tallied(wire, store)
            await store.enqueue_many(made[1:])
            states = {await state_of(wire, store, task.id) for task in made}
            assert len(states) == 1
            assert alone == {b"5:q": 1}
            assert await tallied(wire, store) == {b"5:q": 3}
        assert (await store.counts())["q"][TaskStatus.PENDING] == 3
        assert [task.id for task in await store.claim("ann", ["q"], 9)] == [task.id for task in made]
        assert await store.verify() == []


async def test_claims_and_successes_are_the_same_by_both_ways(redis_url: str, namespace: str) -> None:
    """A key, and the first success of a call, make it the long way."""
    clock = VirtualClock()
    async with VirtualRedis(redis_url, namespace=namespace, clock=clock) as store:
        async with wired(redis_url) as wire:
            await store.enqueue_many([Task(JOB, (1,)), Task(JOB, (1,)), Task(JOB, (1,), unique_key="k")])
            await clock.advance(3)
            claimed = await store.claim("ann", ["default"], 3)
            await clock.advance(2)
            assert len({str(alike(task)) for task in claimed if isinstance(task, StoredTask)}) == 1
            await store.settle([Settlement.success(task, b"\x07") for task in claimed])
            first, second = [await state_of(wire, store, task.id) for task in claimed[:2]]
            assert first == second
        assert (await store.counts())["default"][TaskStatus.SUCCESS] == 3
        assert await store.timings() == [Timing("default", 3.0, 2.0)] * 3
        assert await store.verify() == []


@pytest.mark.parametrize(
    ("options", "worker", "result", "is_short"),
    [
        ({}, "ann", b"\xc0", True),
        ({"result_ttl": 5, "max_losses": 255, "priority": 9}, "ann", b"\xc0", True),
        ({"result_ttl": 0.001}, "ann", b"\xc0", True),
        ({"result_ttl": 0.0001}, "ann", b"\xc0", False),  # less than a millisecond
        ({"result_ttl": 5_000_000}, "ann", b"\xc0", False),
        ({"max_losses": 256}, "ann", b"\xc0", False),
        ({"queue": "q" * 128}, "ann", b"\xc0", True),
        ({}, "w" * 255, b"\xc0", True),
        ({}, "w" * 256, b"\xc0", True),
        ({}, "ann", b"x" * 65_535, True),
        ({}, "ann", b"x" * 65_536, False),
        ({"unique_key": "k"}, "ann", b"\xc0", False),
    ],
)
async def test_short_records_and_long_ones_say_the_same(
    redis_url: str, namespace: str, options: dict[str, Any], worker: str, result: bytes, is_short: bool
) -> None:
    """Two of each: the first of a call goes the long way to its success, the second the short one."""
    async with RedisStorage(redis_url, namespace=namespace) as store, wired(redis_url) as wire:
        asked, many = Task(JOB, (1,), **options), 1 if "unique_key" in options else 2
        ids = [await store.enqueue(Task(JOB, (n,), **options)) for n in range(many)]
        await store.claim(worker, [asked.queue], 9)
        for task_id in ids:
            task = await store.get_task(task_id)
            assert task is not None
            assert (task.owner, task.epoch, task.status) == (worker, 1, TaskStatus.RUNNING)
        told = await store.settle([Settlement.success(Held(task_id, 1), result) for task_id in ids])
        assert told == [Answer.HELD] * many
        for task_id in ids:
            ended = await store._get(task_id)
            assert ended is not None
            assert (ended.status, ended.result, ended.owner) == (TaskStatus.SUCCESS, result, None)
            assert ended.started_at is not None
            assert ended.finished_at == ended.result_at >= ended.started_at >= ended.enqueued_at
            for name in ("queue", "priority", "max_losses", "result_ttl"):
                assert getattr(ended, name) == getattr(asked, name)
            state = await wire.call("HGET", store._key(b"state"), task_id)
            assert (state[0] >= records._PLAIN_FROM) == is_short
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


@pytest.mark.parametrize("many", [1, 2])
async def test_what_is_not_due_yet_has_a_place_in_its_queue_as_well(
    redis_url: str, namespace: str, many: int
) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await store.limit_queue("default", 3)
        await store.enqueue_many([Task(JOB), Task(JOB), Task(JOB, eta=datetime.now(UTC) + timedelta(days=1))])
        with pytest.raises(QueueFull):
            await store.enqueue_many([Task(JOB) for _ in range(many)])
        assert len(await store.claim("ann", ["default"], 9)) == 2
        await store.enqueue_many([Task(JOB) for _ in range(many)])
        assert await store.verify() == []


async def test_old_minutes_still_say_how_many_there_are(redis_url: str, namespace: str) -> None:
    """What failed hours ago is found by its index, which is searched until all that are counted are found."""
    clock = VirtualClock()
    async with VirtualRedis(redis_url, namespace=namespace, clock=clock) as store:
        await store.enqueue_many([Task(JOB, (n,)) for n in range(3)])
        failed = await store.claim("ann", ["default"], 2)
        await store.settle([Settlement.failed(task, TaskError("ValueError", "boom")) for task in failed])
        for _ in range(2):  # as it was written, and put together with what is older
            assert (await store.counts())["default"][TaskStatus.FAILED] == 2
            page = await store.list_tasks(TaskFilter(status=TaskStatus.FAILED))
            assert {task.id for task in page} == {task.id for task in failed}
            assert await store.verify() == []
            await clock.advance(hours=3)
            await store.prune()
