"""POSIX locks belong to a process and a file: closing any descriptor of the file drops all of them."""

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from omniq import Task
from omniq.storage import SQLiteStorage
from tests.faults.processes import Field

PASSER_BY = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1])
print("SEES", conn.execute("SELECT count(*) FROM omniq_task").fetchone()[0], flush=True)
conn.close()  # the last connection of all checkpoints and deletes the log; this one is not the last
"""


async def seen(field: Field) -> int:
    child = field.script(PASSER_BY, field.database)
    count = int(await asyncio.get_running_loop().run_in_executor(None, child.line, "SEES"))
    assert child.wait() == 0
    return count


async def test_opening_keeps_the_locks_of_the_applications_connection(field: Field) -> None:
    """Otherwise the next process to close the file believes it was the last and deletes the log under us."""
    async with SQLiteStorage(field.database):
        pass
    with closing(sqlite3.connect(field.database)) as app:
        app.execute("CREATE TABLE orders (number)")
        app.commit()
        async with SQLiteStorage(field.database) as storage:
            await storage.enqueue(Task("a.b"))
            assert await seen(field) == 1
            assert os.path.exists(f"{field.database}-wal"), "the log was deleted by a passer-by"
            for _ in range(5):
                await storage.enqueue(Task("a.b"))
            assert await seen(field) == 6, "acknowledged tasks are in a log that nobody else can see"


async def test_closing_keeps_the_locks_of_another_storage_and_of_the_application(field: Field) -> None:
    with closing(sqlite3.connect(field.database)) as app:
        async with SQLiteStorage(field.database) as storage:
            async with SQLiteStorage(field.database):
                pass
            await storage.enqueue(Task("a.b"))
        app.execute("CREATE TABLE orders (number)")
        app.commit()
        assert await seen(field) == 1
        assert os.path.exists(f"{field.database}-wal")
        app.execute("INSERT INTO orders VALUES (1)")
        app.commit()
        async with SQLiteStorage(field.database) as storage:
            await storage.enqueue(Task("a.b"))
            assert await seen(field) == 2


def test_this_python_shows_the_danger(tmp_path: Path) -> None:
    """What the tests above look for does happen here when a descriptor is closed."""
    with Field(tmp_path) as field, closing(sqlite3.connect(field.database)) as app:
        app.execute("PRAGMA journal_mode = WAL")
        app.execute("CREATE TABLE omniq_task (id)")
        app.commit()
        os.close(os.open(field.database, os.O_RDWR))
        assert field.script(PASSER_BY, field.database).wait() == 0
        assert not os.path.exists(f"{field.database}-wal")
