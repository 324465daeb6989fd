"""`conn=`: an enqueue that belongs to the application's own transaction."""

import asyncio
import queue
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from omniq import OmniQ, Task
from omniq.errors import CorruptRecord, DuplicateTask, IdConflict, InvalidOption, OmniqError, StoreUnavailable
from omniq.storage import MemoryStorage, SQLiteStorage

LONG_S = 20.0


@pytest.fixture
def app(database: Path) -> Iterator[sqlite3.Connection]:
    """The application's connection, with a table of its own."""
    asyncio.run(made(database))
    with closing(sqlite3.connect(database)) as conn:
        conn.execute("CREATE TABLE orders (number)")
        conn.commit()
        yield conn


async def made(database: Path) -> None:
    async with SQLiteStorage(database):
        pass


async def waiting(storage: SQLiteStorage) -> int:
    return sum(sum(per_status.values()) for per_status in (await storage.counts()).values())


async def test_a_commit_shows_both_and_a_rollback_neither(database: Path, app: sqlite3.Connection) -> None:
    async with SQLiteStorage(database) as storage:
        app.execute("INSERT INTO orders VALUES (1)")
        task_id = await storage.enqueue(Task("a.b", ("x" * 5000,)), conn=app)
        assert await storage.get_task(task_id) is None
        app.commit()
        [claim] = await storage.claim("ann")
        assert claim.id == task_id

        app.execute("INSERT INTO orders VALUES (2)")
        await storage.enqueue_many([Task("a.b", unique_key="key"), Task("a.b", ("x" * 5000,))], conn=app)
        app.rollback()
        assert await waiting(storage) == 1
        assert app.execute("SELECT number FROM orders").fetchall() == [(1,)]
        assert await storage.enqueue(Task("a.b", unique_key="key"))
        assert await storage.verify() == []


async def test_it_begins_a_transaction_where_there_is_none(database: Path, app: sqlite3.Connection) -> None:
    async with SQLiteStorage(database) as storage:
        await storage.enqueue(Task("a.b"), conn=app)
        assert app.in_transaction
        assert await waiting(storage) == 0
        app.commit()
        assert await waiting(storage) == 1


async def test_a_connection_that_begins_none_by_itself_must_have_begun(database: Path) -> None:
    """Whoever never begins a transaction does not end one either: it would lock everybody out."""
    settings: list[dict[str, Any]] = [{"isolation_level": None}]
    if sys.version_info >= (3, 12):
        settings.append({"autocommit": True})
    async with SQLiteStorage(database) as storage:
        for number, setting in enumerate(settings, 1):
            with closing(sqlite3.connect(database, **setting)) as conn:
                with pytest.raises(InvalidOption, match="BEGIN"):
                    await storage.enqueue(Task("a.b"), conn=conn)
                assert not conn.in_transaction
                conn.execute("BEGIN")
                await storage.enqueue(Task("a.b"), conn=conn)
                assert await waiting(storage) == number - 1
                conn.execute("COMMIT")
            assert await waiting(storage) == number


async def test_an_error_of_ours_leaves_the_callers_transaction_as_it_was(
    database: Path, app: sqlite3.Connection
) -> None:
    async with SQLiteStorage(database) as storage:
        await storage.enqueue(Task("a.b", id="known", unique_key="key"))
        app.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(IdConflict):
            await storage.enqueue(Task("a.c", id="known"), conn=app)
        with pytest.raises(DuplicateTask):
            await storage.enqueue_many(
                [Task("a.b", id="n"), Task("a.b", unique_key="key")], conn=app, on_conflict="raise"
            )
        assert app.in_transaction
        app.commit()
        assert app.execute("SELECT number FROM orders").fetchall() == [(1,)]
        assert await waiting(storage) == 1


async def test_an_error_in_the_middle_leaves_no_part_in_the_callers_transaction(
    database: Path, app: sqlite3.Connection
) -> None:
    """Whoever catches it and commits has committed their own rows, and nothing that nobody counted."""
    async with SQLiteStorage(database) as storage:
        await storage.enqueue(Task("a.b", unique_key="key"))
        app.execute("UPDATE omniq_task SET attempts = 'many'")
        app.commit()
        app.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(CorruptRecord, match="cannot be read"):
            await storage.enqueue_many([Task("a.b"), Task("a.b", unique_key="key")], conn=app)
        await storage.enqueue(Task("a.b"), conn=app)
        app.commit()
        assert app.execute("SELECT count(*) FROM orders").fetchone() == (1,)
        assert app.execute("SELECT count(*) FROM omniq_task").fetchone() == (2,)
        assert await waiting(storage) == 2
        assert await storage.verify() == []


