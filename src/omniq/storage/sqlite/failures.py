"""What SQLite says when something is wrong, in words of our own."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator
from pathlib import Path
from typing import Final

from omniq.errors import CorruptRecord, InvalidOption, OmniqError, StoreUnavailable
from omniq.storage.sqlite.records import text_or_bytes

_AWAY: Final = (
    "locked",
    "busy",
    "disk is full",
    "disk I/O error",
    "readonly",
    "unable to open",
    "interrupted",
)


def is_away(exc: sqlite3.Error) -> bool:
    """Whether the whole transaction is lost with it, not only one statement."""
    return any(word in str(exc) for word in _AWAY)


def has_no_room(exc: sqlite3.Error) -> bool:
    """A full disk, or the like: a quota that is used up comes as an error of writing."""
    return "disk is full" in str(exc) or "disk I/O error" in str(exc)


def is_undecodable(exc: sqlite3.Error) -> bool:
    return "Could not decode" in str(exc)


def read_as_bytes(exc: sqlite3.Error, conn: sqlite3.Connection) -> bool:
    """Where text turned out not to be UTF-8: read such text as bytes from now on; True if that is new.

    Only then, because a function of ours for every text costs more than all else that is done with it.
    """
    if not is_undecodable(exc) or conn.text_factory is text_or_bytes:
        return False
    conn.text_factory = text_or_bytes
    return True


def explained(exc: sqlite3.Error, path: Path) -> OmniqError:
    text = str(exc)
    if "not a database" in text:
        return CorruptRecord(f"{path} is not a SQLite database; give another path, or move the file away")
    if "binding parameter" in text:
        return InvalidOption(f"an argument is of a type that cannot be stored: {text}; ids are text")
    if isinstance(exc, sqlite3.IntegrityError):
        return CorruptRecord(f"{path} contradicts itself: {text}; run `omniq doctor`")
    if is_undecodable(exc):
        return CorruptRecord(f"{path} has text that is not UTF-8 ({text}); restore a copy")
    if "malformed" in text or "corrupt" in text:
        return CorruptRecord(f"{path} is damaged ({text}); restore a copy, or try sqlite3's .recover")
    if "closed database" in text:
        return StoreUnavailable(
            f"{path} was closed under this call, as by a fork in a signal handler; repeat it"
        )
    if "locked" in text or "busy" in text:
        return StoreUnavailable(
            f"{path} is locked by another connection; if that is the caller's own transaction, "
            "open the storage before it begins"
        )
    return StoreUnavailable(f"{path}: {text}")


def explained_to_caller(exc: sqlite3.Error, path: Path) -> OmniqError:
    """The same, where it is their connection and their transaction."""
    if "readonly" in str(exc):
        return InvalidOption("conn cannot write: it is open read-only, or PRAGMA query_only is on")
    if getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StoreUnavailable(
            f"what the transaction on conn has read from {path} has changed since; "
            "roll it back and repeat it, and begin it with BEGIN IMMEDIATE"
        )
    return explained(exc, path)


def too_large(exc: OverflowError) -> Exception:
    if "SQLite" not in str(exc):
        return exc
    return InvalidOption("an argument is a number of more than 64 bits; ids are text")


@contextlib.contextmanager
def translated(path: Path) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise explained(exc, path) from exc
