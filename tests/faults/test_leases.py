"""F2, F3, F15, F16: long runs, stopped processes, a blocked loop, threads that never return."""

import contextlib
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from omniq import TaskStatus
from omniq.storage import SQLiteStorage
from omniq.task import RunOutcome
from tests.faults.judge import judge
from tests.faults.processes import Child, Field, drained, eventually
from tests.faults.worker import STUCK


async def begun(field: Field, task_id: str, worker: Child) -> None:
    async def is_begun() -> bool:
        return any(run.pid == worker.pid for run in field.ledger.runs(task_id))

    await eventually(is_begun)


# --- F2 -------------------------------------------------------------------------------------------


async def run_longer_than_its_lease(field: Field, lease_s: float) -> None:
    async with SQLiteStorage(field.database) as storage:
        workers = [field.worker(lease=lease_s) for _ in range(4)]
        for worker in workers:
            worker.line("READY")
        task_id = await field.enqueue(storage, "nap", 10 * lease_s)
        await drained(storage, [task_id])
        await judge(storage, field.ledger)
        [run] = field.ledger.runs(task_id)
        renewals = [e for e in field.ledger.entries("RENEW") if e.fields[0] == str(run.pid) and e.at > run.at]
        # A third of the lease: thirty times in ten leases. A busy machine may make it a few less.
        assert len(renewals) >= 25


@pytest.mark.quiet
async def test_f2_a_run_of_ten_leases_is_one_run(field: Field) -> None:
    await run_longer_than_its_lease(field, lease_s=0.4)


@pytest.mark.soak
async def test_f2_a_run_of_ten_seconds_is_one_run(field: Field) -> None:
    await run_longer_than_its_lease(field, lease_s=1.0)


# --- F3 -------------------------------------------------------------------------------------------


async def stopped_between_writes(worker: Child, database: Path) -> bool:
    """Stop it, unless that was in the middle of a write: then nobody could write until it goes on."""
    worker.signal(signal.SIGSTOP)
    while Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        pass
    with contextlib.closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as conn:
        try:
            conn.execute("BEGIN IMMEDIATE")
            conn.execute("ROLLBACK")
        except sqlite3.OperationalError:
            worker.signal(signal.SIGCONT)
            return False
    return True


class Zombie:
    """Worker A is stopped with a task in its hands; worker B takes it over; A wakes up and goes on."""

    def __init__(self, field: Field, body: str, lease_s: float, *, late_upkeep: bool = False) -> None:
        self.field, self.body, self.lease_s, self.late_upkeep = field, body, lease_s, late_upkeep
        self.go = field.folder / "go"

    async def begin(self, storage: SQLiteStorage) -> None:
        self.task_id = await self.field.enqueue(storage, self.body, str(self.go), max_retries=0)
        self.a = self.field.worker(lease=self.lease_s, name="A", late_upkeep=self.late_upkeep)
        await begun(self.field, self.task_id, self.a)
        await eventually(lambda: stopped_between_writes(self.a, self.field.database))
        stopped_at = time.monotonic()
        self.b = self.field.worker(lease=self.lease_s, name="B")
        await begun(self.field, self.task_id, self.b)
        assert time.monotonic() - stopped_at >= self.lease_s / 2, "taken over while its lease was good"

    async def end(self, storage: SQLiteStorage) -> None:
        await drained(storage, [self.task_id])
        for worker in (self.a, self.b):
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
        await judge(storage, self.field.ledger, lease_s=self.lease_s)


async def test_f3_a_zombie_that_finishes_first_changes_nothing(field: Field) -> None:
    """Its upkeep hangs as well, so that nobody tells it: it reports, and is refused."""
    zombie = Zombie(field, "until_file", 0.6, late_upkeep=True)
    async with SQLiteStorage(field.database) as storage:
        await zombie.begin(storage)
        await eventually(lambda: stopped_between_writes(zombie.b, field.database))  # A is to be the first
        zombie.go.touch()
        zombie.a.signal(signal.SIGCONT)

        async def refused() -> bool:
            return len(field.ledger.entries("STALE")) == 1

        await eventually(refused)
        [stale] = field.ledger.entries("STALE")
        assert stale.fields == (zombie.task_id, "1", str(zombie.a.pid))
        zombie.a.kill()
        task = await storage.get_task(zombie.task_id)
        assert task is not None
        assert (task.status, task.epoch) == (TaskStatus.RUNNING, 2), "the zombie's report was taken"
        zombie.b.signal(signal.SIGCONT)
        await drained(storage, [zombie.task_id])
        result = await storage.get_result(zombie.task_id)
        assert result is not None
        assert (result.status, result.result) == (TaskStatus.SUCCESS, zombie.b.pid)


