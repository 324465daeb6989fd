"""Which waiting tasks come next, by leaps through one index: (queue, priority, due, seq).

A *head* is the earliest task of one queue and priority. The heads are found by one seek each, so neither a
million tasks that are due tomorrow nor a million behind a head cost anything; then whoever is due among
them says where the next tasks are.
"""

# ruff: noqa: S608
from __future__ import annotations

import sqlite3
from collections.abc import Container, Iterable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from omniq.storage.sqlite.records import FIRST_MICROS, LAST_MICROS, WAITING
from omniq.task import TOP_PRIORITY

_INDEX: Final = "omniq_task INDEXED BY omniq_task_waiting WHERE status = 0"


_FIRST: Final = "ORDER BY queue, priority, due, seq LIMIT 1"
# From one head to the next: one seek each. A comparison of pairs would walk over the whole queue.
_NEXT_PRIORITY: Final = f"SELECT seq FROM {_INDEX} AND queue = p.queue AND priority > p.priority {_FIRST}"
_NEXT_QUEUE: Final = f"SELECT seq FROM {_INDEX} AND queue > p.queue {_FIRST}"


def _heads(start: str, leap: str) -> str:
    return (
        "WITH RECURSIVE head (queue, priority, due, seq) AS ("
        f"SELECT * FROM (SELECT queue, priority, due, seq FROM {_INDEX} {start} {_FIRST}) UNION ALL "
        f"SELECT t.queue, t.priority, t.due, t.seq FROM head p JOIN omniq_task t ON t.seq = {leap}) "
        "SELECT queue, priority, due, seq FROM head"
    )


_ALL_HEADS: Final = _heads("", f"coalesce(({_NEXT_PRIORITY}), ({_NEXT_QUEUE}))")
_HEADS_OF_QUEUE: Final = _heads("AND queue = ?", f"({_NEXT_PRIORITY})")
_RANGE: Final = f"{_INDEX} AND queue = ? AND priority = ? AND due <= ? ORDER BY due, seq LIMIT ?"
_ROWS_IN_RANGE: Final = f"SELECT {WAITING} FROM omniq_task t {_RANGE.removeprefix('omniq_task ')}"
_PLACES_IN_RANGE: Final = f"SELECT due, seq FROM {_RANGE}"
# After the wall clock was set back: up to the horizon, but what has an eta only up to now.
_PLACES_TO_HORIZON: Final = (
    f"SELECT due, seq FROM {_INDEX} AND queue = ? AND priority = ? AND due <= ? "
    "AND (due <= ? OR eta IS NULL) ORDER BY due, seq LIMIT ?"
)
_ROWS: Final = (
    f"SELECT {WAITING} FROM omniq_task t WHERE seq IN (SELECT value FROM json_each(?)) ORDER BY due, seq"
)


class Head(NamedTuple):
    """The earliest waiting task of one queue and priority."""

    queue: str
    priority: int
    due: int
    seq: int

    @property
    def makes_sense(self) -> bool:
        """A column of SQLite holds anything."""
        return (
            type(self.due) is int
            and FIRST_MICROS <= self.due <= LAST_MICROS
            and type(self.priority) is int
            and 0 <= self.priority <= TOP_PRIORITY
            and type(self.queue) is str
        )


def heads(conn: sqlite3.Connection, queues: Sequence[str] | None, passed_over: Container[str]) -> list[Head]:
    """Every head in the queues asked for (None: in all) that are not to be passed over."""
    if queues is None:
        found: Iterable[Any] = conn.execute(_ALL_HEADS)
    else:
        found = (
            row
            for queue in dict.fromkeys(queues)
            for row in conn.execute(_HEADS_OF_QUEUE, (queue,)).fetchall()
        )
    return [Head(*row) for row in found if row[0] not in passed_over]


def first_due(
    conn: sqlite3.Connection, heads: list[Head], now: int, horizon: int, limit: int
) -> list[tuple[Any, ...]]:
    """The records of the first `limit` due tasks: by priority, then due, then order of enqueueing.

    Up to the `horizon` there may be tasks without an eta, which are due whatever the clock says; it is ahead
    of now only after the clock was set back.
    """
    due = sorted(
        (head for head in heads if head.due <= horizon), key=lambda head: (-head.priority, head.due, head.seq)
    )
    found: list[tuple[Any, ...]] = []
    for _, group in groupby(due, key=lambda head: head.priority):
        left = limit - len(found)
        if horizon > now:
            found += _to_horizon(conn, list(group), now, horizon, left)
        else:
            # Behind the first `limit` heads nothing can be among the first `limit` tasks.
            found += _of_one_priority(conn, list(group)[:limit], now, left)
        if len(found) >= limit:
            break
    return found


def _of_one_priority(
    conn: sqlite3.Connection, heads: list[Head], now: int, limit: int
) -> list[tuple[Any, ...]]:
    if len(heads) == 1:
        [head] = heads
        return conn.execute(_ROWS_IN_RANGE, (head.queue, head.priority, now, limit)).fetchall()
    places: list[tuple[int, int]] = []
    for head in heads:
        places += conn.execute(_PLACES_IN_RANGE, (head.queue, head.priority, now, limit))
    return _at(conn, places, limit)


def _to_horizon(
    conn: sqlite3.Connection, heads: list[Head], now: int, horizon: int, limit: int
) -> list[tuple[Any, ...]]:
    places: list[tuple[int, int]] = []
    for head in heads:
        places += conn.execute(_PLACES_TO_HORIZON, (head.queue, head.priority, horizon, now, limit))
    return _at(conn, places, limit)


def _at(conn: sqlite3.Connection, places: list[tuple[int, int]], limit: int) -> list[tuple[Any, ...]]:
    seqs = ", ".join(str(seq) for _, seq in sorted(places)[:limit])
    return conn.execute(_ROWS, (f"[{seqs}]",)).fetchall()
