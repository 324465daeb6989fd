"""A store that implements the batched verbs: the seed's verbs made from those, and who may use it.

A storage belongs to the event loop that opened it. It opens at its first use.
"""

from __future__ import annotations

import asyncio
import traceback
from abc import abstractmethod
from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar, Final, get_args

from omniq.errors import InvalidOption, NotFound, PayloadTooLarge
from omniq.logic.lifecycle import HISTORY_LIMIT
from omniq.storage.base import BaseStorage, Capabilities
from omniq.storage.recent import RecentClaims
from omniq.storage.tallying import counted, rated
from omniq.task import (
    MAX_NAME_CHARS,
    Action,
    Answer,
    Checked,
    ErrorKind,
    Held,
    OnConflict,
    Rates,
    Settlement,
    StoredTask,
    Task,
    TaskError,
    TaskFields,
    TaskFilter,
    TaskResult,
    TaskStatus,
    check_fields,
    check_headers,
    count,
    func_path,
    moment,
    new_id,
    shown,
    task_error,
)

MAX_PAYLOAD_BYTES: Final = 1 << 20
MAX_BATCH: Final = 100_000
MAX_PAGE: Final = 10_000
MAX_ID_SHOWN: Final = MAX_NAME_CHARS + 2
DAY_S: Final = 86400.0
_COMMON: Final = tuple(TaskFields.__struct_fields__)

__all__ = ["HISTORY_LIMIT", "MAX_BATCH", "MAX_PAYLOAD_BYTES", "BatchedStorage"]


