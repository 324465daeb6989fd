"""A connection whose nth statement fails, and what a database holds, to compare before and after."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

from omniq.storage import SQLiteStorage
from omniq.storage.sqlite.engine import Engine

Way = Literal["not done", "done but not answered", "gone for good"]
Contents = dict[str, list[tuple[Any, ...]]]

TABLES = (
    "omniq_task",
    "omniq_body",
    "omniq_result",
    "omniq_run",
    "omniq_gone",
    "omniq_paused",
    "omniq_worker",
    "omniq_schedule",
    "omniq_limit",
    "omniq_parcel",
    "omniq_tally",
)


class Failing:
    """Stands in for the writer's connection: everything goes through, except from the nth statement on.

    "not done" fails the statement before it is done, "done but not answered" afterwards; both fail once.
    "gone for good" fails everything from there, until `mend`.
    """

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn
        self._count = 0
        self._fail_at = 0
        self._way: Way = "not done"
        self.failed = False

    def arm(self, nth: int, way: Way) -> None:
        self._count, self._fail_at, self._way, self.failed = 0, nth, way, False

    def mend(self) -> None:
        self._fail_at = 0

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        return self._passed(lambda: self._conn.execute(sql, parameters))

    def executemany(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        return self._passed(lambda: self._conn.executemany(sql, parameters))

    def _passed(self, do: Any) -> sqlite3.Cursor:
        self._count += 1
        now = self._count == self._fail_at or (self._way == "gone for good" and self.failed)
        if not now or not self._fail_at:
            return do()  # type: ignore[no-any-return]
        self.failed = True
        if self._way == "done but not answered":
            do()
        raise sqlite3.OperationalError("disk I/O error")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)


@contextmanager
def failing(storage: SQLiteStorage) -> Iterator[Failing]:
    """Put a `Failing` between the writer of an open storage and its connection, unless it takes a new one."""
    engine = storage._engine
    assert isinstance(engine, Engine)
    real = engine._writer
    wrapped = Failing(real)
    engine._writer = engine._write_rows.conn = wrapped  # type: ignore[assignment]
    try:
        yield wrapped
    finally:
        if engine._writer is wrapped:
            engine._writer = engine._write_rows.conn = real


class Beside:
    """A connection of its own to the same file: sees what anybody else would see, and can put it back."""

    def __init__(self, database: Path) -> None:
        self._conn = sqlite3.connect(database)
        self._conn.execute("PRAGMA synchronous = OFF")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._conn.close()

    def contents(self) -> Contents:
        """Every row of every table."""
        return {table: sorted(self._conn.execute(f"SELECT * FROM {table}"), key=repr) for table in TABLES}

    def restore(self, saved: Contents) -> None:
        """Make the database hold exactly this again."""
        for table, rows in saved.items():
            self._conn.execute(f"DELETE FROM {table}")
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                self._conn.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        self._conn.commit()


def contents(database: Path) -> Contents:
    """What the file holds now."""
    with Beside(database) as beside:
        return beside.contents()
