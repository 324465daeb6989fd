"""Cancelling what runs: known within a second; coroutines are cancelled, threads are told (SEMANTICS 7)."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from omniq import AsyncWorkerPool, Task, TaskStatus, context
from omniq.task import RunOutcome
from omniq.testing import VirtualClock
from tests.worker.scene import BOUND_S, Bodies, ended, omniq_threads, running, turns, until
from tests.worker.stores import AnyStore, Five, Memory, result_of, task_of


async def cancel_when_inside(store: AnyStore, task_id: str, inside: threading.Event) -> float:
    await until(inside.is_set)
    assert not isinstance(store, Five)
    assert await store.cancel(task_id) is TaskStatus.RUNNING
    return time.monotonic()


@pytest.mark.quiet
async def test_an_async_body_gets_cancelled_within_a_second(builtin: AnyStore, bodies: Bodies) -> None:
    inside, ends = threading.Event(), list[float]()

    async def body() -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append(time.monotonic())
            raise

    async with builtin as store, running(store) as pool:
        task_id = await store.enqueue(Task(bodies(body), max_retries=5))
        asked = await cancel_when_inside(store, task_id, inside)
        result = await ended(store, task_id)
        history = await store.history(task_id)
        assert pool.running
    assert result.status is TaskStatus.CANCELLED
    assert ends[0] - asked < 1.0
    assert [run.outcome for run in history] == [RunOutcome.CANCELLED]


async def test_at_the_next_look_of_the_upkeep(bodies: Bodies) -> None:
    """In virtual time: at most half a second later, with a lease of minutes."""
    clock = VirtualClock()
    store = Memory(clock=clock)

    async def body() -> None:
        await asyncio.Event().wait()

    async with store, running(store, lease=600, clock=clock):
        task_id = await store.enqueue(Task(bodies(body)))
        await clock.advance(3.1)
        await store.cancel(task_id)
        await clock.advance(0.5)
        result = await result_of(store, task_id)
    assert result is not None
    assert result.status is TaskStatus.CANCELLED


@pytest.mark.quiet
async def test_a_thread_is_told_within_a_second(builtin: AnyStore, bodies: Bodies) -> None:
    inside, told = threading.Event(), list[float]()

    def body() -> None:
        inside.set()
        ctx = context()
        end = time.monotonic() + 5
        while not ctx.cancelled:
            assert time.monotonic() < end, "never told"
            threading.Event().wait(0.002)
        told.append(time.monotonic())
        raise RuntimeError("stopped half-way")

    async with builtin as store, running(store):
        task_id = await store.enqueue(Task(bodies(body)))
        asked = await cancel_when_inside(store, task_id, inside)
        result = await ended(store, task_id)
    assert result.status is TaskStatus.CANCELLED
    assert told[0] - asked < 1.0


async def test_a_thread_that_finishes_anyway_has_succeeded(builtin: AnyStore, bodies: Bodies) -> None:
    """T4: a cancel request changes nothing for what was done."""
    inside, told = threading.Event(), threading.Event()

    def body() -> str:
        inside.set()
        ctx = context()
        end = time.monotonic() + 5
        while not ctx.cancelled and time.monotonic() < end:
            threading.Event().wait(0.002)
        told.set()
        return "done anyway"

    async with builtin as store, running(store):
        task_id = await store.enqueue(Task(bodies(body)))
        await cancel_when_inside(store, task_id, inside)
        result = await ended(store, task_id)
    assert told.is_set()
    assert (result.status, result.result) == (TaskStatus.SUCCESS, "done anyway")


async def test_cancelling_ends_an_interval_task(builtin: AnyStore, bodies: Bodies) -> None:
    """T12: a success of an interval task while a cancel is asked for does not run again."""
    inside = threading.Event()

    async def body() -> str:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "swallowed"
        return "never"

    async with builtin as store, running(store):
        task_id = await store.enqueue(Task(bodies(body), interval=1000))
        await cancel_when_inside(store, task_id, inside)
        assert (await ended(store, task_id)).status is TaskStatus.CANCELLED


async def test_a_waiting_task_never_starts(builtin: AnyStore, bodies: Bodies) -> None:
    ran: list[int] = []
    gate = asyncio.Event()

    async def body(n: int) -> None:
        ran.append(n)
        await gate.wait()

    async with builtin as store, running(store, 1):
        first = await store.enqueue(Task(bodies(body), (1,)))
        await until(lambda: ran)
        second = await store.enqueue(Task(bodies(body), (2,)))
        assert not isinstance(store, Five)
        assert await store.cancel(second) is TaskStatus.CANCELLED
        gate.set()
        await ended(store, first)
        await turns()
    assert ran == [1]


async def test_neighbours_go_on(builtin: AnyStore, bodies: Bodies) -> None:
    gate, inside = asyncio.Event(), threading.Event()

    async def body() -> str:
        inside.set()
        await gate.wait()
        return "untouched"

    async with builtin as store, running(store, 3):
        ids = [await store.enqueue(Task(bodies(body))) for _ in range(3)]
        await until(lambda: len(store.log.ids("claimed")) == 3)
        await cancel_when_inside(store, ids[1], inside)
        assert (await ended(store, ids[1])).status is TaskStatus.CANCELLED
        gate.set()
        results = [(await ended(store, ids[n])).result for n in (0, 2)]
    assert results == ["untouched"] * 2


# --- the very moment of the start ----------------------------------------------------------------


class Answering(Memory):
    """Says when the answer of a claim is about to be handed to the worker."""

    claimed: asyncio.Event

    async def exchange(self, settlements: Any, claim: Any = None) -> Any:
        answers, claims = await super().exchange(settlements, claim)
        if claims:
            self.claimed.set()
        return answers, claims


@pytest.mark.parametrize("kind", ["async", "awaitable from a thread"])
async def test_cancelled_before_its_first_step(bodies: Bodies, kind: str) -> None:
    """A body that is cancelled in the turn in which it was started never runs, and still ends.

    So does what a thread makes for the loop, when it was stopped in the meantime.
    """
    started: list[int] = []

    async def abody() -> None:
        started.append(1)
        await asyncio.Event().wait()

    def body() -> Any:
        inside.set()
        go.wait(BOUND_S)
        return abody()

    inside, go = threading.Event(), threading.Event()
    clock = VirtualClock()
    async with Answering(clock=clock) as store:
        store.claimed = asyncio.Event()
        task_id = await store.enqueue(Task(bodies(abody if kind == "async" else body)))
        pool = AsyncWorkerPool(store, clock=clock)
        await pool.start()
        await store.claimed.wait()  # we run before the body's first step does
        if kind != "async":
            await until(inside.is_set)
        async with asyncio.timeout(5):  # real seconds; the grace of the stop is virtual, and stands still
            await pool.stop(cancel_in_flight=True)
        task = await task_of(store, task_id)
        if kind != "async":  # its thread goes on; what it made is closed when it arrives
            go.set()
            await until(lambda: not [t for t in omniq_threads() if t.name == "omniq-0"])
            await turns()
    assert started == []
    assert (task.status, task.attempts, task.owner) == (TaskStatus.PENDING, 0, None)
