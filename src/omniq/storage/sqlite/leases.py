"""Leases in a SQLite file: who holds what and until when, which workers there are, and what the dead left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from omniq.errors import CorruptRecord
from omniq.storage.sqlite.connected import ConnectedRows
from omniq.storage.sqlite.records import SELECT, micros, read_task, read_worker, to_json
from omniq.task import Held, StoredTask, WorkerInfo, replace


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


class LeaseRows(ConnectedRows):
    """A part of `SQLiteRows`."""

    def running(self, worker: str, claim_id: str | None = None) -> list[StoredTask]:
        condition = "WHERE status = 1 AND owner = ?"
        if claim_id is None:
            return self._tasks(condition, (worker,))
        return self._tasks(
            condition + " AND claim_id = ? ORDER BY priority DESC, due, seq", (worker, claim_id)
        )

    def held(self, worker: str) -> list[Held]:
        """Asked twice a second, so without the payloads."""
        rows = self.conn.execute(
            "SELECT id, epoch, cancel_requested, seq FROM omniq_task WHERE status = 1 AND owner = ?",
            (worker,),
        )
        # What makes no sense runs out of its lease, and is put aside then.
        return [
            Held(task_id, epoch, bool(cancel), seq)
            for task_id, epoch, cancel, seq in rows
            if type(task_id) is str and type(epoch) is int
        ]

    def extend(self, worker: str, lease_s: float) -> None:
        self.conn.execute(
            "UPDATE omniq_task SET lease = ?, boot = ? WHERE status = 1 AND owner = ?",
            (self._lease_until(lease_s), self.boot, worker),
        )

    # --- what is over ----------------------------------------------------------------------------

    def anything_over(self) -> bool:
        """Whether `lapse` would find something: a look that needs no write lock."""
        now = micros(self.now())
        if self._one("SELECT 1 FROM omniq_task WHERE status = 0 AND expires_at <= ? LIMIT 1", (now,)):
            return True
        if self._dead():
            return True
        return bool(self._over_seqs(1))

    def lapse(self, limit: int) -> int:
        """As everywhere; and who is dead and holds nothing any more is forgotten."""
        dead = self._dead()
        ended = super().lapse(limit)
        for owner in dead:
            if not self._one("SELECT 1 FROM omniq_task WHERE status = 1 AND owner = ? LIMIT 1", (owner,)):
                self.conn.execute("DELETE FROM omniq_worker WHERE id = ?", (owner,))
                # Without its file nobody could tell any more that it is dead: first the row must be gone.
                self.to_bury.append(owner)
        return ended

    def over(self, limit: int) -> Iterator[StoredTask]:
        found = 0
        for seq in self._over_seqs(limit + len(self._reported)):
            row = self.conn.execute(SELECT + "WHERE seq = ?", (seq,)).fetchone()
            try:
                yield read_task(row)
                found += 1
            except CorruptRecord as corrupt:
                self._quarantine(seq, corrupt, self.now())
            if found == limit:
                return

    def _over_seqs(self, limit: int) -> list[int]:
        """Whose lease is over by this machine's clock, and what belongs to the dead."""
        if self._one("SELECT 1 FROM omniq_task WHERE status = 1 LIMIT 1") is None:
            return []  # an idle worker asks twice a second
        now = round(self.clock.monotonic() * 1_000_000)
        dead = self._dead()
        # Another boot's lease counts in another clock: only the lock file can tell.
        held = [owner for owner in self._owners() if self.beside.is_held(owner)]
        rows = self.conn.execute(
            "SELECT seq FROM omniq_task WHERE status = 1 AND ((boot = ? AND lease <= ?) "  # noqa: S608
            f"OR typeof(lease) <> 'integer' OR typeof(boot) <> 'integer' OR owner IN ({_marks(dead)}) "
            f"OR (boot <> ? AND coalesce(owner, '') NOT IN ({_marks(held)}))) LIMIT ?",
            (self.boot, now, *dead, self.boot, *held, limit),
        )
        return [seq for (seq,) in rows]

    def _dead(self) -> list[str]:
        """Workers whose lock file nobody holds: those with tasks, and those that died idle."""
        known = self._names("SELECT id FROM omniq_worker")
        return [name for name in dict.fromkeys((*self._owners(), *known)) if self.beside.is_dead(name)]

    def _owners(self) -> list[str]:
        return self._names("SELECT DISTINCT owner FROM omniq_task WHERE status = 1")

    def overdue(self, limit: int, now: datetime) -> list[StoredTask]:
        expired = "WHERE status = 0 AND expires_at <= ? ORDER BY expires_at LIMIT ?"
        found: list[StoredTask] = []
        for row in self.conn.execute(SELECT + expired, (micros(now), limit)).fetchall():
            try:
                found.append(read_task(row))
            except CorruptRecord as corrupt:  # passed over, it would be found again twice a second
                self._quarantine(row[0], corrupt, now)
        return found

    # --- workers ---------------------------------------------------------------------------------

    def beat(self, worker: WorkerInfo) -> None:
        now = self.now()
        self.beside.hold(worker.id)
        self.conn.execute(
            "INSERT OR REPLACE INTO omniq_worker (id, info, seen_at) VALUES (?, ?, ?)",
            (worker.id, to_json.encode(replace(worker, seen_at=now)), micros(now)),
        )

    def leave(self, worker: str) -> None:
        self.conn.execute("DELETE FROM omniq_worker WHERE id = ?", (worker,))
        self.beside.let_go(worker)
        if self.beside.is_dead(worker):  # somebody says it for a worker that no longer can
            self.beside.bury(worker)

    def forget_workers(self, before: datetime) -> None:
        at = micros(before)
        for worker in self._names("SELECT id FROM omniq_worker WHERE seen_at < ?", (at,)):
            self.leave(worker)
        # What has no name that could be said, or no moment that could be compared, goes all the same.
        self.conn.execute("DELETE FROM omniq_worker WHERE seen_at < ? OR typeof(seen_at) <> 'integer'", (at,))

    def workers(self) -> list[WorkerInfo]:
        workers: list[WorkerInfo] = []
        for worker, info in self.conn.execute("SELECT id, info FROM omniq_worker ORDER BY seen_at DESC, id"):
            try:
                workers.append(read_worker.decode(info))
            except (msgspec.MsgspecError, TypeError, ValueError) as exc:
                self._report(CorruptRecord(f"the record of worker {worker!a:.80} makes no sense: {exc}"))
        return workers
