"""Who sleeps until something is due, or until a result is there: told by pub/sub, on a connection of its own.

A message only shortens a wait. While the connection is away everybody looks at their own pace, and a task
here brings it back with growing pauses; when it is back everybody looks once, for what was missed.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from hiredis import ReplyError
from loguru import logger

from omniq.clock import REAL_CLOCK, wait_for_event
from omniq.errors import OmniqError
from omniq.storage.redis.address import BORDER, Address
from omniq.storage.redis.wire import Wire
from omniq.storage.ringing import Ring

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
# A connection that nothing travels on may be cut without a word: ask now and then.
ASK_EVERY_S: Final = 15.0
# The first one who listens waits so long for the connection, and then goes on without it.
PATIENCE_S: Final = 2.0


class Listening:
    """The connection that listens: opened at the first need, brought back whenever it is lost."""

    def __init__(self, address: Address, token: bytes) -> None:
        self._address = address
        self._token = token  # what we said ourselves, we know already
        self._rings: dict[bytes, Ring] = {}
        self._wire: Wire | None = None
        self._tried = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def listen(self, channel: str, ring: Ring) -> None:
        """Ring it from now on. Returns when the server listens for us, or cannot be asked to."""
        name = self._address.prefix + channel.encode()
        if name in self._rings:
            if not self._tried.is_set():
                await wait_for_event(REAL_CLOCK, self._tried, PATIENCE_S)
            return
        self._rings[name] = ring
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="omniq-listen")
            await wait_for_event(REAL_CLOCK, self._tried, PATIENCE_S)
        elif self._wire is not None and self._wire.is_open:
            try:
                await self._subscribe(self._wire, name)
            except BORDER:
                self._wire.close()  # the keeper brings it back, with this channel too

    async def _subscribe(self, wire: Wire, name: bytes) -> None:
        reply: Any = await wire.call("SUBSCRIBE", name)
        if isinstance(reply, ReplyError):
            raise reply

    async def _keep(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                wire = await self._connect()
                pause_s = FIRST_PAUSE_S
                await self._until_lost(wire)
                logger.warning("wake-ups from {} are cut off; until they are back, tasks wait for the poll",
                               self._address.shown)  # fmt: skip
            except (OmniqError, *BORDER) as exc:
                if pause_s == FIRST_PAUSE_S:
                    logger.warning("no wake-ups from {}: {}", self._address.shown, exc)
            finally:
                self._tried.set()
                if self._wire is not None:
                    self._wire.close()
            await wait_for_event(REAL_CLOCK, asyncio.Event(), pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _connect(self) -> Wire:
        again = self._tried.is_set()
        wire = self._wire = await self._address.connect("listen", self._heard)
        for name in list(self._rings):
            await self._subscribe(wire, name)
        self._tried.set()
        if again:
            for ring in self._rings.values():
                ring.ring()
        return wire

    async def _until_lost(self, wire: Wire) -> None:
        while not await wait_for_event(REAL_CLOCK, wire.lost, ASK_EVERY_S):
            await wire.call("PING")

    def _heard(self, channel: bytes, token: bytes) -> None:
        ring = self._rings.get(channel)
        if ring is not None and token != self._token:
            ring.ring()

    async def stop(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        if self._wire is not None:
            self._wire.close()
            await self._wire.lost.wait()

    def abandon(self) -> None:
        if self._wire is not None:
            self._wire.close()
