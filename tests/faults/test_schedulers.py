"""F19: one task per tick and no tick missing, with five schedulers that are killed and have other clocks."""

import subprocess
import sys
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from omniq.schedule import Schedule
from omniq.storage import SQLiteStorage
from omniq.task import Task


async def fired(path: Path, seconds: float, every_s: float) -> tuple[list[datetime], int]:
    """The ticks that became tasks, in order; and how many schedulers were killed meanwhile."""
    async with SQLiteStorage(path) as storage:
        await storage.save_schedule(
            Schedule(name="tick", call=Task("jobs.tick"), every=every_s, catch_up="all")
        )
    command = [sys.executable, "-m", "tests.faults.schedulers", str(path), str(seconds), str(every_s), "19"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 50, check=False)
    assert ended.returncode == 0, ended.stderr
    async with SQLiteStorage(path) as storage:
        assert await storage.verify() == []
        tasks = await storage.list_tasks(limit=10_000)
        return sorted(task.eta for task in tasks if task.eta is not None), int(ended.stdout)


def judge(ticks: list[datetime], every_s: float, at_least: int) -> None:
    assert len(ticks) >= at_least
    assert len(set(ticks)) == len(ticks)
    assert {later - earlier for earlier, later in pairwise(ticks)} == {timedelta(seconds=every_s)}


async def test_f19_one_task_per_tick_whoever_dies(tmp_path: Path) -> None:
    ticks, killed = await fired(tmp_path / "jobs.db", 3, 0.1)
    assert killed >= 5
    judge(ticks, 0.1, at_least=30)


@pytest.mark.soak
@pytest.mark.bound(420)
async def test_f19_three_hundred_ticks(tmp_path: Path) -> None:
    ticks, killed = await fired(tmp_path / "jobs.db", 305, 1.0)
    assert killed >= 100
    judge(ticks, 1.0, at_least=300)
