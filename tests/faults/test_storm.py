"""F27: many processes on one file, an application that locks it too, kills at random."""

import random
import sqlite3
import time
from contextlib import closing

import pytest

from omniq.storage import SQLiteStorage
from tests.faults.processes import Child, Field

PROCESSES = 8
FIXED_IN = (3, 51, 3)  # versions before have a race between a checkpoint and the restart of the log
ROGUE = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
while True:
    conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
"""


def integrity(field: Field) -> list[tuple[str]]:
    with closing(sqlite3.connect(field.database, timeout=30)) as conn:
        return conn.execute("PRAGMA integrity_check").fetchall()


async def weather(field: Field, duration_s: float, lease_s: float, kill_every_s: float) -> None:
    async with SQLiteStorage(field.database):
        with closing(sqlite3.connect(field.database)) as conn:
            conn.execute("CREATE TABLE app (pid)")
            conn.commit()

    def start() -> Child:
        return field.run("tests.faults.storm", {"database": str(field.database), "lease_s": lease_s})

    crew = [start() for _ in range(PROCESSES)]
    for child in crew:
        child.line("READY")
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        time.sleep(min(kill_every_s, max(0.0, end - time.monotonic())))  # the storm's own duration
        slot = random.randrange(PROCESSES)
        crew[slot].kill()
        crew[slot] = start()
        crew[slot].line("READY")
        assert integrity(field) == [("ok",)]
    for child in crew:
        child.tell("end")
    late_s = [float(child.line("LATE")) for child in crew]
    rounds = [int(child.line("ROUNDS")) for child in crew]
    assert [child.wait() for child in crew] == [0] * PROCESSES
    assert max(late_s) < lease_s / 2
    assert sum(rounds) > duration_s, f"hardly anything was done: {rounds}"
    assert integrity(field) == [("ok",)]
    async with SQLiteStorage(field.database) as storage:
        assert await storage.verify() == []
        counts = (await storage.counts())["default"]
        # A process may have been killed between the commit and the ledger, never the other way round.
        assert sum(counts.values()) >= len(field.ledger.enqueued())
        with closing(sqlite3.connect(field.database)) as conn:
            known = {task_id for (task_id,) in conn.execute("SELECT id FROM omniq_task")}
        assert set(field.ledger.enqueued()) <= known


@pytest.mark.quiet
@pytest.mark.bound(120)
async def test_f27_many_processes_on_one_file(field: Field) -> None:
    await weather(field, duration_s=10, lease_s=3.0, kill_every_s=3)


@pytest.mark.soak
@pytest.mark.bound(900)
async def test_f27_many_processes_on_one_file_for_ten_minutes(field: Field) -> None:
    await weather(field, duration_s=600, lease_s=6.0, kill_every_s=10)


@pytest.mark.soak
@pytest.mark.bound(900)
@pytest.mark.skipif(
    sqlite3.sqlite_version_info < FIXED_IN,
    reason=f"SQLite {sqlite3.sqlite_version} itself may damage a file when somebody else checkpoints",
)
async def test_f27_a_rogue_checkpointer_does_no_harm(field: Field) -> None:
    field.script(ROGUE, field.database)
    await weather(field, duration_s=300, lease_s=6.0, kill_every_s=10)
