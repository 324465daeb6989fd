"""F4: tasks for later survive restarts, run once, not before their time and not long after it."""

import random
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from omniq import TaskStatus
from omniq.storage import SQLiteStorage
from omniq.task import Settlement, StoredTask, Task
from omniq.testing import VirtualClock
from omniq.testing.clock import START
from tests.faults.judge import judge
from tests.faults.processes import Field, drained

MONTH = timedelta(days=30)


async def test_f4_a_month_of_etas_over_a_restart(tmp_path: Path) -> None:
    """A thousand tasks in virtual time; the store is closed and opened again when half of it has passed."""
    chance = random.Random(4)
    clock = VirtualClock()
    etas = {f"t{n}": START + MONTH * chance.random() for n in range(1000)}
    ran: dict[str, datetime] = {}
    async with SQLiteStorage(tmp_path / "jobs.db", clock=clock, durability="relaxed") as storage:
        await storage.enqueue_many([Task("a.b", id=task_id, eta=eta) for task_id, eta in etas.items()])
        await run_until(storage, clock, START + MONTH / 2, ran)
    assert 400 < len(ran) < 600
    async with SQLiteStorage(tmp_path / "jobs.db", clock=clock, durability="relaxed") as storage:
        await run_until(storage, clock, START + MONTH, ran)
        counts = await storage.counts()
    assert counts["default"][TaskStatus.SUCCESS] == len(etas)
    for task_id, eta in etas.items():
        assert timedelta(0) <= ran[task_id] - eta <= timedelta(seconds=1)


async def run_until(
    storage: SQLiteStorage, clock: VirtualClock, end: datetime, ran: dict[str, datetime]
) -> None:
    """As a worker does: claim what is due, settle it, sleep until the store says that there is more."""
    while clock.now() < end:
        claims = await storage.claim("ann", limit=10)
        for task in claims:
            assert isinstance(task, StoredTask)
            assert task.id not in ran, "it ran twice"
            ran[task.id] = clock.now()
        done = storage.serializer.dumps(None)
        await storage.settle([Settlement.success(task, done) for task in claims])
        if not claims:
            next_due = storage._next_due or end
            await clock.advance(max(0.001, (min(next_due, end) - clock.now()).total_seconds()))


async def test_f4_an_eta_of_five_leases_over_a_restart_of_all_workers(field: Field) -> None:
    lease_s, poll_s = 0.4, 0.2
    async with SQLiteStorage(field.database) as storage:
        eta = datetime.now(UTC) + timedelta(seconds=5 * lease_s)
        due_at = time.monotonic() + 5 * lease_s
        ids = [await field.enqueue(storage, "nap", 0.0, eta=eta) for _ in range(5)]
        first = [field.worker(lease=lease_s, poll_interval=poll_s) for _ in range(2)]
        for worker in first:
            worker.line("READY")
            worker.signal(signal.SIGTERM)
        assert [worker.wait() for worker in first] == [0, 0]
    async with SQLiteStorage(field.database) as storage:  # the store as well was closed in between
        second = field.worker(lease=lease_s, poll_interval=poll_s, concurrency=5)
        ready_at = float(second.line("READY").split()[-1])
        await drained(storage, ids)
        await judge(storage, field.ledger)
        for task_id in ids:
            [run] = field.ledger.runs(task_id)
            assert due_at - 0.01 <= run.at <= max(due_at, ready_at) + poll_s + 1.0
