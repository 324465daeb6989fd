"""What the audience sees at one moment, gathered from the store and the ledger."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from msgspec import Struct, field

from omniq.cli.demo.ledger import Entry, Word

# In the order of the programme.
KINDS: Final = {
    "fetch": "async, many at once",
    "resize": "a plain function in a thread",
    "flaky": "fails once or twice, retried",
    "hopeless": "gives up on purpose",
    "remind": "enqueued for later",
    "pulse": "runs every second",
    "marathon": "cancelled while running",
    "burst": "nothing to do, all at once",
}
# What a kind is done with; everything else ends when its body does.
LAST_WORD: Final = {"hopeless": Word.FAILED, "marathon": Word.CUT}
BUCKET_S: Final = 0.5
BUCKETS: Final = 32


class Crew(Struct):
    """One worker process: how many tasks it runs, and whether it was killed."""

    pid: int
    running: int = 0
    killed: bool = False


class Scene(Struct, frozen=True):
    at_s: float
    statuses: dict[str, int]
    enqueued: dict[str, int]
    done: dict[str, int]
    rates: list[float]
    crew: list[Crew] = field(default_factory=list[Crew])


class Tally:
    """Counts what comes out of the ledger, as it comes."""

    def __init__(self, started_at_s: float) -> None:
        self._started_at_s = started_at_s
        self.enqueued: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self._buckets: deque[int] = deque([0], maxlen=BUCKETS)
        self._bucket = 0

    def add(self, entries: list[Entry], now_s: float) -> None:
        bucket = int((now_s - self._started_at_s) / BUCKET_S)
        for _ in range(min(bucket - self._bucket, BUCKETS)):
            self._buckets.append(0)
        self._bucket = bucket
        for entry in entries:
            self.enqueued[entry.kind] += entry.word is Word.ENQUEUED
            self.done[entry.kind] += entry.word is LAST_WORD.get(entry.kind, Word.ENDED)
            self._buckets[-1] += entry.word is Word.BEGUN

    @property
    def rates(self) -> list[float]:
        """Runs per second, oldest first; the bucket that is still filling is left out."""
        return [count / BUCKET_S for count in list(self._buckets)[:-1]]
