"""Who sleeps until something is due, or until a result is there: told by LISTEN, on a connection of its own.

A notification only shortens a wait. While the connection is away everybody looks at their own pace, and a
task here brings it back with growing pauses; when it is back everybody looks once, for what was missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from loguru import logger

from omniq.clock import REAL_CLOCK, Clock, wait_for_event
from omniq.errors import OmniqError, StoreUnavailable
from omniq.storage.embedded import RESULT_POLL_S, Ring
from omniq.storage.postgres.connections import BORDER, Address, close

if TYPE_CHECKING:
    from omniq.storage.postgres.connections import Connection

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
# A connection that nothing travels on may be cut without a word: ask now and then.
ASK_EVERY_S: Final = 30.0
ASK_TIMEOUT_S: Final = 10.0
# The first one who listens waits so long for the connection, and then goes on without it.
PATIENCE_S: Final = 2.0


class Listening:
    """The connection that listens: opened at the first need, brought back whenever it is lost."""

    def __init__(self, address: Address, is_ours: Callable[[int], bool]) -> None:
        self._address = address
        self._is_ours = is_ours
        self._rings: dict[str, Ring] = {}
        self._conn: Connection | None = None
        self._lost = asyncio.Event()
        self._tried = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def listen(self, channel: str, ring: Ring) -> None:
        """Ring it from now on. Returns when the server listens for us, or cannot be asked to."""
        if channel in self._rings:
            return
        self._rings[channel] = ring
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="omniq-listen")
            await wait_for_event(REAL_CLOCK, self._tried, PATIENCE_S)
        elif self._conn is not None:
            try:
                await self._conn.add_listener(channel, self._heard)
            except BORDER:
                self._lost.set()  # the keeper brings it back, with this channel too

    async def _keep(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self._connect()
                pause_s = FIRST_PAUSE_S
                self._tried.set()
                await self._until_lost()
                logger.warning("wake-ups from {} are cut off; until they are back, tasks wait for the poll",
                               self._address.shown)  # fmt: skip
            except (OmniqError, *BORDER) as exc:
                if pause_s == FIRST_PAUSE_S:
                    logger.warning("no wake-ups from {}: {}", self._address.shown, exc)
            finally:
                self._tried.set()
                if self._conn is not None:
                    self._conn.terminate()
                    self._conn = None
            await wait_for_event(REAL_CLOCK, asyncio.Event(), pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _connect(self) -> None:
        again = self._tried.is_set()
        conn = await self._address.connect("listen")
        self._conn = conn
        self._lost.clear()
        conn.add_termination_listener(self._gone)
        for channel in list(self._rings):
            await conn.add_listener(channel, self._heard)
        if again:
            for ring in self._rings.values():
                ring.ring()

    async def _until_lost(self) -> None:
        assert self._conn is not None
        while not await wait_for_event(REAL_CLOCK, self._lost, ASK_EVERY_S):
            await self._conn.execute("SELECT 1", timeout=ASK_TIMEOUT_S)

    def _gone(self, conn: Any) -> None:
        if conn is self._conn:
            self._lost.set()

    def _heard(self, _conn: Any, pid: int, channel: str, _payload: object) -> None:
        if not self._is_ours(pid):
            self._rings[channel].ring()

    async def stop(self) -> None:
        keeper, self._keeper = self._keeper, None
        conn, self._conn = self._conn, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        if conn is not None:
            await close(conn)

    def abandon(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.terminate()


class Results:
    """Everybody here who waits for a result: one look for all of them, after each ring and now and then."""

    def __init__(self, ring: Ring, clock: Clock, look: Callable[[list[str]], Awaitable[set[str]]]) -> None:
        self._ring = ring
        self._clock = clock
        self._look = look  # which of these have ended, or are gone
        self._awaited: dict[str, list[asyncio.Future[None]]] = {}
        self._watcher: asyncio.Task[None] | None = None

    def expect(self, task_id: str) -> asyncio.Future[None]:
        """Done when the task has ended. Asked for before the caller looks, so that nothing is missed."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(task_id, []).append(ended)
        return ended

    def forget(self, task_id: str, ended: asyncio.Future[None]) -> None:
        waiting = self._awaited.get(task_id, [])
        if ended in waiting:
            waiting.remove(ended)
        if not waiting:
            self._awaited.pop(task_id, None)

    async def until(self, ended: asyncio.Future[None], timeout_s: float | None) -> bool:
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
        while self._awaited:
            self._ring.clear()
            ids = list(self._awaited)
            try:
                for task_id in await self._look(ids):
                    for ended in self._awaited.pop(task_id, []):
                        if not ended.done():
                            ended.set_result(None)
            except StoreUnavailable as exc:
                logger.warning("cannot look for results: {}", exc)
            except Exception as exc:
                self._tell_broken(ids, exc)
            # By real time, whatever the caller's clock is: this is for an end that was just being committed.
            await self._ring.wait(REAL_CLOCK, RESULT_POLL_S)

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
