"""Records that make no sense: passed over, never a crash."""

import asyncpg
import pytest

from omniq import Task
from omniq.storage.facts import vital_signs
from omniq.storage.postgres import PostgresStorage
from omniq.storage.postgres.schema import quoted
from omniq.task import WorkerInfo


@pytest.mark.parametrize("nonsense", ["{", '{"id": 7}', ""])
async def test_a_worker_that_cannot_be_read_hides_nobody(
    postgres_dsn: str, emptied: str, nonsense: str
) -> None:
    async with PostgresStorage(postgres_dsn, schema=emptied) as store:
        for name in ("ann", "bob"):
            await store.beat(WorkerInfo(name, name, "here", 1))
        conn = await asyncpg.connect(postgres_dsn)
        await conn.execute(f"UPDATE {quoted(emptied)}.worker SET info = $1 WHERE id = 'ann'", nonsense)
        await conn.close()
        assert [worker.id for worker in await store.workers()] == ["bob"]
        assert (await vital_signs(store))[1][0].id == "bob"


async def test_tasks_that_cannot_be_read_keep_no_other_from_moving(postgres_dsn: str, emptied: str) -> None:
    """They stay where they are, also when they would fill a parcel."""
    async with PostgresStorage(postgres_dsn, schema=emptied) as store:
        bad = [await store.enqueue(Task("jobs.bad")) for _ in range(3)]
        good = [await store.enqueue(Task("jobs.good")) for _ in range(3)]
        conn = await asyncpg.connect(postgres_dsn)
        await conn.execute(f"UPDATE {quoted(emptied)}.task SET headers = '{{' WHERE id = ANY ($1)", bad)
        moved: list[str] = []
        while (parcel := await store.take_out(2)) is not None:
            moved += [one.task.id for one in parcel.tasks]
            assert len(parcel.tasks) <= 2
            await store.drop_parcel(parcel.id)
        assert moved == good
        assert await conn.fetchval(f"SELECT count(*) FROM {quoted(emptied)}.task") == len(bad)
        await conn.close()
