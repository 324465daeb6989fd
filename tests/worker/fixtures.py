"""The fixtures of tests/worker, tests/requirements and tests/app."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from loguru import logger

from omniq.storage.base import BaseStorage
from omniq.testing import VirtualClock
from tests.worker import scene
from tests.worker.stores import AnyStore, Five, Memory, Remote, RemoteMemory, RemoteSQLite, Six, SQLite


class Timed(NamedTuple):
    """A store whose time is a test's."""

    store: AnyStore
    clock: VirtualClock


@pytest.fixture
def bodies() -> Iterator[scene.Bodies]:
    made = scene.Bodies()
    scene.import_module(made)
    yield made
    scene.forget_module(made)


@pytest.fixture
def logs() -> Iterator[scene.Logs]:
    captured = scene.Logs()
    handler = scene.capture(captured)
    yield captured
    logger.remove(handler)


def make(kind: str, folder: Path) -> AnyStore:
    match kind:
        case "memory":
            return Memory()
        case "sqlite":
            return SQLite(folder / "jobs.db")
        case "five":
            return Five()
        case _:
            return Six()


@pytest.fixture(params=["memory", "sqlite"])
def builtin(request: pytest.FixtureRequest, tmp_path: Path) -> AnyStore:
    """A built-in store."""
    return make(request.param, tmp_path)


@pytest.fixture(params=["memory", "sqlite", "five", "six"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> AnyStore:
    """A built-in store, or somebody else's with five or six verbs."""
    return make(request.param, tmp_path)


@pytest.fixture(params=["five", "six"])
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> AnyStore:
    return make(request.param, tmp_path)


@pytest.fixture(params=["memory", "five", "six"])
def timed(request: pytest.FixtureRequest) -> Timed:
    """A store under virtual time. (SQLite answers from threads, which virtual time does not wait for.)"""
    clock = VirtualClock()
    if request.param == "memory":
        return Timed(Memory(clock=clock), clock)
    store = Six() if request.param == "six" else Five()
    store.clock = clock
    return Timed(store, clock)


@pytest.fixture(params=["memory", "sqlite"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Remote:
    """A built-in store behind a line that can be cut."""
    return RemoteMemory() if request.param == "memory" else RemoteSQLite(tmp_path / "jobs.db")


def is_builtin(store: BaseStorage) -> bool:
    return not isinstance(store, Five)
