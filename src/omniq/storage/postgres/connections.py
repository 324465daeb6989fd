"""Connections to the server: a few of them, lent for one statement each, replaced when they break.

No state is kept on a connection, so any of them will do. One that broke, or whose statement was given up
half-way, is closed, and the next call opens another: who was told `StoreUnavailable` only has to call again.

A pooler in between may lend another session of the server for every transaction. Behind one, each statement
is a transaction that says so, nothing is prepared for later, and no setting outlives its transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg

from omniq.errors import InvalidOption, OmniqError, StoreUnavailable, Unsupported
from omniq.storage.postgres.errors import IN_THE_WAY, code_of, explained
from omniq.storage.postgres.records import Row
from omniq.storage.postgres.schema import DEFAULT_SCHEMA, OLDEST_SERVER, check_schema
from omniq.storage.url import safe_url
from omniq.task import shown

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

T = TypeVar("T")
MAX_CONNECTIONS: Final = 8
CONNECT_TIMEOUT_S: Final = 10.0
# A connection can die without a word. The calls that are made all the time take a moment and may be repeated,
# so they are given up soon; a server that is only slow is given twice as long each time, up to the longest.
FIRST_ANSWER_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 2.0
STATEMENTS_KEPT: Final = 100  # prepared, on each connection
RELAXED: Final = "synchronous_commit = off"
# Transactions that were in each other's way are done again so often before the caller hears of it.
TRIES: Final = 5
# Everything that a call of the driver may end with. Its own surprises are among it: a connection that the
# server ended at that very moment can leave the driver in a state that it did not expect.
BORDER: Final = (
    OSError,
    EOFError,
    TimeoutError,
    UnicodeEncodeError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


def _has_usable_port(parts: SplitResult) -> bool:
    """Several hosts, each with its own port, are left to the driver."""
    try:
        return "," in parts.netloc or parts.port != 0
    except ValueError:
        return False


class Address:
    """Where the server is and which schema is ours. `schema` may stand in the URL: `?schema=jobs`."""

    def __init__(self, dsn: str, schema: str | None, durability: str) -> None:
        if not isinstance(dsn, str) or urlsplit(dsn).scheme not in ("postgresql", "postgres"):
            raise InvalidOption(
                f"{shown(safe_url(str(dsn)))} is no PostgreSQL address; write postgresql://user@host/database"
            )
        parts = urlsplit(dsn)
        if not _has_usable_port(parts):
            raise InvalidOption(f"{shown(safe_url(dsn))} is no PostgreSQL address; a port is a number")
        options = parse_qsl(parts.query, keep_blank_values=True)
        named = [value for name, value in options if name == "schema"]
        self.schema = check_schema(schema if schema is not None else named[-1] if named else DEFAULT_SCHEMA)
        rest = urlencode([(name, value) for name, value in options if name != "schema"], quote_via=quote)
        self.dsn = urlunsplit(parts._replace(query=rest))
        self.shown = shown(safe_url(self.dsn), limit=200).strip("'")
        self.durability = durability
        self.pooled = False  # until the first connection shows it

    @property
    def url(self) -> str:
        """With the password and the schema: for another process, not for people."""
        if self.schema == DEFAULT_SCHEMA:
            return self.dsn
        parts = urlsplit(self.dsn)
        query = "&".join(filter(None, (parts.query, f"schema={quote(self.schema, safe='')}")))
        return urlunsplit(parts._replace(query=query))

    async def connect(self, what_for: str) -> Connection:
        """A new connection. What goes wrong is told in one line, without the driver's own exception."""
        conn = await self._dial(what_for)
        try:
            await self._check(conn)
            if not self.pooled and await self._is_pooled(conn):
                self.pooled = True
                conn.terminate()
                conn = await self._dial(what_for)
            if not self.pooled:
                await self._prepare(conn)
        except BORDER as exc:
            conn.terminate()
            raise explained(exc, self.shown, self.schema) from exc
        except BaseException:
            conn.terminate()
            raise
        return conn

    async def _dial(self, what_for: str) -> Connection:
        try:
            return await asyncpg.connect(
                self.dsn,
                timeout=CONNECT_TIMEOUT_S,
                command_timeout=ANSWER_TIMEOUT_S,
                statement_cache_size=0 if self.pooled else STATEMENTS_KEPT,
                max_cached_statement_lifetime=0,
                server_settings={"application_name": f"omniq {what_for}"},
            )
        except TimeoutError:
            raise StoreUnavailable(f"{self.shown}: no answer within {CONNECT_TIMEOUT_S:g} s") from None
        except BORDER as exc:
            raise explained(exc, self.shown, self.schema) from None
        except ValueError as exc:  # of the address itself; the driver may quote all of it
            raise InvalidOption(
                f"{self.shown} is no usable PostgreSQL address: {type(exc).__name__}"
            ) from None

    async def _check(self, conn: Connection) -> None:
        version = conn.get_server_version()
        if version.major < OLDEST_SERVER:
            # From 10 on there are two numbers, and the driver has the second one in the third place.
            found = f"{version.major}.{version.micro if version.major >= 10 else version.minor}"
            raise Unsupported(f"{self.shown} is PostgreSQL {found}; {OLDEST_SERVER} or newer is needed")
        encoding = getattr(conn.get_settings(), "server_encoding", "UTF8")  # a pooler may not pass it on
        if encoding != "UTF8":  # a task could be named, or an error say, what cannot be kept there
            raise Unsupported(f"{self.shown}: the database has encoding {encoding}; one in UTF8 is needed")

    async def _is_pooled(self, conn: Connection) -> bool:
        """Whoever answered the call is not the process that works: a pooler makes up a number of its own."""
        return not await _is_true(conn, f"pg_backend_pid() = {conn.get_server_pid()}")

    async def _prepare(self, conn: Connection) -> None:
        # Every statement of a function must see what others have committed since the one before.
        if not await _is_true(conn, "current_setting('default_transaction_isolation') = 'read committed'"):
            await conn.execute("SET default_transaction_isolation = 'read committed'")
        if self.durability == "relaxed":
            await conn.execute(f"SET {RELAXED}")

    async def begin(self, conn: Connection, timeout_s: float) -> None:
        await conn.execute("BEGIN ISOLATION LEVEL READ COMMITTED", timeout=timeout_s)
        if self.pooled and self.durability == "relaxed":
            await conn.execute(f"SET LOCAL {RELAXED}", timeout=timeout_s)


