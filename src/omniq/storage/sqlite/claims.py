"""Claims on a SQLite file: what is due goes to whoever asks. Where it lies, `claiming.py` finds."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from omniq.errors import CorruptRecord
from omniq.logic import lifecycle
from omniq.storage.sqlite.claiming import Head, first_due, heads
from omniq.storage.sqlite.connected import ConnectedRows
from omniq.storage.sqlite.records import (
    CLAIM,
    FIRST_MICROS,
    LAST_MICROS,
    micros,
    moment_of,
    read_all_waiting,
    read_waiting,
)
from omniq.task import Claim, StoredTask, TaskStatus

# Another process may have enqueued a little later than our latest look at the clock, before it was set back.
AHEAD_MICROS: Final = 60_000_000
NEWEST_ROWS: Final = 100


def _nonsense(head: Head) -> CorruptRecord:
    return CorruptRecord(f"the record with seq {head.seq} has no queue, priority or moment that makes sense")


def _unreadable(rows: list[tuple[Any, ...]]) -> list[tuple[Any, CorruptRecord]]:
    """Which of these, by their seq, and why."""
    wrong: list[tuple[Any, CorruptRecord]] = []
    for row in rows:
        try:
            read_waiting(row)
        except CorruptRecord as corrupt:
            wrong.append((row[0], corrupt))
    return wrong


class ClaimRows(ConnectedRows):
    """A part of `SQLiteRows`."""

    _heads: list[Head] | None = None  # what a claim that found nothing has seen

    def due(self, claim: Claim, limit: int, now: datetime) -> list[StoredTask]:
        self._heads = []
        found = self._due_in(claim.queues, self._passed_over(claim), limit, now)
        if claim.scarce and claim.scarce_limit > 0:
            scarce = [name for name in claim.scarce if claim.queues is None or name in claim.queues]
            found += self._due_in(scarce, self.paused(), min(limit, claim.scarce_limit), now)
            found.sort(key=lifecycle.claim_order)
        if found:  # they are claimed next, and others come first then
            self._heads = None
        return found[:limit]

    def _passed_over(self, claim: Claim) -> set[str]:
        return self.paused().union(claim.scarce)

    def _due_in(
        self, queues: Sequence[str] | None, passed_over: set[str], limit: int, now: datetime
    ) -> list[StoredTask]:
        at, horizon = micros(now), self._horizon(now)
        while True:
            waiting = heads(self.conn, queues, passed_over)
            nonsense = [(head.seq, _nonsense(head)) for head in waiting if not head.makes_sense]
            rows = [] if nonsense else first_due(self.conn, waiting, at, horizon, limit)
            found = read_all_waiting(rows)
            if found is None:
                nonsense = _unreadable(rows)
            elif not nonsense:
                if self._heads is not None:
                    self._heads += waiting
                return found
            for seq, why in nonsense:
                self._quarantine(seq, why, now)

    def _horizon(self, now: datetime) -> int:
        """Up to where tasks may lie that were enqueued before the wall clock was set back; usually now."""
        return micros(now) if now >= self._latest else micros(self._latest) + AHEAD_MICROS

    def look_at_newest(self) -> None:
        """What the clock showed to others, before this process was there."""
        newest = self._one(
            "SELECT max(enqueued_at) FROM (SELECT enqueued_at FROM omniq_task ORDER BY seq DESC LIMIT ?)",
            (NEWEST_ROWS,),
        )
        if type(newest) is int and FIRST_MICROS <= newest <= LAST_MICROS:
            self._latest = max(self._latest, moment_of(newest))

    def due_next(self, claim: Claim, now: datetime) -> datetime | None:
        """Asked when everything due was handed out: whatever is first now is due later."""
        at, waiting, self._heads = micros(now), self._heads, None
        if waiting is None:
            passed_over = self._passed_over(claim) if claim.scarce_limit <= 0 else self.paused()
            waiting = heads(self.conn, claim.queues, passed_over)
        later = [head.due for head in waiting if head.makes_sense and head.due > at]
        return moment_of(min(later)) if later else None

    def _claim_or_expire(self, batch: list[StoredTask], claim: Claim, now: datetime) -> list[StoredTask]:
        expiring = [task for task in batch if task.expires_at is not None]
        if any(lifecycle.expired(task, now) for task in expiring):
            # What expires is written back whole, so it must be read whole.
            return super()._claim_or_expire(self._whole(batch, now), claim, now)
        self._hold(batch, claim, now)
        return [lifecycle.claim(task, claim.worker, now, claim.isolates) for task in batch]

    def _whole(self, tasks: list[StoredTask], now: datetime) -> list[StoredTask]:
        whole: list[StoredTask] = []
        for task in tasks:
            try:
                whole.append(self.must_get(task.id))
            except CorruptRecord as corrupt:
                self._quarantine(task.seq, corrupt, now)
        return whole

    def hold(self, task: StoredTask, claim: Claim) -> None:
        self._hold([task], claim, task.started_at or self.now())

    def _hold(self, tasks: list[StoredTask], claim: Claim, now: datetime) -> None:
        if tasks:
            seqs = [task.seq for task in tasks]
            self._moved([task.queue for task in tasks], TaskStatus.PENDING, TaskStatus.RUNNING)
            lease = self._lease_until(claim.lease)
            values = (claim.worker, lease, self.boot, claim.claim_id, micros(now), claim.isolates, str(seqs))
            self.conn.execute(CLAIM, values)
