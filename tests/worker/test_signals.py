"""What a body says by raising: `Snooze`, `Retry`, `GiveUp` (SEMANTICS 7)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from omniq import GiveUp, Retry, Snooze, Task, TaskStatus
from tests.worker.fixtures import Timed
from tests.worker.scene import Bodies, ended, running, until
from tests.worker.stores import AnyStore, Five, Memory, result_of, task_of


def raising(signal: BaseException, *, asynchronous: bool = True) -> Any:
    async def abody() -> None:
        raise signal

    def body() -> None:
        raise signal

    return abody if asynchronous else body


@pytest.mark.parametrize("delay", [40, 40.0, timedelta(seconds=40)])
async def test_snooze_costs_nothing(timed: Timed, bodies: Bodies, delay: Any) -> None:
    store, clock = timed
    async with store, running(store, poll_interval=5, clock=clock):
        task_id = await store.enqueue(Task(bodies(raising(Snooze(delay))), max_retries=0))
        await clock.advance(5)
        task = await task_of(store, task_id)
        assert task.status is TaskStatus.PENDING
        # Without `reschedule`, `mark_failed` is the only way back, and counts on the old task only.
        assert task.attempts == 0
        assert task.eta is not None
        assert timedelta(seconds=30) < task.eta - clock.now() <= timedelta(seconds=40)


async def test_snooze_again_and_again(timed: Timed, bodies: Bodies) -> None:
    store, clock = timed
    left = [2, 2, 2, 2, 2]

    async def body() -> str:
        if left:
            raise Snooze(left.pop())
        return "at last"

    async with store, running(store, poll_interval=0.5, clock=clock):
        task_id = await store.enqueue(Task(bodies(body), max_retries=0))
        await clock.advance(14)
        result = await result_of(store, task_id)
    assert result is not None
    assert result.result == "at last"


@pytest.mark.parametrize(("delay", "least", "most"), [(7, 6, 7), (None, 29, 33), (0, -1, 0)])
async def test_retry_with_its_own_delay(
    timed: Timed, bodies: Bodies, delay: Any, least: float, most: float
) -> None:
    store, clock = timed
    signals: list[BaseException] = [Retry(delay, "the other side is busy"), Snooze(1000)]

    async def body() -> None:
        raise signals.pop(0)

    async with store, running(store, poll_interval=1, base_retry_delay=30, clock=clock):
        task_id = await store.enqueue(Task(bodies(body), max_retries=1))
        await clock.advance(0.5)
        while len(signals) == 2:
            await clock.advance(0.5)
        task = await task_of(store, task_id)
        assert task.attempts == 1
        if delay != 0:  # nothing has picked it up yet
            assert task.error is not None or isinstance(store, Five)
            assert task.eta is not None
            assert least < (task.eta - clock.now()).total_seconds() <= most


async def test_retry_spends_retries(store: AnyStore, bodies: Bodies) -> None:
    runs: list[int] = []

    def body() -> None:
        runs.append(1)
        raise Retry(0.001)

    async with store, running(store, poll_interval=0.01):
        task_id = await store.enqueue(Task(bodies(body), max_retries=2))
        assert (await ended(store, task_id)).status is TaskStatus.FAILED
    assert len(runs) == 3


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_give_up_is_final(store: AnyStore, bodies: Bodies, asynchronous: bool) -> None:
    async with store, running(store, poll_interval=0.02):
        body = raising(GiveUp("no such customer"), asynchronous=asynchronous)
        task_id = await store.enqueue(Task(bodies(body), max_retries=9))
        result = await ended(store, task_id)
        task = await task_of(store, task_id)
    assert (result.status, task.attempts) == (TaskStatus.FAILED, 1)
    assert result.error is not None
    assert result.error.message == "no such customer"


@pytest.mark.parametrize("signal", [Snooze("soon"), Snooze(float("nan")), Retry("soon"), Snooze(1e300)])  # type: ignore[arg-type]
async def test_a_delay_that_is_none_is_a_failure(bodies: Bodies, signal: BaseException) -> None:
    async with Memory() as store, running(store) as pool:
        task_id = await store.enqueue(Task(bodies(raising(signal)), max_retries=0))
        error = (await ended(store, task_id)).error
        assert pool.running
    assert error is not None
    assert "delay" in error.message


async def test_a_negative_snooze_is_due_at_once(bodies: Bodies) -> None:
    signals: list[BaseException] = [Snooze(-5)]

    async def body() -> str:
        if signals:
            raise signals.pop()
        return "done"

    async with Memory() as store, running(store):
        task_id = await store.enqueue(Task(bodies(body), max_retries=0))
        assert (await ended(store, task_id)).result == "done"


async def test_give_up_of_an_interval_task_that_goes_on(bodies: Bodies) -> None:
    async with Memory() as store, running(store):
        body = bodies(raising(GiveUp()))
        task_id = await store.enqueue(Task(body, interval=1000, on_failure="continue", max_retries=5))
        await until(lambda: result_of(store, task_id))
        task = await task_of(store, task_id)
    assert (task.status, task.attempts) == (TaskStatus.PENDING, 0)
    assert task.error is not None
