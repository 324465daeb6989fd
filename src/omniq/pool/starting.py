"""A start that several may wait for: it is undone when the last of them gives up, however late that is.

    begin ── steps ──> up ── somebody takes it ──> the end
                        └─── nobody is left  ──> undone

Whoever waits may be cancelled in the very moment in which everything runs. So a start is not over with its
last step, but when somebody has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from omniq.errors import PoolClosed


class Starting:
    def __init__(self, begin: Callable[[Starting], Coroutine[Any, Any, None]]) -> None:
        """`begin` does the steps, awaits `taken()`, and undoes what it did when that or a step raises."""
        loop = asyncio.get_running_loop()
        self._up: asyncio.Future[None] = loop.create_future()
        self._taken = asyncio.Event()
        self._waiting = 0
        self._task = loop.create_task(begin(self))
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        exc = None if task.cancelled() else task.exception()
        if self._up.done():
            return
        if exc is None:
            self._up.cancel()
        else:
            self._up.set_exception(exc)
            self._up.exception()  # whether somebody waits or not

    async def taken(self) -> None:
        """All steps are done: wait until somebody has it."""
        self._up.set_result(None)
        await self._taken.wait()

    @property
    def is_given_up(self) -> bool:
        return self._task.cancelling() > 0

    async def over(self) -> None:
        await asyncio.wait([self._task])

    async def wait(self) -> None:
        """Wait for it with the others, and take it. Raises what a step raised, PoolClosed if it was ended."""
        self._waiting += 1
        try:
            await asyncio.shield(self._up)
            self._taken.set()
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if self._up.cancelled() and (this is None or not this.cancelling()):
                raise PoolClosed("this pool was shut down while it started; make a new WorkerPool") from None
            raise
        finally:
            self._waiting -= 1
            if not self._waiting and not self._taken.is_set():
                await self._give_up()

    async def end(self) -> None:
        """Let it be over: undone, unless everything runs already."""
        if self._up.done():
            self._taken.set()
        else:
            await self._give_up()
        await self.over()

    async def _give_up(self) -> None:
        if not self._task.done() and not self.is_given_up:  # a second time would cut short how it is undone
            self._task.cancel()
        await self.over()
