"""Bodies that take too long: coroutines are cancelled, threads keep their slot (C23, F16, SEMANTICS 7)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from omniq import AsyncWorkerPool, Task, TaskStatus, WorkerPool, WorkerStuck, context
from omniq.testing import VirtualClock
from tests.worker.fixtures import Timed
from tests.worker.scene import Bodies, ended, running, turns, until
from tests.worker.stores import AnyStore, Memory, result_of, task_of


async def test_an_async_body_is_cancelled(store: AnyStore, bodies: Bodies) -> None:
    ends: list[str] = []

    async def body() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async with store, running(store, poll_interval=0.02):
        task_id = await store.enqueue(Task(bodies(body), timeout=0.05, max_retries=0))
        result = await ended(store, task_id)
    assert ends == ["cancelled"]
    assert result.status is TaskStatus.FAILED
    assert result.error is not None
    assert (result.error.type, result.error.kind) == ("TimeoutError", "timeout")
    assert "0.05" in result.error.message


async def test_exactly_when_the_time_is_up(timed: Timed, bodies: Bodies) -> None:
    """Not before the timeout, and at most the grain of a twentieth of a second after it."""
    store, clock = timed
    begun: list[float] = []
    over: list[float] = []

    async def body() -> None:
        begun.append(clock.monotonic())
        try:
            await asyncio.Event().wait()
        finally:
            over.append(clock.monotonic())

    async with store, running(store, 3, poll_interval=1, clock=clock):
        for timeout in (10, 5.5, 0.3):
            await store.enqueue(Task(bodies(body), timeout=timeout, max_retries=0))
        await clock.advance(13)
    took = sorted(end - begun[0] for end in over)
    for timeout, actual in zip((0.3, 5.5, 10), took, strict=True):
        assert timeout <= actual <= timeout + 1.101


async def test_a_timeout_is_retried(timed: Timed, bodies: Bodies) -> None:
    store, clock = timed
    runs: list[int] = []

    async def body() -> str:
        runs.append(1)
        if len(runs) < 3:
            await asyncio.Event().wait()
        return "third time lucky"

    async with store, running(store, poll_interval=0.5, base_retry_delay=1, clock=clock):
        task_id = await store.enqueue(Task(bodies(body), timeout=2, max_retries=2))
        await clock.advance(12)
        result = await result_of(store, task_id)
    assert result is not None
    assert result.result == "third time lucky"


async def test_a_body_in_time_is_left_alone(timed: Timed, bodies: Bodies) -> None:
    store, clock = timed
    gate = asyncio.Event()

    async def body() -> str:
        await gate.wait()
        return "in time"

    async with store, running(store, 1, poll_interval=1, clock=clock):
        first = await store.enqueue(Task(bodies(body), timeout=10))
        await clock.advance(8)
        gate.set()
        await clock.advance(0.1)
        gate.clear()
        second = await store.enqueue(Task(bodies(body), timeout=10))
        await clock.advance(9)  # over the first one's deadline
        gate.set()
        await clock.advance(1)
        for task_id in (first, second):
            result = await result_of(store, task_id)
            assert result is not None
            assert result.result == "in time"


async def test_an_awaitable_from_a_thread_times_out_too(bodies: Bodies) -> None:
    async def inner() -> None:
        await asyncio.Event().wait()

    def outer() -> Any:
        return inner()

    async with Memory() as store, running(store):
        task_id = await store.enqueue(Task(bodies(outer), timeout=0.05, max_retries=0))
        error = (await ended(store, task_id)).error
    assert error is not None
    assert error.kind == "timeout"


async def test_a_body_that_returns_when_cancelled_has_succeeded(bodies: Bodies) -> None:
    """As with `asyncio.timeout`: who takes the cancellation and returns, has returned."""

    async def body() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "half a result"
        return "never"

    async with Memory() as store, running(store):
        task_id = await store.enqueue(Task(bodies(body), timeout=0.05))
        assert (await ended(store, task_id)).result == "half a result"


async def test_a_coroutine_that_ignores_its_timeout_keeps_its_slot(timed: Timed, bodies: Bodies) -> None:
    """Its task fails without it, after the grace; nothing else gets the slot while it goes on."""
    store, clock = timed
    released = asyncio.Event()

    async def deaf() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async def quick() -> str:
        return "ran"

    async with store, running(store, 1, poll_interval=0.5, clock=clock):
        task_id = await store.enqueue(Task(bodies(deaf), timeout=1, max_retries=0))
        waiting = await store.enqueue(Task(bodies(quick)))
        await clock.advance(2)
        assert await result_of(store, task_id) is None
        await clock.advance(2)
        result = await result_of(store, task_id)
        assert result is not None
        assert result.error is not None
        assert result.error.kind == "timeout"
        await clock.advance(2)
        assert await result_of(store, waiting) is None, "the slot was given away"
        released.set()
        await clock.advance(1)
        assert await result_of(store, waiting) is not None


# --- threads -------------------------------------------------------------------------------------


async def test_a_thread_is_told_and_its_task_fails(store: AnyStore, bodies: Bodies) -> None:
    told = threading.Event()

    def body() -> str:
        ctx = context()
        for _ in range(5000):
            if ctx.cancelled:
                told.set()
                return "nobody reads this"
            threading.Event().wait(0.001)
        return "never told"

    async with store, running(store, poll_interval=0.02):
        task_id = await store.enqueue(Task(bodies(body), timeout=0.05, max_retries=0))
        error = (await ended(store, task_id)).error
        assert error is not None
        assert error.kind == "timeout"
        await until(told.is_set)


async def test_other_slots_go_on_while_one_is_stuck(builtin: AnyStore, bodies: Bodies) -> None:
    released = threading.Event()

    def stuck() -> None:
        released.wait(20)

    def quick(n: int) -> int:
        return n

    async with builtin as store, running(store, 2, poll_interval=0.02) as pool:
        bad = await store.enqueue(Task(bodies(stuck), timeout=0.05, max_retries=0))
        await ended(store, bad)
        ids = [await store.enqueue(Task(bodies(quick), (n,))) for n in range(10)]
        assert [(await ended(store, task_id)).result for task_id in ids] == list(range(10))
        assert pool.running
        assert store.log.most_held <= 2
        assert max(store.log.limits[-5:]) == 1, "the stuck slot was counted as free"
        released.set()
        await until(lambda: store.log.limits[-1] == 2)


async def test_a_late_thread_changes_nothing(builtin: AnyStore, bodies: Bodies) -> None:
    """What a thread returns after its timeout is not reported, and its retry runs once it is out."""
    released = threading.Event()
    runs: list[int] = []

    def body() -> str:
        runs.append(1)
        if len(runs) == 1:
            released.wait(20)
            return "too late"
        return "second run"

    async with builtin as store, running(store, 1, poll_interval=0.02, base_retry_delay=0.01) as pool:
        task_id = await store.enqueue(Task(bodies(body), timeout=0.05, max_retries=1))
        await until(lambda: attempts(store, task_id))
        assert len(runs) == 1
        released.set()
        assert (await ended(store, task_id)).result == "second run"
        assert pool.stale_reports == 0


async def attempts(store: AnyStore, task_id: str) -> int:
    return (await task_of(store, task_id)).attempts


async def stuck_pool(clock: VirtualClock, store: Memory, path: str, begun: list[int]) -> AsyncWorkerPool:
    """Two slots, both held by threads that outlived their timeout."""
    pool = AsyncWorkerPool(store, 2, poll_interval=1, clock=clock)
    for _ in range(2):
        await store.enqueue(Task(path, timeout=1, max_retries=0))
    await pool.start()
    # What times out before a thread has taken it never runs, and would hold no slot.
    await until(lambda: len(begun) == 2)
    await clock.advance(1.5)
    return pool


@pytest.mark.parametrize("by", ["wait", "stop"])
async def test_every_slot_stuck_is_an_unhealthy_pool(bodies: Bodies, by: str) -> None:
    """F16: nothing is falsely released, no more is claimed, and `wait()` and `stop()` raise."""
    released, clock = threading.Event(), VirtualClock()
    begun: list[int] = []

    def stuck() -> None:
        begun.append(1)
        released.wait(20)

    try:
        async with Memory(clock=clock) as store:
            pool = await stuck_pool(clock, store, bodies(stuck), begun)
            waiting = await store.enqueue(Task(bodies(stuck)))
            if by == "wait":
                watching = asyncio.create_task(pool.wait())
                await clock.advance(10)
                with pytest.raises(WorkerStuck, match="2 slots"):
                    await watching
                assert not pool.running
            with pytest.raises(WorkerStuck):
                await pool.stop()
            task = await task_of(store, waiting)
            assert (task.status, task.epoch) == (TaskStatus.PENDING, 0)
            assert {t.status for t in await store.list_tasks()} == {TaskStatus.PENDING, TaskStatus.FAILED}
    finally:
        released.set()


async def test_a_stuck_pool_that_recovers_goes_on(bodies: Bodies) -> None:
    released, clock = threading.Event(), VirtualClock()
    begun: list[int] = []

    def stuck() -> None:
        begun.append(1)
        released.wait(20)

    async def quick() -> str:
        return "ran"

    async with Memory(clock=clock) as store:
        pool = await stuck_pool(clock, store, bodies(stuck), begun)
        await clock.advance(2)  # not yet long enough to give up
        released.set()
        task_id = await store.enqueue(Task(bodies(quick)))
        await until(lambda: len(store.log.ids("claimed")) == 3)
        await turns()
        assert await result_of(store, task_id) is not None
        await pool.stop()


def test_the_blocking_face_says_that_it_is_stuck(bodies: Bodies) -> None:
    released, inside = threading.Event(), threading.Event()

    def stuck() -> None:
        inside.set()
        released.wait(20)

    store = Memory()

    async def put() -> str:
        async with store.clone() as twin:
            return await twin.enqueue(Task(bodies(stuck), timeout=0.05, max_retries=0))

    async def failed(task_id: str) -> None:
        async with store.clone() as twin:
            await ended(twin, task_id)

    pool = WorkerPool(store, 1)
    pool.start()
    try:
        task_id = asyncio.run(put())
        asyncio.run(failed(task_id))
        with pytest.raises(WorkerStuck):
            pool.stop()
    finally:
        released.set()
    assert not pool.running
    pool.stop()
