"""How a conformance test runs: a store of its own, a clock that it moves, one loop, and a look at the end.

A class of tests derives from `Case`. Its `async def test_*` methods become ordinary ones, so that plain
pytest runs them, without a plugin.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Generic, TypeVar

import pytest

from omniq.logic.lifecycle import HISTORY_LIMIT
from omniq.storage.base import BaseStorage
from omniq.storage.batched import BatchedStorage
from omniq.task import (
    Action,
    Answer,
    RunOutcome,
    Settlement,
    StoredTask,
    Task,
    TaskError,
    TaskStatus,
    replace,
)
from omniq.testing.clock import VirtualClock

StoreT = TypeVar("StoreT", bound=BaseStorage)

JOB: Final = "jobs.resize"
BOOM: Final = TaskError("ValueError", "boom", "Traceback (most recent call last): ...")
# No test needs this long: whatever goes on after it hangs.
BOUND_S: Final = 50.0
FINAL: Final = tuple(status for status in TaskStatus if status.final)


class Case(Generic[StoreT]):
    """What every test has: `self.store`, `self.advance`, `self.now`."""

    # The unit of every lease, delay and eta here.
    tick_s: ClassVar[float] = 10.0
    # How far a moment that the store noted may be from `now()`.
    slack_s: ClassVar[float] = 0.0
    # Whether days can pass in a test.
    virtual_time: ClassVar[bool] = True

    clock: VirtualClock
    store: StoreT

    # --- what a store's author brings ------------------------------------------------------------

    async def open(self, clock: VirtualClock) -> StoreT:
        """An empty store. One that takes a clock takes this one; others also derive from `RealTime`."""
        raise NotImplementedError("return your store, with no tasks in it")

    # --- time ------------------------------------------------------------------------------------

    async def advance(self, ticks: float) -> None:
        await self.clock.advance(ticks * self.tick_s)

    def now(self) -> datetime:
        return self.clock.now()

    def moment(self, ticks: float) -> datetime:
        """So many ticks from now."""
        return self.now() + timedelta(seconds=ticks * self.tick_s)

    def is_about(self, noted: datetime | None, expected: datetime) -> bool:
        return noted is not None and abs(noted - expected) <= timedelta(seconds=self.slack_s)

    def needs_virtual_time(self) -> None:
        if not self.virtual_time:
            pytest.skip("days must pass, and this store's clock is a real one")

    # --- running a test --------------------------------------------------------------------------

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, _blocking(test))

    async def run_test(self, test: Callable[[], Awaitable[None]]) -> None:
        self.clock = VirtualClock()
        self._others: list[StoreT] = []
        self.store = await self.open(self.clock)
        try:
            await test()
            await self.check_afterwards()
        finally:
            for storage in (*self._others, self.store):
                await storage.close()

    async def check_afterwards(self) -> None:
        """What must hold after every test."""

    async def another(self) -> StoreT:
        """A second storage on the same data, as another thread or process would have."""
        twin = self.store.clone()
        await twin.open()
        self._others.append(twin)
        return twin


def _blocking(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(self: Case[Any], *args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(BOUND_S):
                await self.run_test(lambda: test(self, *args, **kwargs))

        asyncio.run(bounded())

    return run


class RealTime:
    """For a store whose clock is its server's: `class TestMine(RealTime, StorageConformance)`."""

    tick_s: ClassVar[float] = 0.3
    slack_s: ClassVar[float] = 0.25
    virtual_time: ClassVar[bool] = False

    async def advance(self, ticks: float) -> None:
        # A little more than asked for, because a store may count in whole milliseconds.
        await asyncio.sleep(ticks * self.tick_s + 0.005)

    def now(self) -> datetime:
        return datetime.now(UTC)


# --- for stores that implement the whole contract --------------------------------------------------


