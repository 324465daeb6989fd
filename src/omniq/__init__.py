"""OmniQ runs Python functions reliably: durable tasks, the workers that run them, pools of processes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from omniq.errors import (
    BlockingCallInHandler,
    BlockingCallInLoop,
    CallCancelled,
    CallFailed,
    CallTimeout,
    CollateFailed,
    Conflict,
    CorruptRecord,
    DuplicateTask,
    GiveUp,
    IdConflict,
    InvalidOption,
    NotFound,
    OmniqError,
    PayloadTooLarge,
    PoolClosed,
    PoolNotRunning,
    QueueFull,
    ResultTimeout,
    Retry,
    SchemaMismatch,
    Snooze,
    StartFailed,
    StillDue,
    StoreError,
    StoreUnavailable,
    TaskCancelled,
    TaskFailed,
    UnknownTask,
    UnserializableArgument,
    Unsupported,
    WorkerDied,
    WorkerStuck,
)

if TYPE_CHECKING:
    from omniq.app import OmniQ, TaskFunction, TaskHandle
    from omniq.running import Context, context
    from omniq.task import Task, TaskError, TaskResult, TaskStatus
    from omniq.worker import AsyncWorkerPool, Worker, WorkerPool

__version__ = "0.1.0"

_HOMES = {
    "AsyncWorkerPool": "omniq.worker",
    "Context": "omniq.running",
    "context": "omniq.running",
    "OmniQ": "omniq.app",
    "Task": "omniq.task",
    "TaskError": "omniq.task",
    "TaskFunction": "omniq.app",
    "TaskHandle": "omniq.app",
    "TaskResult": "omniq.task",
    "TaskStatus": "omniq.task",
    "Worker": "omniq.worker",
    "WorkerPool": "omniq.worker",
}

__all__ = [
    "AsyncWorkerPool",
    "BlockingCallInHandler",
    "BlockingCallInLoop",
    "CallCancelled",
    "CallFailed",
    "CallTimeout",
    "CollateFailed",
    "Conflict",
    "Context",
    "CorruptRecord",
    "DuplicateTask",
    "GiveUp",
    "IdConflict",
    "InvalidOption",
    "NotFound",
    "OmniQ",
    "OmniqError",
    "PayloadTooLarge",
    "PoolClosed",
    "PoolNotRunning",
    "QueueFull",
    "ResultTimeout",
    "Retry",
    "SchemaMismatch",
    "Snooze",
    "StartFailed",
    "StillDue",
    "StoreError",
    "StoreUnavailable",
    "Task",
    "TaskCancelled",
    "TaskError",
    "TaskFailed",
    "TaskFunction",
    "TaskHandle",
    "TaskResult",
    "TaskStatus",
    "UnknownTask",
    "UnserializableArgument",
    "Unsupported",
    "Worker",
    "WorkerDied",
    "WorkerPool",
    "WorkerStuck",
    "context",
]


def __getattr__(name: str) -> Any:
    # Imported when asked for: a program that only wants one name should not wait for all of them.
    if name not in _HOMES:
        raise AttributeError(f"module 'omniq' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
