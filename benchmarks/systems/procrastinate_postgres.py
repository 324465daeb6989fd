"""procrastinate on PostgreSQL, 20 at once and ten connections: more of either made it no faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import configure_logging
from benchmarks.systems.shared.async_peer import AsyncPeer

AT_ONCE = 20
CONNECTIONS = 10


class ProcrastinatePostgres(AsyncPeer):
    name = "procrastinate-postgres"
    promise = "marked as done after the run, no results, every commit synced to the disk"
    delivery = "not run again"
    results = "none"
    logs = True
    package = "procrastinate"
    needs = ("psycopg", "psycopg-binary", "psycopg-pool")
    imports = ("import procrastinate",)

    def _app(self) -> tuple[Any, Any]:
        from procrastinate import App, PsycopgConnector

        configure_logging()
        app: Any = App(connector=PsycopgConnector(conninfo=self.address, min_size=1, max_size=CONNECTIONS))

        @app.task(name="noop", pass_context=False)
        async def noop(t: marks.Stamp) -> None:
            await marks.amark(t)

        return app, noop

    async def prepare(self) -> None:
        await self.connect()
        await self._client.schema_manager.apply_schema_async()
        await self.disconnect()

    async def connect(self) -> None:
        self._client, self._task = self._app()
        await self._client.open_async()

    async def disconnect(self) -> None:
        await self._client.close_async()

    async def enqueue(self, stamped: marks.Stamp) -> None:
        await self._task.defer_async(t=stamped)

    async def enqueue_many(self, stamps: Sequence[marks.Stamp]) -> None:
        await self._task.batch_defer_async(*[{"t": stamped} for stamped in stamps])

    def work(self) -> None:
        app, _ = self._app()
        app.run_worker(concurrency=AT_ONCE)
