"""Run what waits, here and now: `drain(q)`, and the same again and again while virtual time passes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from omniq.app import OmniQ
from omniq.clock import REAL_CLOCK
from omniq.errors import InvalidOption, StillDue
from omniq.exchanges import Allowance
from omniq.loopthread import LoopThread
from omniq.storage.base import BaseStorage
from omniq.task import Task, TaskFilter, TaskStatus
from omniq.worker import AsyncWorkerPool

LAPSE_PAGE: Final = 1000
FIRE_PAGE: Final = 100
LIST_PAGE: Final = 1000
# More than a test enqueues, and few enough that a task which enqueues itself is found out within seconds.
AT_MOST: Final = 10_000
# Inline, each level holds the body above it, and a thread or two.
MOST_NESTED: Final = 100
# While something runs, virtual time passes in steps of this, so that a lease that ends is noticed.
LEASE_STEP: Final = timedelta(seconds=10)


def drain(q: OmniQ, *, concurrency: int = 1, retries: bool = True, at_most: int = AT_MOST) -> int:
    """Run what is due, and what that enqueues, until nothing is due any more; how many runs that took.

    What waits for a later moment stays: a delayed task, or one that failed and waits for its retry. With
    `retries=False` a failure is final. More than `at_most` runs raise `StillDue`: a task that enqueues itself
    without a delay would never end.
    """
    with LoopThread("omniq-drain") as thread:
        return thread.run(
            adrain(q, concurrency=concurrency, retries=retries, at_most=at_most),
            "write `await adrain(q)` here",
        )


async def adrain(q: OmniQ, *, concurrency: int = 1, retries: bool = True, at_most: int = AT_MOST) -> int:
    """The same inside a loop."""
    if at_most < 1:
        raise InvalidOption(f"at_most must be at least 1 run, not {at_most}")
    allowance = Allowance(at_most + 1)  # the one that is too many says that there was more
    runs = await drain_within(q, allowance, concurrency, retries=retries)
    if allowance.left <= 0:
        raise StillDue(
            f"more than {at_most:,} runs, and it was not over. Does a task enqueue itself, or ask for its "
            "next run, without a delay? Give it one, and let time pass with kit.advance(). If that many runs "
            f"are right, write at_most={at_most * 10}."
        )
    return runs


async def drain_within(q: OmniQ, allowance: Allowance, concurrency: int, *, retries: bool) -> int:
    """Until nothing is due, or nothing is allowed any more."""
    runs = 0
    while allowance.left > 0:
        pool = _pool(q, allowance, concurrency, retries)
        # Like a worker's upkeep: what the dead left, what has expired, what a schedule makes now.
        async with pool.storage.clone() as storage:
            await _keep_up(storage)
        await pool.run()
        if not pool.claimed:
            break
        runs += pool.claimed
    return runs


def _pool(q: OmniQ, allowance: Allowance, concurrency: int, retries: bool) -> AsyncWorkerPool:
    clock = q.storage().clock
    pool = q.async_worker(
        concurrency=concurrency, wake=False, clock=None if clock is REAL_CLOCK else clock, name="drain"
    )
    pool.until_idle(allowance)
    return pool if retries else pool.without_retries()


async def _keep_up(storage: BaseStorage) -> None:
    while await storage.lapse(LAPSE_PAGE) == LAPSE_PAGE:
        pass
    while (await storage.fire_due(FIRE_PAGE)).ids:
        pass


class Inline:
    """Runs what is due after each enqueue; what a body enqueues runs inside of that body, level by level."""

    def __init__(self, q: OmniQ) -> None:
        self._q = q
        self._level = 0
        self._allowance = Allowance(0)

    async def run_due(self) -> None:
        if self._level == 0:
            self._allowance = Allowance(AT_MOST + 1)
        elif self._level > MOST_NESTED:
            self._allowance.left = 0  # so that every level ends, not only this one
        self._level += 1
        try:
            await drain_within(self._q, self._allowance, 1, retries=False)
        finally:
            self._level -= 1
        if self._allowance.left <= 0:
            raise StillDue(
                f"one enqueue led to more than {AT_MOST:,} runs, or to {MOST_NESTED} inside of each other. "
                "Does a task enqueue itself? Use Kit(q), where what is enqueued waits for kit.drain()."
            )


class DrainedApp:
    """An application whose tasks run as virtual time passes: `clock.drives(DrainedApp(q))`."""

    def __init__(self, q: OmniQ) -> None:
        self._q = q

    async def run_due(self) -> None:
        await adrain(self._q)

    async def due_next(self) -> datetime | None:
        async with self._q.storage().clone() as storage:
            now = storage.clock.now()
            moments = [one for task in await _living(storage) for one in _moments(task, now)]
            ticks = [one.next_at for one in await storage.schedules() if one.next_at is not None]
        moments += ticks
        return min((one for one in moments if one > now), default=None)


def _moments(task: Task, now: datetime) -> list[datetime]:
    """When something may happen to a task that has not ended."""
    if task.status is TaskStatus.RUNNING:
        return [now + LEASE_STEP]
    return [one for one in (task.eta, task.expires_at) if one is not None]


async def _living(storage: BaseStorage) -> list[Task]:
    found: list[Task] = []
    for status in (TaskStatus.PENDING, TaskStatus.RUNNING):
        after: str | None = None
        while page := await storage.list_tasks(TaskFilter(status=status), after, LIST_PAGE):
            found += page
            after = page[-1].id
    return found
