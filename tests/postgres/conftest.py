"""What the tests of this folder share: a schema of their own, and a store in it."""

from collections.abc import Iterator

import pytest

from tests.postgres.stores import fresh_schema


@pytest.fixture
def schema(postgres_dsn: str) -> Iterator[str]:
    with fresh_schema(postgres_dsn) as name:
        yield name
