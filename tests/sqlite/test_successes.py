"""Successes that are settled many at once: their number says whether all of them held."""

import asyncio
from pathlib import Path

from omniq import Task
from omniq.storage import SQLiteStorage
from omniq.task import Answer, Claim, Settlement, StoredTask, TaskStatus, replace

MANY = 120  # more than one statement takes


async def claimed(storage: SQLiteStorage) -> list[StoredTask]:
    _, tasks = await storage.exchange([], Claim("w", None, MANY))
    found = [task for task in tasks if isinstance(task, StoredTask)]
    assert len(found) == MANY
    return found


def successes(tasks: list[StoredTask]) -> list[Settlement]:
    return [Settlement.success(task, b"done") for task in tasks]


async def test_one_that_is_stale_among_many_changes_nothing(database: Path) -> None:
    """The first try is undone, and with it what shares its commit; all of it is done again."""
    async with SQLiteStorage(database) as storage:
        await storage.enqueue_many([Task("a.b") for _ in range(MANY)])
        tasks = await claimed(storage)
        tasks[70] = replace(tasks[70], epoch=9)
        (answers, _), task_id = await asyncio.gather(
            storage.exchange(successes(tasks)), storage.enqueue(Task("a.b"))
        )
        assert [n for n, answer in enumerate(answers) if answer is not Answer.HELD] == [70]
        assert answers[70] is Answer.STALE
        assert (await storage.get_task(task_id)) is not None
        counts = (await storage.counts())["default"]
        assert (counts[TaskStatus.SUCCESS], counts[TaskStatus.RUNNING]) == (MANY - 1, 1)
        assert await storage.verify() == []


async def test_what_is_told_again_is_already_so(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        await storage.enqueue_many([Task("a.b") for _ in range(MANY)])
        told = successes(await claimed(storage))
        first, _ = await storage.exchange(told[: MANY // 2])
        again, _ = await storage.exchange(told)
        assert first == [Answer.HELD] * (MANY // 2)
        assert again == [Answer.ALREADY] * (MANY // 2) + [Answer.HELD] * (MANY // 2)
        assert await storage.verify() == []


async def test_a_report_that_names_another_queue_is_counted_where_the_task_is(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        await storage.enqueue_many([Task("a.b") for _ in range(MANY)])
        told = successes([replace(task, queue="elsewhere") for task in await claimed(storage)])
        answers, _ = await storage.exchange(told)
        assert answers == [Answer.HELD] * MANY
        assert set(await storage.counts()) == {"default"}
        assert await storage.verify() == []
