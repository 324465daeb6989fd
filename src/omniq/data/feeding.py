"""Decides when the next item may start, and how many a worker may have. Pure: facts in, answers out.

The reader sets the pace: what has ended and was not read takes memory, and so will what runs now. Whatever a
reader cannot go on without may always start, so that order and a full arena never wait for each other.
"""

from __future__ import annotations

from typing import Final

from omniq.pool.control import MAX_AHEAD

# The rest of the arena is for results that readers look at.
SHARE: Final = 0.75
# A worker that would be finished before we have answered gets its next items beforehand.
QUICK_S: Final = 0.02
VERY_QUICK_S: Final = 0.002
# Here to answer takes longer than to run: the more of them at once, the less it costs.
TINY_S: Final = 0.0005
MOST_PLACES: Final = MAX_AHEAD
LEAST_AHEAD: Final = 4


def fits(unread_bytes: int, in_flight: int, usual_bytes: int, arena_bytes: int) -> bool:
    """Whether the result of one more item would have its place."""
    return unread_bytes + (in_flight + 1) * usual_bytes <= arena_bytes * SHARE


def wanted_arena_bytes(result_bytes: int, ahead: int) -> int:
    """For so many results ahead of a reader who looks at one."""
    return int(result_bytes * (ahead + 1) / SHARE) + result_bytes


def places(usual_s: float | None) -> int:
    """How many items a worker may have at a time, given how long one usually takes."""
    if usual_s is None or usual_s > QUICK_S:
        return 1
    if usual_s > TINY_S:
        return 2 if usual_s > VERY_QUICK_S else 4
    return MOST_PLACES


def ahead(usual_s: float | None) -> int:
    """How many items for each worker are ahead of a reader who has said nothing about it."""
    return max(LEAST_AHEAD, 2 * places(usual_s))
