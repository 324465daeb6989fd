"""The log: moved into the file only under the write lock, now and then, and never without bound."""

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from omniq import Task
from omniq.storage import SQLiteStorage
from omniq.storage.sqlite import engine as engine_module

MEGABYTE = 1_000_000


@contextmanager
def checkpoints(storage: SQLiteStorage) -> Iterator[list[bool]]:
    """One entry per checkpoint: whether the writer held the write lock while it ran."""
    seen: list[bool] = []
    engine = storage._engine
    assert engine is not None

    def on_statement(sql: str) -> None:
        if "checkpoint" in sql:
            seen.append(engine._writer.in_transaction and locked(storage.path))

    engine._checkpointer.set_trace_callback(on_statement)
    yield seen
    engine._checkpointer.set_trace_callback(None)


def locked(database: Path) -> bool:
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as conn:
        try:
            conn.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        conn.execute("ROLLBACK")
        return False


async def test_checkpoints_happen_under_the_write_lock_only(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "CHECKPOINT_COMMITS", 10)
    async with SQLiteStorage(database, durability="relaxed") as storage:
        with checkpoints(storage) as seen:
            for _ in range(55):
                await storage.enqueue(Task("a.b"))
        assert len(seen) == 5
        assert all(seen)


async def test_no_connection_checkpoints_by_itself(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        engine = storage._engine
        assert engine is not None
        for conn in (engine._writer, engine._reader, engine._checkpointer):
            assert conn.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
            assert conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert conn.execute("PRAGMA synchronous").fetchone() == (2,)


async def test_relaxed_is_what_it_says(database: Path) -> None:
    async with SQLiteStorage(database, durability="relaxed") as storage:
        assert storage._engine is not None
        assert storage._engine._writer.execute("PRAGMA synchronous").fetchone() == (1,)


async def test_large_tasks_do_not_make_the_log_grow_without_bound(database: Path) -> None:
    async with SQLiteStorage(database, durability="relaxed") as storage:
        largest = 0
        for _ in range(120):
            await storage.enqueue(Task("a.b", ("x" * MEGABYTE,)))
            largest = max(largest, os.path.getsize(f"{database}-wal"))
        assert largest < 64 * MEGABYTE


async def test_once_large_it_is_not_moved_at_every_commit(database: Path) -> None:
    async with SQLiteStorage(database, durability="relaxed") as storage:
        for _ in range(60):
            await storage.enqueue(Task("a.b", ("x" * MEGABYTE,)))
        with checkpoints(storage) as seen:
            for _ in range(100):
                await storage.enqueue(Task("a.b"))
        assert len(seen) <= 3


async def test_a_reader_that_never_ends_keeps_nobody_from_working(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's open read transaction holds back the checkpoint, not the writers."""
    monkeypatch.setattr(engine_module, "CHECKPOINT_COMMITS", 5)
    async with SQLiteStorage(database) as storage:
        await storage.enqueue(Task("a.b"))
        with closing(sqlite3.connect(database, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM omniq_task").fetchone()
            async with asyncio.timeout(20):
                for _ in range(50):
                    await storage.enqueue(Task("a.b"))
            assert reader.execute("SELECT count(*) FROM omniq_task").fetchone() == (1,)
        assert sum((await storage.counts())["default"].values()) == 51


async def test_closing_leaves_one_file(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        await storage.enqueue(Task("a.b"))
    left = {path.name for path in database.parent.iterdir()}
    assert left <= {"jobs.db", "jobs.db-omniq"}
