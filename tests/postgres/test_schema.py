"""The schema: any name, made once however often and by however many, and never used when it is not right."""

import asyncio
import re
import subprocess
import sys

import asyncpg
import psycopg
import pytest

from omniq import Task
from omniq.errors import InvalidOption, SchemaMismatch, StoreError
from omniq.storage import open_storage
from omniq.storage.postgres import PostgresStorage
from omniq.storage.postgres.schema import lock, newest, quoted
from tests.postgres.stores import drop_schema, new_schema

HOSTILE = (
    'a"b',
    "a'; DROP TABLE task; --",
    "$body$; SELECT 1; $body$",
    "{schema}",
    "{task}",
    "Grün %s $1",
    "x" * 63,
    "a\\b",
    "public.task",
    "it's",
    "\\'",
)


@pytest.mark.parametrize("name", HOSTILE)
async def test_any_name_will_do(postgres_dsn: str, name: str) -> None:
    """S6."""
    store = PostgresStorage(postgres_dsn, schema=name)
    await store.migrate()
    try:
        async with store:
            task_id = await store.enqueue(Task("jobs.resize"))
            assert [claimed.id for claimed in await store.claim("ann")] == [task_id]
            assert await store.release("ann") == 1
            waiter = asyncio.create_task(store.wait_result(task_id))
            await store.cancel(task_id)
            assert (await waiter).status == "CANCELLED"
            assert await store.verify() == []
            assert (await store.vitals()).dead_rows is not None
            with psycopg.connect(postgres_dsn) as conn:
                await store.enqueue(Task("jobs.resize"), conn=conn)
                conn.rollback()
            async with open_storage(store.url) as same:
                assert [task.id for task in await same.list_tasks()] == [task_id]
    finally:
        await drop_schema(postgres_dsn, name)


@pytest.mark.parametrize("name", ["", "pg_mine", "a\x00b", "x" * 64, "\udc80", 5])
def test_names_that_no_schema_can_have_are_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match="schema"):
        PostgresStorage("postgresql://localhost/x", schema=name)


async def test_migrating_again_changes_nothing(postgres_dsn: str, schema: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        task_id = await store.enqueue(Task("jobs.resize"))
        await store.migrate()
        assert [task.id for task in await store.list_tasks()] == [task_id]


async def test_many_may_migrate_at_once(postgres_dsn: str) -> None:
    name = new_schema()
    try:
        await asyncio.gather(*(PostgresStorage(postgres_dsn, schema=name).migrate() for _ in range(5)))
        async with PostgresStorage(postgres_dsn, schema=name) as store:
            assert await store.verify() == []
    finally:
        await drop_schema(postgres_dsn, name)


# The connection that migrates one schema, once it waits for somebody: it is known by the lock that it has.
OURS = (
    "SELECT {} FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid WHERE a.wait_event_type = 'Lock' "
    "AND l.locktype = 'advisory' AND l.granted AND (l.classid::bigint << 32 | l.objid::bigint) = $1"
)


async def test_a_migration_that_is_cut_off_leaves_nothing_and_may_be_repeated(postgres_dsn: str) -> None:
    name = new_schema()
    conn = await asyncpg.connect(postgres_dsn)
    store = PostgresStorage(postgres_dsn, schema=name)
    [number] = map(int, re.findall(r"-?\d+", lock(name)))
    try:
        await conn.execute("BEGIN; LOCK TABLE pg_catalog.pg_proc IN EXCLUSIVE MODE")  # it waits there
        cut = asyncio.create_task(store.migrate())
        while not await conn.fetchval(OURS.format("count(*)"), number):
            await asyncio.sleep(0.01)
            await conn.execute("SELECT pg_stat_clear_snapshot()")
        await conn.execute(OURS.format("pg_terminate_backend(a.pid)"), number)
        with pytest.raises(StoreError):
            await cut
        await conn.execute("ROLLBACK")
        assert not await conn.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = $1", name)
        await store.migrate()
        async with store:
            assert await store.counts() == {}
    finally:
        await conn.close()
        await drop_schema(postgres_dsn, name)


async def test_a_schema_that_is_not_there_names_the_command(postgres_dsn: str) -> None:
    with pytest.raises(SchemaMismatch, match="omniq migrate"):
        await PostgresStorage(postgres_dsn, schema="nowhere").open()


@pytest.mark.parametrize(("change", "word"), [(1, "upgrade OmniQ"), (-1, "omniq migrate")])
async def test_another_version_is_refused(postgres_dsn: str, schema: str, change: int, word: str) -> None:
    conn = await asyncpg.connect(postgres_dsn)
    await conn.execute(f"UPDATE {quoted(schema)}.migration SET version = version + {change} + 10")
    if change < 0:
        await conn.execute(f"DELETE FROM {quoted(schema)}.migration WHERE version > 11")
    await conn.execute(f"UPDATE {quoted(schema)}.migration SET version = version - 10")
    await conn.close()
    store = PostgresStorage(postgres_dsn, schema=schema)
    with pytest.raises(SchemaMismatch, match=word):
        await store.open()
    if change > 0:
        with pytest.raises(SchemaMismatch, match=word):
            await store.migrate()


def omniq(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "omniq", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def test_the_command_makes_a_schema_and_prints_the_same(postgres_dsn: str) -> None:
    name = new_schema()
    url = PostgresStorage(postgres_dsn, schema=name).url
    missing = omniq("tasks", "--url", url)
    assert missing.returncode != 0
    assert "omniq migrate" in missing.stderr
    printed = omniq("migrate", "--url", url, "--sql")
    assert printed.returncode == 0, printed.stderr

    async def apply() -> None:
        conn = await asyncpg.connect(postgres_dsn)
        await conn.execute(printed.stdout)
        await conn.close()

    asyncio.run(apply())
    try:
        for _ in range(2):
            made = omniq("migrate", "--url", url)
            assert (made.returncode, made.stderr) == (0, "")
        listed = omniq("tasks", "--url", url, "--json")
        assert (listed.returncode, listed.stdout.strip()) == (0, "[]"), listed.stderr
    finally:
        asyncio.run(drop_schema(postgres_dsn, name))


async def test_the_tables_are_made_for_a_queue(postgres_dsn: str, schema: str) -> None:
    """Lean: of the indexes of a task, its id and its key are the only unique ones."""
    conn = await asyncpg.connect(postgres_dsn)
    rows = await conn.fetch(
        "SELECT indexname, indexdef LIKE 'CREATE UNIQUE%' FROM pg_indexes "
        "WHERE schemaname = $1 AND tablename = 'task'",
        schema,
    )
    options = await conn.fetchval(
        "SELECT reloptions FROM pg_class WHERE relname = 'task' AND relnamespace = $1::regnamespace",
        quoted(schema),
    )
    await conn.close()
    assert dict(rows) == {
        "task_id": True,
        "task_key": True,
        "task_waiting": False,
        "task_running": False,
        "task_expiring": False,
        "task_ended": False,
    }
    assert {option.split("=")[0] for option in options} >= {"fillfactor", "autovacuum_vacuum_scale_factor"}
    assert newest() == 3
