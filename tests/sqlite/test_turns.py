"""Processes write in turns. A turn only orders: whoever keeps it stops nobody for good."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from omniq import AsyncWorkerPool, Task
from omniq.errors import StoreUnavailable
from omniq.storage import SQLiteStorage
from tests.faults.processes import Field

BUSY_TIMEOUT_S = 5.0

KEEPER = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.flock(file, fcntl.LOCK_EX)
print("KEPT", flush=True)
sys.stdin.readline()
"""


@pytest.mark.bound(60)
async def test_a_process_that_keeps_its_turn_for_ever_stops_nobody_for_ever(field: Field) -> None:
    async with SQLiteStorage(field.database) as storage:
        await storage.enqueue(Task("a.b"))
        keeper = field.script(KEEPER, Path(f"{field.database}-omniq") / "write.lock")
        keeper.line("KEPT")
        keeper.signal(signal.SIGSTOP)
        begin = time.monotonic()
        try:
            async with asyncio.timeout(2 * BUSY_TIMEOUT_S + 5):
                await storage.enqueue(Task("a.b"))
        except StoreUnavailable:
            pytest.fail("nobody else writes, so there is nothing to wait for but a turn")
        assert time.monotonic() - begin < BUSY_TIMEOUT_S + 2


@pytest.mark.bound(90)
async def test_a_worker_still_ends_while_somebody_keeps_the_turn(field: Field) -> None:
    async with SQLiteStorage(field.database) as storage:
        pool = AsyncWorkerPool(storage.clone())
        await pool.start()
        keeper = field.script(KEEPER, Path(f"{field.database}-omniq") / "write.lock")
        keeper.line("KEPT")
        begin = time.monotonic()
        async with asyncio.timeout(60):
            await pool.stop(timeout=0.5)
        assert time.monotonic() - begin < 4 * BUSY_TIMEOUT_S
        keeper.kill()
        await storage.enqueue(Task("a.b"))


WRITER = """
import asyncio, sys, time
from omniq import Task
from omniq.storage import SQLiteStorage

async def main():
    async with SQLiteStorage(sys.argv[1]) as storage:
        print("READY", flush=True)
        sys.stdin.readline()
        worst_s = 0.0
        for _ in range(50):
            begin = time.monotonic()
            await storage.enqueue(Task("a.b"))
            worst_s = max(worst_s, time.monotonic() - begin)
        print("WORST", worst_s, flush=True)

asyncio.run(main())
"""


@pytest.mark.quiet
def test_nobody_starves_among_writing_processes(field: Field) -> None:
    """SQLite's own waiting sleeps up to 100 ms at a time and serves nobody in order; turns do."""
    writers = [field.script(WRITER, field.database) for _ in range(4)]
    for writer in writers:
        writer.line("READY")
    for writer in writers:
        writer.tell("go")
    worst_s = [float(writer.line("WORST")) for writer in writers]
    assert max(worst_s) < 1.0
    assert [writer.wait() for writer in writers] == [0] * 4
