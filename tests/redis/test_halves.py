"""Nothing is undone in a script: whatever can go wrong goes wrong before its first write."""

import asyncio

import pytest

from omniq import Task
from omniq.errors import InvalidOption, StoreUnavailable
from omniq.storage.redis import RedisStorage
from omniq.storage.redis.address import Address
from omniq.storage.redis.connections import Server
from omniq.storage.redis.scripts import Scripts
from omniq.task import Claim, Settlement, TaskStatus
from tests.redis.server import private
from tests.redis.stores import wired

JOB = "jobs.a"


async def test_a_claim_of_very_many_queues_settles_and_claims(redis_url: str, namespace: str) -> None:
    """Lua hands on about 8,000 values at once, and the settlements are written by then."""
    queues = tuple(f"q{n}" for n in range(9_000))
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await store.enqueue_many([Task(JOB, (n,), queue=f"q{n}") for n in (0, 8_999)])
        [first] = await store.claim("ann", ["q0"])
        said = [Settlement.success(first, b"\xc0")]
        answers, [second] = await store.exchange(said, Claim("ann", queues, 10, 30.0, "one"))
        assert answers == ["held"]
        assert second.queue == "q8999"


async def test_a_lease_of_less_than_a_moment_is_a_lease(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await store.enqueue(Task(JOB))
        [task] = await store.claim("ann", lease=1e-9)
        assert await store.settle([Settlement.success(task, b"\xc0")]) == ["held"]


async def test_a_claim_id_that_no_record_could_hold_is_refused(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await store.enqueue(Task(JOB))
        with pytest.raises(InvalidOption, match="claim_id"):
            await store.claim("ann", claim_id="x" * 70_000)
        assert (await store.counts())["default"][TaskStatus.PENDING] == 1
        assert await store.verify() == []


async def test_a_batch_that_replaces_a_broken_call_is_whole(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store, wired(redis_url) as wire:
        for name in ("broken", "sound"):
            await store.enqueue(Task(JOB, ("old",), id=name, unique_key=name))
        await wire.call("HSET", store._key(b"body"), "broken", "nonsense")
        again = [Task(JOB, ("new",), unique_key=name) for name in ("broken", "sound", "fresh")]
        placed = await store.enqueue_many(again, on_conflict="replace")
        assert [one.created for one in placed] == [False, False, True]
        claims = await store.claim("ann", limit=3)
        assert [store.decode(task).args for task in claims] == [("new",)] * 3
        assert await store.verify() == []


async def test_a_script_that_somebody_kills_is_to_be_repeated() -> None:
    """SCRIPT KILL ends only what has written nothing yet."""
    with private() as server:
        endless = Scripts("local now = 0 while true do now = now + 1 end")
        stuck = Server(Address(server.url, None), "fsync", endless)
        async with wired(server.url) as wire:
            await wire.call("CONFIG", "SET", "busy-reply-threshold", 20)
            call = asyncio.create_task(stuck.read("over"))
            async with asyncio.timeout(30):
                while await wire.call("SCRIPT", "KILL") != b"OK":  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0.01)
            with pytest.raises(StoreUnavailable, match="killed"):
                await call
        await stuck.close()
