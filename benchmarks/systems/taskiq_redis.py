"""taskiq on Redis streams, acknowledged after the run; its lists are so before. It has no bulk call."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import configure_logging
from benchmarks.systems.shared.async_peer import AsyncPeer

KEPT_S = 600


class TaskiqRedis(AsyncPeer):
    name = "taskiq-redis"
    store = "redis"
    server = "redis"
    promise = "at least once: acknowledged after the result is kept, everything lost with the server"
    delivery = "at least once"
    results = "kept"
    logs = True
    widths = True
    own_width = 100
    package = "taskiq-redis"
    environment = "peers-taskiq"
    needs = ("taskiq", "hiredis", "uvloop")
    faces = ("async", "in-flight")
    imports = ("import taskiq",)

    def _broker(self) -> tuple[Any, Any]:
        from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

        configure_logging()
        # What nobody has read yet is for the whole group, which begins with the first message.
        broker: Any = RedisStreamBroker(self.address, consumer_name=f"worker-{os.getpid()}", consumer_id="0")
        broker = broker.with_result_backend(RedisAsyncResultBackend(self.address, result_ex_time=KEPT_S))

        @broker.task(task_name="noop")
        async def noop(t: marks.Stamp) -> None:
            await marks.amark(t)

        return broker, noop

    async def prepare(self) -> None:
        """It needs nothing."""

    async def connect(self) -> None:
        self._client, self._task = self._broker()
        await self._client.startup()

    async def disconnect(self) -> None:
        await self._client.shutdown()

    async def enqueue(self, stamped: marks.Stamp) -> None:
        await self._task.kiq(stamped)

    def work(self) -> None:
        import uvloop

        uvloop.install()
        asyncio.run(self._work())

    async def _work(self) -> None:
        from taskiq.api import run_receiver_task

        broker, _ = self._broker()
        broker.is_worker_process = True
        await run_receiver_task(
            broker, max_async_tasks=self.concurrency, max_prefetch=self.concurrency, run_startup=True
        )
