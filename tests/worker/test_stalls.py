"""A worker notices that its own loop is blocked, and by what. Issue 7, point 6."""

import asyncio
import time
from pathlib import Path

from loguru import logger

from omniq import AsyncWorkerPool, Task
from omniq.stalls import STALL_S
from omniq.storage import MemoryStorage, SQLiteStorage


async def a_body_that_blocks_the_loop() -> None:
    time.sleep(STALL_S + 1.2)


async def test_a_blocked_loop_is_logged_with_the_stack_of_what_blocks_it(tmp_path: Path) -> None:
    said: list[str] = []
    sink = logger.add(lambda line: said.append(str(line)), level="WARNING", format="{message}")
    path = f"{__name__}.a_body_that_blocks_the_loop"
    try:
        async with SQLiteStorage(tmp_path / "jobs.db", durability="relaxed") as storage:
            task_id = await storage.enqueue(Task(path))
            async with AsyncWorkerPool(storage, poll_interval=0.05) as pool:
                assert await storage.wait_result(task_id, 30) is not None
                assert pool.loop_stalls >= 1
                assert pool.info().loop_stalls >= 1
    finally:
        logger.remove(sink)
    told = [line for line in said if "has not moved" in line]
    assert any("a_body_that_blocks_the_loop" in line and "time.sleep" in line for line in told), said
    assert any("moves again" in line for line in said)


async def test_a_blocked_loop_is_told_to_the_store(tmp_path: Path) -> None:
    """By the beat of the thread beside it: health must not take slots that are full of it for work."""
    path = f"{__name__}.a_body_that_blocks_the_loop"
    async with SQLiteStorage(tmp_path / "jobs.db", durability="relaxed") as storage:
        task_id = await storage.enqueue(Task(path))
        blocked: list[float] = []
        twin = storage.clone()

        def look() -> None:
            async def seen() -> None:
                async with twin:
                    blocked.extend(one.blocked_s for one in await twin.workers())

            while not any(blocked):
                asyncio.run(seen())

        async with AsyncWorkerPool(storage, poll_interval=0.05, lease=0.6) as pool:
            await asyncio.wait_for(asyncio.to_thread(look), 30)
            assert await storage.wait_result(task_id, 30) is not None
            assert pool.info().blocked_s == 0
        assert max(blocked) >= STALL_S


async def test_a_loop_that_moves_is_not_accused() -> None:
    async with AsyncWorkerPool(MemoryStorage(), poll_interval=0.05) as pool:
        assert pool._stalls is not None
        for _ in range(3):
            pool._stalls.look()
        assert pool.loop_stalls == 0
