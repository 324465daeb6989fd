"""A storage that has an event loop to itself looks in its own thread: no other is woken for it."""

import asyncio
import threading
from pathlib import Path

import pytest

from omniq.storage import SQLiteStorage
from omniq.storage.rows import Rows
from omniq.storage.sqlite.engine import Engine
from omniq.worker import AsyncWorkerPool
from tests.worker.scene import until


def thread_of(rows: Rows) -> str:
    return threading.current_thread().name


def engine_of(storage: SQLiteStorage) -> Engine:
    assert storage._engine is not None
    return storage._engine


async def test_others_on_the_loop_are_not_held_up(tmp_path: Path) -> None:
    async with SQLiteStorage(tmp_path / "jobs.db") as storage:
        assert await storage._read(thread_of) == "omniq-sqlite-reader"


async def test_who_is_alone_looks_in_its_own_thread(tmp_path: Path) -> None:
    async with SQLiteStorage(tmp_path / "jobs.db") as storage:
        storage.alone_on_loop = True
        assert await storage._read(thread_of) == threading.current_thread().name
        assert not engine_of(storage)._reading.locked()


async def test_a_reader_at_work_is_not_disturbed(tmp_path: Path) -> None:
    """The connection for reading is one: whoever finds it in use waits in line."""
    async with SQLiteStorage(tmp_path / "jobs.db") as ours, SQLiteStorage(tmp_path / "jobs.db") as theirs:
        theirs.alone_on_loop = True
        begun, goes_on = threading.Event(), threading.Event()

        def long(rows: Rows) -> str:
            begun.set()
            assert goes_on.wait(10)
            return thread_of(rows)

        first = asyncio.create_task(ours._read(long))
        await until(begun.is_set)
        second = asyncio.create_task(theirs._read(thread_of))
        await asyncio.sleep(0)  # it has been asked
        goes_on.set()
        assert [await first, await second] == ["omniq-sqlite-reader"] * 2


async def test_what_goes_wrong_there_is_raised_and_undone(tmp_path: Path) -> None:
    async with SQLiteStorage(tmp_path / "jobs.db") as storage:
        storage.alone_on_loop = True

        def breaks(rows: Rows) -> None:
            raise KeyError("nothing")

        with pytest.raises(KeyError):
            await storage._read(breaks)
        assert await storage._read(thread_of) == threading.current_thread().name


async def test_the_upkeep_of_a_worker_is_alone(tmp_path: Path) -> None:
    storage = SQLiteStorage(tmp_path / "jobs.db")
    async with AsyncWorkerPool(storage) as pool:
        assert pool._upkeep._storage.alone_on_loop
        assert not storage.alone_on_loop
