"""What a pool is given: one call, or a chunk of calls of one function, and how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from omniq.data.stream import Stream

# Processes may be killed by anything at any time; this many in a row before a call begins is no coincidence.
MAX_FALSE_STARTS: Final = 5


class Item:
    """`count` calls with the numbers from `seq` on in its stream, of which the first `done` have ended.

    `work` is for the crew that made it.
    """

    __slots__ = (
        "count",
        "done",
        "false_starts",
        "is_waiting",
        "losses",
        "name",
        "number",
        "priority",
        "seq",
        "stream",
        "work",
    )

    def __init__(
        self, stream: Stream, number: int, seq: int, priority: int, name: str, count: int, work: Any
    ) -> None:
        self.stream = stream
        self.number = number  # among all that were ever submitted to this pool
        self.seq = seq
        self.priority = priority
        self.name = name
        self.count = count
        self.work = work
        self.is_waiting = False
        self.done = 0
        self.losses = 0  # of workers that ran the first call that has not ended
        self.false_starts = 0  # of workers that died before it began

    @property
    def head(self) -> int:
        """The number of the first call that has not ended."""
        return self.seq + self.done

    @property
    def left(self) -> int:
        return self.count - self.done

    def ended_one(self) -> int:
        """Its first call has ended; says which that was."""
        self.done += 1
        self.losses = self.false_starts = 0
        return self.seq + self.done - 1


class Sent:
    """An item in the hands of one worker: calls have the ids from `base` on there.

    Void: it was taken back, or given up. Whatever is still said about it means nothing.
    """

    __slots__ = ("base", "count", "is_void", "item", "late", "reported", "skipped", "was_asked_back")

    def __init__(self, item: Item, base: int) -> None:
        self.item = item
        self.base = base
        self.skipped = item.done
        self.count = item.count
        self.reported = item.done
        self.is_void = False
        self.was_asked_back = False
        self.late = 0  # the call that ran for too long and was interrupted

    @property
    def message_id(self) -> int:
        return self.base + self.skipped

    @property
    def head_id(self) -> int:
        """The id of the next call to be reported."""
        return self.base + self.reported

    @property
    def ids(self) -> range:
        return range(self.head_id, self.base + self.count)
