"""Each store against the plain model: a few hundred sequences in `make test`, many more in `make soak`."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from omniq.storage import MemoryStorage, SQLiteStorage
from omniq.storage.batched import BatchedStorage
from omniq.testing import VirtualClock

pytest.register_assert_rewrite("tests.model.machine")  # so that a difference is shown
from tests.model.machine import OpenStore, StoreMachine  # noqa: E402


@contextlib.contextmanager
def memory(clock: VirtualClock) -> Iterator[BatchedStorage]:
    yield MemoryStorage(clock=clock)


@contextlib.contextmanager
def sqlite(clock: VirtualClock) -> Iterator[BatchedStorage]:
    with tempfile.TemporaryDirectory() as folder:
        yield SQLiteStorage(Path(folder) / "jobs.db", durability="relaxed", clock=clock)


def compare(open_store: OpenStore, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        lambda: StoreMachine(open_store),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


# Half a minute when all is well; the rest is for Hypothesis to find the shortest way to a difference.
@pytest.mark.bound(600)
@pytest.mark.parametrize(("open_store", "examples"), [(memory, 100), (sqlite, 50)])
def test_a_store_agrees_with_the_model(open_store: OpenStore, examples: int) -> None:
    compare(open_store, examples, 40)


@pytest.mark.soak
@pytest.mark.bound(3600)
@pytest.mark.parametrize(("open_store", "examples"), [(memory, 5000), (sqlite, 1000)])
def test_a_store_agrees_with_the_model_for_long(open_store: OpenStore, examples: int) -> None:
    compare(open_store, examples, 80)
