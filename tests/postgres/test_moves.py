"""Moving to PostgreSQL and back, killed at every step."""

from pathlib import Path

import pytest

from omniq.storage.postgres import PostgresStorage
from tests.faults.moves import judge_moves
from tests.postgres.stores import fresh_schema


@pytest.mark.bound(120)
@pytest.mark.parametrize("way", ["there", "back"])
def test_a_move_may_be_killed_at_every_step(postgres_dsn: str, tmp_path: Path, way: str) -> None:
    sqlite = f"sqlite:///{tmp_path / 'jobs.db'}"
    with fresh_schema(postgres_dsn) as schema:
        postgres = PostgresStorage(postgres_dsn, schema=schema).url
        judge_moves(*((sqlite, postgres) if way == "there" else (postgres, sqlite)))
