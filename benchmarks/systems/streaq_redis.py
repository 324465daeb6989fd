"""streaq on Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import configure_logging, with_logs
from benchmarks.systems.shared.async_peer import AsyncPeer


class StreaqRedis(AsyncPeer):
    name = "streaq-redis"
    store = "redis"
    server = "redis"
    promise = "at least once: acknowledged after the run, result kept, everything lost with the server"
    delivery = "at least once"
    results = "kept"
    logs = True
    widths = True
    own_width = 16
    package = "streaq"
    imports = ("import streaq",)

    def _worker(self) -> tuple[Any, Any]:
        from streaq import Worker

        configure_logging()
        worker: Any = Worker(redis_url=self.address, concurrency=self.concurrency)

        @worker.task(silent=not with_logs(), name="noop")
        async def noop(t: marks.Stamp) -> None:
            await marks.amark(t)

        return worker, noop

    async def prepare(self) -> None:
        """It needs nothing."""

    async def connect(self) -> None:
        self._client, self._task = self._worker()
        self._opened, self._over = asyncio.Event(), asyncio.Event()
        self._keeper = asyncio.create_task(self._keep_open())
        await self._opened.wait()

    async def _keep_open(self) -> None:
        """It must be closed by the task that has opened it."""
        async with self._client:
            self._opened.set()
            await self._over.wait()

    async def disconnect(self) -> None:
        self._over.set()
        await self._keeper

    async def enqueue(self, stamped: marks.Stamp) -> None:
        await self._task.enqueue(stamped)

    async def enqueue_many(self, stamps: Sequence[marks.Stamp]) -> None:
        await self._client.enqueue_many([self._task.enqueue(stamped) for stamped in stamps])

    def work(self) -> None:
        worker, _ = self._worker()
        asyncio.run(worker.run_async())
