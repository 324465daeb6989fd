"""What wakes those who sleep in this process: rings, and who is listening for them.

Whoever rings may be any thread; whoever sleeps does so on a loop of its own.
"""

from __future__ import annotations

import asyncio
import threading

from omniq.clock import Clock, wait_for_event


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Ring:
    """One thing that a loop may sleep for. Rung from any thread; a loop that does not sleep is left alone.

    Whoever sleeps says so before it looks at `rung`, whoever rings looks for sleepers after setting it:
    one of the two always sees the other.
    """

    def __init__(self) -> None:
        self.rung = False
        self._sleepers = 0
        self._awake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def clear(self) -> None:
        self.rung = False
        self._awake.clear()

    def ring(self) -> None:
        self.rung = True
        if not self._sleepers or self._loop.is_closed():
            return
        # Not the thread's number: that may be another thread's by now, or this one's with no loop in it.
        if _running_loop() is self._loop:
            self._awake.set()
            return
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            if not self._loop.is_closed():  # it has not closed right now, so this came from elsewhere
                raise

    def _wake(self) -> None:
        if self.rung:
            self._awake.set()

    async def wait(self, clock: Clock, timeout_s: float) -> bool:
        """Sleep until it rings, or has rung since it was cleared; at most `timeout_s`."""
        self._sleepers += 1
        try:
            if self.rung:
                return True
            await wait_for_event(clock, self._awake, timeout_s)
            return self.rung
        finally:
            self._sleepers -= 1


class Listener:
    """One loop's ear: a ring for due work, one for results."""

    def __init__(self) -> None:
        self.due = Ring()
        self.result = Ring()

    def ring(self, *, due: bool, result: bool) -> None:
        if due:
            self.due.ring()
        if result:
            self.result.ring()


class Bell:
    """Everybody in this process who sleeps on one store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()

    def add(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def remove(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if one is not listener)

    def ring(self, *, due: bool, result: bool) -> None:
        for listener in self._listeners:
            listener.ring(due=due, result=result)
