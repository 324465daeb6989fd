"""What cannot be opened says so in one line, in our own words, and never with the password."""

import subprocess
import sys

import asyncpg
import pytest

from omniq import Task
from omniq.errors import (
    InvalidOption,
    OmniqError,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
    Unsupported,
)
from omniq.storage import open_storage
from omniq.storage.postgres import PostgresStorage, connections
from omniq.storage.postgres.schema import quoted
from tests.postgres.server import LOCKED_PASSWORD, LOCKED_ROLE
from tests.postgres.stores import new_schema

SECRET = "s3cr3t-w0rd"


def with_user(dsn: str, who: str) -> str:
    return dsn.replace("//omniq@", f"//{who}@")


async def refusal(dsn: str) -> OmniqError:
    with pytest.raises(OmniqError) as raised:
        await open_storage(dsn).open()
    told = str(raised.value)
    assert SECRET not in told
    assert "\n" not in told
    assert raised.value.__cause__ is None or isinstance(raised.value.__cause__, OmniqError)
    return raised.value


async def test_a_wrong_password(postgres_dsn: str) -> None:
    if "//omniq@/" not in postgres_dsn:
        pytest.skip("only the private server has a role with a password")
    conn = await asyncpg.connect(postgres_dsn)
    await conn.execute(
        f"DO $$ BEGIN CREATE ROLE {LOCKED_ROLE} LOGIN PASSWORD '{LOCKED_PASSWORD}'; "
        "EXCEPTION WHEN duplicate_object THEN NULL; END $$"
    )
    await conn.close()
    told = await refusal(with_user(postgres_dsn, f"{LOCKED_ROLE}:{SECRET}"))
    assert isinstance(told, StoreUnavailable)
    assert "password authentication failed" in str(told)


async def test_a_wrong_database(postgres_dsn: str) -> None:
    told = await refusal(postgres_dsn.replace("/postgres?", "/nothing_here?"))
    assert isinstance(told, StoreUnavailable)
    assert "nothing_here" in str(told)


@pytest.mark.parametrize(
    "where", ["@127.0.0.1:1/x", "@localhost:1/x", "@no-such-host.invalid/x", "@/x?host=%2Fno%2Fsuch%2Ffolder"]
)
async def test_a_server_that_is_not_there(where: str) -> None:
    told = await refusal(f"postgresql://me:{SECRET}{where}")
    assert isinstance(told, StoreUnavailable)


@pytest.mark.parametrize(
    "dsn", [f"postgresql://me:{SECRET}@host:port/x", f"postgresql://me:{SECRET}@h/x?sslmode=odd"]
)
async def test_an_address_that_cannot_be_read(dsn: str) -> None:
    assert isinstance(await refusal(dsn), InvalidOption | StoreUnavailable)


async def test_a_role_without_rights(postgres_dsn: str, schema: str) -> None:
    if "//omniq@/" not in postgres_dsn:
        pytest.skip("roles are made on the private server only")
    role = schema.replace("-", "_")
    conn = await asyncpg.connect(postgres_dsn)
    await conn.execute(f"CREATE ROLE {role} LOGIN")
    poor = PostgresStorage(with_user(postgres_dsn, role), schema=schema)
    try:
        for grant in (
            "",
            f"USAGE ON SCHEMA {quoted(schema)}",
            f"SELECT ON ALL TABLES IN SCHEMA {quoted(schema)}",
        ):
            if grant:
                await conn.execute(f"GRANT {grant} TO {role}")
            with pytest.raises(StoreError, match="permission denied") as raised:
                await poor.enqueue(Task("jobs.resize"))
            assert not isinstance(raised.value, StoreUnavailable)
    finally:
        await poor.close()
        await conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await conn.close()