async def test_it_can_be_repeated_within_the_transaction(database: Path, app: sqlite3.Connection) -> None:
    async with SQLiteStorage(database) as storage:
        task = Task("a.b", unique_key="key")
        [first] = await storage.enqueue_many([task], conn=app)
        [again] = await storage.enqueue_many([task], conn=app)
        [other] = await storage.enqueue_many([Task("a.b", (1,), unique_key="key")], conn=app)
        assert (first.created, again.created, other.created) == (True, False, False)
        assert str(first) == str(again) == str(other)
        app.commit()
        assert await waiting(storage) == 1


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("conn", ["a string", 5, object(), True])
async def test_what_is_no_connection_is_refused(database: Path, conn: Any) -> None:
    async with SQLiteStorage(database) as storage:
        with pytest.raises(InvalidOption, match=r"sqlite3\.Connection"):
            await storage.enqueue(Task("a.b"), conn=conn)


async def test_a_connection_to_another_file_is_refused(database: Path, tmp_path: Path) -> None:
    async with SQLiteStorage(database) as storage:
        for other in (":memory:", "", str(tmp_path / "other.db")):
            with closing(sqlite3.connect(other)) as conn, pytest.raises(InvalidOption, match="same file"):
                await storage.enqueue(Task("a.b"), conn=conn)


async def test_a_closed_connection_is_refused(database: Path) -> None:
    closed = sqlite3.connect(database)
    closed.close()
    async with SQLiteStorage(database) as storage:
        with pytest.raises(OmniqError):
            await storage.enqueue(Task("a.b"), conn=closed)


async def test_a_connection_of_another_thread_is_refused(database: Path) -> None:
    made: queue.Queue[sqlite3.Connection] = queue.Queue()
    tried = threading.Event()

    def keep_a_connection() -> None:
        with closing(sqlite3.connect(database)) as conn:
            made.put(conn)
            tried.wait(10)

    async with SQLiteStorage(database) as storage:
        thread = threading.Thread(target=keep_a_connection)
        thread.start()
        try:
            with pytest.raises(OmniqError):
                await storage.enqueue(Task("a.b"), conn=made.get(timeout=10))
        finally:
            tried.set()
            thread.join()


@pytest.mark.bound(30)
async def test_a_locked_file_is_an_error_of_ours(database: Path, app: sqlite3.Connection) -> None:
    async with SQLiteStorage(database) as storage:
        app.execute("BEGIN IMMEDIATE")
        with closing(sqlite3.connect(database, timeout=0)) as other, pytest.raises(StoreUnavailable):
            await storage.enqueue(Task("a.b"), conn=other)


async def test_a_memory_store_has_no_connection_to_join() -> None:
    async with MemoryStorage() as storage:
        with closing(sqlite3.connect(":memory:")) as conn, pytest.raises(OmniqError):
            await storage.enqueue(Task("a.b"), conn=conn)


# --- the caller's settings ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, sqlite3.Row, dict])
async def test_the_callers_row_factory_is_kept(database: Path, app: sqlite3.Connection, kind: Any) -> None:
    def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    factory = as_dict if kind is dict else kind
    app.row_factory = factory
    async with SQLiteStorage(database) as storage:
        await storage.enqueue(Task("a.b", id="known", unique_key="key"))
        [enqueued] = await storage.enqueue_many([Task("a.b", unique_key="key")], conn=app)
        assert str(enqueued) == "known"
        assert app.row_factory is factory
        with pytest.raises(IdConflict):
            await storage.enqueue(Task("a.c", id="known"), conn=app)
        assert app.row_factory is factory
        app.rollback()


async def test_the_callers_text_factory_changes_nothing(database: Path, app: sqlite3.Connection) -> None:
    app.text_factory = bytes
    async with SQLiteStorage(database) as storage:
        await storage.enqueue(Task("a.b", id="known", unique_key="key", headers={"a": "b"}))
        [enqueued] = await storage.enqueue_many([Task("a.b", unique_key="key")], conn=app)
        assert str(enqueued) == "known"
        assert app.text_factory is bytes
        await storage.enqueue(Task("a.b", id="new"), conn=app)
        app.commit()
        assert await storage.get_task("new")


# --- opening within it ----------------------------------------------------------------------------


@pytest.mark.bound(30)
async def test_a_storage_can_be_opened_inside_the_callers_transaction(
    database: Path, app: sqlite3.Connection
) -> None:
    """It must not wait for the lock that its own caller holds."""
    app.execute("INSERT INTO orders VALUES (1)")
    storage = SQLiteStorage(database)
    begin = time.monotonic()
    task_id = await storage.enqueue(Task("a.b"), conn=app)
    assert time.monotonic() - begin < 3.0
    app.commit()
    assert await storage.get_task(task_id)
    await storage.close()


