"""One call on its way to a connection, and its answer on the way back.

    caller ──> job ──> the thread that has the connection ──> answer ──> caller

Knows nothing of connections or transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from omniq.storage.rows import Rows
from omniq.storage.sqlite.records import Retention
from omniq.task import StoredTask


class Job:
    """One call on its way to a connection, and its answer on the way back."""

    __slots__ = ("answer", "error", "retention", "run", "tasks")

    def __init__(
        self,
        run: Callable[[Rows], Any],
        retention: Retention,
        tasks: Sequence[StoredTask] | None = None,
    ) -> None:
        self.run = run
        self.retention = retention
        self.tasks = tasks  # what an enqueue brings, so that enqueues can be put together
        self.answer: Any = None
        self.error: BaseException | None = None


class AwaitedJob(Job):
    """Its answer goes to a coroutine."""

    __slots__ = ("future", "loop")

    def __init__(
        self,
        run: Callable[[Rows], Any],
        retention: Retention,
        tasks: Sequence[StoredTask] | None = None,
    ) -> None:
        super().__init__(run, retention, tasks)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    def deliver(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


class BlockingJob(Job):
    """Its answer goes to a thread that does nothing else meanwhile."""

    __slots__ = ("done",)

    def __init__(
        self,
        run: Callable[[Rows], Any],
        retention: Retention,
        tasks: Sequence[StoredTask] | None = None,
    ) -> None:
        super().__init__(run, retention, tasks)
        self.done: threading.Lock | None = None

    def wait_with(self, send: Callable[[Job], None]) -> None:
        """Send it to another thread, and wait for its answer."""
        self.done = done = threading.Lock()  # the cheapest thing to wait for; taken until the end
        done.acquire()
        send(self)
        done.acquire()

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.answer


def deliver(jobs: list[Job]) -> None:
    """Bring answers back: one hop per event loop, however many there are."""
    by_loop: dict[asyncio.AbstractEventLoop, list[AwaitedJob]] = {}
    for job in jobs:
        if isinstance(job, AwaitedJob):
            by_loop.setdefault(job.loop, []).append(job)
        elif isinstance(job, BlockingJob) and job.done is not None:
            job.done.release()
    for loop, ready in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(_deliver_here, ready)


def _deliver_here(jobs: list[AwaitedJob]) -> None:
    for job in jobs:
        if job.error is None and not job.future.done():
            job.future.set_result(job.answer)
        else:
            job.deliver()
