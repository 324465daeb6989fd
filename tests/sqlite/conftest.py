"""A field for tests that need processes of their own, and an open storage for the others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.processes import Field
from tests.worker.fixtures import logs

__all__ = ["logs"]


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    with Field(tmp_path) as field:
        yield field


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"
