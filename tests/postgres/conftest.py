"""What the tests of this folder share: a schema of their own, and a store in it."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.postgres.stores import empty_schema, fresh_schema


@pytest.fixture
def schema(postgres_dsn: str) -> Iterator[str]:
    with fresh_schema(postgres_dsn) as name:
        yield name


@pytest.fixture(scope="session")
def _kept_schema(postgres_dsn: str) -> Iterator[str]:
    with fresh_schema(postgres_dsn) as name:
        yield name


@pytest.fixture
def emptied(postgres_dsn: str, _kept_schema: str) -> str:
    """As good as a new one for most tests, and much cheaper: what others left there is gone."""
    asyncio.run(empty_schema(postgres_dsn, _kept_schema))
    return _kept_schema
