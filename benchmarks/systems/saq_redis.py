"""saq on Redis. It has no bulk call."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import configure_logging
from benchmarks.systems.shared.async_peer import AsyncPeer


async def noop(_context: Any, *, t: marks.Stamp) -> None:
    await marks.amark(t)


class SaqRedis(AsyncPeer):
    name = "saq-redis"
    store = "redis"
    server = "redis"
    promise = "at least once: acknowledged after the run, result kept, everything lost with the server"
    delivery = "at least once"
    results = "kept"
    logs = True
    widths = True
    own_width = 10
    package = "saq"
    needs = ("redis", "hiredis")
    faces = ("async", "in-flight")
    imports = ("import saq",)

    def _queue(self) -> Any:
        from saq import Queue

        configure_logging()
        return Queue.from_url(self.address)

    async def prepare(self) -> None:
        """It needs nothing."""

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
        await Worker(queue, functions=[noop], concurrency=self.concurrency).start()
