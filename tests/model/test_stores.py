"""Each store against the plain model: a few hundred sequences in `make test`, many more in `make soak`."""

import asyncio
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
from tests.postgres.stores import VirtualPostgres, empty_schema, fresh_schema
from tests.redis.stores import VirtualRedis, fresh_namespace

pytest.register_assert_rewrite("tests.model.machine")  # so that a difference is shown
from tests.model.machine import OpenStore, StoreMachine  # noqa: E402


@contextlib.contextmanager
def memory(clock: VirtualClock) -> Iterator[BatchedStorage]:
    yield MemoryStorage(clock=clock)


@contextlib.contextmanager
def sqlite(clock: VirtualClock) -> Iterator[BatchedStorage]:
    with tempfile.TemporaryDirectory() as folder:
        yield SQLiteStorage(Path(folder) / "jobs.db", durability="relaxed", clock=clock)


def compare(
    open_store: OpenStore, examples: int, steps: int, machine: type[StoreMachine] = StoreMachine
) -> None:
    run_state_machine_as_test(
        lambda: machine(open_store),
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


class OnTheServersClock(StoreMachine):
    """The wall that counts is the server's, which nobody sets."""

    def set_wall(self, seconds: int) -> None:
        pass


def compare_postgres(dsn: str, examples: int, steps: int) -> None:
    with fresh_schema(dsn, virtual=True) as schema:

        @contextlib.contextmanager
        def postgres(clock: VirtualClock) -> Iterator[BatchedStorage]:
            asyncio.run(empty_schema(dsn, schema))
            yield VirtualPostgres(dsn, schema=schema, clock=clock, durability="relaxed")

        compare(postgres, examples, steps, OnTheServersClock)


@pytest.mark.bound(600)
def test_postgres_agrees_with_the_model(postgres_dsn: str) -> None:
    compare_postgres(postgres_dsn, 15, 40)


@pytest.mark.soak
@pytest.mark.bound(3600)
def test_postgres_agrees_with_the_model_for_long(postgres_dsn: str) -> None:
    compare_postgres(postgres_dsn, 300, 80)


def compare_redis(url: str, examples: int, steps: int) -> None:
    @contextlib.contextmanager
    def redis(clock: VirtualClock) -> Iterator[BatchedStorage]:
        with fresh_namespace(url) as namespace:
            yield VirtualRedis(url, namespace=namespace, clock=clock, durability="relaxed")

    compare(redis, examples, steps, OnTheServersClock)


@pytest.mark.bound(600)
def test_redis_agrees_with_the_model(redis_url: str) -> None:
    compare_redis(redis_url, 20, 40)


@pytest.mark.soak
@pytest.mark.bound(3600)
def test_redis_agrees_with_the_model_for_long(redis_url: str) -> None:
    compare_redis(redis_url, 500, 80)


@pytest.mark.soak
@pytest.mark.bound(3600)
@pytest.mark.parametrize(("open_store", "examples"), [(memory, 5000), (sqlite, 1000)])
def test_a_store_agrees_with_the_model_for_long(open_store: OpenStore, examples: int) -> None:
    compare(open_store, examples, 80)
