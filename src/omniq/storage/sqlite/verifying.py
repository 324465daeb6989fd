"""What is wrong with a SQLite file: its own check, and what no row may say."""

# ruff: noqa: S608
from __future__ import annotations

import sqlite3
from typing import Final

from omniq.storage.sqlite import looking
from omniq.storage.sqlite.connected import known_status
from omniq.storage.tallying import miscounted
from omniq.task import TOP_PRIORITY, TaskStatus

_PROBLEMS: Final = {
    "has a status that does not exist": "status NOT BETWEEN 0 AND 4",
    "runs without an owner or a lease": "status = 1 AND (owner IS NULL OR lease IS NULL)",
    "does not run but has an owner or a lease": "status <> 1 AND (owner IS NOT NULL OR lease IS NOT NULL)",
    "has ended without a moment": "status >= 2 AND (finished_at IS NULL OR prune_at IS NULL)",
    "has not ended but says when": "status < 2 AND finished_at IS NOT NULL",
    "has lost its arguments": (
        "payload IS NULL AND NOT EXISTS (SELECT 1 FROM omniq_body b WHERE b.seq = t.seq)"
    ),
    "has lost its result": (
        "result_status = 2 AND result IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM omniq_result r WHERE r.seq = t.seq)"
    ),
    "is due at another moment than it says": "due <> coalesce(eta, enqueued_at)",
    "has a priority that does not exist": f"priority NOT BETWEEN 0 AND {TOP_PRIORITY}",
}
_BESIDE: Final = ("omniq_body", "omniq_result", "omniq_run")


def problems_of(conn: sqlite3.Connection) -> list[str]:
    """One line for each; a look at the whole file."""
    wrong = [f"SQLite: {line}" for (line,) in conn.execute("PRAGMA quick_check") if line != "ok"]
    for problem, condition in _PROBLEMS.items():
        rows = conn.execute(f"SELECT id FROM omniq_task t WHERE {condition} LIMIT 100")
        wrong += [f"{task_id if type(task_id) is str else ascii(task_id)} {problem}" for (task_id,) in rows]
    for table in _BESIDE:
        counted = f"SELECT count(*) FROM {table} WHERE seq NOT IN (SELECT seq FROM omniq_task)"
        [orphans] = conn.execute(counted).fetchone()
        if orphans:
            wrong.append(f"{orphans} rows of {table} belong to no task")
    return wrong + miscounted(looking.tallies(conn), _counted(conn))


def _counted(conn: sqlite3.Connection) -> dict[tuple[str, TaskStatus], int]:
    rows = conn.execute("SELECT queue, status, count(*) FROM omniq_task GROUP BY queue, status")
    counted: dict[tuple[str, TaskStatus], int] = {}
    for queue, status, many in rows.fetchall():
        if type(queue) is str and (known := known_status(status)) is not None:
            counted[queue, known] = many
    return counted
