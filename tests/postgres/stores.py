"""Stores for tests: each in a schema of its own, on the server's clock or on one that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from omniq.storage.postgres import PostgresStorage
from omniq.storage.postgres.claiming import Cursor
from omniq.storage.postgres.connections import Connections
from omniq.storage.postgres.schema import quoted
from omniq.task import new_id
from omniq.testing import VirtualClock

# What the server's clock is exchanged for: a moment that each statement brings along.
VIRTUAL = """CREATE OR REPLACE FUNCTION clock() RETURNS timestamptz LANGUAGE sql STABLE
    AS $$ SELECT current_setting('omniq.now')::timestamptz $$"""


class VirtualConnections(Connections):
    """Before each statement the server is told what time it is."""

    def __init__(self, inner: Connections, clock: VirtualClock, follows_wall: bool) -> None:
        super().__init__(inner.address)
        self._clock = clock
        # The server's clock is a wall, set only where a test says so: moments follow the steady count.
        self._began = clock.now() - timedelta(seconds=clock.monotonic())
        self._follows_wall = follows_wall

    def now(self) -> datetime:
        if self._follows_wall:
            return self._clock.now()
        return self._began + timedelta(seconds=self._clock.monotonic())

    async def _run(self, conn: Any, sql: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        await conn.execute(f"SET omniq.now = '{self.now().isoformat()}'")
        return await super()._run(conn, sql, arguments, timeout_s)


class EverFromStart(Cursor):
    """In a world whose clock stands still, what was put back can lie before what was handed out."""

    def note(self, walk_s: float, brought: int, now: float, was_from_start: bool) -> None:
        pass


class VirtualPostgres(PostgresStorage):
    late_s = 0.0
    follows_wall = False

    async def _connect(self) -> None:
        await super()._connect()
        assert self._connections is not None
        assert isinstance(self.clock, VirtualClock)
        self._cursor = EverFromStart()
        before = self._connections
        self._connections = VirtualConnections(before, self.clock, self.follows_wall)
        self._listening._is_ours = self._connections.is_ours
        await before.close()


def new_schema() -> str:
    return f"test_{new_id()}"


async def make_schema(dsn: str, name: str, *, virtual: bool = False) -> None:
    await PostgresStorage(dsn, schema=name).migrate()
    if virtual:
        conn = await asyncpg.connect(dsn)
        await conn.execute(f"SET search_path = {quoted(name)}; {VIRTUAL}")
        await conn.close()


async def drop_schema(dsn: str, name: str) -> None:
    conn = await asyncpg.connect(dsn)
    await conn.execute(f"SET client_min_messages = warning; DROP SCHEMA {quoted(name)} CASCADE")
    await conn.close()


@contextlib.contextmanager
def fresh_schema(dsn: str, *, virtual: bool = False) -> Iterator[str]:
    name = new_schema()
    asyncio.run(make_schema(dsn, name, virtual=virtual))
    try:
        yield name
    finally:
        asyncio.run(drop_schema(dsn, name))


TABLES = (
    *("task", "run", "queue", "paused", "gone", "worker", "ear", "tally"),
    *("schedule", "queue_limit", "parcel"),
)


async def empty_schema(dsn: str, name: str) -> None:
    """Twenty times cheaper than a new one."""
    conn = await asyncpg.connect(dsn)
    deletes = "; ".join(f"DELETE FROM {table}" for table in TABLES)
    again = "UPDATE latest SET at = '-infinity'"
    await conn.execute(f"SET search_path = {quoted(name)}; {deletes}; {again}")
    await conn.close()
