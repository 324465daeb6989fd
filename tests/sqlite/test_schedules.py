"""Schedules in a file that somebody has damaged: the others go on, and nobody spins."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from omniq import AsyncWorkerPool
from omniq.errors import CorruptRecord
from omniq.schedule import Schedule
from omniq.storage import SQLiteStorage
from omniq.task import Task
from omniq.testing import VirtualClock
from tests.worker.scene import Logs

RECORDS = {
    "nonsense": b"\xff\x00",
    "nothing": b"",
    "text": "text",
    "number": 7,
    "another shape": b"\x81\xa4name\xa1x",
}


def damage(path: Path, record: object, next_at: object = 0) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("INSERT OR REPLACE INTO omniq_schedule VALUES ('bad', ?, ?)", (next_at, record))
        conn.commit()


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
async def test_one_that_cannot_be_read_stops_no_other(tmp_path: Path, record: object, logs: Logs) -> None:
    clock = VirtualClock()
    async with SQLiteStorage(tmp_path / "jobs.db", clock=clock) as storage:
        await storage.save_schedule(Schedule(name="good", call=Task("jobs.a"), every=5.0))
        damage(storage.path, record)
        for _ in range(3):
            await clock.advance(5)
            assert len((await storage.fire_due()).ids) == 1
        assert [one.name for one in await storage.schedules()] == ["good"]
        with pytest.raises(CorruptRecord):
            await storage.pause_schedule("bad")
        await storage.delete_schedule("bad")
    assert any("schedule 'bad'" in line for line in logs.lines("ERROR"))


async def test_a_zone_that_is_unknown_here_is_told_once_and_nobody_spins(tmp_path: Path, logs: Logs) -> None:
    """A schedule that was saved where time zones are newer: it stays due, and costs a look a second."""
    clock, looks = VirtualClock(), 0

    class Counting(SQLiteStorage):
        async def fire_due(self, limit: int = 100):  # type: ignore[no-untyped-def]
            nonlocal looks
            looks += 1
            return await super().fire_due(limit)

    async with Counting(tmp_path / "jobs.db", clock=clock) as storage:
        await storage.save_schedule(Schedule(name="bad", call=Task("jobs.a"), cron="* * * * *"))
        with closing(sqlite3.connect(storage.path)) as conn:
            [(record,)] = conn.execute("SELECT record FROM omniq_schedule")
        damage(storage.path, record.replace(b"\xa3UTC", b"\xa3XYZ"))
        async with AsyncWorkerPool(storage, clock=clock):
            for _ in range(20):
                await clock.advance(1)
        assert await storage.list_tasks() == []
        assert 0 < looks <= 25
    assert sum("XYZ" in line for line in logs.lines("ERROR")) == 1


async def test_a_tick_late_by_a_year_is_one_write(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with SQLiteStorage(tmp_path / "jobs.db", clock=clock) as storage:
        saved = await storage.save_schedule(Schedule(name="good", call=Task("jobs.a"), cron="* * * * *"))
        clock.set_wall(clock.now() + timedelta(days=365))
        assert len((await storage.fire_due()).ids) == 1
        [kept] = await storage.schedules()
        assert saved.next_at is not None
        assert kept.next_at == saved.next_at + timedelta(days=365)
