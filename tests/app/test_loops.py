"""Programs that run one event loop after the other, and loops that close without a word to the storage."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from omniq import AsyncWorkerPool, OmniQ, Task
from omniq.storage.postgres import PostgresStorage
from omniq.storage.redis import RedisStorage
from tests.postgres.stores import fresh_schema
from tests.redis.stores import fresh_namespace

# Of a connection whose loop has closed only the collector can close the socket, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

Remote = PostgresStorage | RedisStorage


@pytest.fixture(params=["postgres", "redis"])
def storage(request: pytest.FixtureRequest) -> Iterator[Remote]:
    if request.param == "postgres":
        dsn: str = request.getfixturevalue("postgres_dsn")
        with fresh_schema(dsn) as schema:
            yield PostgresStorage(dsn, schema=schema)
    else:
        url: str = request.getfixturevalue("redis_url")
        with fresh_namespace(url) as namespace:
            yield RedisStorage(url, namespace=namespace)


def test_an_application_on_one_loop_after_the_other(storage: Remote) -> None:
    q = OmniQ(storage)
    job = q.task(name="jobs.resize")(len)
    ids = {asyncio.run(job.aenqueue("a")).id for _ in range(4)}
    assert len(ids) == 4

    async def last() -> None:
        await job.aenqueue("a")
        await q.aclose()

    asyncio.run(last())
    gc.collect()


def test_a_worker_starts_again_when_its_loop_was_closed_without_a_stop(storage: Remote) -> None:
    pool = AsyncWorkerPool(storage, poll_interval=0.02)
    for _ in range(2):
        asyncio.run(pool.start())

    async def third() -> None:
        await pool.start()
        async with storage.clone() as twin:
            result = await twin.wait_result(await twin.enqueue(Task("json.dumps", (7,))), 30)
            assert result is not None
            assert result.result == "7"
        await pool.stop()
        assert not storage.is_open

    asyncio.run(third())
    gc.collect()
