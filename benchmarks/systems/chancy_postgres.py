"""chancy on PostgreSQL: its async executor, eager polling, as many at once as everybody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import with_logs
from benchmarks.systems.shared.async_peer import AsyncPeer

FUNCTION = f"{__name__}.noop"


async def noop(*, t: marks.Stamp) -> None:
    await marks.amark(t)


class ChancyPostgres(AsyncPeer):
    name = "chancy-postgres"
    promise = "at least once: completed after the run in batches, no results, every commit synced to the disk"
    delivery = "at least once"
    results = "none"
    logs = True
    widths = True
    package = "chancy"
    needs = ("psycopg", "psycopg-binary", "psycopg-pool")
    imports = ("import chancy",)

    def _make(self) -> Any:
        from chancy import Chancy

        if with_logs():
            return Chancy(self.address)
        quiet = logging.getLogger("quiet")
        quiet.setLevel(logging.ERROR)
        return Chancy(self.address, log=quiet)

    async def prepare(self) -> None:
        async with self._make() as client:
            await client.migrate()

    async def connect(self) -> None:
        self._client = self._make()
        await self._client.__aenter__()

    async def disconnect(self) -> None:
        await self._client.__aexit__(None, None, None)

    def _job(self, stamped: marks.Stamp) -> Any:
        from chancy import Job

        return Job(func=FUNCTION, kwargs={"t": stamped}, queue="default")

    async def enqueue(self, stamped: marks.Stamp) -> None:
        await self._client.push(self._job(stamped))

    async def enqueue_many(self, stamps: Sequence[marks.Stamp]) -> None:
        async for _ in self._client.push_many(list(map(self._job, stamps))):
            pass

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        from chancy import Chancy, Queue, Worker

        async with self._make() as client:
            queue = Queue(
                "default",
                concurrency=self.concurrency,
                executor=Chancy.Executor.Async,
                polling_interval=1,
                eager_polling=True,
            )
            await client.declare(queue, upsert=True)
            async with Worker(client) as worker:
                await worker.wait_for_shutdown()
