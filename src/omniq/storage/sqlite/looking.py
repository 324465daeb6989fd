"""Looking at a SQLite file without counting it: pages, heads, timings, tallies.

Whatever is asked, at most so many rows or index entries are touched, however many there are.
"""

# ruff: noqa: S608
from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from omniq.storage.sqlite.claiming import Head, heads
from omniq.storage.sqlite.records import (
    EPOCH,
    NUMBERS,
    SELECT,
    maybe_micros,
    moment_of,
    to_json,
)
from omniq.storage.tallying import COLUMNS
from omniq.task import Head as TaskHead
from omniq.task import Tally, TaskFilter, TaskStatus, Timing

# One page looks at so many rows at most; of so many index entries the newest are found by sorting.
LOOK: Final = 20_000
SORTED: Final = 50_000

_MINUTE_MICROS: Final = 60_000_000
_SUMS: Final = ", ".join(f"{name} = {name} + excluded.{name}" for name in COLUMNS)
_NAMES: Final = ", ".join(COLUMNS)
ADD_TO_TALLY: Final = (
    f"INSERT INTO omniq_tally (minute, queue, {_NAMES}) VALUES (?, ?{', ?' * len(COLUMNS)}) "
    f"ON CONFLICT (minute, queue) DO UPDATE SET {_SUMS}"
)
FOLD_TALLIES: Final = (
    f"INSERT INTO omniq_tally (minute, queue, {_NAMES}) "
    f"SELECT 0, queue, {', '.join(f'sum({name})' for name in COLUMNS)} FROM omniq_tally "
    f"WHERE minute > 0 AND minute < ? GROUP BY queue ON CONFLICT (minute, queue) DO UPDATE SET {_SUMS}"
)


def minute_number(at_micros: int) -> int:
    return at_micros // _MINUTE_MICROS


def tallies(conn: sqlite3.Connection) -> list[Tally]:
    rows = conn.execute(f"SELECT queue, minute, {_NAMES} FROM omniq_tally")
    return [Tally(queue, EPOCH + timedelta(minutes=minute), *numbers) for queue, minute, *numbers in rows]


# --- pages ---------------------------------------------------------------------------------------


class Selection:
    """A filter as SQL: what an index can find, and what must be looked at row by row."""

    def __init__(self, wanted: TaskFilter) -> None:
        self.index = ""
        self.found: list[tuple[str, Any]] = []  # by the index
        rest: list[tuple[str, Any]] = [
            ("func_path = ?", wanted.func_path),
            ("unique_key = ?", wanted.unique_key),
            ("enqueued_at > ?", maybe_micros(wanted.enqueued_after)),
            ("enqueued_at < ?", maybe_micros(wanted.enqueued_before)),
            ("finished_at > ?", maybe_micros(wanted.finished_after)),
            ("finished_at < ?", maybe_micros(wanted.finished_before)),
        ]
        queue, owner = ("queue = ?", wanted.queue), ("owner = ?", wanted.owner)
        number = -1 if wanted.status is None else NUMBERS[wanted.status]
        if wanted.status is TaskStatus.PENDING:
            self.index, self.found = "omniq_task_waiting", [("status = 0", None), queue]
            rest.append(owner)
        elif wanted.status is TaskStatus.RUNNING or (wanted.status is None and wanted.owner is not None):
            self.index, self.found = "omniq_task_running", [("status = 1", None), owner]
            rest.append(queue)
        elif wanted.status is not None:
            self.index = "omniq_task_ended"
            self.found = [("status = ?", number), ("prune_at IS NOT NULL", None)]
            rest += [queue, owner]
        else:
            rest += [queue, owner]
        self.rest = [(condition, value) for condition, value in rest if value is not None]
        self.error = None if wanted.error is None else to_json.encode(wanted.error).decode()[1:-1]

    def by_index(self) -> tuple[str, list[Any]]:
        return _joined([one for one in self.found if one[1] is not None or "?" not in one[0]])

    def by_row(self, with_index: bool) -> tuple[str, list[Any]]:
        conditions = list(self.rest)
        if not with_index:
            conditions += [one for one in self.found if one[1] is not None or "?" not in one[0]]
        if self.error is not None:
            # The text as it stands in the record; whether it is really said there is for the caller to see.
            conditions.append(("instr(lower(error), lower(?)) > 0", self.error))
        return _joined(conditions)


