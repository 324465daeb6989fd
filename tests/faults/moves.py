"""What must come of moves that were killed at every step."""

import asyncio
import json
import subprocess
import sys

from omniq.storage import open_storage


async def left_in(url: str) -> tuple[int, list[str], object, list[str]]:
    async with open_storage(url) as storage:
        schedules = [one.name for one in await storage.schedules()]
        tasks = len(await storage.list_tasks())
        return tasks, schedules, await storage.take_out(), await storage.verify()


def judge_moves(source: str, target: str) -> None:
    """Every task arrives once, with its epoch and attempts; every schedule too; nothing stays behind."""
    command = [sys.executable, "-m", "tests.faults.mover", source, target]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr
    turns = json.loads(ended.stdout)
    killed = [turn["name"] for turn in turns if turn["ended"] == -9]
    assert len(killed) >= 12, ended.stderr
    for turn in turns:
        assert turn["finished"] == 0, ended.stderr
        first, *rest = turn["ids"]
        assert sorted(turn["done"]) == sorted([f"{first}/2/1", *(f"{one}/1/0" for one in rest)]), turn
    tasks, schedules, parcel, wrong = asyncio.run(left_in(source))
    assert (tasks, schedules, parcel, wrong) == (0, [], None, [])
    _, schedules, _, wrong = asyncio.run(left_in(target))
    assert (sorted(schedules), wrong) == (sorted(turn["name"] for turn in turns), [])
