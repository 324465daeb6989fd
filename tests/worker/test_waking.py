"""Wake-ups: a sleeping pool begins at once what has become due (C5, DESIGN 4)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import cycle

from omniq import Task
from omniq.clock import Bell
from omniq.testing import VirtualClock
from tests.worker.scene import Bodies, ended, running, turns, until
from tests.worker.stores import AnyStore, Five, Memory, result_of

FAR = 600.0  # a poll interval that no test lives to see the end of


async def test_an_enqueue_wakes(builtin: AnyStore) -> None:
    async with builtin as store, running(store, poll_interval=FAR):
        for n in range(5):
            await until(lambda: store.log.looks)
            assert (await ended(store, await store.enqueue(Task("json.dumps", (n,))))).result == str(n)


async def test_an_enqueue_from_another_thread_wakes(builtin: AnyStore) -> None:
    assert not isinstance(builtin, Five)

    async def elsewhere() -> None:
        async with builtin.clone() as twin:
            await twin.enqueue(Task("json.dumps", (1,), id="t"))

    async with builtin as store, running(store, poll_interval=FAR):
        await until(lambda: store.log.looks)
        await asyncio.to_thread(asyncio.run, elsewhere())
        assert (await ended(store, "t")).result == "1"


async def test_an_eta_wakes(builtin: AnyStore) -> None:
    async with builtin as store, running(store, poll_interval=FAR):
        eta = datetime.now(UTC) + timedelta(seconds=0.2)
        result = await ended(store, await store.enqueue(Task("json.dumps", (1,), eta=eta)))
    assert result.finished_at is not None
    assert eta <= result.finished_at <= eta + timedelta(seconds=2)


async def test_a_retry_and_an_interval_wake(builtin: AnyStore, bodies: Bodies) -> None:
    runs: list[int] = []

    async def body() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError

    async with builtin as store, running(store, poll_interval=FAR, base_retry_delay=0.01):
        await store.enqueue(Task(bodies(body), interval=0.02))
        await until(lambda: len(runs) >= 4)


async def test_everything_by_hand_wakes(builtin: AnyStore, bodies: Bodies) -> None:
    """Resuming a queue, retrying, rescheduling: whatever makes a task due."""
    fail = True

    async def body() -> str:
        if fail:
            raise ValueError
        return "ran"

    async with builtin as store, running(store, poll_interval=FAR):
        assert not isinstance(store, Five)
        path = bodies(body)
        failed = await store.enqueue(Task(path, max_retries=0))
        await ended(store, failed)
        fail = False
        await store.retry(failed)
        await until(lambda: succeeded(store, failed))
        await store.pause("default")
        waiting = await store.enqueue(Task(path))
        await turns()
        assert await result_of(store, waiting) is None
        await store.resume("default")
        assert (await ended(store, waiting)).result == "ran"
        later = await store.enqueue(Task(path, eta=datetime.now(UTC) + timedelta(days=1)))
        await store.reschedule(later, datetime.now(UTC))
        assert (await ended(store, later)).result == "ran"


async def succeeded(store: AnyStore, task_id: str) -> bool:
    result = await result_of(store, task_id)
    return result is not None and result.error is None


async def test_a_free_slot_is_filled_at_once(builtin: AnyStore, bodies: Bodies) -> None:
    """With one slot, each task begins when the one before it ends; nobody waits for an interval."""

    def body(n: int) -> int:
        return n

    async with builtin as store:
        ids = [await store.enqueue(Task(bodies(body), (n,))) for n in range(30)]
        begun = time.monotonic()
        async with running(store, 1, poll_interval=FAR):
            assert [(await ended(store, i)).result for i in ids] == list(range(30))
    assert time.monotonic() - begun < 20


async def test_no_wake_up_is_lost_between_looking_and_sleeping(builtin: AnyStore) -> None:
    """Enqueues as fast as they go, each awaited: one lost wake-up would wait ten minutes."""
    assert not isinstance(builtin, Five)
    stop = threading.Event()
    done: list[str] = []

    async def producer() -> None:
        async with builtin.clone() as twin:
            for n in range(100):
                task_id = await twin.enqueue(Task("json.dumps", (n,)))
                assert await twin.wait_result(task_id, 10) is not None, f"task {n} was not noticed"
                done.append(task_id)

    async with builtin as store, running(store, 3, poll_interval=FAR):
        await asyncio.to_thread(asyncio.run, producer())
        stop.set()
    assert len(done) == 100


async def test_an_idle_pool_does_not_look_again_and_again() -> None:
    """Woken or not: an hour of nothing is an hour's polls."""
    clock = VirtualClock()
    store = Memory(clock=clock)
    async with store, running(store, poll_interval=30, clock=clock):
        await store.enqueue(Task("json.dumps", eta=clock.now() + timedelta(days=1)))
        await clock.advance(minutes=5)
    assert len(store.log.looks) <= 12


class Tardy(VirtualClock):
    """Its bells ring a little late, as real ones do, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.rang = 0
        self._late_s = cycle((0.004, 0.001))

    def call_later(self, delay_s: float, ring: Callable[[], None]) -> Bell:
        def rung() -> None:
            self.rang += 1
            ring()

        return super().call_later(delay_s + next(self._late_s), rung)


async def test_what_an_idle_pool_looks_at_it_looks_at_together() -> None:
    """Twice a second: each chore for itself would wake it half as often again."""
    clock = Tardy()
    store = Memory(clock=clock)
    async with store, running(store, poll_interval=FAR, clock=clock):
        await clock.advance(seconds=20)
    assert clock.rang <= 2 * 20 + 1
