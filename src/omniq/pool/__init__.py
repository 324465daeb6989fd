"""Calls in processes: an autoscaled pool, its registry of workers, and what they report.

Names are imported when asked for: a child imports this package, too, and needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omniq.pool.calling import PoolOptions
    from omniq.pool.message import Message
    from omniq.pool.pool import WorkerPool
    from omniq.pool.registry import WorkerData
    from omniq.pool.status import CallStatus, PoolStatus, WorkerStatus
    from omniq.pool.worker import PoolWorker

_HOMES = {
    "CallStatus": "omniq.pool.status",
    "Message": "omniq.pool.message",
    "PoolOptions": "omniq.pool.calling",
    "PoolStatus": "omniq.pool.status",
    "PoolWorker": "omniq.pool.worker",
    "WorkerData": "omniq.pool.registry",
    "WorkerPool": "omniq.pool.pool",
    "WorkerStatus": "omniq.pool.status",
}

__all__ = [
    "CallStatus",
    "Message",
    "PoolOptions",
    "PoolStatus",
    "PoolWorker",
    "WorkerData",
    "WorkerPool",
    "WorkerStatus",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'omniq.pool' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
