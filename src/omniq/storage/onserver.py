"""What the stores on a server share: enqueueing together, looking at one task, waiting, refusing."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from omniq.errors import Conflict, DuplicateTask, InvalidOption
from omniq.storage.awaiting import Results
from omniq.storage.batched import BatchedStorage, unknown
from omniq.storage.ringing import Ring
from omniq.storage.together import Together
from omniq.task import (
    Enqueued,
    Held,
    OnConflict,
    Renewal,
    StoredTask,
    Task,
    TaskResult,
    TaskStatus,
    shown,
)


class OnServer(BatchedStorage):
    """A store that has rings of its own for what the server says, and looks at one task at a time."""

    # A timer may ring a little before the server's clock shows the moment.
    late_s: ClassVar[float] = 0.002

    def __init__(self) -> None:
        super().__init__()
        self._process: int | None = None  # which the connections belong to

    # --- life ------------------------------------------------------------------------------------

    @property
    def _is_parents(self) -> bool:
        """After a fork: the sockets are shared with another process, and so is what its loop waits on."""
        return self._process is not None and self._process != os.getpid()

    def _refuse_if_parents(self) -> None:
        if self._is_parents:
            raise InvalidOption(
                f"this {type(self).__name__} was opened before a fork and belongs to the parent process; use "
                "storage.clone() here"
            )

    async def open(self) -> None:
        self._refuse_if_parents()
        await super().open()

    async def close(self) -> None:
        if self._is_parents:
            self._forget_parents()
        await super().close()

    def abandon(self) -> None:
        if self._is_parents:
            self._forget_parents()
        super().abandon()

    def _forget_parents(self) -> None:
        """Nothing is said on the connections, and the loop's are left alone: the parent uses them."""
        self._process = self._loop = self._opening = None

    # --- waiting ---------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        self._process = os.getpid()
        self._enqueues = Together(self._enqueue)
        self._due, self._ended = Ring(), Ring()
        self._results = Results(self._ended, self.clock, self._look_for_ends)
        self._look_again_at: float | None = None

    @abstractmethod
    async def _enqueue(self, stored: list[StoredTask], on_conflict: OnConflict) -> list[Enqueued]:
        """In one round trip, all or nothing."""

    @abstractmethod
    async def _listen_for_due(self) -> None:
        """From here on, what comes up rings `_due`."""

    @abstractmethod
    async def _look_for_ends(self, ids: list[str]) -> set[str]:
        """Which of these have ended, or are gone; and tell those who end tasks that somebody listens."""

    @abstractmethod
    async def _get(self, task_id: str) -> StoredTask | None: ...

    def _ring(self, *, due: bool | None, result: bool | None) -> None:
        if due:
            self._due.ring()
        if result:
            self._ended.ring()

    async def get_task(self, task_id: str) -> Task | None:
        stored = await self._get(task_id)
        return None if stored is None else self.decode(stored)

    async def get_result(self, task_id: str) -> TaskResult | None:
        stored = await self._get(task_id)
        return None if stored is None else self.result_of(stored)

    async def wait(self, timeout: float) -> bool:
        await self.open()
        await self._listen_for_due()
        timeout_s = max(0.0, timeout)
        if self._look_again_at is not None:
            until_due_s = self._look_again_at - self.clock.monotonic()
            if until_due_s < timeout_s:
                await self._due.wait(self.clock, until_due_s)
                return True
        return await self._due.wait(self.clock, timeout_s)

    async def wait_result(self, task_id: str, timeout: float | None = None) -> TaskResult | None:
        await self.open()
        return await self._results.of(str(task_id), timeout, self._result_or_unknown)

    async def _result_or_unknown(self, task_id: str) -> TaskResult | None:
        stored = await self._get(task_id)
        if stored is None:
            raise unknown(task_id)
        return self.result_of(stored)


def renewal(held: dict[str, Held], known: Iterable[Held]) -> Renewal:
    """What a worker learns of the runs it knows, when the server says which of them it holds."""
    lost = frozenset(one.id for one in known if one.id not in held or held[one.id].epoch != one.epoch)
    return Renewal(held, lost, frozenset(one.id for one in held.values() if one.cancel_requested))


# The server has decided; these say it as an exception.


def refuse_retry(task_id: str, status: TaskStatus, key: str | None, holder: str | None) -> None:
    if status not in (TaskStatus.FAILED, TaskStatus.CANCELLED):
        raise Conflict(f"task {task_id} is {status}; only FAILED and CANCELLED tasks can be retried")
    if holder:
        raise DuplicateTask(f"unique key {shown(key)} is now held by task {holder}", holder)


def refuse_reschedule(task_id: str, status: TaskStatus, epoch: int | None, current: int) -> None:
    if epoch is not None and current != epoch:
        raise Conflict(f"task {task_id} is at epoch {current}, no longer at {epoch}")
    if status is not TaskStatus.PENDING:
        raise Conflict(f"task {task_id} is {status}; only PENDING tasks can be rescheduled")


def refuse_delete(task_id: str, status: TaskStatus) -> None:
    if not status.final:
        raise Conflict(f"task {task_id} is {status}; cancel it first, then delete it")
