"""`conn=`: an enqueue that belongs to the application's own transaction, on whatever driver they use."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from omniq import OmniQ, Task
from omniq.errors import DuplicateTask, IdConflict, InvalidOption, NotFound, QueueFull, StoreUnavailable
from omniq.schedule import Schedule
from omniq.storage.postgres import MAX_ENQUEUES, PostgresStorage
from omniq.storage.postgres.schema import Statements
from omniq.task import Answer, Settlement, WorkerInfo
from tests.postgres.stores import TABLES

JOB = "jobs.resize"


@dataclass
class App:
    """An application's connection, in the few words that all drivers have."""

    conn: Any
    execute: Callable[[str], Awaitable[Any]]
    commit: Callable[[], Awaitable[Any]]
    rollback: Callable[[], Awaitable[Any]]


@asynccontextmanager
async def with_asyncpg(dsn: str) -> AsyncIterator[App]:
    conn = await asyncpg.connect(dsn)
    transaction = conn.transaction()
    await transaction.start()

    async def end(how: Callable[[], Awaitable[Any]]) -> None:
        nonlocal transaction
        await how()
        transaction = conn.transaction()
        await transaction.start()

    try:
        yield App(conn, conn.execute, lambda: end(transaction.commit), lambda: end(transaction.rollback))
    finally:
        await conn.close()


@asynccontextmanager
async def with_psycopg_async(dsn: str) -> AsyncIterator[App]:
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as conn:
        yield App(conn, conn.execute, conn.commit, conn.rollback)


