"""Everybody at once, at random, on a few tasks: claim, settle, renew, lapse, release, cancel, retry.

F11, F18: whatever the order was, each claim went to one worker, each run was closed once, and nobody waited
for ever. Each seed is another mixture; the statements meet in an order that only the server decides.
"""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omniq import Task
from omniq.errors import Conflict, DuplicateTask, NotFound
from omniq.storage.postgres import PostgresStorage
from omniq.task import Action, Answer, Claim, RunOutcome, Settlement, StoredTask, TaskError, TaskStatus

JOB = "jobs.resize"
TASKS = 12
ACTORS = 8
BOOM = TaskError("ValueError", "boom")
# History keeps the newest twenty, and every closed run must still be there to be counted.
MOST_EPOCHS = 18


class Melee:
    def __init__(self, stores: list[PostgresStorage], seed: int) -> None:
        self.stores = stores
        self.seed = seed
        self.handed: Counter[tuple[str, int]] = Counter()
        self.closed: Counter[tuple[str, int]] = Counter()
        self.ids = [f"task-{number}" for number in range(TASKS)]
        self.over = False

    async def actor(self, number: int, steps: int) -> None:
        chance = random.Random(self.seed * 100 + number)
        store, worker = self.stores[number % len(self.stores)], f"worker-{number}"
        held: list[StoredTask] = []
        for step in range(steps):
            match chance.randrange(10):
                case 0 | 1 | 2:
                    claims = await store.claim(worker, None, 3, chance.choice((0.001, 5.0)), f"{step}")
                    again = (
                        await store.claim(worker, None, 3, 5.0, f"{step}") if chance.random() < 0.2 else []
                    )
                    for one in {(c.id, c.epoch): c for c in (*claims, *again)}.values():
                        assert isinstance(one, StoredTask)
                        self.handed[one.id, one.epoch] += 1
                        held.append(one)
                        self.over = self.over or one.epoch >= MOST_EPOCHS
                case 3 | 4 | 5 if held:
                    chance.shuffle(held)
                    said = [self.settlement(one, chance) for one in held[:3]]
                    held = held[3:]
                    for settlement, answer in zip(said, await store.settle(said), strict=True):
                        if answer is Answer.HELD:
                            self.closed[settlement.task.id, settlement.task.epoch] += 1
                case 6:
                    await store.lapse(5)
                case 7:
                    await store.renew(worker, 5.0)
                case 8:
                    await store.release(f"worker-{chance.randrange(ACTORS)}")
                case _:
                    await self.by_hand(store, chance.choice(self.ids), chance)
            if self.over:
                return

    @staticmethod
    def settlement(one: StoredTask, chance: random.Random) -> Settlement:
        return chance.choice(
            (
                Settlement.success(one, b"\xc0"),
                Settlement.retry(one, 0.0, BOOM),
                Settlement.failed(one, BOOM),
                Settlement.give_back(one),
            )
        )

    @staticmethod
    async def by_hand(store: PostgresStorage, task_id: str, chance: random.Random) -> None:
        with suppress(Conflict, DuplicateTask, NotFound):
            await (store.cancel if chance.random() < 0.5 else store.retry)(task_id)


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(n, marks=pytest.mark.soak) for n in range(3, 60))])
async def test_f18_whatever_meets_whatever_each_run_is_closed_once(
    postgres_dsn: str, schema: str, seed: int
) -> None:
    async with (
        PostgresStorage(postgres_dsn, schema=schema) as one,
        one.clone() as other,
    ):
        melee = Melee([one, other], seed)
        await one.enqueue_many(
            [Task("jobs.resize", id=task_id, max_losses=999, max_retries=999) for task_id in melee.ids]
        )
        await asyncio.gather(*(melee.actor(number, 60) for number in range(ACTORS)))
        assert set(melee.handed.values()) == {1}, "a claim went to two"
        assert set(melee.closed.values()) <= {1}, "a run was closed twice"
        for task_id in melee.ids:
            task = await one.get_task(task_id)
            assert task is not None
            history = await one.history(task_id)
            epochs = [run.epoch for run in history]
            assert len(epochs) == len(set(epochs))
            is_open = task.status in (TaskStatus.RUNNING, TaskStatus.SUCCESS)
            # Success of an earlier series stands on the task only until it is retried by hand.
            assert set(epochs) == set(range(1, task.epoch + 1 - is_open)), (task.status, epochs)
            told = {run.epoch for run in history if run.outcome is not RunOutcome.LOST}
            assert {epoch for held_id, epoch in melee.closed if held_id == task_id} - {task.epoch} <= told
        assert await one.verify() == []


async def lane(
    store: PostgresStorage, name: str, seen: Counter[tuple[str, int]], done: set[str], many: int
) -> None:
    """Settles what it claimed and claims the next, as half of a worker would."""
    chance = random.Random(name)
    said: list[Settlement] = []
    number = 0
    while len(done) < many:
        number += 1
        answers, claims = await store.exchange(said, Claim("ann", None, 50, 30.0, f"{name}-{number}"))
        assert set(answers) <= {Answer.HELD}
        done |= {one.task.id for one in said if one.action is Action.SUCCEED}
        said = []
        for one in claims:
            assert isinstance(one, StoredTask)
            seen[one.id, one.epoch] += 1
            ends = (Settlement.retry(one, 0.0, BOOM), Settlement.give_back(one))
            said.append(chance.choice(ends) if chance.random() < 0.2 else Settlement.success(one, b"\xc0"))
        chance.shuffle(said)


async def test_two_exchanges_under_way_are_in_nobody_s_way(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two connections of one storage, beside renewals, the putting together of tallies and enqueues."""
    monkeypatch.setattr("omniq.storage.postgres.connections.TRIES", 1)  # a deadlock would be told
    monkeypatch.setattr("omniq.storage.postgres.FOLD_CHANCE", 1.0)
    seen: Counter[tuple[str, int]] = Counter()
    done: set[str] = set()
    many = 3000
    async with PostgresStorage(postgres_dsn, schema=schema) as store, asyncio.TaskGroup() as group:
        lanes = [group.create_task(lane(store, name, seen, done, many)) for name in ("a", "b")]
        for number in range(many // 100):
            queue = ("even", "odd")[number % 2]
            await store.enqueue_many(Task(JOB, queue=queue, priority=n % 3) for n in range(100))
            await store.renew("ann", 30.0)
        await asyncio.gather(*lanes)
        assert len(done) == many
        assert set(seen.values()) == {1}
        assert await store.verify() == []


async def test_of_two_looks_the_later_one_knows_better(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first found nothing, and its answer comes last: what the second one found is not forgotten."""
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        looked, go_on, fetch = asyncio.Event(), asyncio.Event(), store._fetch

        async def held_up(statement: str, *arguments: Any) -> Any:
            rows = await fetch(statement, *arguments)
            if statement == "exchange" and not looked.is_set():
                looked.set()
                await go_on.wait()
            return rows

        monkeypatch.setattr(store, "_fetch", held_up)
        first = asyncio.create_task(store.claim("ann"))
        await looked.wait()
        await store.enqueue(Task(JOB, eta=datetime.now(UTC) + timedelta(hours=1)))
        assert await store.claim("ann") == []
        go_on.set()
        assert await first == []
        assert store._look_again_at is not None
