"""Schedules on a server: damaged records, and workers that fire from several connections at once."""

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

import asyncpg
import pytest

from omniq import AsyncWorkerPool
from omniq.schedule import Schedule
from omniq.storage.postgres import PostgresStorage
from omniq.storage.postgres.schema import quoted
from omniq.task import Task
from tests.postgres.stores import fresh_schema
from tests.worker.scene import until


@pytest.fixture
def schema(postgres_dsn: str) -> Iterator[str]:
    with fresh_schema(postgres_dsn) as name:
        yield name


async def test_one_that_cannot_be_read_stops_no_other(postgres_dsn: str, schema: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as storage:
        conn = await asyncpg.connect(postgres_dsn)
        await conn.execute(
            f"INSERT INTO {quoted(schema)}.schedule SELECT 'bad-' || n, 1, '2020-01-01', '\\xff' "
            "FROM generate_series(1, 50) AS n"
        )
        await conn.close()
        await storage.save_schedule(Schedule(name="good", call=Task("jobs.a"), every=0.1))

        async def fired() -> bool:
            return bool((await storage.fire_due(1)).ids)

        await until(fired, within_s=20)
        assert [one.name for one in await storage.schedules()] == ["good"]
        await storage.delete_schedule("bad-7")


async def test_f19_workers_on_one_server_make_one_task_per_tick(postgres_dsn: str, schema: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as storage:
        schedule = Schedule(name="tick", call=Task("operator.neg", (1,)), every=0.2, catch_up="all")
        await storage.save_schedule(schedule)

        async def ticked() -> bool:
            return len(await storage.list_tasks()) >= 8

        pools = [AsyncWorkerPool(storage.clone(), poll_interval=0.5) for _ in range(3)]
        for pool in pools:
            await pool.start()
        try:
            await until(ticked, within_s=30)
        finally:
            await asyncio.gather(*(pool.stop() for pool in pools))
        # Not the eta: a stop may have given one of them back.
        ticks = sorted(datetime.fromisoformat(task.headers["tick"]) for task in await storage.list_tasks())
        assert {later - earlier for earlier, later in pairwise(ticks)} == {timedelta(seconds=0.2)}
