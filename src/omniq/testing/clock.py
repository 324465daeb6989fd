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
from collections.abc import Awaitable, Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from omniq.clock import Bell
from omniq.errors import InvalidOption
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

    @property
    def is_cancelled(self) -> bool:
        return self._ring is None

    def ring(self) -> None:
        ring, self._ring = self._ring, None
        if ring is None:
            return
        if self._loop is asyncio.get_running_loop():
            ring()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(ring)


class Driven(Protocol):
    """What `advance` runs besides its bells."""

    async def run_due(self) -> None:
        """Run what is due now, to its end."""
        ...

    async def due_next(self) -> datetime | None:
        """When something comes due that is not due now."""
        ...


class _Done:
    """What there is to await when everything has happened already."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


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
        self._driven: tuple[Driven, ...] = ()

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

    def drives(self, *driven: Driven) -> None:
        """From now on `advance` also runs what comes due in these on the way, each at its own moment."""
        self._driven += driven

    def advance(
        self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> Awaitable[None]:
        """Let time pass: each bell rings at its own moment, and what it set off runs before the next.

        Write `await clock.advance(...)` inside a loop; in plain code it is done when this returns.
        """
        step = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if step < timedelta(0):
            raise InvalidOption("time only goes forward; clock.set_wall() is what people do to a clock")
        work = self._advance(self._passed + step)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(work)
            return _Done()
        return work

    async def _advance(self, end: timedelta) -> None:
        await self._settle()
        await self._run_due()
        while (at := await self._next_moment(end)) is not None:
            self._passed = max(self._passed, at)
            while (bell := self._next_until(self._passed)) is not None:
                bell.ring()
                await self._settle()
            await self._run_due()
        self._passed = end
        await self._settle()
        await self._run_due()

    async def _run_due(self) -> None:
        for one in self._driven:
            await one.run_due()

    async def _next_moment(self, end: timedelta) -> timedelta | None:
        """The next at which something happens, on the way to `end`."""
        with self._lock:
            while self._bells and self._bells[0][2].is_cancelled:
                heapq.heappop(self._bells)
            moments = [self._bells[0][0]] if self._bells else []
        for one in self._driven:
            due_at = await one.due_next()
            if due_at is not None:
                moments.append(max(self._passed, due_at - self._started_at))
        return min((at for at in moments if at <= end), default=None)

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
