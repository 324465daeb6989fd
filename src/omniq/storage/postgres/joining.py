"""Enqueueing on the application's own connection: seen when they commit, never if they roll back.

asyncpg, psycopg 3 (blocking and async), and what SQLAlchemy makes of either: a Connection or Session,
blocking or async. What is raised leaves their transaction as it was before the call, because it happens
behind a savepoint. Nothing here imports a driver that the application does not use: a class says whose it is.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from omniq.errors import InvalidOption

T = TypeVar("T")
SAVEPOINT: Final = "omniq_enqueue"
_QUOTED_OR_NUMBERED: Final = re.compile(r'"(?:[^"]|"")*"|\$\d+(?:::bytea)?')  # a schema may be called $1
_KNOWN: Final = "an asyncpg, psycopg 3 or SQLAlchemy connection, or a SQLAlchemy session"
_FAMILIES: Final = ("asyncpg", "psycopg", "sqlalchemy")
_IDLE: Final = 0  # psycopg.pq.TransactionStatus: no transaction yet


async def run_on(conn: Any, sql: str, arguments: tuple[Any, ...]) -> Sequence[Any]:
    """The rows of one statement on somebody else's connection, inside their transaction."""
    match _family(conn):
        case "asyncpg" if hasattr(conn, "transaction"):
            async with conn.transaction():
                rows: Sequence[Any] = await conn.fetch(sql, *arguments)
            return rows
        case "psycopg" if hasattr(conn, "autocommit"):
            if inspect.iscoroutinefunction(conn.execute):
                return await _on_psycopg(conn, sql, arguments)
            given_up = threading.Event()
            return await _in_thread(given_up, _on_blocking_psycopg, conn, sql, arguments, given_up)
        case "sqlalchemy" if hasattr(conn, "registry") and callable(conn):
            return await run_on(conn(), sql, arguments)  # a scoped session: the one of this scope
        case "sqlalchemy" if hasattr(conn, "execute"):
            return await run_on(await _driver_connection(conn), sql, arguments)
        case family:
            kind = type(conn).__name__
            other = kind if family == kind else f"{family}'s {kind}"
            raise InvalidOption(f"conn must be {_KNOWN}, not {other}")


def _family(conn: Any) -> str:
    for kind in type(conn).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in _FAMILIES:
            return package
    return type(conn).__name__


def is_drivers(exc: BaseException) -> bool:
    return _family(exc) in _FAMILIES


def is_lost(exc: BaseException) -> bool:
    """Whether the connection broke just now, without a word of the server that says why."""
    match type(exc).__name__:
        case "InternalClientError":  # asyncpg's
            return True
        case "OperationalError":  # psycopg's
            return str(exc) != "the connection is closed"
        case _:
            return False


# --- SQLAlchemy ----------------------------------------------------------------------------------


async def _driver_connection(conn: Any) -> Any:
    """The driver's own connection, once SQLAlchemy has begun its transaction there.

    It begins one with its first statement only, and what came before that would not be part of it.
    """
    from sqlalchemy import text  # pyright: ignore[reportMissingImports]

    begin: Any = text("SELECT 1")
    if hasattr(conn, "sync_session") or hasattr(conn, "sync_connection"):
        await conn.execute(begin)
        async_conn = await conn.connection() if hasattr(conn, "sync_session") else conn
        return (await async_conn.get_raw_connection()).driver_connection
    await _in_thread(threading.Event(), conn.execute, begin)
    blocking_conn = conn.connection() if callable(getattr(conn, "connection", None)) else conn
    return blocking_conn.connection.driver_connection


# --- psycopg 3 -----------------------------------------------------------------------------------


def _formatted(sql: str, cursor: Any) -> str:
    """psycopg writes parameters as %s; ours stand in order, each once. A raw cursor has them as they are."""
    if any(kind.__name__ == "RawCursorMixin" for kind in type(cursor).__mro__):
        return sql
    return _QUOTED_OR_NUMBERED.sub(lambda found: _parameter(found[0]), sql.replace("%", "%%"))


def _parameter(text: str) -> str:
    """Bytes go as they are: as text, what is read depends on `standard_conforming_strings`."""
    if not text.startswith("$"):
        return text
    return "%b::bytea" if text.endswith("::bytea") else "%s"


def _needs_savepoint(conn: Any) -> bool:
    """With autocommit and no transaction there is nothing to go back to, and nothing that could be lost."""
    return not (conn.autocommit and conn.info.transaction_status == _IDLE)


async def _on_psycopg(conn: Any, sql: str, arguments: tuple[Any, ...]) -> Sequence[Any]:
    # By hand: `conn.transaction()` would commit, where theirs has not begun yet.
    savepoint = _needs_savepoint(conn)
    async with conn.cursor(row_factory=_tuples()) as cursor:
        if savepoint:
            await cursor.execute(f"SAVEPOINT {SAVEPOINT}")
        try:
            await cursor.execute(_formatted(sql, cursor), list(arguments))
            rows: Sequence[Any] = await cursor.fetchall()
        except BaseException:
            if savepoint and not conn.closed:
                await cursor.execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
            raise
        if savepoint:
            await cursor.execute(f"RELEASE SAVEPOINT {SAVEPOINT}")
    return rows


async def _in_thread(given_up: threading.Event, work: Callable[..., T], *arguments: Any) -> T:
    """Who gives up meanwhile gets their connection back when the thread has let go of it, not before."""
    call = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        given_up.set()
        while not call.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((call,))
        raise


def _on_blocking_psycopg(
    conn: Any, sql: str, arguments: tuple[Any, ...], given_up: threading.Event
) -> Sequence[Any]:
    savepoint = _needs_savepoint(conn)
    with conn.cursor(row_factory=_tuples()) as cursor:
        if savepoint:
            cursor.execute(f"SAVEPOINT {SAVEPOINT}")
        try:
            cursor.execute(_formatted(sql, cursor), list(arguments))
            rows: Sequence[Any] = cursor.fetchall()
            if given_up.is_set():
                raise asyncio.CancelledError
        except BaseException:
            if savepoint and not conn.closed:
                cursor.execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
            raise
        if savepoint:
            cursor.execute(f"RELEASE SAVEPOINT {SAVEPOINT}")
    return rows


def _tuples() -> Any:
    from psycopg.rows import tuple_row  # pyright: ignore[reportMissingImports]

    return tuple_row
