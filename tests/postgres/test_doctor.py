"""`omniq doctor` on PostgreSQL: what it sees of the server, and what it says when it cannot get there."""

import json
import subprocess
import sys
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from omniq import Task
from omniq.cli import examine_postgres
from omniq.cli.examine_postgres import examine_server
from omniq.storage.postgres import PostgresStorage
from omniq.storage.postgres.records import Vitals
from omniq.storage.postgres.schema import quoted
from tests.postgres.test_opening import with_user

WELL = Vitals("16.4", 2, None, None, None, 10, True, True, 5, 100, [])


def doctor(url: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """Its exit code, and what it found, by what it is about."""
    command = [sys.executable, "-m", "omniq", "doctor", "--json", "--url", url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    found: dict[str, list[tuple[str, str]]] = {}
    for one in json.loads(ended.stdout):
        found.setdefault(one["about"], []).append((one["level"], one["text"]))
    return ended.returncode, found


def test_a_store_that_is_well(postgres_dsn: str, schema: str) -> None:
    code, found = doctor(PostgresStorage(postgres_dsn, schema=schema).url)
    assert code == 0
    assert {found[about][0][0] for about in ("server", "rights", "durable", "data")} == {"ok"}
    assert "PostgreSQL 1" in found["server"][0][1]
    assert "oldest_xmin_age" in found["snapshot"][0][1]


def test_a_missing_schema_names_the_command(postgres_dsn: str) -> None:
    code, found = doctor(PostgresStorage(postgres_dsn, schema="nowhere").url)
    assert code == 1
    assert [level for level, text in found["store"] if "omniq migrate" in text] == ["problem"]


async def test_f30_an_old_snapshot_raises_the_alarm(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oldest_xmin_age: who holds it, since when, and what it does."""
    monkeypatch.setattr(examine_postgres, "OLD_SNAPSHOT_S", 0.0)
    holder = await asyncpg.connect(postgres_dsn, server_settings={"application_name": "forgotten dump"})
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        for _ in range(3):  # others' transactions come and go meanwhile
            await store.enqueue(Task("jobs.resize"))
        vitals = await store.vitals()
        await holder.close()
    assert vitals.oldest_xmin_who is not None
    [finding] = [one for one in examine_server(vitals) if one.about == "snapshot"]
    assert finding.level == "warning"
    assert "oldest_xmin_age" in finding.text
    assert "VACUUM cannot remove" in finding.text


@pytest.mark.parametrize(
    ("change", "about", "level", "says"),
    [
        ({}, "snapshot", "ok", "oldest_xmin_age 0 s"),
        ({"oldest_xmin_ids": 5, "oldest_xmin_age_s": 12.0}, "snapshot", "ok", "oldest_xmin_age 12 s"),
        ({"oldest_xmin_ids": 5, "oldest_xmin_age_s": 600.0}, "snapshot", "warning", "600 s"),
        ({"oldest_xmin_ids": 2_000_000}, "snapshot", "warning", "2,000,000 transactions"),
        ({"fsync": False}, "durable", "warning", "fsync is off"),
        ({"synchronous_commit": False}, "durable", "warning", "synchronous_commit is off"),
        ({"missing_rights": ["INSERT on task"]}, "rights", "problem", "lacks INSERT on task"),
        ({"connections": 95}, "server", "warning", "95 of at most 100"),
    ],
)
def test_what_is_said_of_a_server(change: dict[str, Any], about: str, level: str, says: str) -> None:
    vitals = Vitals(**{**{name: getattr(WELL, name) for name in Vitals.__struct_fields__}, **change})
    assert [level] == [one.level for one in examine_server(vitals) if one.about == about and says in one.text]


async def test_a_role_that_may_only_look(postgres_dsn: str, schema: str) -> None:
    if "//omniq@/" not in postgres_dsn:
        pytest.skip("roles are made on the private server only")
    role = schema.replace("-", "_")
    conn = await asyncpg.connect(postgres_dsn)
    await conn.execute(
        f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {quoted(schema)} TO {role}; "
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {quoted(schema)} TO {role}"
    )
    try:
        async with PostgresStorage(with_user(postgres_dsn, role), schema=schema) as store:
            vitals = await store.vitals()
        assert "INSERT on task" in vitals.missing_rights
        assert not [right for right in vitals.missing_rights if right.startswith("SELECT")]
    finally:
        with suppress(asyncpg.PostgresError):
            await conn.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await conn.close()
