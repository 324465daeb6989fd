"""Stores that keep a log of what a worker asks of them, and stores that go away when told to.

`Memory` and `SQLite` are the built-in ones; `Five` is what somebody else would write with the seed's five
verbs, `Six` adds `reschedule`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Self, TypeVar

from omniq.clock import REAL_CLOCK, Clock
from omniq.errors import StoreUnavailable
from omniq.storage import BaseStorage, MemoryStorage, SQLiteStorage
from omniq.storage.base import Claimed
from omniq.storage.batched import BatchedStorage
from omniq.storage.embedded import EmbeddedStorage
from omniq.storage.rows import Rows
from omniq.task import Answer, Claim, Settlement, Task, TaskError, TaskResult, TaskStatus, replace

T = TypeVar("T")


class Log:
    """What was asked, in order: ("claimed", id), ("settled", id), and when looks for work were made."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.looks: list[float] = []
        self.limits: list[int] = []
        self.claim_ids: list[str] = []

    def ids(self, event: str) -> list[str]:
        return [task_id for name, task_id in self.events if name == event]

    @property
    def most_held(self) -> int:
        """How many tasks were claimed and not yet settled, at most."""
        steps = [{"claimed": 1, "settled": -1}.get(event, 0) for event, _ in self.events]
        return max(itertools.accumulate(steps), default=0)

    def look_times(self) -> list[float]:
        """The moments of looks; what happens in one virtual moment is one look."""
        return [time for time, _ in itertools.groupby(self.looks)]


class Noted(EmbeddedStorage):
    """A built-in store with a log."""

    log: Log

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Answer], list[Claimed]]:
        if claim is not None:
            self.log.looks.append(self.clock.monotonic())
            self.log.limits.append(claim.limit)
            self.log.claim_ids.append(claim.claim_id)
        answers, claims = await super().exchange(settlements, claim)
        self.log.events += [("settled", settlement.task.id) for settlement in settlements]
        self.log.events += [("claimed", task.id) for task in claims]
        return answers, claims


class Memory(Noted, MemoryStorage):
    def __init__(self, *, clock: Clock = REAL_CLOCK) -> None:
        super().__init__(clock=clock)
        self.log = Log()

    def clone(self) -> Self:
        twin = type(self)(clock=self.clock)
        twin._rows, twin.log = self._rows, self.log
        return twin


class SQLite(Noted, SQLiteStorage):
    def __init__(self, path: Any, *, clock: Clock = REAL_CLOCK) -> None:
        # What a power cut would lose is nothing that these tests ask about.
        super().__init__(path, clock=clock, durability="relaxed")
        self.log = Log()

    def clone(self) -> Self:
        twin = type(self)(self.path, clock=self.clock)
        twin.log = self.log
        return twin


class Five(BaseStorage):
    """The seed's five verbs over a dict, and nothing else."""

    def __init__(self) -> None:
        self.log = Log()
        self.tasks: dict[str, Task] = {}
        self.results: dict[str, TaskResult] = {}
        self.fails: dict[str, Exception] = {}  # verb -> what it raises, until taken out

    async def enqueue(self, task: Task, *, conn: Any = None) -> str:
        self.tasks[task.id] = task
        self.note("enqueue", task.id)
        return task.id

    async def dequeue(self, now: datetime | None = None) -> Task | None:
        self.log.looks.append(self.clock.monotonic())
        self.note("dequeue", str(now))
        assert now is not None
        waiting = (task for task in self.tasks.values() if task.status is TaskStatus.PENDING)
        task = next((task for task in waiting if task.eta is None or task.eta <= now), None)
        if task is None:
            return None
        self.note("claimed", task.id)
        return self._set(task.id, status=TaskStatus.RUNNING)

    async def mark_running(self, task_id: str) -> None:
        self.note("mark_running", task_id)

    async def mark_done(self, task_id: str, result: TaskResult) -> None:
        self.note("mark_done", task_id)
        self.log.events.append(("settled", task_id))
        self.results[task_id] = result
        self._set(task_id, status=TaskStatus.SUCCESS, attempts=0)

    async def mark_failed(self, task_id: str, error: TaskError, will_retry: bool = False) -> None:
        self.note("mark_failed, retry" if will_retry else "mark_failed, final", task_id)
        self.log.events.append(("settled", task_id))
        self._set(task_id, status=TaskStatus.FAILED, error=error, attempts=self.tasks[task_id].attempts + 1)
        if not will_retry:
            self.results[task_id] = TaskResult(task_id, TaskStatus.FAILED, None, error, self.clock.now())

    def note(self, event: str, detail: str) -> None:
        """Every verb passes here: it is written down, and fails if the test wants it to."""
        self.log.events.append((event, detail))
        if (exc := self.fails.get(event.split(",", maxsplit=1)[0])) is not None:
            raise exc

    def _set(self, task_id: str, **fields: Any) -> Task:
        self.tasks[task_id] = replace(self.tasks[task_id], **fields)
        return self.tasks[task_id]

    def runs_of(self, task_id: str) -> list[Task]:
        """The task and, where a retry became a new one, its successors."""
        return [t for t in self.tasks.values() if task_id in (t.id, t.headers.get("retry_of"))]


