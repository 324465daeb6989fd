"""What peers with an async face share: a client for each event loop that enqueues.

Knows the standard library only.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import marks
from benchmarks.systems.base import Body, System, address_in

FILL_CHUNK = 1_000


class AsyncPeer(System):
    """Enqueues through `connect`, `enqueue` and `enqueue_many`; its schema is made by `prepare`."""

    role = "peer"
    server = "postgres"
    store = "postgres"
    bodies = ("async",)
    faces = ("async", "in-flight", "bulk")
    processes = (1, 2)

    def open(self, folder: Path, concurrency: int) -> None:
        self.address = address_in(folder)
        self.concurrency = concurrency
        self._mine: asyncio.AbstractEventLoop | None = None
        self._loop = asyncio.new_event_loop()
        made = folder / "prepared"
        if not made.exists():
            self._loop.run_until_complete(self.prepare())
            made.touch()

    def close(self) -> None:
        if self._mine is self._loop:
            self._loop.run_until_complete(self.disconnect())
        self._loop.close()

    @abstractmethod
    async def prepare(self) -> None: ...

    @abstractmethod
    async def connect(self) -> None: ...

    @abstractmethod
    async def disconnect(self) -> None: ...

    @abstractmethod
    async def enqueue(self, stamped: marks.Stamp) -> None: ...

    async def enqueue_many(self, stamps: Sequence[marks.Stamp]) -> None:
        await asyncio.gather(*map(self.enqueue, stamps))

    async def _connected(self) -> None:
        if self._mine is not asyncio.get_running_loop():
            self._mine = asyncio.get_running_loop()
            self._ready = asyncio.ensure_future(self.connect())
        await self._ready

    def fill(self, tasks: int, body: Body) -> None:
        for first in range(0, tasks, FILL_CHUNK):
            self.put_many([0.0] * min(FILL_CHUNK, tasks - first))

    def put(self, stamped: marks.Stamp) -> None:
        self._loop.run_until_complete(self.aput(stamped))

    async def aput(self, stamped: marks.Stamp) -> None:
        await self._connected()
        await self.enqueue(stamped)

    async def aclose(self) -> None:
        await self.disconnect()
        self._mine = None

    def put_many(self, stamps: Sequence[marks.Stamp]) -> None:
        self._loop.run_until_complete(self._put_many(stamps))

    async def _put_many(self, stamps: Sequence[marks.Stamp]) -> None:
        await self._connected()
        await self.enqueue_many(stamps)
