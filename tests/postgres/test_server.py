"""The server that the other tests of this folder run on is a real one, as careful as in production."""

import asyncpg
import pytest

from tests.postgres.server import missing
from tests.servers import REQUIRE, NoServer


async def test_the_server_syncs(postgres_dsn: str) -> None:
    conn = await asyncpg.connect(postgres_dsn)
    try:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert await conn.fetchval(f"SHOW {setting}") == "on"
    finally:
        await conn.close()


@pytest.mark.parametrize(
    ("required", "outcome"),
    [
        ("", pytest.skip.Exception),
        ("redis", pytest.skip.Exception),
        ("redis,postgres", pytest.fail.Exception),
    ],
)
def test_without_a_server_tests_are_skipped_unless_it_is_required(
    monkeypatch: pytest.MonkeyPatch, required: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv(REQUIRE, required)
    with pytest.raises(outcome, match="there is none"):
        missing(NoServer("there is none"))