async def test_a_role_that_may_not_migrate(postgres_dsn: str) -> None:
    if "//omniq@/" not in postgres_dsn:
        pytest.skip("roles are made on the private server only")
    name = new_schema()
    role = name.replace("-", "_")
    store = PostgresStorage(with_user(postgres_dsn, role), schema=name)
    conn = await asyncpg.connect(postgres_dsn)
    await conn.execute(f"CREATE ROLE {role} LOGIN")
    try:
        with pytest.raises(StoreError, match=r"needs CREATE on the database$"):
            await store.migrate()
        await conn.execute(f"CREATE SCHEMA {quoted(name)}")
        for grant in ("", "USAGE", "CREATE"):
            if grant:
                await conn.execute(f"GRANT {grant} ON SCHEMA {quoted(name)} TO {role}")
            if grant != "CREATE":
                with pytest.raises(StoreError, match=rf"needs USAGE and CREATE on schema '{name}'$"):
                    await store.migrate()
        await store.migrate()
        await store.migrate()
        async with store:
            await store.enqueue(Task("jobs.resize"))
    finally:
        await conn.execute(f"DROP OWNED BY {role}; DROP SCHEMA IF EXISTS {quoted(name)}; DROP ROLE {role}")
        await conn.close()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_cannot_keep_every_text(postgres_dsn: str, encoding: str) -> None:
    if "//omniq@/" not in postgres_dsn:
        pytest.skip("databases are made on the private server only")
    name = new_schema().replace("-", "_")
    conn = await asyncpg.connect(postgres_dsn)
    await conn.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    try:
        told = await refusal(postgres_dsn.replace("/postgres?", f"/{name}?"))
        assert isinstance(told, Unsupported)
        assert f"has encoding {encoding}; one in UTF8 is needed" in str(told)
    finally:
        await conn.execute(f"DROP DATABASE {name}")
        await conn.close()


async def test_an_old_server(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "OLDEST_SERVER", 99)
    told = await refusal(postgres_dsn)
    assert isinstance(told, Unsupported)
    conn = await asyncpg.connect(postgres_dsn)
    version = await conn.fetchval("SELECT split_part(current_setting('server_version'), ' ', 1)")
    await conn.close()
    assert f"is PostgreSQL {version}; 99 or newer is needed" in str(told)


async def test_a_missing_schema(postgres_dsn: str) -> None:
    told = await refusal(postgres_dsn + "&schema=nowhere")
    assert isinstance(told, SchemaMismatch)
    assert "omniq migrate" in str(told)


@pytest.mark.parametrize("queue", ["a b", "'; DROP TABLE task; --", "", "x" * 129, "a\x00b", "*"])
async def test_a_hostile_queue_name(postgres_dsn: str, schema: str, queue: str) -> None:
    """S6: refused before any statement is made of it."""
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        with pytest.raises(InvalidOption, match="queue"):
            await store.pause(queue)
        with pytest.raises(InvalidOption, match="queue"):
            await store.enqueue(Task("jobs.resize", queue=queue))


@pytest.mark.parametrize("where", ["@127.0.0.1:1/x", "@h:port/x", "@/x?host=%2Fno%2Fsuch%2Ffolder"])
def test_the_command_shows_no_password_and_one_line(where: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "omniq", "tasks", "--url", f"postgresql://me:{SECRET}{where}"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode != 0
    assert SECRET not in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) <= 2


def test_a_password_is_in_no_representation() -> None:
    store = PostgresStorage(f"postgresql://me:{SECRET}@host/db?schema=jobs&sslmode=require")
    assert SECRET not in repr(store)
    assert (store.schema, SECRET in store.url) == ("jobs", True)
    assert store.clone().url == store.url


@pytest.mark.parametrize("dsn", ["mysql://x", "", 5, "host=localhost dbname=x"])
def test_what_is_no_address_is_refused(dsn: str) -> None:
    with pytest.raises(InvalidOption, match="postgresql://user@host/database"):
        PostgresStorage(dsn)


def test_unknown_durability_is_refused() -> None:
    with pytest.raises(InvalidOption, match="durability"):
        PostgresStorage("postgresql://h/x", durability="maybe")  # type: ignore[arg-type]


async def test_relaxed_durability_is_asked_of_the_server(postgres_dsn: str, schema: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema, durability="relaxed") as store:
        assert store._connections is not None
        [row] = await store._connections.fetch("SHOW synchronous_commit")
        assert row[0] == "off"