async def _is_true(conn: Connection, condition: str) -> bool:
    """Asked without a prepared statement, which a pooler may not know: by the number of rows."""
    return await conn.execute(f"SELECT 1 WHERE {condition}") == "SELECT 1"


class Ask(Protocol):
    """A statement within a transaction."""

    async def __call__(self, sql: str, *arguments: Any) -> list[Row]: ...


class Connections:
    """At most so many at a time; who finds all of them lent waits for one."""

    def __init__(self, address: Address, limit: int = MAX_CONNECTIONS) -> None:
        self.address = address
        self._pids: dict[Connection, int] = {}
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(limit)
        self._patience_s = FIRST_ANSWER_S
        self._closed = False

    async def fetch(self, sql: str, *arguments: Any, at_once: bool = False) -> list[Row]:
        """One statement as one transaction. Repeated where others were in its way.

        `at_once`: it should take a moment, whatever the size of the tables.
        """
        timeout_s = self._patience_s if at_once else ANSWER_TIMEOUT_S
        return await self._lend(lambda conn: self._run_alone(conn, sql, arguments, timeout_s))

    async def together(self, work: Callable[[Ask], Awaitable[T]]) -> T:
        """Several statements as one transaction; `work` is called again where others were in its way."""

        async def in_transaction(conn: Connection) -> T:
            async with self._transaction(conn, ANSWER_TIMEOUT_S):
                return await work(lambda sql, *arguments: self._run(conn, sql, arguments, ANSWER_TIMEOUT_S))

        return await self._lend(in_transaction)

    async def _lend(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._free:
            for tries_left in range(TRIES - 1, -1, -1):
                conn = self._take() or await self._connect()
                try:
                    answer = await work(conn)
                except BaseException as exc:
                    self._return_after(conn, exc)
                    if code_of(exc) in IN_THE_WAY and tries_left:
                        continue
                    if isinstance(exc, TimeoutError):
                        self._patience_s = min(2 * self._patience_s, ANSWER_TIMEOUT_S)
                        raise StoreUnavailable(f"{self.address.shown}: no answer in time") from exc
                    if isinstance(exc, BORDER):
                        raise self._told(exc) from exc
                    raise
                self._patience_s = FIRST_ANSWER_S
                self._give_back(conn)
                return answer
        raise AssertionError("unreachable")

    async def _run(
        self, conn: Connection, sql: str, arguments: tuple[Any, ...], timeout_s: float
    ) -> list[Row]:
        return cast("list[Row]", await conn.fetch(sql, *arguments, timeout=timeout_s))

    async def _run_alone(
        self, conn: Connection, sql: str, arguments: tuple[Any, ...], timeout_s: float
    ) -> list[Row]:
        if not self.address.pooled:  # a statement is a transaction, in one round trip
            return await self._run(conn, sql, arguments, timeout_s)
        async with self._transaction(conn, timeout_s):
            return await self._run(conn, sql, arguments, timeout_s)

    @asynccontextmanager
    async def _transaction(self, conn: Connection, timeout_s: float) -> AsyncGenerator[None]:
        """Rolled back where the server can still be asked to; a connection that broke is closed later."""
        await self.address.begin(conn, timeout_s)
        try:
            yield
        except BaseException as exc:
            if _leaves_whole(conn, exc):
                await conn.execute("ROLLBACK", timeout=timeout_s)
            raise
        await conn.execute("COMMIT", timeout=timeout_s)

    def _take(self) -> Connection | None:
        while self._idle:
            conn = self._idle.pop()
            if not conn.is_closed():
                return conn
            del self._pids[conn]
        return None

    async def _connect(self) -> Connection:
        conn = await self.address.connect("work")
        self._pids[conn] = 0 if self.address.pooled else conn.get_server_pid()
        return conn

    def is_ours(self, pid: int) -> bool:
        """What our own connections notify of, we know already."""
        return pid in self._pids.values()

    def _return_after(self, conn: Connection, exc: BaseException) -> None:
        if _leaves_whole(conn, exc):
            self._give_back(conn)
            return
        del self._pids[conn]
        conn.terminate()

    def _give_back(self, conn: Connection) -> None:
        """Whoever was under way when the others were closed had the last use of it."""
        if self._closed:
            del self._pids[conn]
            conn.terminate()
        else:
            self._idle.append(conn)

    def _told(self, exc: BaseException) -> OmniqError:
        if isinstance(exc, asyncpg.InternalClientError):
            return StoreUnavailable(f"{self.address.shown}: the connection was lost")
        return explained(exc, self.address.shown, self.address.schema)

    async def close(self) -> None:
        """Those that are lent end when their calls do."""
        await asyncio.gather(*(close(conn) for conn in self._take_idle()))

    def abandon(self) -> None:
        """Its loop has closed: only the sockets can still be given back."""
        for conn in self._take_idle():
            cut(conn)

    def _take_idle(self) -> list[Connection]:
        self._closed = True
        idle, self._idle = self._idle, []
        for conn in idle:
            del self._pids[conn]
        return idle


def _leaves_whole(conn: Connection, exc: BaseException) -> bool:
    """What the server said itself leaves a connection whole, unless it said goodbye with it."""
    said = isinstance(exc, asyncpg.PostgresError) and not code_of(exc).startswith(("08", "57P"))
    ours = isinstance(exc, asyncpg.DataError | UnicodeEncodeError)
    return (said or ours) and not conn.is_closed()


def cut(conn: Connection) -> None:
    """Without a goodbye, and also where its loop has closed: then the collector closes the socket."""
    with suppress(RuntimeError):
        conn.terminate()


async def close(conn: Connection) -> None:
    try:
        await conn.close(timeout=CLOSE_TIMEOUT_S)
    except BORDER:
        conn.terminate()
