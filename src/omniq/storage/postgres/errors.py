"""From what a driver says to what OmniQ raises, once, at the border. Never with a password in it."""

from __future__ import annotations

from typing import Final

from omniq.errors import (
    CorruptRecord,
    DuplicateTask,
    IdConflict,
    InvalidOption,
    OmniqError,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
)
from omniq.storage.rows import queue_full
from omniq.task import shown

ID_CONFLICT: Final = "OQ001"
DUPLICATE: Final = "OQ002"
CHANGES_HANDS: Final = "OQ003"
QUEUE_FULL: Final = "OQ004"
# Two transactions were in each other's way: the server undid one, and its caller may simply do it again.
IN_THE_WAY: Final = frozenset({"40001", "40P01", "23505"})
_AWAY: Final = (
    "08",  # connection
    "25006",  # read only: a replica, or a server that is about to stop
    "25P03",  # cut off because a transaction took too long
    "25P04",
    "28",  # authorization: a password may be about to be changed
    "3D",  # no such database
    "40",  # undone because of others
    "53",  # out of connections, memory, disk
    "55",  # a lock
    "57",  # told to stop, starting up
    "58",  # the system around the server
    CHANGES_HANDS,
)
_NO_SCHEMA: Final = ("3F000", "42P01", "42883", "42703")
_BAD_TEXT: Final = ("22021", "22P05", "22001", "22P02", "22003", "22008")


def code_of(exc: BaseException) -> str:
    """The SQLSTATE, under the name that either driver gives it; "" where the server said nothing."""
    return str(getattr(exc, "sqlstate", None) or "")


def explained(exc: BaseException, where: str, schema: str) -> OmniqError:
    """`where` is the address as people may see it."""
    code, said = code_of(exc), _first_line(exc)
    if code == ID_CONFLICT:
        return IdConflict(f"id {said!r} already belongs to another call; leave id out to get a fresh one")
    if code == DUPLICATE:
        return DuplicateTask(f"unique key {shown(_detail(exc))} is held by task {said}", said)
    if code == QUEUE_FULL:
        return queue_full(said, int(_detail(exc) or 0))
    if code.startswith(_NO_SCHEMA):
        return SchemaMismatch(f"{missing_schema(where, schema)} ({said})")
    if code == "42501":
        return StoreError(
            f"{where}: {said}; the role needs USAGE on schema {shown(schema)} and SELECT, INSERT, UPDATE, "
            "DELETE on its tables"
        )
    if code.startswith("XX"):
        return CorruptRecord(f"{where}: {said}")
    if code.startswith(_BAD_TEXT) or (not code and type(exc).__name__ == "DataError"):
        return InvalidOption(f"PostgreSQL cannot keep this value: {said}")
    if not code or code.startswith(_AWAY):
        return StoreUnavailable(f"{where}: {said}")
    return StoreError(f"{where}: {said} ({code})")


def missing_schema(where: str, schema: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"{where} has no complete schema {shown(schema)}; run `omniq migrate`, or await storage.migrate()"
    )


def may_not_migrate(where: str, schema: str, *, is_there: bool) -> StoreError:
    on = f"USAGE and CREATE on schema {shown(schema)}" if is_there else "CREATE on the database"
    return StoreError(f"{where}: permission denied; the role that migrates needs {on}")


def _detail(exc: BaseException) -> str:
    return getattr(exc, "detail", None) or getattr(getattr(exc, "diag", None), "message_detail", "") or ""


def _first_line(exc: BaseException) -> str:
    text = str(exc).strip().splitlines()
    return text[0] if text else type(exc).__name__
