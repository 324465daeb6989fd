"""Ordered results through shared memory: a pool of workers that load data.

Names are imported when asked for: a worker process imports this package, too, and needs only `empty`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omniq.data.base import BaseWorkerPool
    from omniq.data.inside import empty
    from omniq.data.loader import DataLoader
    from omniq.data.worker_pool import WorkerPool

_HOMES = {
    "BaseWorkerPool": "omniq.data.base",
    "DataLoader": "omniq.data.loader",
    "WorkerPool": "omniq.data.worker_pool",
    "empty": "omniq.data.inside",
}

__all__ = ["BaseWorkerPool", "DataLoader", "WorkerPool", "empty"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'omniq.data' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
