"""Where tasks are remembered. Stores are imported when they are asked for, never before."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from omniq.storage.base import BaseStorage, Capabilities

if TYPE_CHECKING:
    from omniq.storage.backend import Backend, Reserved
    from omniq.storage.memory import MemoryStorage
    from omniq.storage.postgres import PostgresStorage
    from omniq.storage.redis import RedisStorage
    from omniq.storage.sqlite import SQLiteStorage
    from omniq.storage.url import open_storage

_HOMES = {
    "Backend": "omniq.storage.backend",
    "Reserved": "omniq.storage.backend",
    "MemoryStorage": "omniq.storage.memory",
    "PostgresStorage": "omniq.storage.postgres",
    "RedisStorage": "omniq.storage.redis",
    "SQLiteStorage": "omniq.storage.sqlite",
    "open_storage": "omniq.storage.url",
}

__all__ = [
    "Backend",
    "BaseStorage",
    "Capabilities",
    "MemoryStorage",
    "PostgresStorage",
    "RedisStorage",
    "Reserved",
    "SQLiteStorage",
    "open_storage",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'omniq.storage' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
