"""Programs that run one event loop after the other, and loops that close without a word to the storage."""

import asyncio
import gc

import pytest

from omniq import AsyncWorkerPool, OmniQ, Task
from omniq.storage.postgres import PostgresStorage

# Of a connection whose loop has closed only the collector can close the socket, and says so.
left_to_the_collector = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@left_to_the_collector
def test_an_application_on_one_loop_after_the_other(postgres_dsn: str, emptied: str) -> None:
    q = OmniQ(PostgresStorage(postgres_dsn, schema=emptied))
    job = q.task(name="jobs.resize")(len)
    ids = {asyncio.run(job.aenqueue("a")).id for _ in range(4)}
    assert len(ids) == 4

    async def last() -> None:
        await job.aenqueue("a")
        await q.aclose()

    asyncio.run(last())
    gc.collect()


@left_to_the_collector
def test_a_worker_starts_again_when_its_loop_was_closed_without_a_stop(
    postgres_dsn: str, emptied: str
) -> None:
    storage = PostgresStorage(postgres_dsn, schema=emptied)
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
