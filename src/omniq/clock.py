"""Time, as something that can be handed in: the wall, a steady count, and a bell that rings later."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Bell(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> datetime:
        """The wall clock, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never jump. On one host all processes share them."""
        ...

    def call_later(self, delay_s: float, ring: Callable[[], None]) -> Bell:
        """Call `ring` on the running loop after `delay_s`."""
        ...


class RealClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    monotonic = staticmethod(time.monotonic)

    def call_later(self, delay_s: float, ring: Callable[[], None]) -> Bell:
        return asyncio.get_running_loop().call_later(delay_s, ring)


REAL_CLOCK = RealClock()


async def wait_for_event(clock: Clock, event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until `event` is set, at most `timeout_s`; says whether it is."""
    if event.is_set() or timeout_s <= 0:
        return event.is_set()
    with contextlib.suppress(TimeoutError):
        # Its own clock is the loop's; it is ours that says when, and then it is over at once.
        async with asyncio.timeout(None) as limit:
            bell = clock.call_later(timeout_s, lambda: _end_now(limit))
            try:
                await event.wait()
            finally:
                bell.cancel()
    return event.is_set()


def _end_now(limit: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # a bell that another thread rang may come after the end
        limit.reschedule(0.0)
