"""What the tests of this folder share: a namespace of their own."""

from collections.abc import Iterator

import pytest

from tests.redis.stores import fresh_namespace


@pytest.fixture
def namespace(redis_url: str) -> Iterator[str]:
    with fresh_namespace(redis_url) as name:
        yield name
