"""Arguments and results of every size: in the row, beside it, and too large."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from omniq import AsyncWorkerPool, Task, TaskStatus
from omniq.errors import PayloadTooLarge
from omniq.storage import SQLiteStorage
from omniq.storage.sqlite.rows import ROW_BYTES
from omniq.task import Settlement, StoredTask
from tests.faults.statements import contents


def sizes(database: Path) -> dict[str, int]:
    return {table: len(contents(database)[table]) for table in ("omniq_body", "omniq_result")}


@pytest.mark.parametrize("size", [0, 10, ROW_BYTES - 20, ROW_BYTES, ROW_BYTES + 1, 100_000, 1_000_000])
async def test_there_and_back(database: Path, size: int) -> None:
    async with SQLiteStorage(database) as storage:
        word = "x" * size
        task_id = await storage.enqueue(Task("a.b", (word,), {"k": word[:10]}))
        task = await storage.get_task(task_id)
        assert task is not None
        assert (task.args, task.kwargs) == ((word,), {"k": word[:10]})
        assert sizes(database)["omniq_body"] == (size > ROW_BYTES - 30)
        [claim] = await storage.claim("ann")
        assert isinstance(claim, StoredTask)
        assert storage.serializer.decode_call(claim.payload)[1] == [word]
        result = storage.serializer.dumps(word)
        await storage.settle([Settlement.success(claim, result)])
        found = await storage.get_result(task_id)
        assert found is not None
        assert found.result == word
        assert sizes(database)["omniq_result"] == (len(result) > ROW_BYTES)
        await storage.delete(task_id)
        assert sizes(database) == {"omniq_body": 0, "omniq_result": 0}
        assert await storage.verify() == []


async def test_a_replaced_call_moves_in_and_out_of_the_row(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        for size in (10, 5000, 10, 5000, 6000):
            await storage.enqueue(Task("a.b", ("x" * size,), unique_key="key"), on_conflict="replace")
            [task] = await storage.list_tasks()
            assert task.args == ("x" * size,)
            assert sizes(database)["omniq_body"] == (size > ROW_BYTES)
            assert await storage.verify() == []


async def test_the_result_of_an_interval_task_is_replaced(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        task_id = await storage.enqueue(Task("a.b", interval=0.001))
        for size in (5000, 10, 6000, 20):
            claims = await storage.claim("ann")
            while not claims:
                await storage.wait(1)
                claims = await storage.claim("ann")
            await storage.settle([Settlement.repeat(claims[0], storage.serializer.dumps("y" * size), 0.001)])
            found = await storage.get_result(task_id)
            assert found is not None
            assert found.result == "y" * size
            assert sizes(database)["omniq_result"] == (size > ROW_BYTES)


async def test_over_the_limit_nothing_is_stored(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        with pytest.raises(PayloadTooLarge, match=r"1,048,576"):
            await storage.enqueue(Task("a.b", ("x" * (1 << 20),)))
        with pytest.raises(PayloadTooLarge):
            await storage.enqueue_many([Task("a.b"), Task("a.b", ("x" * (1 << 20),))])
        assert contents(database)["omniq_task"] == []
        storage.max_payload = 100
        with pytest.raises(PayloadTooLarge, match="100"):
            await storage.enqueue(Task("a.b", ("x" * 100,)))


async def test_a_result_over_the_limit_is_a_failure_that_says_so(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        storage.max_payload = 1000
        task_id = await storage.enqueue(Task("operator.mul", ("x", 2000), max_retries=0))
        async with AsyncWorkerPool(storage):
            found = await storage.wait_result(task_id, 10)
        assert found is not None
        assert found.error is not None
        assert (found.status, found.error.kind) == (TaskStatus.FAILED, "unserializable")


async def test_a_payload_that_lost_its_side_is_told_and_stops_nobody(
    database: Path,
) -> None:
    async with SQLiteStorage(database) as storage:
        lost = await storage.enqueue(Task("builtins.len", ("x" * 5000,)))
        good = await storage.enqueue(Task("builtins.len", ("abc",)))
        with closing(sqlite3.connect(database)) as conn:
            conn.execute("DELETE FROM omniq_body")
            conn.commit()
        assert any(lost in line and "arguments" in line for line in await storage.verify())
        async with AsyncWorkerPool(storage):
            found = await storage.wait_result(good, 10)
            assert found is not None
            assert found.result == 3
