"""From an address to a storage."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote, urlsplit

from omniq.errors import InvalidOption
from omniq.storage.base import BaseStorage
from omniq.task import shown

_SECRET = re.compile(r"(//[^:@/?#]*):.*@")
_SECRET_PARAMETER = re.compile(r"(?i)([?&](?:password|passwd|pwd|sslpassword|token)=)[^&#]*")
_EXAMPLES = "memory://, sqlite:///relative.db, sqlite:////absolute/path.db, postgresql://user@host/database, redis://host"


def open_storage(url: str, **options: Any) -> BaseStorage:
    """The storage behind `url`. It connects at its first use."""
    if not isinstance(url, str) or "://" not in url:
        raise InvalidOption(f"{shown(safe_url(str(url)))} is no storage URL; write one of {_EXAMPLES}")
    if any(
        letter < " " for letter in url
    ):  # urlsplit passes over them, and a file would have them in its name
        raise InvalidOption(f"{shown(safe_url(url))} has a line break, a tab or the like in it; take it out")
    try:
        parts = urlsplit(url)
    except ValueError as exc:
        raise InvalidOption(f"{shown(safe_url(url))} is no URL ({exc}); write one of {_EXAMPLES}") from exc
    try:
        match parts.scheme:
            case "memory":
                from omniq.storage.memory import MemoryStorage

                return MemoryStorage(**options)
            case "sqlite":
                from omniq.storage.sqlite import SQLiteStorage

                return SQLiteStorage(_sqlite_path(url), **options)
            case "postgresql" | "postgres":
                from omniq.storage.postgres import PostgresStorage

                return PostgresStorage(url, **options)
            case "redis" | "rediss" | "unix" | "valkey" | "valkeys":
                from omniq.storage.redis import RedisStorage

                return RedisStorage(url, **options)
            case _:
                raise InvalidOption(f"no storage speaks {parts.scheme!r}; write one of {_EXAMPLES}")
    except ModuleNotFoundError as missing:
        extra = "postgres" if parts.scheme.startswith("postgres") else "redis"
        raise InvalidOption(
            f"{parts.scheme}:// needs the package {missing.name}; write pip install 'omniq-tasks[{extra}]'"
        ) from missing
    except TypeError as wrong:
        raise InvalidOption(f"{parts.scheme}:// does not take these options: {wrong}") from wrong


def _sqlite_path(url: str) -> str:
    """`sqlite:///a.db` is relative, `sqlite:////a.db` absolute, as everywhere else."""
    rest = url.partition(":")[2]  # whatever the case of the scheme
    if not rest.startswith("///") or len(rest) == len("///"):
        raise InvalidOption(
            f"{shown(safe_url(url))} names no file; write sqlite:///jobs.db (relative) or sqlite:////var/jobs.db"
        )
    if "?" in rest:
        raise InvalidOption(
            f"{shown(safe_url(url))}: an address of SQLite takes no options; write "
            "SQLiteStorage('jobs.db', durability='relaxed'), or %3F for a ? in the name"
        )
    return unquote(rest[len("///") :])


def safe_url(url: str) -> str:
    """A URL for people to see: without its password."""
    return _SECRET_PARAMETER.sub(r"\1***", _SECRET.sub(r"\1:***@", url))
