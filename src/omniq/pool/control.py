"""The page that parent and child share: what should end early, what runs, what has ended and not been sent.

    word 0       how many interrupts were ever posted                                     the parent writes
    word 1       twice the id of the call that is next, and one more once it has begun    the child writes
    word 2       of which call the first result in the journal is, 0 for none             the child writes
    word 3       what is in the journal: 0 for pickles, else a run (packed.py)            the child writes
    word 4       how many results the run has room for                                    the child writes
    word 5, 6    the latest range of calls that should end: its first, and the one after     the parent writes
    word 8..255  the ids of the latest interrupts, as a ring                              the parent writes
    then         the journal: results that are not sent yet                               the child writes

Pickles go up to the call in word 1. A run goes up to its first hole, and so does what has begun.

It needs no thread in the child to be told something, and what the child wrote outlives it. The parent reads
the journal only after the child's death, so the two never meet there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PAGE_BYTES: Final = 64 * 1024
POSTED, STATE, FIRST, KIND, COUNT, FROM, UNTIL, RING = 0, 1, 2, 3, 4, 5, 6, 8
WORDS: Final = 256
RING_WORDS: Final = WORDS - RING
JOURNAL: Final = WORDS * 8
JOURNAL_BYTES: Final = PAGE_BYTES - JOURNAL


class Unwanted(NamedTuple):
    """Calls that should end, or not begin."""

    ids: frozenset[int]
    span: range

    def has(self, call_id: int) -> bool:
        return call_id in self.ids or call_id in self.span

    @property
    def last(self) -> int:
        return max(max(self.ids, default=0), self.span.stop - 1)


class ControlPage:
    """`words` is for the child's inner loop, where a method call would be most of the cost."""

    def __init__(self, memory: memoryview) -> None:
        self.words = memory[:JOURNAL].cast("Q")
        self.journal = memory[JOURNAL:PAGE_BYTES]

    def clear(self) -> None:
        for word in range(WORDS):
            self.words[word] = 0

    def post(self, call_id: int) -> None:
        """Ask for the end of a call. The id comes before the count, so whoever sees the count finds it."""
        posted = self.words[POSTED]
        self.words[RING + posted % RING_WORDS] = call_id
        self.words[POSTED] = posted + 1

    def post_range(self, first_id: int, stop_id: int) -> None:
        """Ask for the end of calls that may be more than the ring holds.

        Only one range is kept. That is enough: it is of the message that the child has, its last one.
        Whoever reads while it is written reads it again, because the count comes last.
        """
        posted = self.words[POSTED]
        self.words[FROM], self.words[UNTIL] = first_id, stop_id
        self.words[RING + posted % RING_WORDS] = first_id
        self.words[POSTED] = posted + 1

    def posted(self) -> Unwanted:
        """The calls that should end, as far back as the ring goes."""
        ids = frozenset(self.words[RING : RING + min(self.words[POSTED], RING_WORDS)])
        return Unwanted(ids, range(self.words[FROM], self.words[UNTIL]))

    def recorded(self) -> tuple[int, int, bytes]:
        """The pickles in the journal: of which call the first result is, how many there are, their bytes."""
        first = self.words[FIRST]
        return first, (self.words[STATE] >> 1) - first if first else 0, bytes(self.journal)

    def release(self) -> None:
        self.words.release()
        self.journal.release()
