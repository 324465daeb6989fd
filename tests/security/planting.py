"""What somebody who can write to the store may write there, past every check of OmniQ."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from omniq import Task
from omniq.storage import SQLiteStorage

HARMLESS = "builtins.len"


async def plant(storage: SQLiteStorage, **columns: Any) -> str:
    """A waiting task whose row was tampered with: any column may hold anything."""
    task_id = await storage.enqueue(Task(HARMLESS, ("abc",), max_retries=0))
    tamper(storage.path, task_id, **columns)
    return str(columns.get("id", task_id))


def tamper(database: Path, task_id: str, **columns: Any) -> None:
    with closing(sqlite3.connect(database)) as conn:
        for column, value in columns.items():
            conn.execute(f"UPDATE omniq_task SET {column} = ? WHERE id = ?", (value, task_id))
        assert conn.total_changes == len(columns)
        conn.commit()


def status_of(database: Path, task_id: str) -> int:
    with closing(sqlite3.connect(database)) as conn:
        [(status,)] = conn.execute("SELECT status FROM omniq_task WHERE id = ?", (task_id,))
        return int(status)
