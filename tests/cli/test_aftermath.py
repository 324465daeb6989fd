"""What a supervisor does with the tasks of a dead child, on the memory store."""

from datetime import UTC, datetime

from omniq.cli.aftermath import give_back, release
from omniq.storage import MemoryStorage
from omniq.task import Task, TaskStatus, WorkerInfo

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
