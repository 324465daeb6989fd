"""Time that stands still until a test moves it.

Give it to whatever takes a `clock`:

    clock = VirtualClock()
    storage = MemoryStorage(clock=clock)
    await clock.advance(hours=1)        # every bell on the way rings, in order, at its own moment
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from omniq.clock import Bell
from omniq.task import moment

START: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
# Not zero: a host has been up for a while, and code that takes 0.0 for "never" should be found out.
UPTIME: Final = timedelta(hours=1)
# How many turns the loop gets to do what a bell set off. A chain of awaits takes one turn per link.
SETTLE_TURNS: Final = 50


class _VirtualBell:
    """A call at a moment. `cancel` leaves it in the heap, where it is passed over."""

    def __init__(self, at: timedelta, ring: Callable[[], None]) -> None:
        self.at = at
        self._ring: Callable[[], None] | None = ring
        self._loop = asyncio.get_running_loop()

    def cancel(self) -> None:
        self._ring = None

    def ring(self) -> None:
        ring, self._ring = self._ring, None
        if ring is None:
            return
        if self._loop is asyncio.get_running_loop():
            ring()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(ring)


class VirtualClock:
    """A wall and a steady count that only `advance` moves; the wall can also be set, as people do.

    Reading it is safe from any thread. A bell rings on the loop that asked for it.
    """

    def __init__(self, start: datetime = START) -> None:
        self._started_at = moment(start, "start")
        self._passed = timedelta(0)
        self._order = itertools.count()
        self._bells: list[tuple[timedelta, int, _VirtualBell]] = []
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return self._started_at + self._passed

    def monotonic(self) -> float:
        return (UPTIME + self._passed) / timedelta(seconds=1)

    def call_later(self, delay_s: float, ring: Callable[[], None]) -> Bell:
        delay = timedelta(seconds=delay_s)
        if delay <= timedelta(0):
            return asyncio.get_running_loop().call_soon(ring)
        with self._lock:
            bell = _VirtualBell(self._passed + delay, ring)
            heapq.heappush(self._bells, (bell.at, next(self._order), bell))
        return bell

    async def advance(
        self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> None:
        """Let time pass: each bell rings at its own moment, and what it set off runs before the next."""
        step = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        assert step >= timedelta(0), "time only goes forward; set_wall() is what people do to a clock"
        end = self._passed + step
        await self._settle()
        while (bell := self._next_until(end)) is not None:
            self._passed = max(self._passed, bell.at)
            bell.ring()
            await self._settle()
        self._passed = end
        await self._settle()

    def set_wall(self, now: datetime) -> None:
        """Set the wall clock, as a person or a time server does. No bell rings; `monotonic` goes on."""
        self._started_at = moment(now, "now") - self._passed

    def _next_until(self, end: timedelta) -> _VirtualBell | None:
        with self._lock:
            if self._bells and self._bells[0][0] <= end:
                return heapq.heappop(self._bells)[2]
            return None

    async def _settle(self) -> None:
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
