"""The async face of a store that lives in this process: one line per verb, and the waiting.

A store says how a job reaches its rows (`_write`, `_read`) and brings the bell that wakes sleepers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, TypeVar

from loguru import logger

from omniq.errors import CorruptRecord, InvalidOption
from omniq.storage.awaiting import Results
from omniq.storage.base import Claimed
from omniq.storage.batched import check_moment, check_page, unknown
from omniq.storage.moving import EmbeddedMoving
from omniq.storage.ringing import Bell, Listener
from omniq.storage.rows import Rows
from omniq.storage.scheduling import EmbeddedSchedules
from omniq.task import (
    MAX_NAME_CHARS,
    Answer,
    Claim,
    Enqueued,
    Head,
    Held,
    OnConflict,
    Page,
    Renewal,
    Run,
    Settlement,
    StoredTask,
    Tally,
    Task,
    TaskFilter,
    TaskResult,
    TaskStatus,
    Timing,
    WorkerInfo,
    check_progress,
    check_text,
    count,
    positive_seconds,
    queue_name,
    shown,
)

T = TypeVar("T")


class EmbeddedStorage(EmbeddedSchedules, EmbeddedMoving):
    """Every verb of the contract over `Rows`."""

    def __init__(self) -> None:
        super().__init__()
        self._listener: Listener | None = None
        self._next_due: datetime | None = None
        self._results: Results | None = None

    @abstractmethod
    async def _write(self, job: Callable[[Rows], T]) -> T:
        """Run `job` on the rows as one atomic, durable write; ring the bell afterwards."""

    @abstractmethod
    def _write_here(self, job: Callable[[Rows], T], tasks: list[StoredTask]) -> T:
        """The same in the caller's own thread, for an enqueue of `tasks`."""

    @abstractmethod
    async def _read(self, job: Callable[[Rows], T]) -> T:
        """Run `job` on the rows; it changes nothing."""

    @abstractmethod
    def _bell(self) -> Bell: ...

    def _listen(self) -> None:
        self._listener = Listener()
        ring = self._listener.result
        self._results = Results(ring, self.clock, self._ended_of, self.clock, self._listening_for_results)
        self._bell().add(self._listener)

    def abandon(self) -> None:
        super().abandon()
        self._forget_listener()

    def _forget_listener(self) -> None:
        if self._listener is not None:
            self._bell().remove(self._listener)
            self._listener = None

    async def _stop_listening(self) -> None:
        self._forget_listener()
        if self._results is not None:
            await self._results.stop()

    # --- writing ---------------------------------------------------------------------------------

    async def enqueue_many(
        self,
        tasks: Iterable[Task | StoredTask],
        *,
        conn: Any = None,
        on_conflict: OnConflict = "skip",
    ) -> list[Enqueued]:
        stored = self._checked(tasks, on_conflict)
        if not self._is_open_here:
            await self.open()
        if conn is not None:
            return await self._enqueue_on(conn, stored, on_conflict)
        return await self._enqueue(stored, on_conflict)

    def enqueue_here(
        self, tasks: Iterable[Task | StoredTask], *, on_conflict: OnConflict = "skip"
    ) -> list[Enqueued]:
        stored = self._checked(tasks, on_conflict)
        return self._write_here(lambda rows: rows.enqueue_many(stored, on_conflict), stored)

    def _checked(self, tasks: Iterable[Task | StoredTask], on_conflict: OnConflict) -> list[StoredTask]:
        if on_conflict not in ("skip", "raise", "replace"):
            raise InvalidOption(f"on_conflict must be 'skip', 'raise' or 'replace', not {shown(on_conflict)}")
        return self.encode_many(tasks)

    def _enqueue(self, stored: list[StoredTask], on_conflict: OnConflict) -> Awaitable[list[Enqueued]]:
        return self._write(lambda rows: rows.enqueue_many(stored, on_conflict))

    async def _enqueue_on(
        self, conn: Any, stored: list[StoredTask], on_conflict: OnConflict
    ) -> list[Enqueued]:
        raise self._lacks("enqueue(conn=...)")

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Answer], list[Claimed]]:
        if claim is not None:
            check_claim(claim)
        await self.open()
        if claim is not None:
            assert self._listener is not None
            # Cleared before the look: what comes up from here on wakes the next `wait`.
            self._listener.due.clear()
        answers, claims, next_due = await self._write(lambda rows: _exchange(rows, settlements, claim))
        if claim is not None:
            self._next_due = next_due
            self._claims.note(claims)
        return answers, claims

    async def renew(self, worker: str, lease: float, holding: Iterable[Held] = ()) -> Renewal:
        positive_seconds(lease, "lease")
        known = tuple(holding)
        return await self._do(lambda rows: rows.renew(worker, lease, known))

    async def release(self, worker: str) -> int:
        return await self._do(lambda rows: rows.release(worker))

    async def lapse(self, limit: int = 100) -> int:
        count(limit, "limit", least=1)
        return await self._do(lambda rows: rows.lapse(limit))

    async def progress(self, task_id: str, epoch: int, done: float, total: float | None = None) -> bool:
        check_progress(done, total)
        return await self._do(lambda rows: rows.progress(task_id, epoch, (done, total)))

    async def cancel(self, task_id: str) -> TaskStatus:
        return await self._do(lambda rows: rows.cancel(task_id))

    async def retry(self, task_id: str) -> None:
        await self._do(lambda rows: rows.retry(task_id))

    async def reschedule(self, task_id: str, eta: datetime, *, epoch: int | None = None) -> None:
        moment = check_moment(eta)
        await self._do(lambda rows: rows.reschedule(task_id, moment, epoch))

    async def delete(self, task_id: str) -> None:
        await self._do(lambda rows: rows.delete(task_id))

    async def prune(self, limit: int = 1000) -> int:
        count(limit, "limit", least=1)
        return await self._do(lambda rows: rows.prune(limit))

    async def pause(self, queue: str) -> None:
        queue_name(queue)
        await self._do(lambda rows: rows.pause(queue))

    async def resume(self, queue: str) -> None:
        queue_name(queue)
        await self._do(lambda rows: rows.resume(queue))

    async def limit_queue(self, queue: str, max_depth: int | None) -> None:
        queue_name(queue)
        most = None if max_depth is None else count(max_depth, "max_depth", least=0)
        await self._do(lambda rows: rows.put_limit(queue, most))

    async def queue_limits(self) -> dict[str, int]:
        return await self._look(lambda rows: rows.limits())

    async def beat(self, worker: WorkerInfo) -> None:
        await self._do(lambda rows: rows.beat(worker))

    async def leave(self, worker: str) -> None:
        await self._do(lambda rows: rows.leave(worker))

    async def _do(self, job: Callable[[Rows], T]) -> T:
        await self.open()
        return await self._write(job)

    # --- looking ---------------------------------------------------------------------------------

    async def get_task(self, task_id: str) -> Task | None:
        stored = await self._look(lambda rows: rows.get(task_id))
        return None if stored is None else self.decode(stored)

    async def get_result(self, task_id: str) -> TaskResult | None:
        stored = await self._look(lambda rows: rows.get(task_id))
        return None if stored is None else self.result_of(stored)

    async def held(self, worker: str) -> list[Held]:
        return await self._look(lambda rows: rows.held(worker))

    async def page(
        self, filter: TaskFilter | None = None, after: str | None = None, limit: int = 100
    ) -> Page:
        check_page(limit)
        wanted = filter or TaskFilter()
        stored, behind = await self._look(lambda rows: rows.select(wanted, after, limit))
        return Page(self._decodable(stored), behind)

    async def longest_running(self, limit: int = 100) -> list[Task]:
        check_page(limit)
        return self._decodable(await self._look(lambda rows: rows.longest_running(limit)))

    def _decodable(self, stored: list[StoredTask]) -> list[Task]:
        tasks: list[Task] = []
        for one in stored:
            try:
                tasks.append(self.decode(one))
            except CorruptRecord as corrupt:
                logger.error("passed over: {}", corrupt)
        return tasks

    async def history(self, task_id: str) -> list[Run]:
        return await self._look(lambda rows: rows.runs(task_id))

    async def tallies(self) -> list[Tally]:
        return await self._look(lambda rows: rows.tallies())

    async def heads(self) -> list[Head]:
        return await self._look(lambda rows: rows.heads())

    async def timings(self, limit: int = 1000) -> list[Timing]:
        check_page(limit)
        return await self._look(lambda rows: rows.timings(limit))

    async def ahead(self, task_id: str, most: int = 10_000) -> int:
        count(most, "most", least=1)
        return await self._look(lambda rows: rows.ahead(task_id, most))

    async def paused(self) -> set[str]:
        return await self._look(lambda rows: rows.paused())

    async def workers(self) -> list[WorkerInfo]:
        return await self._look(lambda rows: rows.workers())

    async def verify(self) -> list[str]:
        return await self._look(lambda rows: rows.verify())

    async def _look(self, job: Callable[[Rows], T]) -> T:
        await self.open()
        return await self._read(job)

    # --- waiting ---------------------------------------------------------------------------------

    async def wait(self, timeout: float) -> bool:
        await self.open()
        assert self._listener is not None
        timeout_s = max(0.0, timeout)
        if self._next_due is not None:
            until_due_s = (self._next_due - self._wall()).total_seconds()
            if until_due_s < timeout_s:
                await self._listener.due.wait(self.clock, until_due_s)
                return True
        return await self._listener.due.wait(self.clock, timeout_s)

    def _wall(self) -> datetime:
        return self.clock.now()

    async def wait_result(self, task_id: str, timeout: float | None = None) -> TaskResult | None:
        await self.open()
        assert self._results is not None
        return await self._results.of(str(task_id), timeout, self._result_or_unknown)

    async def _result_or_unknown(self, task_id: str) -> TaskResult | None:
        stored = await self._read(lambda rows: rows.get(task_id))
        if stored is None:
            raise unknown(task_id)
        return self.result_of(stored)

    def _listening_for_results(self) -> AbstractContextManager[object]:
        """Entered while anybody waits for a result."""
        return nullcontext()

    async def _ended_of(self, ids: list[str]) -> set[str]:
        return await self._read(lambda rows: rows.ended(ids))


def _exchange(
    rows: Rows, settlements: Sequence[Settlement], claim: Claim | None
) -> tuple[list[Answer], list[Claimed], datetime | None]:
    answers, claims = rows.exchange(settlements, claim)
    return answers, list(claims), rows.next_due


def check_claim(claim: Claim) -> None:
    check_text(claim.worker, "worker", MAX_NAME_CHARS)
    check_text(claim.claim_id, "claim_id", MAX_NAME_CHARS)
    count(claim.limit, "limit", least=0)
    positive_seconds(claim.lease, "lease")
    for queue in claim.queues or ():
        queue_name(queue)
