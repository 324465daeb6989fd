"""A store that is away for a while: locked by the application, or on a full disk. Then it goes on."""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from omniq import AsyncWorkerPool, Task
from omniq.errors import StoreUnavailable
from omniq.storage import SQLiteStorage
from omniq.storage.sqlite import engine as engine_module
from tests.faults.processes import Field


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """Half a second instead of five: the same path, sooner."""
    monkeypatch.setattr(engine_module, "BUSY_TIMEOUT_S", 0.5)
    return 0.5


async def test_a_lock_held_too_long_is_told_and_then_it_goes_on(database: Path, impatient: float) -> None:
    async with SQLiteStorage(database) as storage:
        with closing(sqlite3.connect(database, isolation_level=None)) as app:
            app.execute("BEGIN IMMEDIATE")
            begin = time.monotonic()
            with pytest.raises(StoreUnavailable, match="locked"):
                await storage.enqueue(Task("a.b"))
            assert impatient / 2 < time.monotonic() - begin < impatient * 4 + 2
            assert await storage.counts() == {}, "reading needs no lock"
            app.execute("ROLLBACK")
        assert await storage.enqueue(Task("a.b"))


async def test_a_worker_goes_on_when_the_lock_is_gone(database: Path, impatient: float) -> None:
    async with SQLiteStorage(database) as storage:
        async with AsyncWorkerPool(storage.clone(), poll_interval=0.05, lease=30.0) as pool:
            first = await storage.enqueue(Task("builtins.len", ("abc",)))
            assert await storage.wait_result(first, 10)
            with closing(sqlite3.connect(database, isolation_level=None)) as app:
                app.execute("BEGIN IMMEDIATE")
                waiting = [asyncio.create_task(stubborn(storage)) for _ in range(3)]
                await asyncio.sleep(impatient * 2)  # longer than anybody waits: that is the fault
                assert pool.running
                app.execute("ROLLBACK")
            for task_id in await asyncio.gather(*waiting):
                found = await storage.wait_result(task_id, 10)
                assert found is not None
                assert found.result == 4
        assert (await storage.verify()) == []


async def stubborn(storage: SQLiteStorage) -> str:
    """As the contract says: after StoreUnavailable, repeat the call as it is."""
    task = Task("builtins.len", ("abcd",))
    while True:
        try:
            return await storage.enqueue(task)
        except StoreUnavailable:
            continue


# The limit on the size of a file is a disk that is full, for one process.
FULL_DISK = """
import asyncio, os, resource, sys
from omniq import AsyncWorkerPool, Task
from omniq.errors import StoreUnavailable
from omniq.storage import SQLiteStorage

path = sys.argv[1]
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

def room(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

async def main():
    async with SQLiteStorage(path) as storage:
        async with AsyncWorkerPool(storage.clone(), poll_interval=0.05, queues=["work"]) as pool:
            first = await storage.enqueue(Task("builtins.len", ("abc",), queue="work"))
            assert (await storage.wait_result(first, 10)).result == 3
            kept = []
            room(os.path.getsize(path + "-wal") + 200_000)
            refused = None
            for number in range(100):
                task = Task("builtins.len", ("x" * 50_000,), id=f"n{number}")
                try:
                    kept.append(await storage.enqueue(task))
                except StoreUnavailable as exc:
                    refused = exc
                    break
            print("REFUSED", type(refused).__name__, refused, flush=True)
            print("RUNNING", pool.running, flush=True)
            for task_id in kept:
                assert await storage.get_task(task_id), "acknowledged and gone"
            room(hard)
            again = await storage.enqueue(task)
            second = await storage.enqueue(Task("builtins.len", ("abcd",), queue="work"))
            assert (await storage.wait_result(second, 30)).result == 4
            print("AGAIN", len(kept), await storage.verify(), flush=True)

asyncio.run(main())
print("END", flush=True)
"""


@pytest.mark.bound(60)
def test_a_full_disk_is_told_and_then_it_goes_on(field: Field) -> None:
    child = field.script(FULL_DISK, field.database)
    assert child.line("REFUSED").startswith("StoreUnavailable")
    assert child.line("RUNNING") == "True"
    kept, verified = child.line("AGAIN").split(" ", 1)
    assert int(kept) >= 1
    assert verified == "[]"
    child.line("END")
    assert child.wait() == 0
    with closing(sqlite3.connect(field.database)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# The file has room, but its log may not grow any more: it has to be used again from its start.
NO_ROOM_FOR_THE_LOG = """
import asyncio, os, resource, sys
from omniq import Task
from omniq.errors import StoreUnavailable
from omniq.storage import SQLiteStorage

path = sys.argv[1]

async def main():
    async with SQLiteStorage(path) as storage:
        await storage.enqueue(Task("builtins.len", ("abc",)))
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        refused = 0
        for number in range(90):
            task = Task("builtins.len", ("abc",), id=f"n{number}")
            for _ in range(5):
                try:
                    await storage.enqueue(task)
                    break
                except StoreUnavailable:
                    refused += 1
            else:
                raise SystemExit(f"{number} enqueued, and no more")
        print("REFUSED", refused, flush=True)
        print("KEPT", len(await storage.list_tasks(limit=1000)), await storage.verify(), flush=True)

asyncio.run(main())
"""


@pytest.mark.bound(60)
def test_a_log_that_cannot_grow_is_used_again(field: Field) -> None:
    child = field.script(NO_ROOM_FOR_THE_LOG, field.database)
    assert 1 <= int(child.line("REFUSED")) <= 30
    assert child.line("KEPT") == "91 []"
    assert child.wait() == 0
    with closing(sqlite3.connect(field.database)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_worker_starts_before_its_store_can_be_written(database: Path, impatient: float) -> None:
    """Opening fails while somebody makes a schema of their own; the worker waits and tries again."""
    with closing(sqlite3.connect(database, isolation_level=None)) as app:
        app.execute("PRAGMA journal_mode = WAL")
        app.execute("CREATE TABLE app (number)")
        app.execute("BEGIN IMMEDIATE")
        pool = AsyncWorkerPool(SQLiteStorage(database), poll_interval=0.05)
        await pool.start()
        assert pool.running
        app.execute("ROLLBACK")
    try:
        async with SQLiteStorage(database) as storage:
            task_id = await storage.enqueue(Task("builtins.len", ("abc",)))
            found = await storage.wait_result(task_id, 20)
            assert found is not None
            assert found.result == 3
    finally:
        await pool.stop()
