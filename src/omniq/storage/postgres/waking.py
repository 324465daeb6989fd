"""Who sleeps until something is due, or until a result is there: told by LISTEN, on a connection of its own.

A notification only shortens a wait. While the connection is away everybody looks at their own pace, and a
task here brings it back with growing pauses; when it is back everybody looks once, for what was missed.
Behind a pooler that keeps no session for its clients nothing is ever heard: that is tried, and then let be.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from loguru import logger

from omniq.clock import REAL_CLOCK, wait_for_event
from omniq.errors import OmniqError
from omniq.storage.postgres.connections import BORDER, Address, close, cut
from omniq.storage.postgres.errors import code_of
from omniq.storage.ringing import Ring

if TYPE_CHECKING:
    from omniq.storage.postgres.connections import Connection

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
# Behind a pooler that lets nothing through; or the server was only away for the moment of the trial.
DEAF_PAUSE_S: Final = 60.0
# A connection that nothing travels on may be cut without a word: ask now and then.
ASK_EVERY_S: Final = 30.0
ASK_TIMEOUT_S: Final = 10.0
# Who begins to listen waits so long for the connection, and then goes on without it.
PATIENCE_S: Final = 2.0
# How long a call through a pooler may take to be heard.
TRIAL_S: Final = 1.0
NOT_PREPARED: Final = "26000"  # the next message met another session than the one before


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
                async with asyncio.timeout(PATIENCE_S):
                    await self._conn.add_listener(channel, self._heard)
            except BORDER:
                self._lost.set()  # the keeper brings it back, with this channel too

    @property
    def hears(self) -> bool:
        return self._conn is not None

    async def _keep(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                if await self._connect():
                    pause_s = FIRST_PAUSE_S
                    self._tried.set()
                    await self._until_lost()
                    self._warn("wake-ups are cut off; until they are back, tasks wait for the poll")
                else:
                    if pause_s != DEAF_PAUSE_S:
                        self._warn(
                            "no wake-ups: a pooler there lends connections per transaction; tasks wait for "
                            "the poll"
                        )
                    pause_s = DEAF_PAUSE_S
            except (OmniqError, *BORDER) as exc:
                if pause_s == FIRST_PAUSE_S:
                    self._warn(f"no wake-ups: {exc}")
            finally:
                self._tried.set()
                if self._conn is not None:
                    self._conn.terminate()
                    self._conn = None
            await wait_for_event(REAL_CLOCK, asyncio.Event(), pause_s)
            if pause_s != DEAF_PAUSE_S:
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _warn(self, what: str) -> None:
        logger.warning("{}: {}", self._address.shown, what)

    async def _connect(self) -> bool:
        """False where nothing can be heard."""
        again = self._tried.is_set()
        conn = await self._address.connect("listen")
        self._conn = conn
        self._lost.clear()
        if self._address.pooled and not await self._is_heard(conn):
            return False
        conn.add_termination_listener(self._gone)
        for channel in list(self._rings):
            await conn.add_listener(channel, self._heard)
        if again:
            for ring in self._rings.values():
                ring.ring()
        return True

    async def _is_heard(self, conn: Connection) -> bool:
        """Whether this connection hears what another one calls."""
        heard, channel = asyncio.Event(), f"omniq_trial_{secrets.token_hex(8)}"

        def call(*_: object) -> None:
            heard.set()

        try:
            await conn.add_listener(channel, call)
        except asyncpg.PostgresError as exc:
            if code_of(exc) == NOT_PREPARED:
                return False
            raise
        caller = await self._address.connect("trial")
        try:
            await caller.execute(f"NOTIFY {channel}")
        finally:
            await close(caller)
        return await wait_for_event(REAL_CLOCK, heard, TRIAL_S)

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
            cut(conn)