class Six(Five):
    """With `reschedule`: a retry or interval keeps its id."""

    async def reschedule(self, task_id: str, eta: datetime) -> None:
        self.note("reschedule", task_id)
        self._set(task_id, status=TaskStatus.PENDING, eta=eta)


class Line:
    """The line to a store, shared by all clones: cut it before a write arrives, or only its answer."""

    def __init__(self) -> None:
        self.away = False  # nothing arrives
        self.lost_answers = 0  # so many exchanges arrive, but their answers do not
        self.refused = 0

    def check(self) -> None:
        if self.away:
            self.refused += 1
            raise StoreUnavailable("the line is cut")


class Remote(Noted):
    """A built-in store behind a line that a test can cut."""

    line: Line
    _exchanging = False

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Answer], list[Claimed]]:
        self._exchanging = True
        try:
            return await super().exchange(settlements, claim)
        finally:
            self._exchanging = False

    async def _write(self, job: Callable[[Rows], T]) -> T:
        self.line.check()
        answer: T = await super()._write(job)  # type: ignore[safe-super]
        if self._exchanging and self.line.lost_answers:
            self.line.lost_answers -= 1
            raise StoreUnavailable("the answer was lost")
        return answer

    async def _read(self, job: Callable[[Rows], T]) -> T:
        self.line.check()
        return await super()._read(job)  # type: ignore[safe-super]


class RemoteMemory(Remote, Memory):
    def __init__(self, *, clock: Clock = REAL_CLOCK) -> None:
        super().__init__(clock=clock)
        self.line = Line()

    def clone(self) -> Self:
        twin = super().clone()
        twin.line = self.line
        return twin


class RemoteSQLite(Remote, SQLite):
    def __init__(self, path: Any, *, clock: Clock = REAL_CLOCK) -> None:
        super().__init__(path, clock=clock)
        self.line = Line()

    def clone(self) -> Self:
        twin = super().clone()
        twin.line = self.line
        return twin


AnyStore = Memory | SQLite | Five


# --- looking at any of them ----------------------------------------------------------------------


async def task_of(store: BaseStorage, task_id: str) -> Task:
    """The task as it is now; where a retry became a new task, the newest of them."""
    if isinstance(store, Five):
        return store.runs_of(task_id)[-1]
    task = await store.get_task(task_id)
    assert task is not None
    return task


async def result_of(store: BaseStorage, task_id: str) -> TaskResult | None:
    if isinstance(store, Five):
        return store.results.get(store.runs_of(task_id)[-1].id)
    return await store.get_result(task_id)


async def running_rows(store: BatchedStorage) -> list[Task]:
    return [task for task in await store.list_tasks() if task.status is TaskStatus.RUNNING]


def statuses(tasks: Iterable[Task]) -> list[TaskStatus]:
    return [task.status for task in tasks]