@pytest.mark.parametrize("body", ["until_file", "until_file_then_fail", "until_file_then_snooze"])
async def test_f3_whatever_a_zombie_reports_the_newer_run_decides(field: Field, body: str) -> None:
    """A wakes up while B runs; both end; what B says is what the store says."""
    zombie = Zombie(field, body, 0.6)
    async with SQLiteStorage(field.database) as storage:
        await zombie.begin(storage)
        zombie.a.signal(signal.SIGCONT)
        zombie.go.touch()
        if body == "until_file_then_snooze":

            async def given_back() -> bool:
                return len(await storage.history(zombie.task_id)) == 2

            await eventually(given_back)
            await storage.cancel(zombie.task_id)
        await zombie.end(storage)
        history = await storage.history(zombie.task_id)
        expected = {
            "until_file": [RunOutcome.LOST],
            "until_file_then_fail": [RunOutcome.LOST, RunOutcome.FAILED],
            "until_file_then_snooze": [RunOutcome.LOST, RunOutcome.GIVEN_BACK],
        }
        assert [run.outcome for run in history] == expected[body]
        assert len(field.ledger.runs(zombie.task_id)) == 2


async def test_f3_a_zombies_heartbeat_revives_nothing(field: Field) -> None:
    """A wakes up and renews: the lease of B's run is not extended by it, and A is told to stop."""
    zombie = Zombie(field, "until_file", 0.6)
    async with SQLiteStorage(field.database) as storage:
        await zombie.begin(storage)
        zombie.a.signal(signal.SIGCONT)

        async def told() -> bool:
            return "lost" in zombie.a.log.read_text()

        await eventually(told, what="A is told that its run is lost")
        task = await storage.get_task(zombie.task_id)
        assert task is not None
        assert task.epoch == 2
        assert str(zombie.b.pid) in str(task.owner)
        zombie.go.touch()
        await zombie.end(storage)
        result = await storage.get_result(zombie.task_id)
        assert result is not None
        assert result.result == zombie.b.pid


# --- F15 ------------------------------------------------------------------------------------------


async def test_f15_a_blocked_loop_loses_no_lease(field: Field) -> None:
    """The renewal is not on the loop that a body blocks for five leases; its neighbour loses nothing."""
    lease_s = 0.8
    async with SQLiteStorage(field.database) as storage:
        neighbour = await field.enqueue(storage, "nap", 0.1)
        blocker = await field.enqueue(storage, "block_the_loop", 5 * lease_s)
        worker = field.worker(lease=lease_s, concurrency=2)
        await begun(field, blocker, worker)
        idle = field.worker(lease=lease_s)
        idle.line("READY")
        await drained(storage, [neighbour, blocker])
        tasks = await judge(storage, field.ledger)
        assert {task.losses for task in tasks.values()} == {0}
        assert {run.pid for run in field.ledger.runs()} == {worker.pid}


# --- F16 ------------------------------------------------------------------------------------------


@pytest.mark.bound(60)
async def test_f16_a_worker_whose_every_slot_is_stuck_says_so_and_ends(field: Field) -> None:
    """Threads that never return: no slot is given away, the program ends non-zero, another one goes on."""
    async with SQLiteStorage(field.database) as storage:
        stuck = [await field.enqueue(storage, "never_return", timeout=0.2, max_retries=0) for _ in range(4)]
        waiting = await field.enqueue(storage, "thread_nap", 0.0)
        worker = field.worker(concurrency=4)
        await drained(storage, stuck)
        assert len(field.ledger.runs()) == 4, "a stuck slot was given away"
        assert "all 4 slots" in worker.line("STUCK")
        assert worker.wait(5) == STUCK, "threads kept the interpreter from exiting"
        for task_id in stuck:
            task = await storage.get_task(task_id)
            assert task is not None
            assert task.error is not None
            assert (task.status, task.error.kind) == (TaskStatus.FAILED, "timeout")
        field.worker(concurrency=4)
        await drained(storage, [waiting])


def test_the_clock_of_leases_is_the_one_of_the_ledger(tmp_path: Path) -> None:
    """The judge compares moments of several processes: on one host their monotonic clocks are one."""
    with Field(tmp_path) as field:
        before = time.monotonic()
        child = field.script("import time; print('NOW', time.monotonic(), flush=True)")
        there = float(child.line("NOW"))
        assert child.wait() == 0
        assert before <= there <= time.monotonic()
        assert os.getpid() != child.pid
