"""The rules of the locking model under random schedules.

A schedule is a list of things that happen: calls come and are cancelled, children become ready, finish, die,
say goodbye; somebody else holds a lock for a while; limits change. Locks and workers notice a broken rule.
At the end everybody lets go, children do their work, and every call must have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omniq.errors import CallCancelled, PoolClosed, WorkerDied
from omniq.pool import PoolWorker, WorkerData
from omniq.pool import calls as wired
from omniq.pool.calls import Returned
from omniq.testing.clock import VirtualClock
from tests.pool.scripted import (
    GUARDED,
    GuardedWorker,
    RecordingLock,
    Rules,
    ScriptedChild,
    ScriptedPool,
    Somebody,
    scripted,
    turns,
)

pytestmark = pytest.mark.bound(15)  # for each schedule

MAX_WORKERS = 4
MAX_ROUNDS = 400


class Schedule:
    """A pool, what happens to it, and what was asked of it."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.pool = ScriptedPool(2, MAX_WORKERS, clock=clock, scaledown_wait=1.0, grace=1.0)
        self.calls: list[asyncio.Task[Any]] = []
        self.holders: list[Somebody] = []

    # --- things that happen; `n` chooses among what there is ---

    async def submit(self, n: int) -> None:
        options = self.pool.options(retries=n % 3, timeout=5.0 if n % 5 == 0 else None)
        self.calls.append(asyncio.ensure_future(options.submit(abs, n)))

    async def map_range(self, n: int) -> None:
        async def consume() -> list[Any]:
            options = self.pool.options(retries=n % 3)
            return [value async for value in options.map(abs, range(5), chunksize=1 + n % 3)]

        self.calls.append(asyncio.ensure_future(consume()))

    async def cancel_waiter(self, n: int) -> None:
        if self.calls:
            self.calls[n % len(self.calls)].cancel()

    async def become_ready(self, n: int) -> None:
        self._child(n, lambda child: child.become_ready())

    async def finish(self, n: int) -> None:
        self._child(n, lambda child: child.finish(n))

    async def report_one(self, n: int) -> None:
        def report(child: ScriptedChild) -> None:
            if child.message is not None and child.reported < child.message.calls[0].count - 1:
                child.report(ANSWER)

        self._child(n, report)

    async def die(self, n: int) -> None:
        self._child(n, lambda child: child.die())

    async def say_goodbye(self, n: int) -> None:
        self._child(n, lambda child: child.say_goodbye())

    async def hold_worker(self, n: int) -> None:
        workers = list(self.pool.workers.workers.values())
        if workers:
            self.holders.append(Somebody(workers[n % len(workers)].lock))

    async def hold_registry(self, n: int) -> None:
        self.holders.append(Somebody(self.pool.workers.management_lock))

    async def let_go(self, n: int) -> None:
        if self.holders:
            self.holders.pop(n % len(self.holders)).let_go()

    async def set_limits(self, n: int) -> None:
        self.pool.set_limits(min_workers=n % 3, max_workers=max(1, n % 3, n % (MAX_WORKERS + 1)))

    async def wear_out(self, n: int) -> None:
        self.pool.set_limits(max_tasks_per_worker=1 + n % 3, worker_lifetime=1 + n)

    async def cancel_some(self, n: int) -> None:
        state = (None, "waiting", "running")[n % 3]
        self.calls.append(asyncio.ensure_future(self.pool.cancel(state=state)))  # type: ignore[arg-type]

    async def drain(self, n: int) -> None:
        self.calls.append(asyncio.ensure_future(self.pool.drain()))

    async def shut_down(self, n: int) -> None:
        """Only now and then, or little else would happen."""
        if n == 0:
            self.calls.append(asyncio.ensure_future(self.pool.shutdown(cancel=len(self.calls) % 2 == 0)))

    async def pass_time(self, n: int) -> None:
        await self.clock.advance(n / 3)

    async def ask_status(self, n: int) -> None:
        self.calls.append(asyncio.ensure_future(self.pool.workers.busy_count()))
        self.calls.append(asyncio.ensure_future(self.pool.workers.all_idle()))
        assert self.pool.status().workers is not None

    async def turn(self, n: int) -> None:
        await turns(n)

    def _child(self, n: int, act: Callable[[ScriptedChild], object]) -> None:
        living = [child for child in self.pool.children if not child.gone]
        if living:
            act(living[n % len(living)])

    # --- the end ---

    async def end(self) -> None:
        """Everybody lets go and does what is to be done: then every call ends."""
        for holder in self.holders:
            holder.let_go()
        self.pool.set_limits(min_workers=1, max_workers=MAX_WORKERS, max_tasks_per_worker=1000)
        for _ in range(MAX_ROUNDS):
            await turns()
            for child in self.pool.children:
                if not child.gone:
                    child.become_ready()
                    child.finish()
                    child.say_goodbye()
            await self.clock.advance(0.1)
            if all(call.done() for call in self.calls) and not self.pool.calls():
                break  # also what was ahead of a map that ended early
        assert all(call.done() for call in self.calls), f"a wake-up was lost: {self.pool.status()}"
        for call in self.calls:
            if not call.cancelled() and (exc := call.exception()) is not None:
                assert isinstance(exc, WorkerDied | CallCancelled | TimeoutError | PoolClosed), exc
        assert self.pool.calls() == []
        assert await self.pool.workers.busy_count() == 0
        await self._no_lost_turn()
        await self.pool.ended()

    async def _no_lost_turn(self) -> None:
        """Who is ready and idle stands in line, once."""
        await turns()
        queue = list(self.pool.workers.ready_queue)
        assert len(queue) == len(set(queue))
        for worker in (await self.pool.workers.snapshot()).values():
            async with worker.lock:
                if worker.is_idle:
                    assert worker.id in queue, f"worker {worker.id} waits for work, but has no turn"


