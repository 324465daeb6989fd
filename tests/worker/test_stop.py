"""Ending a pool: everything settled or given back, nothing RUNNING, nothing left over (SEMANTICS 7, F29)."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from omniq import AsyncWorkerPool, InvalidOption, PoolNotRunning, Task, TaskStatus
from omniq.storage import MemoryStorage
from omniq.task import RunOutcome
from omniq.testing import VirtualClock
from tests.worker.scene import Bodies, Logs, ended, omniq_threads, running, turns, until, until_blocking
from tests.worker.stores import (
    AnyStore,
    Five,
    Memory,
    Remote,
    RemoteMemory,
    SQLite,
    result_of,
    running_rows,
    statuses,
    task_of,
)


async def started(store: AnyStore, n: int = 1, **options: Any) -> AsyncWorkerPool:
    pool = AsyncWorkerPool(store, n, **{"poll_interval": 0.02, **options})
    await pool.start()
    return pool


# --- with a limit --------------------------------------------------------------------------------


async def test_no_running_row_is_left(builtin: AnyStore, bodies: Bodies) -> None:
    """Whatever the bodies do: async, sync, deaf. The rest of the queue waits as it did."""
    how: dict[str, Any] = {"timeout": 0} if isinstance(builtin, SQLite) else {"cancel_in_flight": True}
    released, inside = threading.Event(), list[int]()

    async def polite() -> None:
        inside.append(1)
        await asyncio.Event().wait()

    async def deaf() -> None:
        inside.append(1)
        while not released.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    def thread() -> None:
        inside.append(1)
        released.wait(20)

    async with builtin as store:
        assert not isinstance(store, Five)
        ids = [await store.enqueue(Task(bodies(f), max_retries=0)) for f in (polite, deaf, thread, thread)]
        pool = await started(store, 3)
        await until(lambda: len(inside) == 3)
        begun = time.monotonic()
        await pool.stop(**how)
        assert time.monotonic() - begun < 8
        assert await running_rows(store) == []
        tasks = [await task_of(store, task_id) for task_id in ids]
        assert statuses(tasks) == [TaskStatus.PENDING] * 4
        assert [(t.attempts, t.losses) for t in tasks] == [(0, 0)] * 4
        for task_id in ids[:3]:
            assert [run.outcome for run in await store.history(task_id)] == [RunOutcome.GIVEN_BACK]
        assert await store.workers() == []
        assert await store.verify() == []
        released.set()
        await asyncio.sleep(0.02)  # the deaf one notices; its late report must change nothing
        assert statuses([await task_of(store, i) for i in ids]) == [TaskStatus.PENDING] * 4


async def test_bodies_that_finish_in_time_are_settled(builtin: AnyStore, bodies: Bodies) -> None:
    gate = asyncio.Event()

    async def body() -> str:
        await gate.wait()
        return "in time"

    async with builtin as store:
        task_id = await store.enqueue(Task(bodies(body)))
        pool = await started(store)
        await until(lambda: store.log.ids("claimed"))
        stopping = asyncio.create_task(pool.stop(timeout=10))
        await turns()
        gate.set()
        await stopping
        result = await result_of(store, task_id)
    assert result is not None
    assert result.result == "in time"


async def test_a_body_may_tidy_up_when_cancelled(builtin: AnyStore, bodies: Bodies) -> None:
    tidied: list[str] = []

    async def body() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            tidied.append("done")

    async with builtin as store:
        task_id = await store.enqueue(Task(bodies(body)))
        pool = await started(store)
        await until(lambda: store.log.ids("claimed"))
        await turns()
        await pool.stop(timeout=0)
        assert (await task_of(store, task_id)).status is TaskStatus.PENDING
    assert tidied == ["done"]


async def test_a_deaf_body_costs_the_grace_and_no_more(bodies: Bodies, logs: Logs) -> None:
    """In virtual time: the timeout, the two seconds to notice, and it is over."""
    clock, released = VirtualClock(), asyncio.Event()

    async def deaf() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async with Memory(clock=clock) as store:
        task_id = await store.enqueue(Task(bodies(deaf)))
        pool = AsyncWorkerPool(store, clock=clock)
        await pool.start()
        await turns()
        stopping = asyncio.create_task(pool.stop(timeout=25))
        await clock.advance(24.9)
        assert (await task_of(store, task_id)).status is TaskStatus.RUNNING
        await clock.advance(2.2)
        await asyncio.wait_for(stopping, 5)
        task = await task_of(store, task_id)
        assert (task.status, task.attempts) == (TaskStatus.PENDING, 0)
        released.set()
        await turns()
        assert (await task_of(store, task_id)).status is TaskStatus.PENDING
    assert logs.levels_of("ignores cancellation") == {"ERROR"}


async def test_a_second_stop_is_more_urgent(builtin: AnyStore, bodies: Bodies) -> None:
    """As with a second SIGTERM: the first waits for bodies, the second gives back at once."""

    async def body() -> None:
        await asyncio.Event().wait()

    async with builtin as store:
        task_id = await store.enqueue(Task(bodies(body)))
        pool = await started(store)
        await until(lambda: store.log.ids("claimed"))
        patient = asyncio.create_task(pool.stop())
        await turns()
        assert not patient.done()
        await pool.stop(timeout=0)
        await asyncio.wait_for(patient, 5)
        assert (await task_of(store, task_id)).status is TaskStatus.PENDING


async def test_a_thread_that_goes_on_is_no_stuck_pool(builtin: AnyStore, bodies: Bodies) -> None:
    """A stop that ran out of time gives back and returns; `WorkerStuck` is about timeouts."""
    inside, released = threading.Event(), threading.Event()

    def body() -> None:
        inside.set()
        released.wait(20)

    async with builtin as store:
        task_id = await store.enqueue(Task(bodies(body)))
        pool = await started(store, 1)
        await until(inside.is_set)
        await pool.stop(timeout=0)
        assert (await task_of(store, task_id)).status is TaskStatus.PENDING
        released.set()


class Slow(Memory):
    """The answer of a claim stays on its way until the test lets it arrive."""

    claimed: asyncio.Event
    arrives: asyncio.Event

    async def exchange(self, settlements: Any, claim: Any = None) -> Any:
        answers, claims = await super().exchange(settlements, claim)
        if claims:
            self.claimed.set()
            await self.arrives.wait()
        return answers, claims


@pytest.mark.parametrize("how", [{"timeout": 0}, {"cancel_in_flight": True}, {}])
async def test_a_claim_that_arrives_after_the_stop_is_given_back(bodies: Bodies, how: dict[str, Any]) -> None:
    """F12: whoever is stopping begins nothing any more, and what it had asked for goes back unspent."""
    begun: list[int] = []

    async def body() -> None:
        begun.append(1)

    async with Slow() as store:
        store.claimed, store.arrives = asyncio.Event(), asyncio.Event()
        task_id = await store.enqueue(Task(bodies(body)))
        pool = await started(store)
        await store.claimed.wait()
        stopping = asyncio.create_task(pool.stop(**how))
        await turns()
        store.arrives.set()
        async with asyncio.timeout(1.5):  # nobody has to be waited for, let alone abandoned
            await stopping
        task = await task_of(store, task_id)
    assert begun == []
    assert (task.status, task.attempts, task.losses) == (TaskStatus.PENDING, 0, 0)


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan")])
async def test_a_bad_timeout_is_refused_and_the_pool_goes_on(timeout: Any) -> None:
    async with Memory() as store, running(store) as pool:
        with pytest.raises(InvalidOption, match="timeout"):
            await pool.stop(timeout=timeout)
        assert pool.running


# --- without a limit -----------------------------------------------------------------------------


async def test_leases_are_renewed_while_stopping(bodies: Bodies) -> None:
    clock, gate = VirtualClock(), asyncio.Event()

    async def body() -> str:
        await gate.wait()
        return "finished"

    async with Memory(clock=clock) as store:
        task_id = await store.enqueue(Task(bodies(body)))
        pool = AsyncWorkerPool(store, lease=3, clock=clock)
        await pool.start()
        await turns()
        stopping = asyncio.create_task(pool.stop())
        for _ in range(20):
            await clock.advance(1)
            assert await store.lapse() == 0
        gate.set()
        await stopping
        task = await task_of(store, task_id)
    assert (task.status, task.epoch, task.losses) == (TaskStatus.SUCCESS, 1, 0)


async def test_a_cancelled_stop_leaves_the_bodies_alone(builtin: AnyStore, bodies: Bodies) -> None:
    """Whoever stops waiting for a stop has not ended anything: the bodies finish under their leases."""
    gate = asyncio.Event()

    async def body() -> str:
        await gate.wait()
        return "finished"

    async with builtin as store:
        task_id = await store.enqueue(Task(bodies(body)))
        pool = await started(store)
        await until(lambda: store.log.ids("claimed"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pool.stop()
        task = await task_of(store, task_id)
        assert task.status is TaskStatus.RUNNING
        assert task.owner is not None
        gate.set()
        await pool.stop()
        assert (await ended(store, task_id)).result == "finished"
        assert await running_rows(store) == []  # type: ignore[arg-type]


async def test_cancelling_run_stops_in_good_order(builtin: AnyStore, bodies: Bodies) -> None:
    gate = asyncio.Event()

    async def body() -> str:
        await gate.wait()
        return "finished"

    async with builtin as store:
        task_id = await store.enqueue(Task(bodies(body)))
        pool = AsyncWorkerPool(store)
        life = asyncio.create_task(pool.run())
        await until(lambda: store.log.ids("claimed"))
        life.cancel()
        await turns()
        assert not pool.running
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await life
        assert (await ended(store, task_id)).result == "finished"


class BreaksLater(Memory):
    """A store whose engine gets a bug in the middle of things."""

    broken = False

    async def exchange(self, settlements: Any, claim: Any = None) -> Any:
        if self.broken:
            raise ZeroDivisionError("a bug in the engine")
        return await super().exchange(settlements, claim)


async def test_bodies_of_a_broken_engine_are_cancelled(bodies: Bodies) -> None:
    """C20: the bug surfaces, and what was in flight goes back only after it was told to end."""
    ends: list[TaskStatus] = []

    async def body() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append((await task_of(store, "t")).status)

    async with BreaksLater() as store:
        await store.enqueue(Task(bodies(body), id="t"))
        pool = await started(store, 2, poll_interval=0.01)
        await until(lambda: store.log.ids("claimed"))
        store.broken = True
        with pytest.raises(ZeroDivisionError):
            await pool.wait()
        store.broken = False
        with pytest.raises(ZeroDivisionError):
            await pool.stop()
        assert ends == [TaskStatus.RUNNING]
        task = await task_of(store, "t")
        assert (task.status, task.attempts) == (TaskStatus.PENDING, 0)


# --- while the store is away ---------------------------------------------------------------------


async def test_an_idle_pool_stops_at_once_during_an_outage() -> None:
    clock = VirtualClock()
    store = RemoteMemory(clock=clock)
    async with store:
        pool = AsyncWorkerPool(store, clock=clock)
        await pool.start()
        await turns()
        store.line.away = True
        await clock.advance(60)  # by now the pauses are long
        await asyncio.wait_for(pool.stop(), 5)  # no time passes


async def test_a_stop_with_a_limit_ends_although_the_store_is_away(bodies: Bodies, logs: Logs) -> None:
    """F29: the exit is bounded; what could not be told is left to the lease."""
    clock = VirtualClock()
    store = RemoteMemory(clock=clock)

    async def body() -> None:
        await asyncio.Event().wait()

    async with store:
        task_id = await store.enqueue(Task(bodies(body)))
        pool = AsyncWorkerPool(store, lease=30, clock=clock)
        await pool.start()
        await clock.advance(1)
        store.line.away = True
        await clock.advance(5)
        stopping = asyncio.create_task(pool.stop(timeout=1))
        await clock.advance(1 + 2 + 5 + 2)
        assert stopping.done()
        await stopping
        store.line.away = False
        assert (await task_of(store, task_id)).status is TaskStatus.RUNNING
        await clock.advance(31)
        await store.lapse()
        task = await task_of(store, task_id)
    assert (task.status, task.losses) == (TaskStatus.PENDING, 1)
    assert logs.levels_of("reports are lost") == {"ERROR"}


async def test_a_stop_waits_for_a_store_that_comes_back(remote: Remote, bodies: Bodies) -> None:
    gate = asyncio.Event()

    async def body() -> str:
        await gate.wait()
        return "told in the end"

    async with remote as store:
        task_id = await store.enqueue(Task(bodies(body)))
        pool = AsyncWorkerPool(store, poll_interval=0.02)
        await pool.start()
        await until(lambda: store.log.ids("claimed"))
        store.line.away = True
        gate.set()
        refused = store.line.refused
        stopping = asyncio.create_task(pool.stop())
        await until(lambda: store.line.refused > refused + 2)
        assert not stopping.done()
        store.line.away = False
        await stopping
        assert (await ended(store, task_id)).result == "told in the end"


async def test_a_claim_whose_answer_was_lost_is_given_back(remote: Remote) -> None:
    """Stopped before the claim could be repeated: what the store handed out comes back unspent."""
    async with remote as store:
        pool = AsyncWorkerPool(store, poll_interval=0.01)
        await pool.start()
        await until(lambda: store.log.looks)
        store.line.lost_answers = 10**6
        task = Task("json.dumps", (1,), id="t")
        twin = store.clone()
        async with twin:
            twin.line = type(store.line)()
            await twin.enqueue(task)
            await until(lambda: owned(twin))
            stopping = asyncio.create_task(pool.stop())
            await turns()
            store.line.lost_answers = 0
            await stopping
            left = await task_of(twin, "t")
            assert (left.status, left.attempts, left.losses) == (TaskStatus.PENDING, 0, 0)
            assert await running_rows(twin) == []


async def owned(store: Remote) -> bool:
    return (await task_of(store, "t")).owner is not None


# --- what is left behind -------------------------------------------------------------------------


async def test_no_thread_is_left(builtin: AnyStore, bodies: Bodies) -> None:
    def body() -> None: ...

    before = omniq_threads()
    async with builtin as store, running(store, 4, poll_interval=0.02):
        for task_id in [await store.enqueue(Task(bodies(body))) for _ in range(8)]:
            await ended(store, task_id)
        assert len(omniq_threads()) > len(before)
    await until(lambda: omniq_threads() <= before)


@pytest.mark.parametrize("opened", [True, False])
async def test_closes_a_storage_only_if_it_opened_it(builtin: AnyStore, opened: bool) -> None:
    assert not isinstance(builtin, Five)
    if opened:
        await builtin.open()
    async with running(builtin):
        assert builtin.is_open
    assert builtin.is_open == opened
    await builtin.close()


async def test_the_last_of_several_pools_closes_what_the_first_has_opened(builtin: AnyStore) -> None:
    """Whoever opened it, nobody closes it under another; and it does not stay open behind them all."""
    assert not isinstance(builtin, Five)
    pools = [AsyncWorkerPool(builtin, poll_interval=0.02) for _ in range(3)]
    await asyncio.gather(*(pool.start() for pool in pools))
    for pool in pools:
        assert builtin.is_open
        await pool.stop()
    assert not builtin.is_open
    await builtin.open()  # now it is ours
    async with running(builtin), running(builtin):
        pass
    assert builtin.is_open
    await builtin.close()


async def test_starts_again_after_a_stop(store: AnyStore, bodies: Bodies) -> None:
    async def body(n: int) -> int:
        return n

    async with store:
        pool = AsyncWorkerPool(store, poll_interval=0.02)
        names = set()
        for n in range(3):
            await pool.start()
            names.add(pool.id)
            assert (await ended(store, await store.enqueue(Task(bodies(body), (n,))))).result == n
            await pool.stop()
        assert len(names) == 3, "a worker started again is another worker"


async def test_starting_twice_at_once_makes_one_pool(builtin: AnyStore, logs: Logs) -> None:
    before = omniq_threads()
    pool = AsyncWorkerPool(builtin, poll_interval=0.02)
    await asyncio.gather(pool.start(), pool.start(), pool.start())
    try:
        assert pool.running
        assert len([t for t in omniq_threads() - before if t.name == "omniq-upkeep"]) == 1
    finally:
        await pool.stop()
    assert len([line for line in logs.lines() if line.startswith("worker started")]) == 1
    await until(lambda: omniq_threads() <= before)


async def test_stop_before_start_and_twice(store: AnyStore) -> None:
    pool = AsyncWorkerPool(store)
    await pool.stop()
    await pool.start()
    await asyncio.gather(pool.stop(), pool.stop())
    await pool.stop()
    assert not pool.running


async def test_wait_needs_a_started_pool() -> None:
    with pytest.raises(PoolNotRunning, match="start"):
        await AsyncWorkerPool(MemoryStorage()).wait()


async def test_a_failed_start_can_be_repeated() -> None:
    class Late(Five):
        tries = 0

        async def open(self) -> None:
            self.tries += 1
            if self.tries == 1:
                raise OSError("not yet")

    late = Late()
    pool = AsyncWorkerPool(late)
    with pytest.raises(OSError, match="not yet"):
        await pool.start()
    assert not pool.running
    await pool.start()
    assert pool.running
    await pool.stop()


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_stop_during_a_start_stops_what_is_started(bodies: Bodies, how: str) -> None:
    """S000-23: after `stop()` nothing is claimed any more, whenever it came."""

    class Slow(Memory):
        opening, may_open = asyncio.Event(), asyncio.Event()

        async def open(self) -> None:
            self.opening.set()
            await self.may_open.wait()
            await super().open()

    store = Slow()
    pool = AsyncWorkerPool(store, poll_interval=0.02)
    starting = asyncio.create_task(pool.start())
    await store.opening.wait()
    if how == "before":  # whoever starts a second time may rely on it that the pool runs
        again = asyncio.create_task(pool.start())
        await turns()
        assert not again.done()
    stopping = asyncio.create_task(pool.stop())
    await turns()
    store.may_open.set()
    await asyncio.gather(starting, stopping)
    assert not pool.running
    assert not store.is_open
    if how == "before":
        await again


async def test_a_cancelled_start_closes_what_it_opened(builtin: AnyStore) -> None:
    """And is not left among the living, though its first beat was stored."""
    assert not isinstance(builtin, Five)
    entered, beat = asyncio.Event(), builtin.beat

    async def beat_and_hang(info: Any) -> None:
        await beat(info)
        entered.set()
        await asyncio.Event().wait()

    builtin.beat = beat_and_hang  # type: ignore[method-assign]
    pool = AsyncWorkerPool(builtin)
    starting = asyncio.create_task(pool.start())
    await entered.wait()
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting
    assert not builtin.is_open
    async with builtin.clone() as twin:
        assert await twin.workers() == []


def test_starts_again_when_its_loop_was_closed_without_a_stop(builtin: AnyStore) -> None:
    """The second start must not take the dead one for a running worker."""
    pool = AsyncWorkerPool(builtin, poll_interval=0.02)
    asyncio.run(pool.start())

    async def second() -> None:
        await pool.start()
        assert pool.running
        async with builtin.clone() as twin:
            task_id = await twin.enqueue(Task("json.dumps", (7,)))
            assert (await ended(twin, task_id)).result == "7"
        await pool.stop()
        assert not builtin.is_open

    asyncio.run(second())


def test_stops_quietly_when_its_loop_was_closed_already(builtin: AnyStore) -> None:
    before = omniq_threads()
    pool = AsyncWorkerPool(builtin, poll_interval=0.02)
    asyncio.run(pool.start())
    asyncio.run(pool.stop())
    assert not pool.running
    until_blocking(lambda: omniq_threads() <= before)


async def test_a_body_that_would_wait_for_itself_is_told(builtin: AnyStore, bodies: Bodies) -> None:
    pool = AsyncWorkerPool(builtin, poll_interval=0.02)

    async def body() -> None:
        await pool.stop()

    path = bodies(body)
    async with builtin:
        await pool.start()
        task_id = await builtin.enqueue(Task(path, max_retries=0))
        error = (await ended(builtin, task_id)).error
        assert error is not None
        assert "stop(timeout=" in error.message
        assert pool.running
        await pool.stop()


async def test_a_body_may_let_somebody_else_stop_its_worker(builtin: AnyStore, bodies: Bodies) -> None:
    pool = AsyncWorkerPool(builtin, poll_interval=0.02)
    stopping: list[asyncio.Task[None]] = []

    async def body() -> str:
        stopping.append(asyncio.create_task(pool.stop()))
        return "told"

    path = bodies(body)
    async with builtin:
        await pool.start()
        task_id = await builtin.enqueue(Task(path))
        assert (await ended(builtin, task_id)).result == "told"
        await stopping[0]
        assert not pool.running


@pytest.mark.parametrize("verb", ["dequeue", "mark_done"])
async def test_a_stop_with_a_limit_ends_although_the_store_never_answers(bodies: Bodies, verb: str) -> None:
    """SEMANTICS 7: with a timeout it returns, even where a call to somebody else's store hangs."""
    clock, hangs = VirtualClock(), asyncio.Event()

    class Hanging(Five):
        async def dequeue(self, now: Any = None) -> Task | None:
            if verb == "dequeue":
                hangs.set()
                await asyncio.Event().wait()
            return await super().dequeue(now)

        async def mark_done(self, task_id: str, result: Any) -> None:
            hangs.set()
            await asyncio.Event().wait()

    async def body() -> None: ...

    store = Hanging()
    await store.enqueue(Task(bodies(body)))
    pool = AsyncWorkerPool(store, poll_interval=0.02, clock=clock)
    await pool.start()
    await hangs.wait()
    stopping = asyncio.create_task(pool.stop(timeout=1))
    for _ in range(30):
        await clock.advance(seconds=1)
    assert stopping.done()
    await stopping
    assert not pool.running
