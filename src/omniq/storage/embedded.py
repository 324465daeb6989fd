"""The async face of a store that lives in this process: one line per verb, and the waiting.

A store says how a job reaches its rows (`_write`, `_read`) and brings the bell that wakes sleepers.
"""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from loguru import logger

from omniq.clock import Clock, wait_for_event
from omniq.errors import CorruptRecord, InvalidOption, StoreUnavailable
from omniq.storage.base import Claimed
from omniq.storage.batched import check_moment, check_page, unknown
from omniq.storage.moving import EmbeddedMoving
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
# Looked at this often even if no bell rings: a notification only shortens a wait.
RESULT_POLL_S: Final = 0.5


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Ring:
    """One thing that a loop may sleep for. Rung from any thread; a loop that does not sleep is left alone.

    Whoever sleeps says so before it looks at `rung`, whoever rings looks for sleepers after setting it:
    one of the two always sees the other.
    """

    def __init__(self) -> None:
        self.rung = False
        self._sleepers = 0
        self._awake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def clear(self) -> None:
        self.rung = False
        self._awake.clear()

    def ring(self) -> None:
        self.rung = True
        if not self._sleepers or self._loop.is_closed():
            return
        # Not the thread's number: that may be another thread's by now, or this one's with no loop in it.
        if _running_loop() is self._loop:
            self._awake.set()
            return
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            if not self._loop.is_closed():  # it has not closed right now, so this came from elsewhere
                raise

    def _wake(self) -> None:
        if self.rung:
            self._awake.set()

    async def wait(self, clock: Clock, timeout_s: float) -> bool:
        """Sleep until it rings, or has rung since it was cleared; at most `timeout_s`."""
        self._sleepers += 1
        try:
            if self.rung:
                return True
            await wait_for_event(clock, self._awake, timeout_s)
            return self.rung
        finally:
            self._sleepers -= 1


class Listener:
    """One loop's ear: a ring for due work, one for results."""

    def __init__(self) -> None:
        self.due = Ring()
        self.result = Ring()

    def ring(self, *, due: bool, result: bool) -> None:
        if due:
            self.due.ring()
        if result:
            self.result.ring()


class Bell:
    """Everybody in this process who sleeps on one store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()

    def add(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def remove(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if one is not listener)

    def ring(self, *, due: bool, result: bool) -> None:
        for listener in self._listeners:
            listener.ring(due=due, result=result)


class EmbeddedStorage(EmbeddedSchedules, EmbeddedMoving):
    """Every verb of the contract over `Rows`."""

    def __init__(self) -> None:
        super().__init__()
        self._listener: Listener | None = None
        self._next_due: datetime | None = None
        self._awaited: dict[str, list[asyncio.Future[None]]] = {}
        self._watcher: asyncio.Task[None] | None = None

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
        self._tell_broken(list(self._awaited), StoreUnavailable("the storage was closed while waiting"))
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None

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
        task_id = str(task_id)
        until = None if timeout is None else self.clock.monotonic() + timeout
        while True:  # once more where somebody retried it between its end and our look
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._awaited.setdefault(task_id, []).append(ended)
            try:
                result = await self._result_or_unknown(task_id)
                if result is not None or not await self._told(ended, until):
                    return result
            finally:
                self._forget(task_id, ended)

    async def _told(self, ended: asyncio.Future[None], until: float | None) -> bool:
        """Wait for it; False when the time is over."""
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch_results(), name="omniq-results")
        bell = None
        if until is not None:
            bell = self.clock.call_later(max(0.0, until - self.clock.monotonic()), lambda: _give_up(ended))
        await asyncio.wait((ended,))
        if bell is not None:
            bell.cancel()
        if ended.cancelled():
            return False
        ended.result()
        return True

    async def _result_or_unknown(self, task_id: str) -> TaskResult | None:
        stored = await self._read(lambda rows: rows.get(task_id))
        if stored is None:
            raise unknown(task_id)
        return self.result_of(stored)

    def _forget(self, task_id: str, ended: asyncio.Future[None]) -> None:
        waiting = self._awaited.get(task_id, [])
        if ended in waiting:
            waiting.remove(ended)
        if not waiting:
            self._awaited.pop(task_id, None)

    async def _watch_results(self) -> None:
        """One look for everybody who waits on this storage, after each ring and now and then."""
        assert self._listener is not None
        rung = self._listener.result
        while self._awaited:
            rung.clear()
            ids = list(self._awaited)
            try:
                self._tell_ended(await self._read(partial(_ended, ids)))
            except StoreUnavailable as exc:
                logger.warning("cannot look for results: {}", exc)
            except Exception as exc:
                self._tell_broken(ids, exc)
            await rung.wait(self.clock, RESULT_POLL_S)

    def _tell_broken(self, ids: Sequence[str], exc: Exception) -> None:
        for task_id in ids:
            for ended in self._awaited.pop(task_id, []):
                if not ended.done():
                    ended.set_exception(exc)

    def _tell_ended(self, ids: set[str]) -> None:
        for task_id in ids:
            for ended in self._awaited.pop(task_id, []):
                if not ended.done():
                    ended.set_result(None)


def _give_up(future: asyncio.Future[None]) -> None:
    future.cancel()


def _ended(ids: Sequence[str], rows: Rows) -> set[str]:
    return rows.ended(ids)


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
