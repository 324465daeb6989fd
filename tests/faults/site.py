"""A server that may be crashed, a ledger, worker processes, and somebody who enqueues whatever happens."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from omniq import Task
from omniq.errors import StoreUnavailable
from omniq.storage import BaseStorage, open_storage
from omniq.task import TaskStatus
from tests.faults.processes import Child, Field

LEASE_S = 1.0
# From the repair of whatever was broken to the end of a task that was enqueued after it.
BACK_WITHIN_S = 5.0
PATIENCE_S = 60.0
NEARLY_NOTHING = 20


class Site(Field):
    """Children on the store of a server, and their ledger."""

    def __init__(self, folder: Path, url: str, **storage: Any) -> None:
        super().__init__(folder)
        self.url, self.options = url, storage

    def start(self, url: str | None = None, *, skew_s: float = 0, **options: Any) -> Child:
        """A worker; it says READY when it runs."""
        config = {
            "url": url or self.url,
            "storage": self.options,
            "skew_s": skew_s,
            "grace_s": 20.0,
            "options": {"lease": LEASE_S, "poll_interval": 0.2, "concurrency": 10, **options},
        }
        return self.run("tests.faults.remote", config)

    async def started(self, url: str | None = None, **options: Any) -> Child:
        """A network that it goes through may live on this loop."""
        child = self.start(url, **options)
        await asyncio.to_thread(child.line, "READY")
        return child

    def storage(self, url: str | None = None) -> BaseStorage:
        return open_storage(url or self.url, **self.options)

    async def put(self, store: BaseStorage, body: str, *args: Any, **options: Any) -> str:
        """Enqueue, as often as it takes; noted once the store has said so."""
        task = Task(f"tests.faults.bodies.{body}", args, **{"max_losses": 1000, **options})
        while True:
            try:
                await store.enqueue(task)
            except StoreUnavailable:
                await asyncio.sleep(0.05)
            else:
                self.ledger.write("ENQ", task.id)
                return task.id

    async def heap(self, store: BaseStorage, many: int) -> None:
        """So many at once."""
        tasks = [Task("tests.faults.bodies.nap", (0.002,), max_losses=1000) for _ in range(many)]
        while True:
            try:
                ids = await store.enqueue_many(tasks)
            except StoreUnavailable:
                await asyncio.sleep(0.05)
            else:
                for task_id in ids:
                    self.ledger.write("ENQ", task_id)
                return

    @asynccontextmanager
    async def steady(self, store: BaseStorage, every_s: float = 0.02) -> AsyncIterator[None]:
        """A task every moment, while the test breaks things."""
        stopping = asyncio.Event()

        async def produce() -> None:
            while not stopping.is_set():
                await self.put(store, "nap", 0.01)
                await asyncio.sleep(every_s)

        producer = asyncio.create_task(produce())
        try:
            yield
        finally:
            stopping.set()
            await producer

    async def back_at_work(self, store: BaseStorage, within_s: float) -> None:
        """A task that is enqueued now ends soon."""
        begun = time.monotonic()
        await self.ended(store, [await self.put(store, "nap", 0.0, priority=9)])
        took_s = time.monotonic() - begun
        assert took_s < within_s, f"back at work {took_s:.1f} s after the repair"

    async def ended(self, store: BaseStorage, ids: list[str]) -> None:
        left = set(ids)

        async def none_left() -> bool:
            left.difference_update([one for one in left if await has_ended(store, one)])
            return not left

        await eventually(none_left, f"{len(ids)} tasks have ended")

    async def caught_up(self, store: BaseStorage) -> None:
        """What piled up during an outage has been worked off, although more comes in all the time."""

        async def nearly_empty() -> bool:
            counted = (await store.counts()).get("default", {})
            return counted.get(TaskStatus.PENDING, 0) < NEARLY_NOTHING

        await eventually(nearly_empty, "what had piled up is done")

    async def drained(self, store: BaseStorage) -> None:
        async def empty() -> bool:
            counted = (await store.counts()).values()
            return not sum(one[TaskStatus.PENDING] + one[TaskStatus.RUNNING] for one in counted)

        await eventually(empty, "everything has ended")


async def has_ended(store: BaseStorage, task_id: str) -> bool:
    task = await store.get_task(task_id)
    return task is not None and task.status.final


async def eventually(condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> None:
    """The store may be away meanwhile."""
    until = time.monotonic() + within_s
    while True:
        try:
            if await condition():
                return
        except StoreUnavailable:
            pass
        assert time.monotonic() < until, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.02)


async def quit_all(children: list[Child]) -> None:
    for child in children:
        child.signal(signal.SIGTERM)
    for child in children:
        assert await asyncio.to_thread(child.wait) == 0, child.log.read_text()
