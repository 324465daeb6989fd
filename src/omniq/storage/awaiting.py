"""Who waits for results: one look for all, after each ring and now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from loguru import logger

from omniq.clock import REAL_CLOCK, Clock
from omniq.errors import StoreUnavailable
from omniq.storage.ringing import Ring
from omniq.task import TaskResult

# Looked at this often even if nothing rings: a notification only shortens a wait.
RESULT_POLL_S: Final = 0.5


class Results:
    """Everybody here who waits for a result: one look for all of them, after each ring and now and then."""

    def __init__(
        self,
        ring: Ring,
        clock: Clock,
        look: Callable[[list[str]], Awaitable[set[str]]],
        looks_by: Clock = REAL_CLOCK,
        listening: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._ring = ring
        self._clock = clock
        # On a server by real time, whatever the caller's clock is: for an end that was just being committed.
        self._looks_by = looks_by
        self._listening = listening  # entered while anybody waits
        self._look = look  # which of these have ended, or are gone
        self._awaited: dict[str, list[asyncio.Future[None]]] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def of(
        self, task_id: str, timeout_s: float | None, get: Callable[[str], Awaitable[TaskResult | None]]
    ) -> TaskResult | None:
        """What `get` gives as soon as that is a result; None after `timeout_s`."""
        until = None if timeout_s is None else self._clock.monotonic() + timeout_s
        while True:  # once more where somebody retried it between its end and our look
            ended = self._expect(task_id)
            try:
                result = await get(task_id)
                left_s = None if until is None else max(0.0, until - self._clock.monotonic())
                if result is not None or not await self._until(ended, left_s):
                    return result
            finally:
                self._forget(task_id, ended)

    def _expect(self, task_id: str) -> asyncio.Future[None]:
        """Done when the task has ended. Asked for before the caller looks, so that nothing is missed."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(task_id, []).append(ended)
        return ended

    def _forget(self, task_id: str, ended: asyncio.Future[None]) -> None:
        waiting = self._awaited.get(task_id, [])
        if ended in waiting:
            waiting.remove(ended)
        if not waiting:
            self._awaited.pop(task_id, None)

    async def _until(self, ended: asyncio.Future[None], timeout_s: float | None) -> bool:
        """Wait for it; False after `timeout_s`."""
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch(), name="omniq-results")
        bell = None if timeout_s is None else self._clock.call_later(timeout_s, lambda: _give_up(ended))
        await asyncio.wait((ended,))
        if bell is not None:
            bell.cancel()
        if ended.cancelled():
            return False
        ended.result()
        return True

    async def _watch(self) -> None:
        with self._listening():
            await self._look_for_all()

    async def _look_for_all(self) -> None:
        while self._awaited:
            self._ring.clear()
            ids = list(self._awaited)
            try:
                self._tell_ended(await self._look(ids))
            except StoreUnavailable as exc:
                logger.warning("cannot look for results: {}", exc)
            except Exception as exc:
                self._tell_broken(ids, exc)
            await self._ring.wait(self._looks_by, RESULT_POLL_S)

    def _tell_ended(self, ids: set[str]) -> None:
        for task_id in ids:
            for ended in self._awaited.pop(task_id, []):
                if not ended.done():
                    ended.set_result(None)

    def _tell_broken(self, ids: list[str], exc: Exception) -> None:
        for task_id in ids:
            for ended in self._awaited.pop(task_id, []):
                if not ended.done():
                    ended.set_exception(exc)

    async def stop(self) -> None:
        self._tell_broken(list(self._awaited), StoreUnavailable("the storage was closed while waiting"))
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)


def _give_up(ended: asyncio.Future[None]) -> None:
    ended.cancel()
