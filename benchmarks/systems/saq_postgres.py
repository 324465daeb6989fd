"""saq on PostgreSQL, 20 at once: more made it no faster. It has no bulk call."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import configure_logging
from benchmarks.systems.shared.async_peer import AsyncPeer

AT_ONCE = 20


async def noop(_context: Any, *, t: marks.Stamp) -> None:
    await marks.amark(t)


class SaqPostgres(AsyncPeer):
    name = "saq-postgres"
    promise = "at least once: acknowledged after the run, result stored, every commit synced to the disk"
    delivery = "at least once"
    results = "kept"
    logs = True
    package = "saq"
    needs = ("psycopg", "psycopg-binary", "psycopg-pool")
    faces = ("async", "in-flight")
    imports = ("import saq",)

    def _queue(self) -> Any:
        from saq.queue.postgres import PostgresQueue

        configure_logging()
        return PostgresQueue.from_url(self.address)

    async def prepare(self) -> None:
        await self.connect()
        await self.disconnect()

    async def connect(self) -> None:
        self._client = self._queue()
        await self._client.connect()

    async def disconnect(self) -> None:
        await self._client.disconnect()

    async def enqueue(self, stamped: marks.Stamp) -> None:
        await self._client.enqueue("noop", t=stamped)

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        from saq import Worker

        queue = self._queue()
        await queue.connect()
        await Worker(queue, functions=[noop], concurrency=AT_ONCE).start()
