"""Begin a coroutine at once; only what has to wait becomes a task.

What a child says is handled by coroutines, because they take a worker's lock. Nearly always that lock is
free: then the coroutine ends where it began, and no task was made for it.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any

from loguru import logger


class Eager:
    """Begins coroutines, and keeps those that wait until they have ended."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            awaited = work.send(None)
        except StopIteration:
            return
        self._keep(_rest_of(work, awaited))

    def begin_as_task(self, work: Coroutine[Any, Any, None]) -> None:
        """For work with time limits: those cancel the task in which they were set, so it must be its own."""
        self._keep(work)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._waiting.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._waiting.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            logger.opt(exception=exc).error("a fault in the pool")

    async def join(self) -> None:
        """Wait until nothing that was begun is waiting any more."""
        while self._waiting:
            await asyncio.wait(self._waiting)


async def _rest_of(work: Coroutine[Any, Any, None], awaited: Any) -> None:
    # From Python 3.12 on a task takes no generator, not even one that is a coroutine.
    await _continued(work, awaited)


@types.coroutine
def _continued(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """The rest of `work`, which has begun and waits for the future `awaited`.

    A task that runs this sees what it would have seen if it had begun `work` itself.
    """
    try:
        while True:
            try:
                sent = yield awaited
            except BaseException as exc:
                awaited = work.throw(exc)
            else:
                awaited = work.send(sent)
    except StopIteration:
        return
