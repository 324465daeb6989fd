"""What a call costs the server: it does not grow with what cannot run, nor does anything stay for ever.

Counted in commands and keys, which a busy machine does not change.
"""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from omniq import Task
from omniq.storage.redis import RedisStorage
from omniq.storage.redis.wire import Wire
from omniq.task import Settlement, TaskError, TaskStatus, WorkerInfo
from omniq.testing import VirtualClock
from tests.redis.server import private
from tests.redis.stores import VirtualRedis, wired

JOB = "jobs.a"
TOMORROW = timedelta(days=1)


async def calls(wire: Wire) -> dict[str, int]:
    """How often each command has run so far, those within scripts too."""
    lines = (await wire.call("INFO", "commandstats")).decode().splitlines()
    return {
        line.split(":")[0].removeprefix("cmdstat_"): int(line.split("calls=")[1].split(",")[0])
        for line in lines
        if line.startswith("cmdstat_")
    }


async def cost(wire: Wire, store: RedisStorage, limit: int) -> dict[str, int]:
    """The commands of one exchange that settles and claims `limit` tasks."""
    held = await store.claim("ann", ["default"], limit)
    before = await calls(wire)
    await store.settle([Settlement.success(task, b"\xc0") for task in held])
    await store.claim("ann", ["default"], limit)
    after = await calls(wire)
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}


@pytest.mark.parametrize("burden", ["later", "paused", "ended", "backlog"])
async def test_a_claim_costs_the_same_beside_what_cannot_run(burden: str) -> None:
    """F14: beside two thousand of tomorrow at top priority, in a paused queue, in the history."""
    with private() as server:
        async with RedisStorage(server.url) as store, wired(server.url) as wire:
            await store.enqueue_many([Task(JOB, (n,)) for n in range(100)])
            await cost(wire, store, 10)  # what it leaves running is there in both of the next
            alone = await cost(wire, store, 10)
            many = range(2000)
            if burden == "later":
                eta = datetime.now(UTC) + TOMORROW
                await store.enqueue_many([Task(JOB, (n,), priority=9, eta=eta) for n in many])
            elif burden == "paused":
                await store.pause("still")
                await store.enqueue_many([Task(JOB, (n,), priority=9, queue="still") for n in many])
            elif burden == "ended":
                await store.enqueue_many([Task(JOB, (n,), queue="other") for n in many])
                held = await store.claim("bob", ["other"], 2000)
                await store.settle([Settlement.success(task, b"\xc0") for task in held])
            else:
                await store.enqueue_many([Task(JOB, (n,)) for n in many])
            beside = await cost(wire, store, 10)
            assert beside == alone


async def test_a_batch_is_a_handful_of_commands() -> None:
    """One command per batch and structure, not one per task."""
    with private() as server:
        async with RedisStorage(server.url) as store, wired(server.url) as wire:
            await store.enqueue_many([Task(JOB, (n,)) for n in range(400)])
            await cost(wire, store, 10)
            few, many = await cost(wire, store, 10), await cost(wire, store, 100)
            assert few == many


async def test_nothing_is_left_of_tasks_that_are_gone(redis_url: str, namespace: str) -> None:
    """Nothing grows for ever: after everything was pruned, only what goes by itself is left."""
    clock = VirtualClock()
    async with VirtualRedis(redis_url, namespace=namespace, clock=clock) as store, wired(redis_url) as wire:
        failure = TaskError("ValueError", "boom")
        for n in range(30):
            options = {"unique_key": f"k{n}", "queue": f"q{n % 5}", "expires_at": clock.now() + TOMORROW}
            await store.enqueue(Task(JOB, (n,), **options))  # type: ignore[arg-type]
        await store.beat(WorkerInfo("ann", "ann", "host", 1))
        held = await store.claim("ann", None, 20)
        await store.settle([Settlement.retry(task, 0, failure) for task in held[:10]])
        await store.settle([Settlement.success(task, b"\xc0") for task in held[10:]])
        await clock.advance(days=2)
        assert await store.lapse(1000) == 20
        await clock.advance(days=31)
        while await store.prune():
            pass
        assert await store.claim("ann") == []
        _, keys = await wire.call("SCAN", 0, "MATCH", f"{{{namespace}}}:*", "COUNT", 100_000)
        names = {key.split(b":")[1] for key in keys}
        assert names <= {
            b"seq",
            b"version",
            b"test-clock",
            b"gone",
            b"claim",
            b"tally",
            b"minutes",
            b"timings",
        }
        for key in keys:
            if key.split(b":")[1] in (b"gone", b"claim"):
                assert await wire.call("PTTL", key) > 0
        assert await store.counts() == {}


async def test_an_idle_worker_writes_nothing(redis_url: str, namespace: str) -> None:
    """Polling an empty store leaves no key behind and puts nothing into the append-only file."""
    async with RedisStorage(redis_url, namespace=namespace) as store, wired(redis_url) as wire:
        await store.enqueue(Task(JOB))
        [task] = await store.claim("ann")
        await store.settle([Settlement.success(task, b"\xc0")])
        await store.claim("ann")
        before = await wire.call("SCAN", 0, "MATCH", f"{{{namespace}}}:*", "COUNT", 100_000)
        for _ in range(20):
            assert await store.claim("ann") == []
            assert await store.lapse() == 0
            assert await store.held("ann") == []
        after = await wire.call("SCAN", 0, "MATCH", f"{{{namespace}}}:*", "COUNT", 100_000)
        assert sorted(after[1]) == sorted(before[1])
        assert (await store.counts())["default"][TaskStatus.SUCCESS] == 1


async def test_old_minutes_are_put_together_a_bounded_number_at_a_time(
    redis_url: str, namespace: str
) -> None:
    """Nobody pruned for weeks: one call must not stop the server for all of them."""
    async with RedisStorage(redis_url, namespace=namespace) as store, wired(redis_url) as wire:
        written = [wire.call("ZADD", store._key(b"minutes"), n, n) for n in range(1, 2_501)]
        for n in range(1, 2_501):
            written.append(wire.call("HSET", store._key(b"tally:%d" % n), "5:default", 1))
        await asyncio.gather(*written)
        left: list[int] = []
        for _ in range(3):
            await store.prune()
            left.append(await wire.call("ZCOUNT", store._key(b"minutes"), "(0", "+inf"))
        assert left == [1500, 500, 0]
        assert await wire.call("HGET", store._key(b"tally:0"), "5:default") == b"2500"
