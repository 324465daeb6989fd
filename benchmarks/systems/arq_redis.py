"""arq on Redis. It looks every half second if nothing is said; every ten milliseconds made it fastest."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import configure_logging
from benchmarks.systems.shared.async_peer import AsyncPeer

LOOK_EVERY_S = 0.01


async def noop(_context: Any, t: marks.Stamp) -> None:
    await marks.amark(t)


class ArqRedis(AsyncPeer):
    name = "arq-redis"
    store = "redis"
    server = "redis"
    promise = "at least once: acknowledged after the run, result kept for an hour, all lost with the server"
    delivery = "at least once"
    results = "kept"
    logs = True
    widths = True
    own_width = 10
    package = "arq"
    environment = "peers-arq"
    needs = ("hiredis",)
    faces = ("async", "in-flight")
    imports = ("import arq",)

    async def prepare(self) -> None:
        """It needs nothing."""

    async def connect(self) -> None:
        from arq import create_pool

        self._client = await create_pool(self._settings())

    def _settings(self) -> Any:
        from arq.connections import RedisSettings

        configure_logging()
        return RedisSettings.from_dsn(self.address)

    async def disconnect(self) -> None:
        await self._client.aclose()

    async def enqueue(self, stamped: marks.Stamp) -> None:
        await self._client.enqueue_job("noop", stamped)

    def work(self) -> None:
        from arq import Worker

        # It takes the current event loop, and none is current in a fresh interpreter.
        asyncio.set_event_loop(asyncio.new_event_loop())
        Worker(
            functions=[noop],
            redis_settings=self._settings(),
            max_jobs=self.concurrency,
            poll_delay=LOOK_EVERY_S,
        ).run()
