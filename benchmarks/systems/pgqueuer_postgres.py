"""pgqueuer on PostgreSQL, batches of 100, uvloop: its best settings found."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import configure_logging
from benchmarks.systems.shared.async_peer import AsyncPeer

BATCH = 100


class PgqueuerPostgres(AsyncPeer):
    name = "pgqueuer-postgres"
    promise = "at least once: removed after the run in batches, no results, every commit synced to the disk"
    delivery = "at least once"
    results = "none"
    logs = True
    package = "pgqueuer"
    needs = ("asyncpg", "uvloop")
    imports = ("import pgqueuer",)
    deep = True

    async def prepare(self) -> None:
        await self.connect()
        await self._queries.install()
        await self.disconnect()

    async def connect(self) -> None:
        import asyncpg
        from pgqueuer.db import AsyncpgPoolDriver
        from pgqueuer.queries import Queries

        self._pool: Any = await asyncpg.create_pool(self.address, min_size=1, max_size=10)
        self._queries: Any = Queries(AsyncpgPoolDriver(self._pool))

    async def disconnect(self) -> None:
        await self._pool.close()

    async def enqueue(self, stamped: marks.Stamp) -> None:
        await self._queries.enqueue("noop", str(stamped).encode(), 0)

    async def enqueue_many(self, stamps: Sequence[marks.Stamp]) -> None:
        many = len(stamps)
        payloads = [str(stamped).encode() for stamped in stamps]
        await self._queries.enqueue(["noop"] * many, payloads, [0] * many)

    def work(self) -> None:
        import uvloop

        configure_logging()
        uvloop.run(self._work())

    async def _work(self) -> None:
        import asyncpg
        from pgqueuer import PgQueuer
        from pgqueuer.db import AsyncpgDriver

        queuer: Any = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.address)))

        @queuer.entrypoint("noop")
        async def noop(job: Any) -> None:
            await marks.amark(job.payload.decode())

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queuer.shutdown.set)
        await queuer.run(batch_size=min(BATCH, self.concurrency))
