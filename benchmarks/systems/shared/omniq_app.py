"""OmniQ as a system to be measured: what its adapters share, whatever the store."""

from __future__ import annotations

import signal
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import Body, System, with_logs
from omniq import OmniQ
from omniq.cli.log import configure
from omniq.storage import BaseStorage
from omniq.worker import WorkerPool

FILL_CHUNK = 10_000


class OmniqSystem(System):
    """An application with two tasks, and the pool of `q.worker()`. Silent: logs at level WARNING."""

    role = "omniq"
    bodies = ("async", "sync")
    faces = ("blocking", "async", "in-flight", "bulk")
    tells_settles = True
    delivery = "at least once"
    results = "kept"
    widths = True
    logs = True
    pools = True
    processes = (1, 2)

    @abstractmethod
    def storage(self, folder: Path) -> BaseStorage: ...

    def open(self, folder: Path, concurrency: int) -> None:
        configure("info" if with_logs() else "warning")  # `omniq worker` has info if nothing is said
        self.concurrency = concurrency
        self.app = OmniQ(self.storage(folder))
        self.tasks: dict[Body, Any] = {
            "sync": self.app.task(marks.mark),
            "async": self.app.task(marks.amark),
            "process": self.app.task(executor="process", name="computing")(marks.mark),
        }

    def close(self) -> None:
        self.app.close()

    def fill(self, tasks: int, body: Body) -> None:
        call = self.tasks[body].call
        for first in range(0, tasks, FILL_CHUNK):
            self.app.enqueue_many([call(0.0) for _ in range(min(FILL_CHUNK, tasks - first))])

    def work(self) -> None:
        # Blocked before any thread starts, so that the signal waits for `sigwait` and nobody else.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        pool = self.app.async_worker(concurrency=self.concurrency)
        note_settles(pool.storage)
        with WorkerPool.of(pool):
            signal.sigwait({signal.SIGTERM})

    def put(self, stamped: marks.Stamp) -> None:
        self.tasks["async"].enqueue(stamped)

    async def aput(self, stamped: marks.Stamp) -> None:
        await self.tasks["async"].aenqueue(stamped)

    async def aclose(self) -> None:
        await self.app.aclose()

    def put_many(self, stamps: Sequence[marks.Stamp]) -> None:
        self.app.enqueue_many(list(map(self.tasks["async"].call, stamps)))


def note_settles(storage: BaseStorage) -> None:
    """Leave a mark each time the store has confirmed that tasks have ended: once per batch."""
    exchange = storage.exchange

    async def noting(settlements: Sequence[Any], claim: Any = None) -> Any:
        answered = await exchange(settlements, claim)
        if settlements:
            marks.settled(len(settlements))
        return answered

    storage.exchange = noting  # type: ignore[method-assign]
