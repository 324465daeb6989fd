"""The page that parent and child share: what should end early, what runs, what has ended and not been sent.

    word 0       how often anything was posted                                            the parent writes
    word 1       twice the id of the next call or less, and one more once that has begun  the child writes
    word 2       of which call the first result in the journal is, 0 for none             the child writes
    word 3       what is in the journal: 0 for pickles, else a run (packed.py)            the child writes
    word 4       how many results the run has room for                                    the child writes
    word 5, 6    the latest range of calls that should end: its first, and the one after     the parent writes
    word 7, 8    how many interrupts, and how many withdrawals, were ever posted             the parent writes
    word 9..191  the ids of the latest interrupts, as a ring                              the parent writes
    word 192..   the latest withdrawals, as a ring: first call, and the one after            the parent writes
    then         the journal: results that are not sent yet                               the child writes

An interrupt is for a call that runs, or will. A withdrawal is for calls that have not begun: the child looks
for it when it begins a call, and never again for that one.

Pickles go up to the call in word 1. A run goes up to its first hole, and so does what has begun.

It needs no thread in the child to be told something, and what the child wrote outlives it. The parent reads
the journal only after the child's death, so the two never meet there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PAGE_BYTES: Final = 64 * 1024
POSTED, STATE, FIRST, KIND, COUNT, FROM, UNTIL, INTERRUPTS, WITHDRAWN, RING = range(10)
WITHDRAWALS: Final = 192
WORDS: Final = 256
RING_WORDS: Final = WITHDRAWALS - RING
# Enough for a child that has up to MAX_AHEAD messages: until one of them ends, at most those before it and
# those behind it are withdrawn after it.
WITHDRAWALS_KEPT: Final = (WORDS - WITHDRAWALS) // 2
MAX_AHEAD: Final = WITHDRAWALS_KEPT // 2
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
        """Ask for the end of a call. Word 0 comes last, so whoever sees it changed finds the rest."""
        self.words[RING + self.words[INTERRUPTS] % RING_WORDS] = call_id
        self.words[INTERRUPTS] += 1
        self.words[POSTED] += 1

    def post_range(self, first_id: int, stop_id: int) -> None:
        """Ask for the end of calls that may be more than the ring holds.

        Only one range is kept. That is enough: it is of the message that the child has, its last one.
        Whoever reads while it is written reads it again, because word 0 comes last.
        """
        self.words[FROM], self.words[UNTIL] = first_id, stop_id
        self.post(first_id)

    def withdraw(self, first_id: int, stop_id: int) -> None:
        """Ask that these calls do not begin. What has begun is not touched by it."""
        at = WITHDRAWALS + self.words[WITHDRAWN] % WITHDRAWALS_KEPT * 2
        self.words[at], self.words[at + 1] = first_id, stop_id
        self.words[WITHDRAWN] += 1
        self.words[POSTED] += 1

    def withdrawn(self) -> list[range]:
        """The calls that should not begin, as far back as the ring goes."""
        end = WITHDRAWALS + min(self.words[WITHDRAWN], WITHDRAWALS_KEPT) * 2
        # The parent may be writing, its first word first. So we read the second ones first: an old end with a
        # new beginning is no call at all, while an old beginning with a new end would be all calls between.
        stops = self.words[WITHDRAWALS + 1 : end : 2].tolist()
        firsts = self.words[WITHDRAWALS:end:2].tolist()
        return [range(*span) for span in zip(firsts, stops, strict=True)]

    def posted(self) -> Unwanted:
        """The calls that should end, as far back as the ring goes."""
        ids = frozenset(self.words[RING : RING + min(self.words[INTERRUPTS], RING_WORDS)])
        until = self.words[UNTIL]  # before the other one: see `withdrawn`
        return Unwanted(ids, range(self.words[FROM], until))

    def recorded(self) -> tuple[int, int, bytes]:
        """The pickles in the journal: of which call the first result is, how many there are, their bytes."""
        first = self.words[FIRST]
        return first, (self.words[STATE] >> 1) - first if first else 0, bytes(self.journal)

    def release(self) -> None:
        self.words.release()
        self.journal.release()
