"""From where a claim walks through the waiting tasks: from the start, or from where the last one ended.

A claimed task leaves a dead entry at the head of the index until a vacuum removes it, and an old snapshot
somewhere in the database keeps every vacuum from doing so. A walk from the start passes over all of them. So
where the server says that such a walk was slow, the next ones begin at the last task that was handed out, for
up to a second. Priorities stay exact; within one, a task with an earlier eta that appears behind the cursor
waits for the next walk from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

# A walk that takes less is cheap enough to be made every time; so is what it takes for each task it brings.
CHEAP_WALK_S: Final = 0.0005
FOR_EACH_S: Final = 0.000004
# Walks from the start take at most a twentieth of the time, but are made once a second.
SHARE_OF_TIME: Final = 20
LONGEST_S: Final = 1.0
# Ranges that are remembered; of one that is not, the walk begins at its start.
MAX_RANGES: Final = 1000


class Cursor:
    def __init__(self) -> None:
        self._ranges: dict[tuple[str, int], tuple[datetime, int]] = {}
        self.from_start_at = 0.0

    def arguments(self, now: float) -> tuple[list[Any], ...]:
        """The columns of where to begin: none of them, where it is time to begin at the start."""
        ranges = {} if now >= self.from_start_at else self._ranges
        return (
            [queue for queue, _ in ranges],
            [rank for _, rank in ranges],
            [due for due, _ in ranges.values()],
            [seq for _, seq in ranges.values()],
        )

    def give_up(self, now: float) -> None:
        """No answer: if the walk was too long, the next one should not begin with all of it again."""
        self.from_start_at = now + LONGEST_S

    def note(self, walk_s: float, brought: int, now: float, was_from_start: bool) -> None:
        if was_from_start:
            wasted_s = walk_s - brought * FOR_EACH_S
            pause_s = 0.0 if wasted_s < CHEAP_WALK_S else min(LONGEST_S, wasted_s * SHARE_OF_TIME)
            self.from_start_at = now + pause_s

    def advance(self, rows: Sequence[Sequence[Any]], was_from_start: bool) -> None:
        """Behind the tasks that were handed out, which come in order."""
        if was_from_start or len(self._ranges) > MAX_RANGES:
            self._ranges.clear()
        for row in rows:
            self._ranges[row[4], row[5]] = (row[7], row[0])