ANSWER = Returned(1)
STEPS = sorted(name for name in vars(Schedule) if not name.startswith("_") and name != "end")
# A call is worth more than one of each thing that can happen to it.
LIKELY = [*STEPS, "submit", "submit", "become_ready", "become_ready", "finish", "finish", "turn", "turn"]
schedules = st.lists(st.tuples(st.sampled_from(LIKELY), st.integers(0, 11)), max_size=60)


@settings(max_examples=150)
@given(schedules)
@example([("submit", 1), ("become_ready", 0), ("hold_worker", 0), ("turn", 9), ("submit", 1), ("finish", 0)])
@example([("become_ready", 0), ("hold_worker", 0), ("turn", 9), ("submit", 1), ("turn", 9), ("die", 0)])
@example(
    [("become_ready", 0), ("become_ready", 1), ("submit", 1), ("turn", 9), ("set_limits", 1), ("turn", 9)]
)
async def test_no_schedule_breaks_a_rule(schedule: list[tuple[str, int]]) -> None:
    happening = Schedule(VirtualClock())
    await happening.pool.start()
    for name, n in schedule:
        await getattr(happening, name)(n)
    await happening.end()
    assert happening.pool.rules.broken == []


# --- reservations, alone -------------------------------------------------------------------------

ready_or_not = st.lists(
    st.sampled_from(["ready", "ready", "busy", "stopping", "error", "removed"]), max_size=8
)


@settings(max_examples=100)
@given(ready_or_not, st.integers(0, 10), st.lists(st.integers(0, 7), max_size=4), st.integers(0, 3))
async def test_k_callers_and_m_ready_workers_give_min_k_m_distinct_ones(
    states: list[str], callers: int, held: list[int], cancelled: int
) -> None:
    """Some workers are held by somebody else for a while, and some callers give up."""
    rules, workers = Rules(), WorkerData()
    workers.management_lock = RecordingLock("the registry lock", rules)
    for worker_id, state in enumerate(states):
        await _added(workers, GuardedWorker.made(worker_id, rules, VirtualClock()), state)
    holders = [Somebody(worker.lock) for worker_id, worker in workers.workers.items() if worker_id in held]
    await turns()
    reserving = [asyncio.ensure_future(workers.reserve_ready_worker(n)) for n in range(callers)]
    await turns()
    for task in reserving[:cancelled]:
        task.cancel()
    for holder in holders:
        holder.let_go()
    got = await asyncio.gather(*reserving, return_exceptions=True)
    await turns()
    ids = [worker.id for worker in got if isinstance(worker, PoolWorker)]
    gave_up = sum(isinstance(one, asyncio.CancelledError) for one in got)
    ready = states.count("ready")
    assert len(ids) == len(set(ids))
    # A turn that a caller gave up while it waited for the lock may come back too late for the others.
    assert min(callers, ready) - gave_up <= len(ids) <= min(callers, ready)
    assert sorted([*ids, *(one for one in workers.ready_queue if states[one] == "ready")]) == [
        worker_id for worker_id, state in enumerate(states) if state == "ready"
    ]
    assert rules.broken == []


async def _added(workers: WorkerData, worker: PoolWorker, state: str) -> None:
    await workers.add(worker)
    async with worker.lock:
        worker.enter("ready")
        workers.line_up(worker)
        if state == "busy":
            worker.start_task("before")
        elif state in ("stopping", "error"):
            worker.enter(state)  # type: ignore[arg-type]
    if state == "removed":
        await workers.remove(worker.id)


# --- the recorder itself must be able to complain --------------------------------------------------


async def test_a_broken_rule_is_noticed() -> None:
    pool = await scripted(2)
    first, second = pool.workers.workers.values()
    async with first.lock, second.lock:
        pass
    async with first.lock, pool.workers.management_lock:
        pass
    assert first.status == "ready"
    second.calls_done = 5
    async with first.lock:
        pool.workers.ready_queue.append(first.id)
    pool.workers.ready_queue.append(second.id)
    pool.children[0].asked_to_stop = True
    pool.children[0].send(wired.Message(1, (pool.message(abs, 1).encoded,)))
    broken, pool.rules.broken = pool.rules.broken, []
    for words in (
        "the lock of worker 1 taken while holding the lock of worker 0",
        "the registry lock taken while holding the lock of worker 0",
        "status of worker 0 read without its lock",
        "calls_done of worker 1 written without its lock",
        "worker 0 stands in the ready queue twice",
        "worker 1 lined up without its lock",
        "child 1000 got a message after it was asked to stop",
    ):
        assert words in broken, words


def test_the_guard_knows_every_field_that_can_change() -> None:
    """A new field of a worker has to be put under guard, or be immutable."""
    fields = set(vars(PoolWorker(0)))
    assert fields - GUARDED == {"id", "lock", "created_at", "view", "_clock"}
