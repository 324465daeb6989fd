"""Whether there is hope for a worker: how many in a row ended before they did anything.

Knows no processes: whoever sees them come and go says so.
"""

from __future__ import annotations

from typing import Final

MAX_FAILED_STARTS: Final = 5


class Starts:
    """Counts in a row. Who was ready may have been killed by anybody; who was not has never lived."""

    def __init__(self) -> None:
        self.fruitless = 0  # workers that ended before they began a call
        self._stillborn = 0  # workers that ended before they were ready

    def came_to_life(self) -> None:
        """One is ready. That it can do something is not shown by that."""
        self._stillborn = 0

    def did_something(self) -> None:
        self.fruitless = self._stillborn = 0

    def failed(self, *, was_ready: bool) -> None:
        self.fruitless += 1
        if not was_ready:
            self._stillborn += 1

    def is_hopeless(self, retries: int) -> bool:
        """Whether a call that may be tried `retries` times again should stop waiting for a worker."""
        if self._stillborn >= MAX_FAILED_STARTS:
            return True
        return self.fruitless >= max(MAX_FAILED_STARTS, retries + 1)