@pytest.mark.bound(30)
def test_the_blocking_face_joins_it(database: Path, app: sqlite3.Connection) -> None:
    with OmniQ(SQLiteStorage(database)) as q:

        @q.task(name="app.job")
        def job(number: int) -> int:
            return number

        app.execute("INSERT INTO orders VALUES (1)")
        begin = time.monotonic()
        dropped = job.options(conn=app).enqueue(1)
        assert time.monotonic() - begin < 3.0
        app.rollback()
        app.execute("INSERT INTO orders VALUES (2)")
        kept = job.options(conn=app).enqueue(2)
        app.commit()
        with q.worker():
            assert kept.result(timeout=LONG_S) == 2
        with pytest.raises(OmniqError):
            dropped.status()


# --- being woken ----------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["at once", "later", "after somebody else's commit"])
async def test_the_commit_wakes_who_sleeps(database: Path, app: sqlite3.Connection, when: str) -> None:
    async with SQLiteStorage(database) as storage:
        assert await storage.claim("ann") == []
        task_id = await storage.enqueue(Task("a.b"), conn=app)
        if when == "at once":
            app.commit()
        sleeping = asyncio.create_task(storage.wait(LONG_S))
        if when != "at once":
            await asyncio.sleep(0.05)
            assert not sleeping.done(), "woken before the commit"
        if when == "after somebody else's commit":
            app.rollback()
            with closing(sqlite3.connect(database)) as other:
                other.execute("INSERT INTO orders VALUES (5)")
                other.commit()
            task_id = await storage.enqueue(Task("a.b"), conn=app)
            await asyncio.sleep(0.05)
        begin = time.monotonic()
        app.commit()
        assert await sleeping
        assert time.monotonic() - begin < LONG_S / 2
        claims = await storage.claim("ann")
        while not claims and await storage.wait(LONG_S):
            claims = await storage.claim("ann")
        assert [claim.id for claim in claims] == [task_id]
        assert time.monotonic() - begin < LONG_S / 2


def test_the_blocking_faces_commit_wakes_a_sleeping_worker(database: Path, app: sqlite3.Connection) -> None:
    with OmniQ(SQLiteStorage(database)) as q:

        @q.task(name="app.job")
        def job(number: int) -> int:
            return number

        with q.worker(poll_interval=LONG_S):
            first = job.enqueue(0)
            assert first.result(timeout=LONG_S) == 0
            handle = job.options(conn=app).enqueue(1)
            begin = time.monotonic()
            app.commit()
            assert handle.result(timeout=LONG_S) == 1
            assert time.monotonic() - begin < LONG_S / 2


async def test_a_refused_enqueue_leaves_no_transaction_of_ours_open(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with SQLiteStorage(path) as storage:
        await storage.enqueue(Task("a.b", unique_key="key"))
        conn = sqlite3.connect(path)
        with pytest.raises(DuplicateTask):
            await storage.enqueue_many([Task("a.b", unique_key="key")], conn=conn, on_conflict="raise")
        assert not conn.in_transaction
        conn.close()
        await storage.enqueue(Task("a.b"))


async def test_an_error_of_sqlites_leaves_no_transaction_of_ours_open(database: Path) -> None:
    def only_look(action: int, *_: object) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_INSERT else sqlite3.SQLITE_OK

    async with SQLiteStorage(database) as storage:
        with closing(sqlite3.connect(database)) as conn:
            conn.set_authorizer(only_look)
            with pytest.raises(OmniqError):
                await storage.enqueue(Task("a.b"), conn=conn)
            assert not conn.in_transaction
            assert await storage.enqueue(Task("a.b"))


async def test_a_connection_that_cannot_write_is_a_bad_argument(database: Path) -> None:
    """Repeating the call on it would never help."""
    await made(database)
    async with SQLiteStorage(database) as storage:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as conn:
            with pytest.raises(InvalidOption, match="cannot write"):
                await storage.enqueue(Task("a.b"), conn=conn)
            assert not conn.in_transaction
        with closing(sqlite3.connect(database)) as conn:
            conn.execute("PRAGMA query_only = ON")
            with pytest.raises(InvalidOption, match="cannot write"):
                await storage.enqueue(Task("a.b"), conn=conn)
            assert not conn.in_transaction


async def test_a_transaction_that_has_read_too_early_is_told_how_to_begin(database: Path) -> None:
    """What it has read has changed since: SQLite lets it write no more, however often it tries."""
    await made(database)
    async with SQLiteStorage(database) as storage:
        with closing(sqlite3.connect(database, isolation_level=None)) as conn:
            conn.execute("BEGIN")
            conn.execute("SELECT count(*) FROM omniq_task").fetchone()
            await storage.enqueue(Task("a.b"))
            with pytest.raises(StoreUnavailable, match="BEGIN IMMEDIATE"):
                await storage.enqueue(Task("a.b"), conn=conn)
            conn.execute("ROLLBACK")
            conn.execute("BEGIN IMMEDIATE")
            await storage.enqueue(Task("a.b"), conn=conn)
            conn.execute("COMMIT")
        assert await waiting(storage) == 2
