"""F22, F23: unique keys in a race of producers, in transactions that are rolled back, and over retries."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from omniq import AsyncWorkerPool, Task, TaskStatus
from omniq.errors import Conflict, DuplicateTask
from omniq.storage import SQLiteStorage
from omniq.task import Settlement, TaskError, TaskFilter
from tests.faults.processes import Field

PRODUCERS = 50
PROCESSES = 5
BOOM = TaskError("ValueError", "boom")

# Each process brings ten producers, which race as soon as they are told to: by one, in bulk, and in a
# transaction of their own, which every other one rolls back. They say which id they were given.
PRODUCER = """
import asyncio, json, random, sqlite3, sys
from omniq import Task
from omniq.storage import SQLiteStorage

async def by_one(storage, number):
    [enqueued] = await storage.enqueue_many([Task("a.b", (number,), unique_key="key")])
    return [(str(enqueued), enqueued.created, True)]

async def in_bulk(storage, number):
    tasks = [Task("a.b", (number,), unique_key=key) for key in ("key", f"own {number}", "key")]
    found = await storage.enqueue_many(tasks)
    return [(str(one), one.created, True) for one in (found[0], found[2])]

def in_transaction(keep):
    async def produce(storage, number):
        conn = sqlite3.connect(storage.path, timeout=30)
        try:
            conn.execute("INSERT INTO orders VALUES (?)", (number,))
            [one] = await storage.enqueue_many([Task("a.b", (number,), unique_key="key")], conn=conn)
            conn.commit() if keep else conn.rollback()
            return [(str(one), one.created, keep)]
        finally:
            conn.close()
    return produce

KINDS = [by_one, in_bulk, in_transaction(True), in_transaction(False)]

async def main(path, first, rounds):
    storage = SQLiteStorage(path)
    await storage.open()
    print("READY", flush=True)
    for line in sys.stdin:
        answers = []
        # One after the other within a process: the caller's transaction blocks this loop while it waits.
        for number in range(first, first + 10):
            answers += await random.choice(KINDS)(storage, number)
        print("ANSWERS", json.dumps(answers), flush=True)
    await storage.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2]), 1))
"""


async def race_for_a_key(field: Field, rounds: int) -> None:
    async with SQLiteStorage(field.database) as storage:
        with closing(sqlite3.connect(field.database)) as conn:
            conn.execute("CREATE TABLE orders (number)")
            conn.commit()
        producers = [field.script(PRODUCER, field.database, n * 10) for n in range(PROCESSES)]
        for producer in producers:
            producer.line("READY")
        for _ in range(rounds):
            for producer in producers:
                producer.tell("go")
            answers = [answer for p in producers for answer in json.loads(p.line("ANSWERS"))]
            assert len(answers) >= PRODUCERS
            living = [t for t in await storage.list_tasks(TaskFilter(unique_key="key")) if not t.status.final]
            committed = any(kept for _, _, kept in answers)
            assert len(living) == (1 if committed else 0)
            created_and_kept = {task_id for task_id, created, kept in answers if created and kept}
            assert created_and_kept == {task.id for task in living}
            for task_id, created, _ in answers:
                assert created or task_id in created_and_kept, (
                    "a duplicate of a task that was never committed"
                )
            for task in living:
                await storage.cancel(task.id)
        assert await storage.verify() == []


async def test_f22_fifty_producers_make_one_task(field: Field) -> None:
    await race_for_a_key(field, 3)


@pytest.mark.soak
@pytest.mark.bound(600)
async def test_f22_fifty_producers_make_one_task_again_and_again(field: Field) -> None:
    await race_for_a_key(field, 200)


async def test_f23_a_key_that_changed_hands_jams_nobody(tmp_path: Path) -> None:
    """A key in retry wait, an enqueue with the same key, and the requeue of an old task that once had it."""
    async with SQLiteStorage(tmp_path / "jobs.db") as storage:
        old = await storage.enqueue(Task("a.b", unique_key="key"))
        [claim] = await storage.claim("ann")
        await storage.settle([Settlement.failed(claim, BOOM)])
        retrying = await storage.enqueue(Task("a.b", unique_key="key"))
        [claim] = await storage.claim("ann")
        await storage.settle([Settlement.retry(claim, 3600.0, BOOM)])

        again = await storage.enqueue(Task("a.b", (1,), unique_key="key"))
        assert str(again) == str(retrying)
        with pytest.raises(DuplicateTask) as refused:
            await storage.enqueue(Task("a.b", (2,), unique_key="key"), on_conflict="raise")
        assert refused.value.task_id == retrying
        with pytest.raises(Conflict) as conflict:
            await storage.retry(old)
        assert str(retrying) in str(conflict.value)

        task = await storage.get_task(old)
        assert task is not None
        assert task.status is TaskStatus.FAILED, "a refused requeue changed it"
        other = await storage.enqueue(Task("builtins.len", ([],)))
        async with AsyncWorkerPool(storage):
            result = await storage.wait_result(str(other), 10)
        assert result is not None
        assert result.result == 0
        assert await storage.verify() == []