class FullCase(Case[BatchedStorage]):
    """Short words for what nearly every test does."""

    async def put(self, *args: Any, **options: Any) -> str:
        """Enqueue one call and return its id."""
        return await self.store.enqueue(Task(JOB, args, **options))

    async def claim(
        self,
        worker: str = "ann",
        limit: int = 1,
        *,
        queues: list[str] | None = None,
        lease_ticks: float = 3,
        claim_id: str | None = None,
        store: BatchedStorage | None = None,
    ) -> list[StoredTask]:
        claims = await (store or self.store).claim(worker, queues, limit, lease_ticks * self.tick_s, claim_id)
        assert all(isinstance(claim, StoredTask) for claim in claims)
        return [claim for claim in claims if isinstance(claim, StoredTask)]

    async def start(self, *args: Any, worker: str = "ann", **options: Any) -> StoredTask:
        """Enqueue one call and claim it."""
        task_id = await self.put(*args, **options)
        [claimed] = await self.claim(worker)
        assert claimed.id == task_id, "another task was due first"
        return claimed

    async def restart(self, worker: str = "bob") -> StoredTask:
        """Claim the only task that is due."""
        [claimed] = await self.claim(worker, 2)
        return claimed

    async def settle(self, settlement: Settlement) -> Answer:
        [answer] = await self.store.settle([settlement])
        return answer

    async def succeed(self, claimed: StoredTask, value: Any = None) -> Answer:
        return await self.settle(Settlement.success(claimed, self.store.serializer.dumps(value)))

    async def end(self, status: TaskStatus, **options: Any) -> str:
        """Enqueue a task and bring it to a final status."""
        claimed = await self.start(**options)
        if status is TaskStatus.SUCCESS:
            await self.succeed(claimed)
        elif status is TaskStatus.FAILED:
            await self.settle(Settlement.failed(claimed, BOOM))
        else:
            await self.store.cancel(claimed.id)
            await self.settle(Settlement.give_back(claimed))
        return claimed.id

    def settlement(self, claimed: StoredTask, action: Action, ticks: float = 2) -> Settlement:
        """A report of any kind, with a delay of two ticks where it has one."""
        result = self.store.serializer.dumps("done") if action in RETURNING else None
        error = BOOM if action in FAILING else None
        return Settlement(claimed, action, result, ticks * self.tick_s, error)

    async def look(self, task_id: str) -> Task:
        task = await self.store.get_task(task_id)
        assert task is not None, f"{task_id} is gone"
        return task

    async def snapshot(self) -> dict[str, Any]:
        """All that can be seen of the store, to show that something changed nothing."""
        tasks = await self.store.list_tasks(limit=1000)
        seen: dict[str, Any] = {task.id: task for task in tasks}
        for task in tasks:
            seen[f"result of {task.id}"] = await self.store.get_result(task.id)
            seen[f"history of {task.id}"] = await self.store.history(task.id)
        seen["counts"] = await self.store.counts()
        seen["paused"] = await self.store.paused()
        seen["workers"] = [replace(worker, seen_at=None) for worker in await self.store.workers()]
        return seen

    async def check_afterwards(self) -> None:
        assert await self.store.verify() == []
        for task in await self.store.list_tasks(limit=1000):
            _check_row(task)
            await self._check_epochs(task)

    async def _check_epochs(self, task: Task) -> None:
        """Every epoch has exactly one closing outcome, except the open one of a running task."""
        history = await self.store.history(task.id)
        closed = [run.epoch for run in history]
        # The run that ended it well stands on the task itself.
        unwritten = task.status in (TaskStatus.RUNNING, TaskStatus.SUCCESS)
        assert closed == list(range(1, task.epoch + (not unwritten)))[-HISTORY_LIMIT:]
        for run in history:
            failed = run.outcome in (RunOutcome.RETRIED, RunOutcome.FAILED)
            assert (run.error is not None) >= failed, f"{run} does not say why"


RETURNING: Final = (Action.SUCCEED, Action.REPEAT)
FAILING: Final = (Action.RETRY, Action.FAIL, Action.CONTINUE, Action.LOSE)


def _check_row(task: Task) -> None:
    running = task.status is TaskStatus.RUNNING
    assert (task.owner is not None) == running
    assert (task.finished_at is not None) == task.status.final
    assert running or not task.cancel_requested
    assert task.status is not TaskStatus.SUCCESS or task.error is None
    assert task.status not in (TaskStatus.FAILED, TaskStatus.CANCELLED) or task.error is not None


async def promptly(awaitable: Awaitable[Any]) -> Any:
    """The answer of something that must not need the clock to move; failing is better than hanging."""
    async with asyncio.timeout(BOUND_S / 5):
        return await awaitable
