"""What every part of the rows of a SQLite file stands on: the connection, the clock, and what goes wrong.

A row that cannot be read is named once in the log, or put aside; it never stands in anybody's way.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from loguru import logger

from omniq.clock import Clock
from omniq.errors import CorruptRecord
from omniq.storage.rows import Rows
from omniq.storage.sqlite.beside import Beside
from omniq.storage.sqlite.records import EPOCH, SELECT, STATUSES, Retention, micros, read_task, to_json
from omniq.task import StoredTask, TaskError, TaskStatus


def known_status(number: Any) -> TaskStatus | None:
    """A column of SQLite holds anything."""
    return STATUSES[number] if type(number) is int and 0 <= number < len(STATUSES) else None


class NotAllHeld(Exception):
    """A report did not hold that should have: undo the transaction, and do it again with `expects_stale`."""


class ConnectedRows(Rows):
    """A part of `SQLiteRows`. `boot` is this machine's number in `omniq_boot`."""

    def __init__(self, conn: sqlite3.Connection, clock: Clock, beside: Beside, boot: int) -> None:
        super().__init__()
        self.conn = conn
        self.clock = clock
        self.beside = beside
        self.boot = boot
        self.retention = Retention(0.0, 0.0)
        self.expects_stale = False  # each report is looked at for itself
        self.to_bury: list[str] = []  # the dead whose lock files go once it is committed that they are gone
        self._reported: set[str] = set()
        self._latest = EPOCH  # the latest moment that the wall clock has shown here

    def now(self) -> datetime:
        now = self.clock.now()
        self._latest = max(self._latest, now)
        return now

    def _lease_until(self, lease_s: float) -> int:
        return round((self.clock.monotonic() + lease_s) * 1_000_000)

    # --- reading ---------------------------------------------------------------------------------

    def _tasks(self, sql: str, parameters: Iterable[Any] = ()) -> list[StoredTask]:
        return self._readable(self.conn.execute(SELECT + sql, tuple(parameters)).fetchall())

    def _readable(self, rows: Iterable[tuple[Any, ...]]) -> list[StoredTask]:
        """The tasks that can be read; the others are named once in the log."""
        tasks: list[StoredTask] = []
        for row in rows:
            try:
                tasks.append(read_task(row))
            except CorruptRecord as corrupt:
                self._report(corrupt)
        return tasks

    def _report(self, corrupt: CorruptRecord) -> None:
        if str(corrupt) not in self._reported:
            self._reported.add(str(corrupt))
            logger.error("passed over: {}", corrupt)

    def _names(self, sql: str, parameters: Iterable[Any] = ()) -> list[str]:
        """A column of text; what is none is named once in the log."""
        names: list[str] = []
        for (name,) in self.conn.execute(sql, tuple(parameters)):
            if type(name) is str:
                names.append(name)
            else:
                self._report(CorruptRecord(f"{name!a:.80} is no name, found by {sql}"))
        return names

    def _one(self, sql: str, parameters: Iterable[Any] = ()) -> Any:
        row = self.conn.execute(sql, tuple(parameters)).fetchone()
        return None if row is None else row[0]

    # --- writing ---------------------------------------------------------------------------------

    def _moved(self, queues: list[Any], before: TaskStatus | None, after: TaskStatus | None) -> None:
        if not queues:
            return
        alike = queues.count(queues[0]) == len(queues)  # nearly always, and far cheaper than to count all
        for queue, many in ((queues[0], len(queues)),) if alike else Counter(queues).items():
            if type(queue) is str:  # a column of SQLite holds anything
                self.changes.move(queue, before, after, many)

    def _leave(self, seq: int, after: TaskStatus | None) -> None:
        """Note that a row, whatever it is now, goes to another status."""
        found = self.conn.execute("SELECT queue, status FROM omniq_task WHERE seq = ?", (seq,)).fetchone()
        if found is None:
            return
        queue, status = found
        if type(queue) is str and (before := known_status(status)) is not None:
            self.changes.move(queue, before, after)

    def _forget(self, seq: int) -> None:
        self._leave(seq, None)
        for table in ("omniq_task", "omniq_body", "omniq_result", "omniq_run"):
            self.conn.execute(f"DELETE FROM {table} WHERE seq = ?", (seq,))  # noqa: S608

    def _quarantine(self, seq: int, corrupt: CorruptRecord, now: datetime) -> None:
        """A record that cannot be read must not stand in everybody's way: it fails, its bytes stay."""
        logger.error("failed: {}", corrupt)
        error = to_json.encode(TaskError("CorruptRecord", str(corrupt), "", "undecodable")).decode()
        at = micros(now)
        self._leave(seq, TaskStatus.FAILED)
        self.conn.execute(
            "UPDATE omniq_task SET status = 3, error = ?, finished_at = ?, result_status = 3, "
            "result_at = ?, prune_at = ?, owner = NULL, lease = NULL, boot = NULL, claim_id = NULL, "
            "isolates = 0, cancel_requested = 0 WHERE seq = ?",
            (error, at, at, at + round(self.retention.failed_s * 1_000_000), seq),
        )
