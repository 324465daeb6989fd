"""A fixture for pytest. In your conftest.py: `pytest_plugins = ["omniq.testing.fixtures"]`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from omniq.app import OmniQ
from omniq.testing.kit import Kit


@pytest.fixture
def omniq_kit() -> Iterator[Callable[[OmniQ], Kit]]:
    """`kit = omniq_kit(q)`: your application on an empty memory store, in virtual time, for this test."""
    with contextlib.ExitStack() as until_the_end:
        yield lambda q: until_the_end.enter_context(Kit(q))
