"""Leases count on the host's steady clock: neither a changed wall clock nor a restart fools them."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from omniq import Task, TaskStatus
from omniq.storage import SQLiteStorage
from omniq.testing import VirtualClock
from omniq.testing.clock import START
from tests.faults.processes import Field, eventually

DAY = timedelta(days=1)


async def running(storage: SQLiteStorage) -> int:
    return (await storage.counts())["default"][TaskStatus.RUNNING]


# --- the wall -------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [DAY, -DAY, 3650 * DAY])
async def test_a_jump_of_the_wall_clock_neither_ends_a_lease_nor_keeps_one(
    database: Path, jump: timedelta
) -> None:
    clock = VirtualClock()
    async with SQLiteStorage(database, clock=clock) as storage:
        await storage.enqueue(Task("a.b"))
        assert await storage.claim("ann", lease=10)
        clock.set_wall(clock.now() + jump)
        assert await storage.lapse() == 0, "the jump ended a living lease"
        await clock.advance(9)
        assert await storage.lapse() == 0
        await clock.advance(1)
        assert await storage.lapse() == 1, "the jump kept a dead lease"


async def test_what_is_due_follows_the_wall_because_people_mean_it(database: Path) -> None:
    clock = VirtualClock()
    async with SQLiteStorage(database, clock=clock) as storage:
        await storage.enqueue(Task("a.b", eta=START + DAY))
        assert await storage.claim("ann") == []
        clock.set_wall(START + DAY)
        assert await storage.claim("ann")


@pytest.mark.parametrize("opened", ["before", "after"])
async def test_a_wall_that_went_back_hides_no_task_without_an_eta(database: Path, opened: str) -> None:
    """Enqueued "tomorrow" by a wrong clock; whoever claims may have seen that clock, or come later."""
    clock = VirtualClock(START + DAY)
    async with SQLiteStorage(database, clock=clock) as storage:
        if opened == "before":
            assert await storage.claim("ann") == []
        task_id = await storage.enqueue(Task("a.b"))
        late = await storage.enqueue(Task("a.b", eta=START + DAY))
    clock.set_wall(START)
    async with SQLiteStorage(database, clock=clock) as storage:
        assert [claim.id for claim in await storage.claim("ann", limit=5)] == [task_id]
        await clock.advance(days=1)
        assert [claim.id for claim in await storage.claim("bob", limit=5)] == [late]


# --- another boot ---------------------------------------------------------------------------------


def move_to_another_boot(database: Path) -> None:
    """As if what runs now had been claimed before the machine was restarted, with years of uptime then."""
    with closing(sqlite3.connect(database)) as conn:
        conn.execute("INSERT INTO omniq_boot (boot_id) VALUES ('before the restart')")
        [(boot,)] = conn.execute("SELECT boot FROM omniq_boot WHERE boot_id = 'before the restart'")
        conn.execute("UPDATE omniq_task SET boot = ?, lease = ? WHERE status = 1", (boot, 2**60))
        conn.commit()


async def test_a_restart_of_the_machine_ends_the_leases_of_the_dead(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        await storage.enqueue(Task("a.b"))
        assert await storage.claim("ann", lease=1000)
        assert await storage.lapse() == 0
        move_to_another_boot(database)
        assert await storage.lapse() == 1


async def test_a_power_cut_leaves_free_locks_and_another_boot(field: Field) -> None:
    """Both at once say that the worker is dead; its task is taken back once, and the next ones too."""
    async with SQLiteStorage(field.database) as storage:
        for _ in range(2):
            await field.enqueue(storage, "until_file", str(field.folder / "never"))
        worker = field.worker(lease=1000.0, concurrency=2)
        await eventually(lambda: known(storage, 1))
        await eventually(lambda: holds(storage, 2))
        worker.kill()
        move_to_another_boot(field.database)
        assert await storage.lapse() == 2
        assert await storage.lapse() == 0
        assert await storage.verify() == []


async def test_another_boot_whose_lock_is_held_ends_nothing(field: Field) -> None:
    """Containers that share a file may each see another boot; who holds the lock file lives."""
    async with SQLiteStorage(field.database) as storage:
        await field.enqueue(storage, "until_file", str(field.folder / "go"))
        worker = field.worker(lease=1000.0)
        await eventually(lambda: known(storage, 1))
        await eventually(lambda: holds(storage, 1))
        move_to_another_boot(field.database)
        assert await storage.lapse() == 0, "taken from a worker that lives"
        assert await running(storage) == 1
        worker.kill()
        assert await storage.lapse() == 1, "left with a worker that is dead"


async def known(storage: SQLiteStorage, how_many: int) -> bool:
    return len(await storage.workers()) == how_many


async def holds(storage: SQLiteStorage, how_many: int) -> bool:
    return await running(storage) == how_many


async def test_the_next_renewal_brings_a_lease_into_this_boot(database: Path) -> None:
    clock = VirtualClock()
    async with SQLiteStorage(database, clock=clock) as storage:
        await storage.enqueue(Task("a.b"))
        assert await storage.claim("ann", lease=10)
        move_to_another_boot(database)
        await storage.renew("ann", 10)
        assert await storage.lapse() == 0
        await clock.advance(10)
        assert await storage.lapse() == 1
