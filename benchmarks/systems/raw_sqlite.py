"""The raw limit of the SQLite store: its own statements, back to back, with nothing around them.

The store's rows are run once on a connection that writes down every statement with its values. Then the
same statements go to a fresh copy of the same file, and only that is timed: no worker, no event loop, no
thread, no conversion between values and records. What the store asks SQLite to do is all that is left.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import Limit, Reached
from omniq import OmniQ
from omniq.clock import REAL_CLOCK
from omniq.serializer import MsgpackSerializer
from omniq.storage import MemoryStorage, SQLiteStorage
from omniq.storage.sqlite.beside import Beside
from omniq.storage.sqlite.rows import SQLiteRows
from omniq.task import Claim, Settlement, StoredTask

Statement = tuple[bool, str, Any]  # many at once, text, values
Transaction = list[Statement]


class RawSQLite(Limit):
    name = "raw-sqlite"
    store = "sqlite"
    promise = "the store's statements alone, every commit synced to the disk"
    faces = ("blocking", "in-flight", "bulk")

    def drain(self, folder: Path, tasks: int, batch: int, limit_s: float, payload_bytes: int) -> Reached:
        tape, replayed = recorded_drain(folder, tasks, batch, payload_bytes)
        transactions, seconds, cpu_s = replay(tape, replayed, limit_s)
        return Reached(min(tasks, (transactions - 1) * batch), seconds, cpu_s)  # the first one only claims

    def insert(self, folder: Path, tasks: int, batch: int, limit_s: float, payload_bytes: int) -> Reached:
        recorded, replayed = folder / "recorded.db", folder / "replayed.db"
        with Recording(recorded):
            pass
        shutil.copy(recorded, replayed)
        waiting = _tasks(tasks, payload_bytes)
        with Recording(recorded) as recording:
            for first in range(0, tasks, batch):
                recording.transaction("enqueue_many", waiting[first : first + batch], "skip")
        transactions, seconds, cpu_s = replay(recording.tape, replayed, limit_s)
        return Reached(min(tasks, transactions * batch), seconds, cpu_s)


def _tasks(count: int, payload_bytes: int) -> list[StoredTask]:
    call = OmniQ(MemoryStorage()).task(marks.mark).call
    return [call(marks.stamp(payload_bytes)).task for _ in range(count)]


def recorded_drain(
    folder: Path, tasks: int, batch: int, payload_bytes: int = 0
) -> tuple[list[Transaction], Path]:
    """What is said to drain so many tasks, and a file that is as it was before."""
    folder.mkdir(exist_ok=True)
    recorded, replayed = folder / "recorded.db", folder / "replayed.db"
    with Recording(recorded) as recording:
        recording.transaction("enqueue_many", _tasks(tasks, payload_bytes), "skip")
    shutil.copy(recorded, replayed)
    with Recording(recorded) as recording:
        ended = _drain(recording, batch)
    assert ended == tasks
    return recording.tape, replayed


def _drain(recording: Recording, batch: int) -> int:
    """Claim and settle as a worker with `batch` slots does: one transaction settles and claims anew."""
    result, ended = MsgpackSerializer().dumps(None), 0
    settlements: list[Settlement] = []
    while True:
        _, claimed = recording.transaction("exchange", settlements, Claim("raw", None, batch))
        ended += len(settlements)
        if not claimed:
            return ended
        settlements = [Settlement.success(task, result) for task in claimed]


class Tape(sqlite3.Connection):
    """A connection that remembers what it was told."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.heard: Transaction = []

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        self.heard.append((False, sql, parameters))
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        values = list(parameters)
        self.heard.append((True, sql, values))
        return super().executemany(sql, values)


class Recording:
    """The rows of one file, working, while every transaction is written down. Nothing here is timed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tape: list[Transaction] = []

    def __enter__(self) -> Recording:
        asyncio.run(_make(self.path))
        self._conn = sqlite3.connect(self.path, isolation_level=None, factory=Tape)
        self._conn.execute("PRAGMA synchronous = OFF")
        self._beside = Beside(self.path)
        [boot] = self._conn.execute("SELECT max(boot) FROM omniq_boot").fetchone()
        self._rows = SQLiteRows(self._conn, REAL_CLOCK, self._beside, boot)
        return self

    def transaction(self, verb: str, *arguments: Any) -> Any:
        self._conn.heard = []
        self._conn.execute("BEGIN IMMEDIATE")
        answer = getattr(self._rows, verb)(*arguments)
        self._rows.write_tallies()
        self._conn.execute("COMMIT")
        self.tape.append(self._conn.heard)
        return answer

    def __exit__(self, *exc: object) -> None:
        self._conn.close()  # the last connection moves the log into the file
        self._beside.close()


async def _make(path: Path) -> None:
    """The file with its schema, made by the store itself."""
    async with SQLiteStorage(path):
        pass


def replay(tape: list[Transaction], path: Path, limit_s: float = math.inf) -> tuple[int, float, float]:
    """Say the same to another file; how many transactions, in how many seconds, and seconds of CPU."""
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("PRAGMA synchronous = FULL")
        conn.execute("PRAGMA temp_store = MEMORY")  # as the store has it
        # Alone on the file, SQLite itself may move its log now and then, as it does by default.
        done, start, cpu_start = 0, time.perf_counter(), time.process_time()
        while done < len(tape) and time.perf_counter() - start < limit_s:
            for many, sql, values in tape[done]:
                if many:
                    conn.executemany(sql, values)
                else:
                    conn.execute(sql, values).fetchall()
            done += 1
        return done, time.perf_counter() - start, time.process_time() - cpu_start
