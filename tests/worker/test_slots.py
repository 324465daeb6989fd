"""How slots are filled: never more than there are, in the right order, from the right queues."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from omniq import Snooze, Task, TaskStatus
from tests.worker.scene import Bodies, ended, running, turns, until
from tests.worker.stores import AnyStore, Five, Memory, task_of


class Watched(Memory):
    """Asks the store itself, after every exchange, how many rows the worker holds."""

    most = 0

    async def exchange(self, settlements: Any, claim: Any = None) -> Any:
        answer = await super().exchange(settlements, claim)
        if claim is not None:
            self.most = max(self.most, len(await self.held(claim.worker)))
        return answer


@pytest.mark.parametrize("kind", ["async", "thread", "mixed"])
async def test_never_more_rows_than_slots(bodies: Bodies, kind: str) -> None:
    """Under churn: successes, failures, retries, snoozes, timeouts. A slot is free when the store knows."""
    chance = random.Random(7)

    def decide(n: int) -> None:
        match n % 4:
            case 1 if chance.random() < 0.5:
                raise ValueError
            case 2 if chance.random() < 0.5:
                raise Snooze(0)

    async def abody(n: int) -> None:
        await turns(n % 5)
        decide(n)

    def body(n: int) -> None:
        decide(n)

    kinds: dict[str, list[Any]] = {"async": [abody], "thread": [body], "mixed": [abody, body]}
    paths = kinds[kind]
    async with Watched() as store:
        ids = [
            await store.enqueue(Task(bodies(paths[n % len(paths)]), (n,), max_retries=20)) for n in range(120)
        ]
        async with running(store, 7, poll_interval=0.05, base_retry_delay=0.001):
            for task_id in ids:
                assert (await ended(store, task_id)).status is TaskStatus.SUCCESS
        assert store.most == 7
        assert store.log.most_held == 7
        assert max(store.log.limits) == 7


async def test_the_slot_is_taken_until_the_store_has_answered(bodies: Bodies) -> None:
    """A body has ended, its report is on its way: nothing else is claimed for that slot yet."""
    settling, answered = asyncio.Event(), asyncio.Event()

    class Slow(Memory):
        async def exchange(self, settlements: Any, claim: Any = None) -> Any:
            answers, claims = await super().exchange(settlements, None if settlements else claim)
            if settlements:
                settling.set()
                await answered.wait()
            return answers, claims

    async def body() -> None: ...

    async with Slow() as store, running(store, 1, poll_interval=0.01):
        first = await store.enqueue(Task(bodies(body)))
        await settling.wait()
        second = await store.enqueue(Task(bodies(body)))
        await turns()
        assert store.log.ids("claimed") == [first]
        answered.set()
        await ended(store, second)


async def test_priority_then_order(builtin: AnyStore, bodies: Bodies) -> None:
    ran: list[int] = []

    async def body(n: int) -> None:
        ran.append(n)

    async with builtin as store:
        for n, priority in enumerate((0, 5, 9, 5, 0)):
            await store.enqueue(Task(bodies(body), (n,), priority=priority))
        async with running(store, 1, poll_interval=0.05):
            await until(lambda: len(ran) == 5)
    assert ran == [2, 1, 3, 0, 4]


async def test_serves_the_queues_it_was_given(builtin: AnyStore, bodies: Bodies) -> None:
    async def body() -> None: ...

    async with builtin as store:
        ids = {q: await store.enqueue(Task(bodies(body), queue=q)) for q in ("mail", "video", "default")}
        async with running(store, 3, queues=["mail", "default"], poll_interval=0.05):
            await ended(store, ids["mail"])
            await ended(store, ids["default"])
            await turns()
        video = await task_of(store, ids["video"])
    assert (video.status, video.epoch) == (TaskStatus.PENDING, 0)


async def test_two_pools_share_without_doubling(builtin: AnyStore, bodies: Bodies) -> None:
    runs: list[int] = []

    async def body(n: int) -> None:
        runs.append(n)
        await asyncio.sleep(0)

    async with builtin as store:
        assert not isinstance(store, Five)
        ids = await store.enqueue_many([Task(bodies(body), (n,)) for n in range(100)])
        async with running(store, 5, poll_interval=0.05), running(store.clone(), 5, poll_interval=0.05):
            for task_id in ids:
                await ended(store, task_id)
    assert sorted(runs) == list(range(100))


async def test_a_paused_queue_yields_nothing(builtin: AnyStore, bodies: Bodies) -> None:
    async def body() -> None: ...

    async with builtin as store, running(store, 2, poll_interval=0.02):
        assert not isinstance(store, Five)
        await store.pause("mail")
        mail = await store.enqueue(Task(bodies(body), queue="mail"))
        other = await store.enqueue(Task(bodies(body)))
        await ended(store, other)
        looks = len(store.log.looks)
        await until(lambda: len(store.log.looks) > looks + 2)
        assert (await task_of(store, mail)).epoch == 0
        await store.resume("mail")
        await ended(store, mail)


async def test_concurrency_can_be_large(bodies: Bodies) -> None:
    """More slots than tasks; nothing is made in advance."""
    import threading

    async def body() -> None: ...

    before = threading.active_count()
    async with Memory() as store, running(store, 10_000):
        for task_id in [await store.enqueue(Task(bodies(body))) for _ in range(50)]:
            await ended(store, task_id)
        assert threading.active_count() - before < 10
