"""Leases: renewed while a body runs or blocks the loop, lost when it must be (F2, F3, F15, SEMANTICS 3)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from omniq import AsyncWorkerPool, Task, TaskStatus
from omniq.testing import VirtualClock
from tests.worker.scene import Bodies, ended, running, turns, until
from tests.worker.stores import AnyStore, Five, Memory, result_of, task_of


async def test_a_long_task_runs_once(bodies: Bodies) -> None:
    """F2: ten leases long, three other workers idle beside it: one run, one epoch."""
    clock, gate = VirtualClock(), asyncio.Event()
    runs: list[int] = []

    async def body() -> str:
        runs.append(1)
        await gate.wait()
        return "done"

    async with Memory(clock=clock) as store:
        pools = [AsyncWorkerPool(store, lease=1, poll_interval=0.5, clock=clock) for _ in range(4)]
        for pool in pools:
            await pool.start()
        task_id = await store.enqueue(Task(bodies(body)))
        await clock.advance(10)
        gate.set()
        await clock.advance(1)
        task = await task_of(store, task_id)
        for pool in pools:
            await pool.stop()
    assert len(runs) == 1
    assert (task.status, task.epoch, task.losses) == (TaskStatus.SUCCESS, 1, 0)


async def test_a_long_task_runs_once_in_real_time(builtin: AnyStore, bodies: Bodies) -> None:
    """F2, with a short lease and a clock that nobody moves."""
    runs: list[int] = []

    async def body() -> None:
        runs.append(1)
        await asyncio.sleep(1.6)  # the length of the task is what is tested

    async with (
        builtin as store,
        running(store, lease=0.6, poll_interval=0.1),
        running(store.clone(), lease=0.6, poll_interval=0.1),
    ):
        task_id = await store.enqueue(Task(bodies(body)))
        await ended(store, task_id)
        task = await task_of(store, task_id)
    assert len(runs) == 1
    assert (task.epoch, task.losses) == (1, 0)


async def test_a_body_that_blocks_the_loop_keeps_its_lease(builtin: AnyStore, bodies: Bodies) -> None:
    """F15: the loop stands still for three leases; a thread renews for it and for its neighbour."""
    gate = asyncio.Event()
    runs: list[str] = []

    async def blocks() -> str:
        runs.append("blocks")
        time.sleep(1.8)
        gate.set()
        return "blocked"

    async def waits() -> str:
        runs.append("waits")
        await gate.wait()
        return "waited"

    # A second worker on a loop of its own would take whatever lapses.
    async with builtin as store, Elsewhere(store), running(store, 2, lease=0.6, poll_interval=0.1):
        ids = [await store.enqueue(Task(bodies(f), queue="here")) for f in (waits, blocks)]
        assert [(await ended(store, i)).result for i in ids] == ["waited", "blocked"]
        tasks = [await task_of(store, i) for i in ids]
    assert sorted(runs) == ["blocks", "waits"]
    assert [(t.epoch, t.losses) for t in tasks] == [(1, 0), (1, 0)]


class Elsewhere:
    """A worker in another thread, that serves another queue and lapses whatever is over."""

    def __init__(self, store: AnyStore) -> None:
        from omniq import WorkerPool

        self._pool = WorkerPool(store, queues=["elsewhere"], lease=0.6, poll_interval=0.1)

    async def __aenter__(self) -> None:
        await asyncio.to_thread(self._pool.start)

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self._pool.stop)


class AnswersLate(Memory):
    """Once, the answer of a claim reaches the loop only after `blocks` has blocked it for a while."""

    armed = False
    asked: asyncio.Event

    async def exchange(self, settlements: Any, claim: Any = None) -> Any:
        answers, claims = await super().exchange(settlements, claim)
        if claims and self.armed:
            self.armed = False
            self.asked.set()
            await turns(5)  # long enough for the waiting body to block the loop, with the answer on its way
        return answers, claims


async def test_an_answer_on_its_way_is_no_stranger(bodies: Bodies) -> None:
    """F15: a claim whose answer waits for a blocked loop is not given back: its task runs once."""
    runs: list[str] = []

    async def blocks() -> None:
        store.armed = True
        await store.enqueue(Task(bodies(quick), id="quick"))
        await store.asked.wait()
        time.sleep(1.2)  # six renewals

    async def quick() -> None:
        runs.append("quick")
        await asyncio.sleep(0.3)

    async with AnswersLate() as store:
        store.asked = asyncio.Event()
        async with running(store, 2, lease=0.6, poll_interval=0.05) as pool:
            await store.enqueue(Task(bodies(blocks), id="blocks"))
            await ended(store, "blocks")
            await ended(store, "quick")
            assert pool.stale_reports == 0
        task = await task_of(store, "quick")
    assert runs == ["quick"]
    assert (task.status, task.epoch) == (TaskStatus.SUCCESS, 1)


async def test_what_somebody_else_closed_is_dropped(builtin: AnyStore, bodies: Bodies) -> None:
    """F3: told at the next look that the run is no longer its own, a worker cancels the body."""
    ends: list[str] = []
    runs: list[int] = []

    async def body() -> str:
        runs.append(1)
        if len(runs) > 1:
            return "second run"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("dropped")
            raise
        return "never"

    async with builtin as store, running(store, 1, poll_interval=0.02) as pool:
        assert not isinstance(store, Five)
        task_id = await store.enqueue(Task(bodies(body)))
        await until(lambda: runs)
        await store.release(pool.id)  # somebody took this worker for dead
        assert (await ended(store, task_id)).result == "second run"
        task = await task_of(store, task_id)
        assert pool.stale_reports == 0
    assert ends == ["dropped"]
    assert (task.epoch, task.losses) == (2, 1)


async def test_a_dead_workers_tasks_are_taken_over(builtin: AnyStore) -> None:
    """F7: by any worker, whatever queues it serves."""
    async with builtin as store:
        assert not isinstance(store, Five)
        task_id = await store.enqueue(Task("json.dumps", (1,), queue="orphaned"))
        [_] = await store.claim("a-worker-that-died", None, 1, 0.2)
        async with running(store, queues=["other"], lease=1, poll_interval=0.1):
            await until(lambda: is_pending(store, task_id))
        task = await task_of(store, task_id)
    assert (task.losses, task.attempts) == (1, 0)


async def is_pending(store: AnyStore, task_id: str) -> bool:
    return (await task_of(store, task_id)).status is TaskStatus.PENDING


async def test_strangers_are_given_back(bodies: Bodies) -> None:
    """What the store thinks this worker holds, and it does not know of, goes back with nothing spent."""
    clock, gate = VirtualClock(), asyncio.Event()

    async def body() -> None:
        await gate.wait()

    async with (
        Memory(clock=clock) as store,
        running(store, 1, lease=30, poll_interval=5, clock=clock) as pool,
    ):
        mine = await store.enqueue(Task(bodies(body), queue="a"))
        await clock.advance(1)
        stranger = await store.enqueue(Task("json.dumps", (1,), queue="b"))
        await store.claim(pool.id, ["b"])  # its answer never came
        await clock.advance(25)
        task = await task_of(store, stranger)
        assert (task.status, task.attempts, task.losses) == (TaskStatus.PENDING, 0, 0)
        assert (await task_of(store, mine)).status is TaskStatus.RUNNING
        gate.set()
        await clock.advance(6)
        assert await result_of(store, mine) is not None


async def test_workers_of_one_name_are_not_one_worker(builtin: AnyStore) -> None:
    """F12: the identity carries a random boot id; a stop of one releases nothing of the other."""
    async with builtin as store:
        assert not isinstance(store, Five)
        one, two = (AsyncWorkerPool(store, name="mail", poll_interval=0.05) for _ in range(2))
        await one.start()
        await two.start()
        assert one.id != two.id
        assert one.id.startswith("mail@")
        await until(lambda: beating(store, {one.id, two.id}))
        await one.stop()
        assert {worker.id for worker in await store.workers()} == {two.id}
        await two.stop()


async def beating(store: AnyStore, ids: set[str]) -> bool:
    return {worker.id for worker in await store.workers()} == ids
