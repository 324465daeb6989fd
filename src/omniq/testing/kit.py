"""An application under test: on a memory store, in virtual time, or with everything run at once."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Generator
from types import TracebackType
from typing import Self

from omniq.app import OmniQ
from omniq.storage.memory import MemoryStorage
from omniq.testing.clock import VirtualClock
from omniq.testing.draining import AT_MOST, DrainedApp, Inline, adrain, drain


class Kit:
    """`with Kit(q) as kit:` inside, `q` works on an empty memory store, and time stands still.

    `kit.drain()` runs what is due; `kit.advance(hours=3)` lets time pass and runs what comes due on the way.
    """

    def __init__(self, q: OmniQ, clock: VirtualClock | None = None) -> None:
        self.q = q
        self.clock = clock or VirtualClock()
        self.clock.drives(DrainedApp(q))
        self._stack = contextlib.ExitStack()

    def drain(self, *, concurrency: int = 1, at_most: int = AT_MOST) -> int:
        """Run what is due until nothing is; how many runs that took."""
        return drain(self.q, concurrency=concurrency, at_most=at_most)

    async def adrain(self, *, concurrency: int = 1, at_most: int = AT_MOST) -> int:
        return await adrain(self.q, concurrency=concurrency, at_most=at_most)

    def advance(
        self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> Awaitable[None]:
        """Let time pass. Delays, retries, leases and schedules come up on the way, each at its moment."""
        return self.clock.advance(seconds, minutes=minutes, hours=hours, days=days)

    def __enter__(self) -> Self:
        self._stack.enter_context(self.q.on(MemoryStorage(clock=self.clock)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._stack.close()


@contextlib.contextmanager
def inline(q: OmniQ) -> Generator[None]:
    """Inside, every enqueue runs what is due before it returns, on an empty memory store.

    A failure is final, and raised where the result is asked for. What is delayed waits for `drain(q)`.
    """
    with q.on(MemoryStorage(), after_enqueue=Inline(q).run_due):
        yield
