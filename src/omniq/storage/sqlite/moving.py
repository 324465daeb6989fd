"""The limits of queues in a SQLite file, and what moves from it to another store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from omniq.errors import CorruptRecord
from omniq.storage.sqlite.connected import ConnectedRows
from omniq.storage.sqlite.records import SELECT, micros, read_task
from omniq.task import StoredTask

# Each walks an index, so that the next parcel does not pass over what is left of the one before.
_MOVABLE = (
    "WHERE status = 0 ORDER BY queue, priority, due, seq",
    "WHERE status >= 2 ORDER BY prune_at, seq",
)


class MovingRows(ConnectedRows):
    """A part of `SQLiteRows`."""

    def limits(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for queue, most in self.conn.execute("SELECT queue, max_depth FROM omniq_limit"):
            if type(queue) is str and type(most) is int:
                found[queue] = most
            else:
                self._report(CorruptRecord(f"the limit of queue {queue!a:.80} makes no sense: {most!a:.80}"))
        return found

    def put_limit(self, queue: str, max_depth: int | None) -> None:
        if max_depth is None:
            self.conn.execute("DELETE FROM omniq_limit WHERE queue = ?", (queue,))
        else:
            self.conn.execute("INSERT OR REPLACE INTO omniq_limit VALUES (?, ?)", (queue, max_depth))

    def depth(self, queue: str, most: int) -> int:
        counted = "SELECT count(*) FROM (SELECT 1 FROM omniq_task WHERE status = 0 AND queue = ? LIMIT ?)"
        [depth] = self.conn.execute(counted, (queue, most)).fetchone()
        assert isinstance(depth, int)
        return depth

    def movable(self, limit: int) -> Iterator[StoredTask]:
        found = 0
        for condition in _MOVABLE:
            for row in self.conn.execute(SELECT + condition):
                try:
                    task = read_task(row)
                except CorruptRecord as corrupt:
                    self._report(corrupt)
                    continue
                yield task
                found += 1
                if found == limit:
                    return

    def move_away(self, task: StoredTask) -> None:
        self._forget(task.seq)

    def outgoing(self) -> bytes | None:
        row = self.conn.execute("SELECT body FROM omniq_parcel WHERE body IS NOT NULL LIMIT 1").fetchone()
        return None if row is None else row[0]

    def keep_parcel(self, parcel_id: str, body: bytes | None) -> None:
        self.conn.execute("INSERT INTO omniq_parcel VALUES (?, ?, ?)", (parcel_id, micros(self.now()), body))

    def has_receipt(self, parcel_id: str) -> bool:
        receipt = "SELECT 1 FROM omniq_parcel WHERE id = ? AND body IS NULL"
        return self.conn.execute(receipt, (parcel_id,)).fetchone() is not None

    def forget_receipts(self, before: datetime) -> None:
        self.conn.execute("DELETE FROM omniq_parcel WHERE body IS NULL AND at < ?", (micros(before),))

    def drop_parcel(self, parcel_id: str) -> None:
        self.conn.execute("DELETE FROM omniq_parcel WHERE id = ? AND body IS NOT NULL", (parcel_id,))
