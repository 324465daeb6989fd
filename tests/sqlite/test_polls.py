"""A poll that found nothing is not made again as long as nobody writes and no moment has come."""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from omniq import Task
from omniq.storage import SQLiteStorage
from omniq.task import Answer, Claim, Settlement
from omniq.testing import VirtualClock
from tests.sqlite.test_commits import counted
from tests.sqlite.test_wake import no_folder_beside

HOUR = timedelta(hours=1)


async def poll(storage: SQLiteStorage, *queues: str) -> list[str]:
    _, claims = await storage.exchange([], Claim("ann", queues or None, 10))
    return [claimed.id for claimed in claims]


async def found_nothing(storage: SQLiteStorage, *queues: str) -> None:
    """Twice: the first time after an enqueue a ring is still to be heard."""
    for _ in range(2):
        assert await poll(storage, *queues) == []


async def test_it_leaves_the_writer_alone(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        await storage.enqueue(Task("a.b", eta=storage.clock.now() + HOUR))
        await found_nothing(storage)
        with counted(storage) as words:
            for _ in range(5):
                assert await poll(storage) == []
        assert words == {}


async def by_another_connection(storage: SQLiteStorage) -> None:
    """As another process would that rings no bell."""
    with closing(sqlite3.connect(storage.path)) as conn, conn:
        conn.execute("UPDATE omniq_task SET eta = 0, due = 0")


async def by_rescheduling(storage: SQLiteStorage) -> None:
    async with storage.clone() as other:
        await other.reschedule((await other.list_tasks())[0].id, storage.clock.now())


async def by_time(storage: SQLiteStorage) -> None:
    assert isinstance(storage.clock, VirtualClock)
    await storage.clock.advance(hours=2)


@pytest.mark.parametrize("change", [by_another_connection, by_rescheduling, by_time])
async def test_what_has_come_up_is_found(
    database: Path, change: Callable[[SQLiteStorage], Awaitable[None]]
) -> None:
    async with SQLiteStorage(database, clock=VirtualClock()) as storage:
        task_id = await storage.enqueue(Task("a.b", eta=storage.clock.now() + HOUR))
        await found_nothing(storage)
        await change(storage)
        assert await poll(storage) == [task_id]


async def test_nothing_for_one_is_not_nothing_for_another(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        task_id = await storage.enqueue(Task("a.b", queue="letters"))
        await found_nothing(storage, "parcels")
        assert await poll(storage, "letters") == [task_id]


async def test_a_claim_for_no_slots_says_nothing_about_the_next(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        task_id = await storage.enqueue(Task("a.b"))
        for _ in range(2):
            await storage.exchange([], Claim("ann", None, 0))
        assert await poll(storage) == [task_id]


async def test_a_clock_that_was_set_back_is_asked_anew(database: Path) -> None:
    """What has no eta is due whatever the clock says; only a claim knows how far to look."""
    clock = VirtualClock()
    async with SQLiteStorage(database, clock=clock) as storage:
        await storage.enqueue(Task("a.b", eta=clock.now() + HOUR))
        await found_nothing(storage)
        clock.set_wall(clock.now() - HOUR)
        with counted(storage) as words:
            assert await poll(storage) == []
        assert words["BEGIN"] == 1


async def test_without_sockets_a_report_is_told_all_the_same(database: Path) -> None:
    """There a look at the file comes before every claim, also of those that bring something."""
    with no_folder_beside(database):
        async with SQLiteStorage(database) as storage:
            await storage.enqueue(Task("a.b"))
            [task] = await storage.claim("ann", limit=1)
            await found_nothing(storage)
            told = [Settlement.success(task, b"done")]
            assert await storage.exchange(told, Claim("ann", None, 10)) == ([Answer.HELD], [])
