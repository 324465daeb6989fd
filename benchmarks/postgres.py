"""A PostgreSQL of this run's own, and a database on it for every sample.

The server is a private one, made of the same programs as that of the tests, or the one that
OMNIQ_BENCH_POSTGRES names. It syncs every commit. A child learns from a file in its folder where to connect.
Only the runner imports this.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from benchmarks.systems.base import ADDRESS

GIVEN = "OMNIQ_BENCH_POSTGRES"
SETTINGS = ("shared_buffers=128MB", "max_connections=200", "deadlock_timeout=1s")


class NoServer(Exception):
    """No PostgreSQL can be had here; what needs one is named and left out."""


class Server:
    def __init__(self) -> None:
        self._cluster: Any = None
        self._dsn = os.environ.get(GIVEN, "")

    def start(self) -> None:
        """Started for the first system that needs it."""
        if self._dsn:
            return
        from tests.postgres import server

        try:
            self._cluster = server.Cluster(*SETTINGS)
            self._cluster.start()
        except (server.NoServer, OSError) as exc:
            raise NoServer(str(exc)) from None
        self._dsn = self._cluster.dsn

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.remove()

    @contextlib.contextmanager
    def database(self, folder: Path) -> Iterator[None]:
        """An empty database, known in `folder`."""
        name = self.make(folder)
        try:
            yield
        finally:
            asyncio.run(self._run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))

    def make(self, folder: Path) -> str:
        name = f"bench_{uuid4().hex}"
        asyncio.run(self._run(f"CREATE DATABASE {name}"))
        address = urlunsplit(urlsplit(self._dsn)._replace(path=f"/{name}"))
        (folder / ADDRESS).write_text(address, encoding="utf-8")
        return name

    def transactions(self, folder: Path) -> int:
        """How many have ended in that folder's database so far."""
        address = (folder / ADDRESS).read_text(encoding="utf-8")
        query = (
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = "
            f"'{urlsplit(address).path.removeprefix('/')}'"
        )
        return int(asyncio.run(self._run(query)))

    async def _run(self, query: str) -> Any:
        import asyncpg

        conn = await asyncpg.connect(self._dsn)
        try:
            return await conn.fetchval(query)
        finally:
            await conn.close()
