"""A condition that keeps its word about its lock, also when a Ctrl-C comes in the middle of its `wait`."""

from __future__ import annotations

import threading
from typing import Any

from omniq.loopthread import LOOK_FOR_SIGNALS_S


class Condition(threading.Condition):
    """Python's own gives the lock back, and only on its next line promises to take it again.

    A KeyboardInterrupt between the two leaves the lock; then `with lock:` cannot leave it once more, and what
    comes out is a RuntimeError about that. To be waited for by whoever has taken the lock once.
    """

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self._taken = lock

    def wait(self, timeout: float | None = None) -> bool:
        """Whoever waits looks again when this returns: a wait without an end is cut into short ones."""
        try:
            return super().wait(LOOK_FOR_SIGNALS_S if timeout is None else min(timeout, LOOK_FOR_SIGNALS_S))
        except BaseException:
            if not self._taken._is_owned():
                self._taken.acquire()
            self.notify_all()  # what was meant for us may have been lost on us; all the others look again
            raise
