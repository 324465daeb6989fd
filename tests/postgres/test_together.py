"""Enqueues that are under way at the same time share round trips, and nothing else."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from omniq import Task
from omniq.errors import DuplicateTask, IdConflict
from omniq.storage.postgres import PostgresStorage
from omniq.storage.together import MOST_BYTES_OF_ONE, MOST_TASKS_OF_ONE
from omniq.task import Enqueued, OnConflict, StoredTask

JOB = "jobs.a"


class Counting(PostgresStorage):
    sent: list[int]

    async def _enqueue(self, stored: list[StoredTask], on_conflict: OnConflict) -> list[Enqueued]:
        self.sent.append(len(stored))
        return await super()._enqueue(stored, on_conflict)


def counting(dsn: str, schema: str) -> Counting:
    store = Counting(dsn, schema=schema)
    store.sent = []
    return store


async def test_what_comes_meanwhile_goes_together(postgres_dsn: str, emptied: str) -> None:
    async with counting(postgres_dsn, emptied) as store:
        tasks = [Task(JOB, (n,)) for n in range(150)]
        assert await asyncio.gather(*map(store.enqueue, tasks)) == [task.id for task in tasks]
        assert store.sent == [1, 149]
        assert [task.args[0] for task in (await store.list_tasks(limit=200))[::-1]] == list(range(150))
        await store.enqueue(Task(JOB))
        assert store.sent == [1, 149, 1], "nobody waits for others"


async def test_a_refusal_is_of_one_alone(postgres_dsn: str, emptied: str) -> None:
    async with counting(postgres_dsn, emptied) as store:
        await store.enqueue(Task(JOB, id="taken"))
        tasks = [Task(JOB, (n,), id="taken" if n == 5 else f"id-{n}") for n in range(10)]
        said = await asyncio.gather(*map(store.enqueue, tasks), return_exceptions=True)
        assert [n for n, one in enumerate(said) if isinstance(one, IdConflict)] == [5]
        assert [one for one in said if isinstance(one, str)] == [
            task.id for task in tasks if task.id != "taken"
        ]
        assert len(await store.list_tasks()) == 10


async def test_each_call_keeps_its_own_rule_for_conflicts(postgres_dsn: str, emptied: str) -> None:
    async with counting(postgres_dsn, emptied) as store:
        first = await store.enqueue(Task(JOB, unique_key="k"))
        said = await asyncio.gather(
            store.enqueue(Task(JOB)),
            store.enqueue(Task(JOB, unique_key="k")),
            store.enqueue(Task(JOB, unique_key="k"), on_conflict="raise"),
            store.enqueue(Task(JOB, (7,), unique_key="k"), on_conflict="replace"),
            return_exceptions=True,
        )
        assert said[1] == said[3] == first
        assert isinstance(said[2], DuplicateTask)
        assert [task.args for task in await store.list_tasks() if task.id == first] == [(7,)]


async def test_large_calls_wait_for_nobody_and_nobody_for_them(postgres_dsn: str, emptied: str) -> None:
    async with counting(postgres_dsn, emptied) as store:
        many = [Task(JOB) for _ in range(MOST_TASKS_OF_ONE + 1)]
        large = Task(JOB, ("x" * MOST_BYTES_OF_ONE,))
        await asyncio.gather(
            store.enqueue(Task(JOB)), store.enqueue_many(many), store.enqueue(large), store.enqueue(Task(JOB))
        )
        assert sorted(store.sent) == [1, 1, 1, len(many)]


@pytest.mark.parametrize("given_up", [0, 1])
async def test_who_gives_up_takes_nobody_along(postgres_dsn: str, emptied: str, given_up: int) -> None:
    async with counting(postgres_dsn, emptied) as store:
        calls = [asyncio.create_task(store.enqueue(Task(JOB, id=f"id-{n}"))) for n in range(3)]
        await asyncio.sleep(0)
        calls[given_up].cancel()
        with suppress(asyncio.CancelledError):
            await calls[given_up]
        kept = [n for n in range(3) if n != given_up]
        assert [await calls[n] for n in kept] == [f"id-{n}" for n in kept]
        assert await store.enqueue(Task(JOB, id="later")) == "later"