def awaited(call: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def run(*args: Any) -> Any:
        return call(*args)

    return run


@asynccontextmanager
async def with_psycopg(dsn: str) -> AsyncIterator[App]:
    with psycopg.connect(dsn, row_factory=dict_row) as conn:
        yield App(conn, awaited(conn.execute), awaited(conn.commit), awaited(conn.rollback))


def for_sqlalchemy(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def with_sqlalchemy(dsn: str) -> AsyncIterator[App]:
    engine = sqlalchemy.create_engine(for_sqlalchemy(dsn, "psycopg"), poolclass=NullPool)
    with engine.connect() as conn:
        run = awaited(lambda sql: conn.execute(sqlalchemy.text(sql)))
        yield App(conn, run, awaited(conn.commit), awaited(conn.rollback))


@asynccontextmanager
async def with_session(dsn: str) -> AsyncIterator[App]:
    engine = sqlalchemy.create_engine(for_sqlalchemy(dsn, "psycopg"), poolclass=NullPool)
    with Session(engine) as session:
        run = awaited(lambda sql: session.execute(sqlalchemy.text(sql)))
        yield App(session, run, awaited(session.commit), awaited(session.rollback))


def with_async_sqlalchemy(driver: str) -> Callable[[str], AbstractAsyncContextManager[App]]:
    @asynccontextmanager
    async def opened(dsn: str) -> AsyncIterator[App]:
        engine = create_async_engine(for_sqlalchemy(dsn, driver), poolclass=NullPool)
        async with engine.connect() as conn:
            yield App(conn, lambda sql: conn.execute(sqlalchemy.text(sql)), conn.commit, conn.rollback)
        await engine.dispose()

    return opened


@asynccontextmanager
async def with_async_session(dsn: str) -> AsyncIterator[App]:
    engine = create_async_engine(for_sqlalchemy(dsn, "asyncpg"), poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield App(
            session, lambda sql: session.execute(sqlalchemy.text(sql)), session.commit, session.rollback
        )
    await engine.dispose()


DRIVERS = {
    "asyncpg": with_asyncpg,
    "psycopg": with_psycopg,
    "psycopg async": with_psycopg_async,
    "sqlalchemy psycopg": with_sqlalchemy,
    "sqlalchemy session": with_session,
    "sqlalchemy asyncpg": with_async_sqlalchemy("asyncpg"),
    "sqlalchemy psycopg async": with_async_sqlalchemy("psycopg"),
    "sqlalchemy async session": with_async_session,
}
BLOCKING = ("psycopg", "sqlalchemy psycopg", "sqlalchemy session")
every_driver = pytest.mark.parametrize("driver", DRIVERS)


@every_driver
async def test_a_commit_shows_it_and_a_rollback_does_not(postgres_dsn: str, schema: str, driver: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store, DRIVERS[driver](postgres_dsn) as app:
        kept = await store.enqueue(Task(JOB, ("größe", b"\x00\xff" * 3000), unique_key="k"), conn=app.conn)
        assert await store.get_task(kept) is None
        await app.commit()
        [claimed] = await store.claim("ann", limit=5)
        assert claimed.id == kept
        _, args, _ = store.serializer.decode_call(claimed.payload)
        assert list(args) == ["größe", b"\x00\xff" * 3000]

        await store.enqueue_many([Task(JOB), Task(JOB, unique_key="l")], conn=app.conn)
        await app.rollback()
        assert [task.id for task in await store.list_tasks()] == [kept]
        assert await store.enqueue(Task(JOB, unique_key="l"))
        assert await store.verify() == []


@every_driver
async def test_what_is_raised_leaves_their_transaction_as_it_was(
    postgres_dsn: str, schema: str, driver: str
) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store, DRIVERS[driver](postgres_dsn) as app:
        holder = await store.enqueue(Task(JOB, id="taken", unique_key="k"))
        await app.execute(f"INSERT INTO \"{schema}\".paused VALUES ('theirs')")
        with pytest.raises(DuplicateTask, match="'k'") as raised:
            await store.enqueue(Task(JOB, unique_key="k"), conn=app.conn, on_conflict="raise")
        assert raised.value.task_id == holder
        with pytest.raises(IdConflict, match="'taken' already belongs"):
            await store.enqueue(Task("jobs.other", id="taken"), conn=app.conn)
        added = await store.enqueue(Task(JOB), conn=app.conn)
        await app.commit()
        assert await store.paused() == {"theirs"}
        assert {task.id for task in await store.list_tasks()} == {holder, added}


@every_driver
async def test_who_gives_up_has_their_transaction_as_it_was(
    postgres_dsn: str, schema: str, driver: str
) -> None:
    """A deadline passes while a lock is in the way: nothing of ours goes on under what they do next."""
    async with PostgresStorage(postgres_dsn, schema=schema) as store, DRIVERS[driver](postgres_dsn) as app:
        await app.execute(f"INSERT INTO \"{schema}\".paused VALUES ('theirs')")
        other = await asyncpg.connect(postgres_dsn)
        held = other.transaction()
        await held.start()
        await other.execute(f'LOCK TABLE "{schema}".task IN SHARE MODE')
        call = asyncio.create_task(store.enqueue(Task(JOB), conn=app.conn))
        waiting = f"SELECT true FROM pg_locks WHERE relation = '\"{schema}\".task'::regclass AND NOT granted"
        while not await other.fetchval(waiting):  # noqa: ASYNC110 - no event comes from the server
            await asyncio.sleep(0.02)
        call.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not (driver in BLOCKING and call.done())  # a thread has their connection
        await held.rollback()
        await other.close()
        with pytest.raises(asyncio.CancelledError):
            await call
        await app.commit()
        assert await store.paused() == {"theirs"}
        assert await store.list_tasks() == []


@every_driver
async def test_their_commit_wakes_who_sleeps(postgres_dsn: str, schema: str, driver: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store, DRIVERS[driver](postgres_dsn) as app:
        assert await store.claim("ann") == []
        await store.enqueue(Task(JOB), conn=app.conn)
        await app.commit()
        assert await store.wait(20) is True
        assert len(await store.claim("ann")) == 1


def test_an_application_enqueues_in_its_own_transaction(postgres_dsn: str, schema: str) -> None:
    """The blocking face, with a blocking connection."""
    with OmniQ(f"{postgres_dsn}&schema={schema}") as q, psycopg.connect(postgres_dsn) as conn:
        double = q.task(name="double")(lambda number: 2 * number)
        double.options(conn=conn).enqueue(1)
        conn.rollback()
        handle = double.options(conn=conn).enqueue(2)
        with pytest.raises(NotFound):
            handle.status()
        conn.commit()
        assert handle.status() == "PENDING"


async def test_with_autocommit_it_is_there_at_once(postgres_dsn: str, schema: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        with psycopg.connect(postgres_dsn, autocommit=True) as conn:
            task_id = await store.enqueue(Task(JOB), conn=conn)
        assert await store.get_task(task_id) is not None


@asynccontextmanager
async def strict(dsn: str, isolation: str) -> AsyncIterator[Any]:
    """A connection in such a transaction, with its snapshot taken."""
    conn = await asyncpg.connect(dsn)
    try:
        async with conn.transaction(isolation=isolation):
            await conn.execute("SELECT count(*) FROM pg_class")
            yield conn
    finally:
        await conn.close()


strictly = pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])


@strictly
async def test_a_strict_transaction_does_not_fail_over_our_own_books(
    postgres_dsn: str, schema: str, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tallies that others have put together, names of queues and the latest moment, since its snapshot."""
    monkeypatch.setattr("omniq.storage.postgres.FOLD_CHANCE", 1.0)
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.limit_queue("few", 100)
        await store.enqueue(Task(JOB))
        async with strict(postgres_dsn, isolation) as ann, strict(postgres_dsn, isolation) as bob:
            await store.enqueue_many([Task(JOB), Task(JOB, queue="new")])
            for queue in ("default", "new", "newer", "few"):
                await store.enqueue(Task(JOB, queue=queue), conn=ann)
                if queue != "few":  # one at a time there, until its transaction ends
                    await store.enqueue(Task(JOB, queue=queue), conn=bob)
        async with strict(postgres_dsn, isolation) as ann:
            await store.enqueue(Task(JOB))
            await store.enqueue(Task(JOB, queue="few"), conn=ann)
        counts = await store.counts()
        assert {queue: of["PENDING"] for queue, of in counts.items()} == {
            "default": 5,
            "new": 3,
            "newer": 2,
            "few": 2,
        }
        assert await store.verify() == []
        assert len(await store.claim("ann", limit=99)) == 12


@strictly
async def test_a_conflict_that_its_snapshot_cannot_see_is_told(
    postgres_dsn: str, schema: str, isolation: str
) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        async with strict(postgres_dsn, isolation) as conn:
            holder = await store.enqueue(Task(JOB, unique_key="k"))
            await store.enqueue(Task(JOB, id="taken"))
            for task in (Task(JOB, unique_key="k"), Task(JOB, id="taken")):
                with pytest.raises(StoreUnavailable, match="repeat it as a whole"):
                    await store.enqueue(task, conn=conn)
            added = await store.enqueue(Task(JOB), conn=conn)  # it can go on, or be done again
        async with strict(postgres_dsn, isolation) as conn:
            assert await store.enqueue(Task(JOB, unique_key="k"), conn=conn) == holder
            assert await store.enqueue(Task(JOB, id="taken"), conn=conn) == "taken"
        assert {task.id for task in await store.list_tasks()} == {holder, "taken", added}


@strictly
async def test_a_limit_that_was_changed_since_its_snapshot_is_told(
    postgres_dsn: str, schema: str, isolation: str
) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.limit_queue("default", 1)
        async with strict(postgres_dsn, isolation) as conn:
            await store.limit_queue("default", 2)
            with pytest.raises(StoreUnavailable, match="repeat it as a whole"):
                await store.enqueue(Task(JOB), conn=conn)
        async with strict(postgres_dsn, isolation) as conn:
            await store.enqueue_many([Task(JOB), Task(JOB)], conn=conn)
            with pytest.raises(QueueFull, match="default"):
                await store.enqueue(Task(JOB), conn=conn)


async def test_an_open_transaction_of_theirs_keeps_nobody_from_our_books(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it enqueued: others put tallies together meanwhile."""
    monkeypatch.setattr("omniq.storage.postgres.FOLD_CHANCE", 1.0)
    async with (
        PostgresStorage(postgres_dsn, schema=schema) as store,
        strict(postgres_dsn, "read_committed") as conn,
    ):
        await store.enqueue(Task(JOB), conn=conn)
        monkeypatch.setattr("omniq.storage.postgres.FOLD_CHANCE", 0.0)
        for _ in range(5):
            await store.enqueue(Task(JOB))
        await store._ask("fold", 100)
        other = await asyncpg.connect(postgres_dsn)
        assert await other.fetchval(f'SELECT count(*) FROM "{schema}".tally') == 1
        await other.close()


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
async def test_who_enqueued_and_stays_in_a_transaction_holds_up_nobody(
    postgres_dsn: str, schema: str, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row that was there before is locked by it, and every verb gets through.

    Two rows are, and must be: the limit of a queue that has one, and a task that 'replace' changes.
    """
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        due, running, late = [await store.enqueue(Task(JOB, id=name)) for name in ("due", "running", "late")]
        await store.reschedule(late, datetime.now(UTC) + timedelta(days=1))
        other = await asyncpg.connect(postgres_dsn)
        await other.execute(f"UPDATE \"{schema}\".latest SET at = at - interval '1 hour'")
        async with strict(postgres_dsn, isolation) as conn:
            for queue in ("default", "new"):
                await store.enqueue(Task(JOB, queue=queue), conn=conn)
                await store.enqueue_many([Task(JOB, queue=queue, unique_key=f"{queue} key")], conn=conn)
            for table in (*TABLES, "latest"):
                await other.fetch(f'SELECT FROM "{schema}".{table} FOR UPDATE NOWAIT')
            monkeypatch.setattr("omniq.storage.postgres.FOLD_CHANCE", 1.0)
            async with asyncio.timeout(20):
                await store.enqueue_many([Task(JOB), Task(JOB, queue="new", unique_key="another")])
                claims = await store.claim("ann", limit=2)
                assert [task.id for task in claims] == [due, running]
                assert await store.settle([Settlement.success(claims[0], b"")]) == [Answer.HELD]
                await store.renew("ann", 30.0)
                assert await store.release("ann") == 1
                await store.pause("new")
                await store.resume("new")
                await store.limit_queue("new", 100)
                await store.limit_queue("new", None)
                await store.save_schedule(Schedule(name="tick", call=Task(JOB), every=60))
                await store.lapse()
                await store.prune()
                await store.beat(WorkerInfo("ann", "ann", "host", 1))
                await store.cancel(late)
                await store.retry(late)
                await store.migrate()
                assert (await store.counts())["default"]["PENDING"] == 3
                assert await store.verify() == []
        await other.close()
        assert (await store.counts())["default"]["PENDING"] == 5
        assert await store.verify() == []


@pytest.mark.parametrize(("queue", "waits"), [("known", "off"), ("new", "on")])
async def test_a_moment_alone_is_announced_without_waiting_for_the_disk(
    postgres_dsn: str, schema: str, queue: str, waits: str
) -> None:
    """Who enqueues seldom would wait twice each time. A name is remembered, and so must be kept."""
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.enqueue(Task(JOB, queue="known"))
    conn = await asyncpg.connect(postgres_dsn, server_settings={"synchronous_commit": "on"})
    await conn.execute(f"UPDATE \"{schema}\".latest SET at = at - interval '1 hour'")
    async with conn.transaction():
        await conn.fetch(Statements(schema)["announce"], [queue])
        assert await conn.fetchval("SHOW synchronous_commit") == waits
    await conn.close()


async def test_enqueues_that_wait_for_somebody_s_transaction_leave_room_for_a_worker(
    postgres_dsn: str, schema: str
) -> None:
    """Each of them keeps a connection until that ends; claims, settles and renewals need one meanwhile."""
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.enqueue(Task(JOB))
        looking = await asyncpg.connect(postgres_dsn)
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND "
            "datname = current_database() AND application_name = 'omniq work' AND strpos(query, $1) > 0"
        )
        async with strict(postgres_dsn, "read_committed") as conn:
            first = await store.enqueue(Task(JOB, unique_key="k"), conn=conn)
            blocked = [
                asyncio.create_task(
                    store.enqueue_many([Task(JOB, unique_key="k"), *(Task(JOB) for _ in range(20))])
                )
                for _ in range(2 * MAX_ENQUEUES)
            ]
            while await looking.fetchval(waiting, schema) < MAX_ENQUEUES:  # noqa: ASYNC110 - no event comes from there
                await asyncio.sleep(0.02)
            async with asyncio.timeout(20):
                claims = await store.claim("ann")
                assert await store.settle([Settlement.success(claims[0], b"")]) == [Answer.HELD]
                await store.renew("ann", 30.0)
        placed = await asyncio.gather(*blocked)
        assert {one[0] for one in placed} == {first}
        await looking.close()


@pytest.mark.parametrize("conn", [object(), "postgresql://", 5])
async def test_anything_else_is_refused(postgres_dsn: str, schema: str, conn: object) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        with pytest.raises(InvalidOption, match="asyncpg, psycopg 3 or SQLAlchemy"):
            await store.enqueue(Task(JOB), conn=conn)


async def test_what_is_no_connection_of_a_driver_is_refused_too(postgres_dsn: str, schema: str) -> None:
    engine = sqlalchemy.create_engine(for_sqlalchemy(postgres_dsn, "psycopg"), poolclass=NullPool)
    async_engine = create_async_engine(for_sqlalchemy(postgres_dsn, "psycopg"), poolclass=NullPool)
    pool = asyncpg.create_pool(postgres_dsn)
    with psycopg.connect(postgres_dsn) as conn:
        async with PostgresStorage(postgres_dsn, schema=schema) as store:
            for wrong in (engine, async_engine, sessionmaker(engine), pool, conn.cursor()):
                with pytest.raises(InvalidOption, match=r"session, not \w+'s \w+$"):
                    await store.enqueue(Task(JOB), conn=wrong)


async def test_a_scoped_session_is_the_one_of_its_scope(postgres_dsn: str, schema: str) -> None:
    engine = sqlalchemy.create_engine(for_sqlalchemy(postgres_dsn, "psycopg"), poolclass=NullPool)
    async_engine = create_async_engine(for_sqlalchemy(postgres_dsn, "asyncpg"), poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    async_session = async_scoped_session(async_sessionmaker(async_engine), asyncio.current_task)
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        try:
            first = await store.enqueue(Task(JOB), conn=session)
            second = await store.enqueue(Task(JOB), conn=async_session)
            assert await store.list_tasks() == []
            session.commit()
            await async_session.commit()
            assert {task.id for task in await store.list_tasks()} == {first, second}
        finally:
            session.remove()
            await async_session.remove()


@pytest.mark.parametrize(
    ("kind", "strings"),
    [(psycopg.Cursor, "off"), (psycopg.ClientCursor, "on"), (psycopg.RawCursor, "on")],
)
async def test_psycopg_s_other_cursors_and_old_strings(
    postgres_dsn: str, schema: str, kind: Any, strings: str
) -> None:
    """The application chooses how its parameters travel; the bytes that arrive are those that were sent."""
    with psycopg.connect(postgres_dsn, cursor_factory=kind) as conn:
        conn.execute(f"SET standard_conforming_strings = {strings}")  # type: ignore[call-overload]
        async with PostgresStorage(postgres_dsn, schema=schema) as store:
            task_id = await store.enqueue(Task(JOB, (b"\\x00'\"\0\xff{},", "\\")), conn=conn)
            conn.commit()
            task = await store.get_task(task_id)
            assert task is not None
            assert task.args == (b"\\x00'\"\0\xff{},", "\\")


async def test_a_transaction_that_the_server_cut_off_is_to_be_repeated(
    postgres_dsn: str, schema: str
) -> None:
    async with (
        await psycopg.AsyncConnection.connect(postgres_dsn) as conn,
        PostgresStorage(postgres_dsn, schema=schema) as store,
    ):
        await conn.execute("SET idle_in_transaction_session_timeout = 1")
        looking = await asyncpg.connect(postgres_dsn)
        lives = "SELECT true FROM pg_stat_activity WHERE pid = $1"
        while await looking.fetchval(lives, conn.info.backend_pid):  # noqa: ASYNC110 - no event comes from there
            await asyncio.sleep(0.02)
        await looking.close()
        # What the server said before it hung up does not always get through.
        with pytest.raises(StoreUnavailable, match=r"idle-in-transaction|connection was lost"):
            await store.enqueue(Task(JOB), conn=conn)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg async", "sqlalchemy session"])
async def test_a_connection_that_breaks_without_a_word_is_told_as_lost(
    postgres_dsn: str, schema: str, driver: str
) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store, DRIVERS[driver](postgres_dsn) as app:
        await app.execute("SELECT 1")
        theirs = app.conn
        if driver == "sqlalchemy session":
            theirs = app.conn.connection().connection.driver_connection
        with socket.socket(fileno=os.dup(theirs.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
        with pytest.raises(StoreUnavailable, match="connection was lost"):
            await store.enqueue(Task(JOB), conn=app.conn)
        with pytest.raises(InvalidOption, match="closed"):
            await store.enqueue(Task(JOB), conn=theirs)


async def test_a_connection_that_is_cut_off_just_now_is_told_as_lost(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver can be surprised by it."""

    async def surprised(*_: object) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")

    monkeypatch.setattr("omniq.storage.postgres.run_on", surprised)
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        with pytest.raises(StoreUnavailable, match="conn: the connection was lost"):
            await store.enqueue(Task(JOB), conn=object())


async def test_a_closed_connection_is_refused(postgres_dsn: str, schema: str) -> None:
    conn = await asyncpg.connect(postgres_dsn)
    await conn.close()
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        with pytest.raises(InvalidOption, match="conn cannot be used here"):
            await store.enqueue(Task(JOB), conn=conn)
