"""A field for each fault test: a fresh database, a ledger, children that end with the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.processes import Field


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    with Field(tmp_path) as field:
        yield field