def _joined(conditions: Iterable[tuple[str, Any]]) -> tuple[str, list[Any]]:
    texts: list[str] = []
    values: list[Any] = []
    for condition, value in conditions:
        texts.append(condition)
        if "?" in condition:
            values.append(value)
    return " AND ".join(texts) or "1", values


def page(
    conn: sqlite3.Connection, wanted: TaskFilter, before: int | None, limit: int
) -> tuple[list[tuple[Any, ...]], int | None]:
    """Records that may match, newest first, and the seq behind which to look on, if there may be more."""
    selection = Selection(wanted)
    last = 2**63 - 1 if before is None else before
    few = selection.index != "" and _are_few(conn, selection)
    condition, values = selection.by_index() if few else ("1", [])
    source = f"INDEXED BY {selection.index}" if few else "NOT INDEXED"
    candidates = f"SELECT seq AS at FROM omniq_task {source} WHERE {condition} AND seq < ? ORDER BY seq DESC"
    rest, more = selection.by_row(with_index=few)
    looked_at = f"FROM ({candidates} LIMIT ?) c CROSS JOIN omniq_task t ON t.seq = c.at"
    sql = f"{SELECT.replace('FROM omniq_task t', looked_at)} WHERE {rest} LIMIT ?"
    rows = conn.execute(sql, (*values, last, LOOK, *more, limit)).fetchall()
    if len(rows) == limit:
        return rows, rows[-1][0]
    behind = conn.execute(f"{candidates} LIMIT 1 OFFSET ?", (*values, last, LOOK - 1)).fetchone()
    return rows, None if behind is None else behind[0]


def longest_running(conn: sqlite3.Connection, limit: int) -> list[tuple[Any, ...]]:
    running = "SELECT seq AS at FROM omniq_task INDEXED BY omniq_task_running WHERE status = 1 LIMIT ?"
    looked_at = f"FROM ({running}) c CROSS JOIN omniq_task t ON t.seq = c.at"
    sql = f"{SELECT.replace('FROM omniq_task t', looked_at)} ORDER BY t.started_at, t.seq LIMIT ?"
    return conn.execute(sql, (LOOK, limit)).fetchall()


def _are_few(conn: sqlite3.Connection, selection: Selection) -> bool:
    condition, values = selection.by_index()
    entries = f"SELECT 1 FROM omniq_task INDEXED BY {selection.index} WHERE {condition} LIMIT ?"
    [many] = conn.execute(f"SELECT count(*) FROM ({entries})", (*values, SORTED + 1)).fetchone()
    return bool(many <= SORTED)


# --- heads, timings, what is ahead ---------------------------------------------------------------


def due_heads(conn: sqlite3.Connection, now: int) -> list[TaskHead]:
    found: list[TaskHead] = []
    for head in heads(conn, None, ()):
        if head.makes_sense and head.due <= now:
            task_id, func_path = conn.execute(
                "SELECT id, func_path FROM omniq_task WHERE seq = ?", (head.seq,)
            ).fetchone()
            found.append(TaskHead(head.queue, head.priority, task_id, func_path, moment_of(head.due)))
    return found


def timings(conn: sqlite3.Connection, limit: int) -> list[Timing]:
    rows = conn.execute(
        "SELECT queue, started_at - due, finished_at - started_at FROM omniq_task "
        "INDEXED BY omniq_task_ended WHERE status = 2 AND prune_at IS NOT NULL "
        "ORDER BY prune_at DESC LIMIT ?",
        (limit,),
    )
    return [
        Timing(queue, max(0, wait) / 1e6, run / 1e6)
        for queue, wait, run in rows
        if type(queue) is str and type(wait) is int and type(run) is int
    ]


def ahead(conn: sqlite3.Connection, head: Head, now: int, most: int) -> int:
    """Due entries of its queue that stand before `head`, which stands for any waiting task here."""
    waiting = "SELECT 1 FROM omniq_task INDEXED BY omniq_task_waiting WHERE status = 0 AND queue = ?"
    ranges: list[tuple[str, tuple[Any, ...]]] = [
        (f"{waiting} AND priority = ?", (head.queue, priority)) for priority in range(9, head.priority, -1)
    ]
    ranges.append(
        (
            f"{waiting} AND priority = ? AND (due, seq) < (?, ?)",
            (head.queue, head.priority, head.due, head.seq),
        )
    )
    counted = 0
    for sql, values in ranges:
        if counted < most:
            [many] = conn.execute(
                f"SELECT count(*) FROM ({sql} AND due <= ? LIMIT ?)", (*values, now, most - counted)
            ).fetchone()
            counted += many
    return counted