class BatchedStorage(BaseStorage):
    """What the built-in stores share above their own data."""

    capabilities: ClassVar[Capabilities] = Capabilities(batched=True, leases=True, wakes=True)
    max_payload: int = MAX_PAYLOAD_BYTES
    result_ttl_s: float = DAY_S
    failed_ttl_s: float = 30 * DAY_S

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None
        self._claims = RecentClaims()
        self._dequeuer = f"dequeue-{new_id()}"

    # --- life ------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._loop is not None

    @property
    def _is_open_here(self) -> bool:
        """Whether `open` would find nothing to do."""
        return self._loop is not None and self._loop is asyncio.get_running_loop()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            raise InvalidOption(
                f"this {type(self).__name__} belongs to another event loop; use storage.clone() here"
            )
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if self._loop is None:
                await self._connect()
                self._loop = loop

    async def close(self) -> None:
        if self._loop is None:
            return
        self._loop = None
        self._opening = None
        await self._disconnect()

    def abandon(self) -> None:
        self._loop = self._opening = None

    @abstractmethod
    async def _connect(self) -> None: ...

    @abstractmethod
    async def _disconnect(self) -> None: ...

    def keep_results(self, result_ttl_s: float, failed_ttl_s: float) -> None:
        """How long what has ended can be asked for."""
        self.result_ttl_s, self.failed_ttl_s = result_ttl_s, failed_ttl_s

    def _give_settings(self, twin: BatchedStorage) -> None:
        twin.keep_results(self.result_ttl_s, self.failed_ttl_s)
        twin.max_payload, twin.serializer = self.max_payload, self.serializer

    # --- the seed's verbs ------------------------------------------------------------------------

    async def enqueue(
        self, task: Task | StoredTask, *, conn: Any = None, on_conflict: OnConflict = "skip"
    ) -> str:
        """One task. Where a living task holds its unique key, the id is that task's."""
        [enqueued] = await self.enqueue_many([task], conn=conn, on_conflict=on_conflict)
        return str(enqueued)

    async def dequeue(self, now: datetime | None = None, *, lease: float = 30.0) -> Task | None:
        claims = await self.claim(self._dequeuer, None, 1, lease)
        if not claims:
            return None
        [claimed] = claims
        return self.decode(claimed) if isinstance(claimed, StoredTask) else claimed

    async def mark_running(self, task_id: str, *, epoch: int | None = None) -> Answer:
        """`dequeue` has claimed it already: this only says whether the claim still holds."""
        claim = self._claim_of(task_id, epoch)
        task = await self.get_task(task_id)
        running = task is not None and task.owner is not None and task.epoch == claim.epoch
        return Answer.HELD if running else Answer.STALE

    async def mark_done(self, task_id: str, result: TaskResult, *, epoch: int | None = None) -> Answer:
        """T4, or T4i for an interval task."""
        if not isinstance(result, TaskResult) or result.status is not TaskStatus.SUCCESS:
            raise InvalidOption(
                "mark_done takes TaskResult(task_id, TaskStatus.SUCCESS, value); mark_failed is for failures"
            )
        if result.task_id != task_id:
            raise InvalidOption(
                f"mark_done of {shown(task_id)} was given the result of {shown(result.task_id)}"
            )
        claim = self._claim_of(task_id, epoch)
        encoded = self.serializer.dumps(result.result)
        if len(encoded) > self.max_payload:
            raise PayloadTooLarge(
                f"the result takes {len(encoded):,} bytes, more than {self.max_payload:,}; "
                "store it elsewhere and keep a key"
            )
        task = await self.get_task(task_id)
        if task is not None and task.repeats:
            assert task.interval is not None
            settlement = Settlement.repeat(claim, encoded, task.interval)
        else:
            settlement = Settlement.success(claim, encoded)
        return await self._settle_alone(settlement)

    async def mark_failed(
        self,
        task_id: str,
        error: TaskError | BaseException | str,
        will_retry: bool = False,
        *,
        epoch: int | None = None,
    ) -> Answer:
        """T5 with `will_retry` (due at once, until a `reschedule` says else), T6 without."""
        claim = self._claim_of(task_id, epoch)
        action = Action.RETRY if will_retry else Action.FAIL
        return await self._settle_alone(Settlement(claim, action, error=as_task_error(error)))

    @abstractmethod
    async def reschedule(self, task_id: str, eta: datetime, *, epoch: int | None = None) -> None:
        """T15. With an `epoch`, only while that is the task's latest one; otherwise it is a `Conflict`."""

    def _claim_of(self, task_id: str, epoch: int | None) -> Held:
        if epoch is not None:
            return Held(task_id, epoch)
        # Epoch 0 is never handed out, so a claim that is not ours is stale by the ordinary rule.
        return Held(task_id, self._claims.epoch_of(task_id) or 0)

    async def _settle_alone(self, settlement: Settlement) -> Answer:
        [answer] = await self.settle([settlement])
        if answer is not Answer.STALE:
            self._claims.forget(settlement.task.id)
        return answer

    # --- looking ---------------------------------------------------------------------------------

    async def list_tasks(
        self, filter: TaskFilter | None = None, after: str | None = None, limit: int = 100
    ) -> list[Task]:
        """Page by page, until there are enough."""
        check_page(limit)
        tasks: list[Task] = []
        while True:
            page = await self.page(filter, after, limit - len(tasks))
            tasks += page.tasks
            if page.after is None or len(tasks) == limit:
                return tasks
            after = page.after

    async def counts(self) -> dict[str, dict[TaskStatus, int]]:
        return counted(await self.tallies())

    async def rates(self, since: datetime) -> Rates:
        begin = check_moment(since)
        return rated(await self.tallies(), begin, self.clock.now())

    # --- between Python values and what is kept --------------------------------------------------

    def encode(self, task: Task | StoredTask) -> StoredTask:
        """The task as it is kept: call encoded once, nothing in it that only the store may set."""
        if isinstance(task, StoredTask):
            check_fields(task)
            if task.func_path:
                func_path(task.func_path)
            stored = task if task.epoch == 0 and task.seq == 0 else self._anew(task, task.payload)
        elif isinstance(task, Task):
            stored = self._anew(task, self.serializer.dump_call(None, task.args, task.kwargs))
        else:
            raise InvalidOption(f"enqueue takes a Task, such as Task('myapp.jobs.resize'), not {shown(task)}")
        self._check_size(stored)
        return stored

    def _check_size(self, task: StoredTask) -> None:
        if len(task.payload) > self.max_payload:
            raise PayloadTooLarge(
                f"the arguments of {task.func_path} take {len(task.payload):,} bytes, more than "
                f"{self.max_payload:,}; store them elsewhere and pass a key, or raise max_payload"
            )

    @staticmethod
    def _anew(task: Task | StoredTask, payload: bytes) -> StoredTask:
        common = {name: getattr(task, name) for name in _FROM_USER}
        if (
            task.headers
        ):  # a dict of somebody's own: it may have changed since the task was made, and may again
            check_headers(task.headers)
            common["headers"] = dict(task.headers)
        return StoredTask(task.func_path, payload, **common)

    def encode_many(self, tasks: Iterable[Task | StoredTask]) -> list[StoredTask]:
        stored: list[StoredTask]
        if type(tasks) is Checked:
            stored = tasks
            for task in tasks:
                self._check_size(task)
        elif not isinstance(tasks, Iterable):
            raise InvalidOption(f"enqueue_many takes a list of tasks, not {shown(tasks)}")
        else:
            stored = [self.encode(task) for task in islice(tasks, MAX_BATCH + 1)]
        if len(stored) > MAX_BATCH:
            raise InvalidOption(f"at most {MAX_BATCH:,} tasks in one call; split them")
        return stored

    def result_of(self, stored: StoredTask) -> TaskResult | None:
        if stored.result_status is None:
            return None
        if stored.result_status is TaskStatus.SUCCESS:
            value = None if stored.result is None else self.serializer.loads(stored.result)
            return TaskResult(stored.id, TaskStatus.SUCCESS, value, None, stored.result_at)
        return TaskResult(stored.id, stored.result_status, None, stored.error, stored.result_at)


_FROM_USER: Final = _COMMON[: _COMMON.index("status")]


def as_task_error(error: TaskError | BaseException | str) -> TaskError:
    if isinstance(error, TaskError):
        if error.kind not in get_args(ErrorKind):
            raise InvalidOption(
                f"kind must be one of {', '.join(get_args(ErrorKind))}, not {shown(error.kind)}"
            )
        return task_error(error.type, error.message, error.traceback, error.kind)
    if isinstance(error, BaseException):
        text = "".join(traceback.format_exception(error))
        return task_error(type(error).__qualname__, str(error), text)
    return task_error("Error", str(error))


def unknown(task_id: str) -> NotFound:
    return NotFound(
        f"no task {shown(task_id, MAX_ID_SHOWN)} in this store: never enqueued here, deleted, or pruned"
    )


def check_page(limit: int) -> int:
    if count(limit, "limit", least=1) > MAX_PAGE:
        raise InvalidOption(f"limit must be at most {MAX_PAGE}, not {limit}; ask for pages with after=")
    return limit


def check_moment(eta: datetime) -> datetime:
    return moment(eta, "eta")
