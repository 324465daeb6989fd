"""The file and its schema: made for its owner's eyes only, looked at before it is trusted."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final

from omniq.errors import InvalidOption, SchemaMismatch, StoreUnavailable, Unsupported

SCHEMA_VERSION: Final = 1
OLDEST_SQLITE: Final = (3, 35, 0)  # the first with RETURNING


def prepare_file(path: Path) -> None:
    """Make the file for its owner's eyes only; refuse what could be somebody's trap."""
    # Not `path.is_symlink`, which raises where the folder may not be entered: `os.open` says that below.
    if os.path.islink(path):
        raise InvalidOption(f"{path} is a symbolic link; give the path of the file itself")
    if os.path.isdir(path):
        raise InvalidOption(f"{path} is a folder; give the path of a file, such as {path / 'jobs.db'}")
    try:
        # Only a file that we just made is opened here: closing a descriptor of an existing database drops
        # every lock that this process has on it. The log and the shared-memory file take over this mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        if not os.access(path, os.R_OK | os.W_OK):
            raise InvalidOption(f"{path} cannot be written by this user; change its mode or owner") from None
        if not os.access(path.parent, os.W_OK | os.X_OK) and not Path(f"{path}-wal").exists():
            raise InvalidOption(
                f"{path.parent} cannot be written by this user, and SQLite keeps its log beside the file; "
                "give a path in a folder that this user may write"
            ) from None
    except FileNotFoundError as exc:
        raise InvalidOption(f"there is no folder {path.parent}; create it, or give another path") from exc
    except OSError as exc:
        raise InvalidOption(
            f"cannot write {path}: {exc.strerror}; give a path in a folder that this user may write"
        ) from exc


def identity(path: Path) -> tuple[int, int] | None:
    """Which file is at a path. By the path, never by a descriptor: closing one would drop SQLite's locks."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:  # such as a folder that may not be entered any more, or a server that is away
        raise StoreUnavailable(f"cannot look at {path}: {exc.strerror}") from exc
    return found.st_dev, found.st_ino


def check_version(version: tuple[int, ...]) -> None:
    if version < OLDEST_SQLITE:
        raise Unsupported(
            f"this Python has SQLite {'.'.join(map(str, version))}, and OmniQ needs "
            f"{'.'.join(map(str, OLDEST_SQLITE))} or newer; use a Python that was built with a newer one"
        )


def prepare_schema(conn: sqlite3.Connection, turn: contextlib.AbstractContextManager[None]) -> int:
    """Make the schema, or check its version; this machine's boot as a number.

    A plain look comes first, because the caller may hold the write lock in a transaction of its own.
    """
    boot = known_boot(conn)
    if boot is not None:
        return boot
    with turn:
        conn.execute("BEGIN IMMEDIATE")
        try:
            if not has_schema(conn):
                for statement in statements():
                    conn.execute(statement)
                conn.execute("INSERT INTO omniq_meta VALUES ('schema', ?)", (str(SCHEMA_VERSION),))
            conn.execute("INSERT OR IGNORE INTO omniq_boot (boot_id) VALUES (?)", (boot_id(),))
            conn.execute("COMMIT")
        except BaseException:
            conn.execute("ROLLBACK")
            raise
    boot = known_boot(conn)
    assert boot is not None
    return boot


def has_schema(conn: sqlite3.Connection) -> bool:
    return conn.execute("SELECT 1 FROM sqlite_master WHERE name = 'omniq_meta'").fetchone() is not None


def known_boot(conn: sqlite3.Connection) -> int | None:
    """The number of this boot, if schema and boot are there already; another version is refused."""
    if not has_schema(conn):
        return None
    [version] = conn.execute("SELECT value FROM omniq_meta WHERE key = 'schema'").fetchone() or ["none"]
    if version != str(SCHEMA_VERSION):
        raise SchemaMismatch(
            f"the file has schema version {version}, this OmniQ speaks {SCHEMA_VERSION}; "
            "install the version that made it, or give another path"
        )
    row = conn.execute("SELECT boot FROM omniq_boot WHERE boot_id = ?", (boot_id(),)).fetchone()
    return None if row is None else int(row[0])


def statements() -> Iterator[str]:
    script = files("omniq.storage.sqlite").joinpath("schema.sql").read_text()
    lines = (line.split("--")[0].rstrip() for line in script.splitlines())
    for statement in "\n".join(line for line in lines if line).split(";"):
        if statement.strip():
            yield statement


def boot_id() -> str:
    """Changes when the machine restarts, and its monotonic clock with it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def is_world_writable(folder: Path) -> bool:
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
