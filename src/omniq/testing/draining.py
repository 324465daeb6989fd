"""Run what waits, here and now: `drain(q)`, and the same again and again while virtual time passes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from omniq.app import OmniQ
from omniq.clock import REAL_CLOCK
from omniq.loopthread import LoopThread
from omniq.storage.base import BaseStorage
from omniq.task import Task, TaskFilter, TaskStatus
from omniq.worker import AsyncWorkerPool

LAPSE_PAGE: Final = 1000
FIRE_PAGE: Final = 100
LIST_PAGE: Final = 1000
# While something runs, virtual time passes in steps of this, so that a lease that ends is noticed.
LEASE_STEP: Final = timedelta(seconds=10)


def drain(q: OmniQ, *, concurrency: int = 1, retries: bool = True) -> int:
    """Run what is due, and what that enqueues, until nothing is due any more; how many runs that took.

    What waits for a later moment stays: a delayed task, or one that failed and waits for its retry. With
    `retries=False` a failure is final.
    """
    with LoopThread("omniq-drain") as thread:
        return thread.run(adrain(q, concurrency=concurrency, retries=retries), "write `await adrain(q)` here")


async def adrain(q: OmniQ, *, concurrency: int = 1, retries: bool = True) -> int:
    """The same inside a loop."""
    runs = 0
    while True:
        pool = _pool(q, concurrency, retries)
        # Like a worker's upkeep: what the dead left, what has expired, what a schedule makes now.
        async with pool.storage.clone() as storage:
            await _keep_up(storage)
        await pool.run()
        if not pool.claimed:
            return runs
        runs += pool.claimed


def _pool(q: OmniQ, concurrency: int, retries: bool) -> AsyncWorkerPool:
    clock = q.storage().clock
    pool = q.async_worker(
        concurrency=concurrency, wake=False, clock=None if clock is REAL_CLOCK else clock, name="drain"
    )
    return pool.until_idle() if retries else pool.until_idle().without_retries()


async def _keep_up(storage: BaseStorage) -> None:
    while await storage.lapse(LAPSE_PAGE) == LAPSE_PAGE:
        pass
    while (await storage.fire_due(FIRE_PAGE)).ids:
        pass


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
