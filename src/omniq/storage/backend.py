"""The vocabulary of seed 002 (`reserve`, `mark_success`, `mark_failure`) over the same contract, both ways.

your Backend ── as_storage() ──> BackendStorage ──> any worker
any storage  ── as_backend() ──> StorageBackend ──> code that speaks seed 002
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from loguru import logger
from msgspec import Struct

from omniq.errors import CorruptRecord, StoreUnavailable, Unsupported
from omniq.serializer import Serializer
from omniq.storage.base import BaseStorage, Claimed
from omniq.task import (
    Action,
    Answer,
    Claim,
    Held,
    Settlement,
    StoredTask,
    Task,
    TaskError,
    TaskResult,
    new_id,
)


class Reserved(Struct, frozen=True):
    """A claimed task: its id, and bytes that a serializer's `load_call` turns into a call."""

    id: str
    payload: bytes


class Backend(ABC):
    """Derive from it and write five verbs; `Worker(backend)` runs what it hands out."""

    @property
    def is_connected(self) -> bool:
        return False

    @abstractmethod
    async def connect(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def reserve(self, limit: int) -> list[Reserved]:
        """At most `limit` tasks that nobody else has."""

    @abstractmethod
    async def mark_success(self, task_id: str, result: bytes) -> object: ...

    @abstractmethod
    async def mark_failure(self, task_id: str, error: str, traceback: str) -> object:
        """The task failed for good: whoever wants retries, makes them here."""

    def as_storage(self) -> BackendStorage:
        return BackendStorage(self)


class BackendStorage(BaseStorage):
    """A backend as a worker sees it: claims come from `reserve`, and a failure is final."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._opened = False

    @property
    def is_open(self) -> bool:
        return self._opened or self.backend.is_connected

    async def open(self) -> None:
        if not self.is_open:
            await self.backend.connect()
            self._opened = True

    async def close(self) -> None:
        if self._opened:
            self._opened = False
            await self.backend.close()

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Answer], list[Claimed]]:
        answers = [await self._settle(settlement) for settlement in settlements]
        if claim is None or claim.limit == 0 or Answer.UNSENT in answers:
            return answers, []
        try:
            reserved = await self.backend.reserve(claim.limit)
        except Exception as exc:
            if not answers:
                raise
            logger.warning("reserve failed: {!r}", exc)
            return answers, []
        return answers, [StoredTask("", one.payload, id=one.id, max_retries=0) for one in reserved]

    async def _settle(self, settlement: Settlement) -> Answer:
        task_id, error = settlement.task.id, settlement.error
        try:
            if settlement.action is Action.SUCCEED:
                await self.backend.mark_success(task_id, settlement.result or b"")
            elif error is not None:
                await self.backend.mark_failure(task_id, str(error), error.traceback)
            else:
                gave_back = "given back unfinished: snoozed, or the worker stopped"
                await self.backend.mark_failure(task_id, gave_back, "")
        except StoreUnavailable as exc:
            logger.warning("the backend is away while settling {}: {}", task_id, exc)
            return Answer.UNSENT
        except Exception as exc:
            logger.error("the backend refused to settle {}: {!r}", task_id, exc)
            return Answer.STALE
        return Answer.HELD

    async def enqueue(self, task: Task, *, conn: Any = None) -> str:
        raise self._lacks("enqueue")

    async def dequeue(self, now: datetime | None = None) -> Task | None:
        raise self._lacks("dequeue")

    async def mark_running(self, task_id: str) -> None:
        raise self._lacks("mark_running")

    async def mark_done(self, task_id: str, result: TaskResult) -> None:
        raise self._lacks("mark_done")

    async def mark_failed(self, task_id: str, error: TaskError, will_retry: bool = False) -> None:
        raise self._lacks("mark_failed")

    def _lacks(self, verb: str) -> Unsupported:
        return Unsupported(f"a Backend has no {verb}(); it reserves and marks")


class StorageBackend(Backend):
    """A storage in seed 002's words. What it reserved is held under a lease, as any claim."""

    def __init__(self, storage: BaseStorage, serializer: Serializer, lease: float = 30.0) -> None:
        self.storage = storage
        self.serializer = serializer
        self.lease = lease
        self.worker = f"backend-{new_id()}"
        self._held: dict[str, Claimed] = {}

    @property
    def is_connected(self) -> bool:
        return self.storage.is_open

    async def connect(self) -> None:
        await self.storage.open()

    async def close(self) -> None:
        await self.storage.close()

    async def reserve(self, limit: int) -> list[Reserved]:
        reserved: list[Reserved] = []
        for task in await self.storage.claim(self.worker, None, limit, self.lease):
            self._held[task.id] = task
            reserved.append(Reserved(task.id, self._call_of(task)))
        return reserved

    def _call_of(self, task: Claimed) -> bytes:
        """The whole call in one payload; bytes that cannot be read go on as they are, to fail there."""
        if isinstance(task, Task):
            return self.serializer.dump_call(task.func_path, task.args, task.kwargs)
        if not task.func_path:
            return task.payload
        try:
            _, args, kwargs = self.serializer.decode_call(task.payload)
        except CorruptRecord:
            return task.payload
        return self.serializer.dump_call(task.func_path, args, kwargs)

    async def mark_success(self, task_id: str, result: bytes) -> Answer:
        task = self._claim_of(task_id)
        if not isinstance(task, Held) and task.repeats:
            assert task.interval is not None
            return await self._settle(Settlement.repeat(task, result, task.interval))
        return await self._settle(Settlement.success(task, result))

    async def mark_failure(self, task_id: str, error: str, traceback: str) -> Answer:
        failure = TaskError("Error", error, traceback)
        return await self._settle(Settlement.failed(self._claim_of(task_id), failure))

    def _claim_of(self, task_id: str) -> Claimed | Held:
        return self._held.get(task_id) or Held(task_id, 0)

    async def _settle(self, settlement: Settlement) -> Answer:
        [answer] = await self.storage.settle([settlement])
        if answer is Answer.UNSENT:
            raise StoreUnavailable("the storage went away while settling; repeat the call")
        self._held.pop(settlement.task.id, None)
        return answer
