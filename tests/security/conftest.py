"""A place for what an attacker may leave behind: nothing that a test plants may ever come into being."""

from pathlib import Path

import pytest


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"
