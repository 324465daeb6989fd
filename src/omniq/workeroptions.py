"""What the workers can be told, and what they say to what makes no sense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from msgspec import Struct

from omniq.clock import Clock
from omniq.errors import InvalidOption
from omniq.serializer import Serializer
from omniq.storage.base import BaseStorage
from omniq.task import Duration, name_list, positive_seconds, queue_name, shown

if TYPE_CHECKING:
    from omniq.pool import WorkerPool as ProcessPool


class ProcessLimits(Struct, frozen=True):
    """What a worker's own processes for tasks may use; None is the default of `omniq.pool.WorkerPool`."""

    processes: int | None = None
    tasks_per_process: int | None = None
    memory_per_process: int | None = None  # bytes


class PoolOptions(TypedDict, total=False):
    """What a worker pool takes by name only, for type checkers; `AsyncWorkerPool` checks it."""

    max_retry_delay: Duration
    queues: Sequence[str] | None
    lease: Duration
    wake: bool
    allow: Sequence[str] | None
    serializer: Serializer | None
    process_pool: ProcessPool | None
    clock: Clock | None
    name: str


class WorkerOptions(PoolOptions, total=False):
    """What a worker pool takes besides its storage, all of it by name."""

    concurrency: int
    poll_interval: Duration
    base_retry_delay: Duration


def check_storage(storage: BaseStorage) -> BaseStorage:
    if not isinstance(storage, BaseStorage):
        raise InvalidOption(
            f"storage must be a BaseStorage, such as SQLiteStorage('jobs.db'), not {shown(storage)}"
        )
    return storage


def check_serializer(serializer: Serializer | None) -> Serializer | None:
    if serializer is not None and not isinstance(serializer, Serializer):
        raise InvalidOption(f"serializer must be a Serializer, not {shown(serializer)}")
    return serializer


def check_process_pool(process_pool: ProcessPool | None) -> ProcessPool | None:
    if process_pool is not None and not callable(getattr(process_pool, "dispatch_task", None)):
        raise InvalidOption(f"process_pool must be an omniq.pool.WorkerPool, not {shown(process_pool)}")
    return process_pool


def check_queues(queues: Sequence[str] | None) -> tuple[str, ...] | None:
    if queues is None:
        return None
    names = name_list(queues, "queues", "'default'")
    if not names:
        raise InvalidOption("queues must name one queue at least, such as ['default']; None is all of them")
    return tuple(queue_name(queue) for queue in names)


def zero_or_seconds(timeout: Duration) -> float:
    return 0.0 if timeout == 0 else positive_seconds(timeout, "timeout")
