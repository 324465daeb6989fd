"""The schedules of a SQLite file."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from omniq.errors import CorruptRecord
from omniq.schedule import Schedule
from omniq.storage.scheduling import pack, unpack
from omniq.storage.sqlite.connected import ConnectedRows
from omniq.storage.sqlite.records import maybe_micros, micros, moment_of


class ScheduleRows(ConnectedRows):
    """A part of `SQLiteRows`."""

    def schedule(self, name: str) -> Schedule | None:
        try:
            row = self.conn.execute("SELECT record FROM omniq_schedule WHERE name = ?", (name,)).fetchone()
        except UnicodeEncodeError:  # a lone surrogate: nothing stored can have that name
            return None
        return None if row is None else unpack(row[0])

    def schedules(self) -> list[Schedule]:
        return self._schedules("ORDER BY name")

    def schedules_due(self, now: datetime, limit: int) -> list[Schedule]:
        # Those that cannot be read must not take the places of those behind them.
        due = self._schedules("WHERE next_at <= ? ORDER BY next_at, name", (micros(now),))
        return due[:limit]

    def next_tick(self) -> datetime | None:
        query = "SELECT min(next_at) FROM omniq_schedule WHERE next_at IS NOT NULL"
        [next_at] = self.conn.execute(query).fetchone()
        return moment_of(next_at) if isinstance(next_at, int) else None

    def put_schedule(self, schedule: Schedule) -> None:
        self.conn.execute(
            "INSERT OR REPLACE INTO omniq_schedule (name, next_at, record) VALUES (?, ?, ?)",
            (schedule.name, maybe_micros(schedule.next_at), pack(schedule)),
        )

    def drop_schedule(self, name: str) -> bool:
        try:
            return self.conn.execute("DELETE FROM omniq_schedule WHERE name = ?", (name,)).rowcount > 0
        except UnicodeEncodeError:
            return False

    def _schedules(self, condition: str, parameters: Iterable[Any] = ()) -> list[Schedule]:
        found: list[Schedule] = []
        for name, record in self.conn.execute(
            f"SELECT name, record FROM omniq_schedule {condition}",  # noqa: S608
            tuple(parameters),
        ):
            try:
                found.append(unpack(record))
            except CorruptRecord as corrupt:
                self._report(CorruptRecord(f"schedule {name!a:.80}: {corrupt}"))
        return found
