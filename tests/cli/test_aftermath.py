"""What a supervisor does with the tasks of a dead child, on the memory store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from omniq.cli.aftermath import Quarantine, give_back, release
from omniq.storage import MemoryStorage
from omniq.task import Settlement, Task, TaskStatus, WorkerInfo
from tests.cli.site import until

DEAD = "worker@host:1:dead"


async def die_with(store: MemoryStorage, *tasks: Task, times: int = 1) -> None:
    """Let a worker hold `tasks` when it dies for the `times`th time."""
    await store.enqueue_many(tasks)
    for _ in range(times - 1):
        assert len(await store.claim(DEAD, limit=len(tasks))) == len(tasks)
        await release(store, DEAD)
        for task in tasks:
            await store.reschedule(task.id, datetime.now(UTC))
    await store.beat(WorkerInfo(DEAD, "worker", "host", 1))
    assert len(await store.claim(DEAD, limit=len(tasks))) == len(tasks)


def tasks(how_many: int, max_losses: int = 3) -> list[Task]:
    return [Task("jobs.nap", (n,), max_losses=max_losses) for n in range(how_many)]


async def now(store: MemoryStorage, task: Task) -> Task:
    found = await store.get_task(task.id)
    assert found is not None
    return found


async def test_what_a_dead_process_held_is_lost_once() -> None:
    async with MemoryStorage() as store:
        some = tasks(3)
        await die_with(store, *some)
        assert len(await release(store, DEAD)) == 3
        states = {(task.status, task.losses) for task in [await now(store, one) for one in some]}
        assert states == {(TaskStatus.PENDING, 1)}
        assert await store.workers() == []


async def test_what_we_killed_ourselves_costs_nothing() -> None:
    async with MemoryStorage() as store:
        some = tasks(3)
        await die_with(store, *some)
        assert len(await give_back(store, DEAD)) == 3
        states = {(task.status, task.losses) for task in [await now(store, one) for one in some]}
        assert states == {(TaskStatus.PENDING, 0)}
        assert await store.workers() == []


@asynccontextmanager
async def quarantine(store: MemoryStorage, *, served: bool) -> AsyncIterator[Quarantine]:
    one = Quarantine(lambda: served)
    await one.admit(store, await release(store, DEAD))
    running = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def due(store: MemoryStorage, some: list[Task]) -> list[str]:
    """Which of these could be claimed now."""
    found = [await now(store, one) for one in some]
    waiting = [task for task in found if task.status is TaskStatus.PENDING]
    return [task.id for task in waiting if task.eta is not None and task.eta <= datetime.now(UTC)]


async def test_suspects_are_let_out_one_at_a_time() -> None:
    async with MemoryStorage() as store:
        some = tasks(3)
        await die_with(store, *some, times=2)
        async with quarantine(store, served=True):
            ran: list[str] = []
            for _ in some:

                async def one_is_due() -> bool:
                    return bool(await due(store, some))

                await until(one_is_due, "the next one")
                claims = await store.claim("worker@host:2:alive", limit=10)
                assert len(claims) == 1
                ran.append(claims[0].id)
                await store.settle([Settlement.success(claims[0], store.serializer.dumps(None))])
            assert ran == [task.id for task in some]


async def test_suspects_wait_while_nobody_serves() -> None:
    async with MemoryStorage() as store:
        some = tasks(2)
        await die_with(store, *some, times=2)
        async with quarantine(store, served=False):
            etas = [(await now(store, one)).eta for one in some]
        assert all(eta is not None and eta > datetime.now(UTC) + timedelta(seconds=30) for eta in etas)
        assert etas[0] != etas[1], "without us they would come up together"


async def test_those_with_chances_left_and_those_alone_run_at_once() -> None:
    async with MemoryStorage() as store:
        several, alone = tasks(2), tasks(1, max_losses=2)
        await die_with(store, *several)
        async with quarantine(store, served=False):
            assert len(await due(store, several)) == 2
        for one in several:
            await store.cancel(one.id)
        await die_with(store, *alone)
        async with quarantine(store, served=False):
            assert len(await due(store, alone)) == 1
