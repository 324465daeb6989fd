"""saq on Redis. It has no bulk call."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from benchmarks import marks
from benchmarks.async_peer import AsyncPeer


async def noop(_context: Any, *, t: float) -> None:
    marks.mark(t)


class SaqRedis(AsyncPeer):
    name = "saq-redis"
    store = "redis"
    server = "redis"
    promise = "at least once: acknowledged after the run, result kept, everything lost with the server"
    package = "saq"
    needs = ("redis", "hiredis")
    faces = ("async", "in-flight")
    imports = ("import saq",)

    def _queue(self) -> Any:
        from saq import Queue

        logging.disable(logging.WARNING)
        return Queue.from_url(self.address)

    async def prepare(self) -> None:
        """It needs nothing."""

    async def connect(self) -> None:
        self._client = self._queue()
        await self._client.connect()

    async def disconnect(self) -> None:
        await self._client.disconnect()

    async def enqueue(self, enqueued_at: float) -> None:
        await self._client.enqueue("noop", t=enqueued_at)

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        from saq import Worker

        queue = self._queue()
        await queue.connect()
        await Worker(queue, functions=[noop], concurrency=self.concurrency).start()
