"""A blocked event loop, seen from another thread, and named with the stack of what blocks it.

upkeep's thread: ping ──> the loop answers ──> all is well
                  └── no answer for a second: look at what that thread does, and say so, once
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from typing import Final

from loguru import logger

STALL_S: Final = 1.0
MAX_FRAMES: Final = 12


class StallWatch:
    """Watches the loop that it is made on. `look` is called again and again, from another thread."""

    def __init__(self) -> None:
        self.stalls = 0
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._asked_at: float | None = None
        self._told = False

    def look(self) -> None:
        asked_at = self._asked_at
        if asked_at is None:
            self._asked_at = time.monotonic()
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._answer)
        elif not self._told and time.monotonic() - asked_at >= STALL_S:
            self._told = True
            self.stalls += 1
            logger.warning(
                "the event loop has not moved for {seconds:.1f} s; it is in:\n{stack}",
                seconds=time.monotonic() - asked_at,
                stack=stack_of(self._thread),
            )

    @property
    def blocked_s(self) -> float:
        """For how long it has not moved, if it was found blocked and has not moved since."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None or not self._told else time.monotonic() - asked_at

    def _answer(self) -> None:
        """On the loop: it moves."""
        asked_at, self._asked_at = self._asked_at, None
        if self._told and asked_at is not None:
            logger.warning("the event loop moves again, after {:.1f} s", time.monotonic() - asked_at)
        self._told = False


def stack_of(thread: int) -> str:
    """What a thread does right now, the innermost call last. Without the values of anything."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage] - there is no other way
    if frame is None:
        return "  (the thread has ended)"
    return "".join(traceback.format_stack(frame)[-MAX_FRAMES:]).rstrip()
