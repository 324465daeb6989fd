"""A pytest plugin for a run on a copy: it must be the copy that is imported, not the installed package."""

import os
from pathlib import Path

import pytest

import omniq

SOURCE = "MUTANT_SOURCE"


def pytest_configure(config: pytest.Config) -> None:
    expected = Path(os.environ[SOURCE]).resolve()
    found = Path(omniq.__file__).resolve()
    if expected not in found.parents:
        raise pytest.UsageError(f"imported {found}, but the mutant is in {expected}")
