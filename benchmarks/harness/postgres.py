"""A PostgreSQL of this run's own, and a database on it for every sample.

The server is a private one, made of the same programs as that of the tests, or the one that
OMNIQ_BENCH_POSTGRES names. It syncs every commit.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from benchmarks.harness.servers import NoServer, Server
from benchmarks.systems.base import ADDRESS, address_in

GIVEN = "OMNIQ_BENCH_POSTGRES"
SETTINGS = ("shared_buffers=128MB", "max_connections=200", "deadlock_timeout=1s")


class PostgresServer(Server):
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

    def make(self, folder: Path) -> None:
        name = f"bench_{uuid4().hex}"
        asyncio.run(self._run(f"CREATE DATABASE {name}"))
        address = urlunsplit(urlsplit(self._dsn)._replace(path=f"/{name}"))
        (folder / ADDRESS).write_text(address, encoding="utf-8")

    def remove(self, folder: Path) -> None:
        asyncio.run(self._run(f"DROP DATABASE IF EXISTS {_database(folder)} WITH (FORCE)"))

    def requests(self, folder: Path) -> int:
        query = (
            f"SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{_database(folder)}'"
        )
        return int(asyncio.run(self._run(query)))

    async def _run(self, query: str) -> Any:
        import asyncpg

        conn = await asyncpg.connect(self._dsn)
        try:
            return await conn.fetchval(query)
        finally:
            await conn.close()


def _database(folder: Path) -> str:
    return urlsplit(address_in(folder)).path.removeprefix("/")
