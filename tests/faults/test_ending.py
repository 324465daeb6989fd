"""F12, F29: workers that end in good order, beside their successors, on one signal and on a second."""

import asyncio
import signal
import sqlite3
import time
from contextlib import closing

import pytest

from omniq import Task, TaskStatus
from omniq.storage import SQLiteStorage
from tests.faults.judge import judge
from tests.faults.processes import Child, Field, drained, eventually

CANCEL_GRACE_S = 2.0


async def running(storage: SQLiteStorage, queue: str = "default") -> int:
    return (await storage.counts()).get(queue, {}).get(TaskStatus.RUNNING, 0)


# --- F12 ------------------------------------------------------------------------------------------


async def test_f12_a_draining_worker_never_claims_what_its_successor_is_to_have(field: Field) -> None:
    """A rolling restart under one configured name: the old one drains while the new one starts."""
    async with SQLiteStorage(field.database) as storage:
        held = [await field.enqueue(storage, "until_file", str(field.folder / "go")) for _ in range(2)]
        old = field.worker(concurrency=4, name="mailer")
        old_id = old.line("READY").split()[0]
        await eventually(lambda: begun(field, held))
        old.signal(signal.SIGTERM)
        fresh = [await field.enqueue(storage, "nap", 0.01) for _ in range(20)]
        draining_from = time.monotonic()
        new = field.worker(concurrency=4, name="mailer")
        new_id = new.line("READY").split()[0]
        assert old_id.split("@")[0] == new_id.split("@")[0] == "mailer"
        assert old_id != new_id
        await drained(storage, fresh)
        assert old.process.poll() is None, "it did not wait for its bodies"
        (field.folder / "go").touch()
        assert old.wait() == 0
        await drained(storage, held)
        assert await running(storage) == 0
        tasks = await judge(storage, field.ledger)
        assert {task.losses for task in tasks.values()} == {0}
        late = {run.pid for run in field.ledger.runs() if run.task_id in fresh and run.at > draining_from}
        assert late == {new.pid}


async def begun(field: Field, ids: list[str]) -> bool:
    return {run.task_id for run in field.ledger.runs()} >= set(ids)


# --- F29 ------------------------------------------------------------------------------------------


async def busy_worker(
    field: Field, storage: SQLiteStorage, grace_s: float, short_ones: int = 1000
) -> tuple[Child, list[str], list[str]]:
    """A worker with four long runs in its hands and many short tasks before it."""
    long = [
        await field.enqueue(storage, "until_file", str(field.folder / "go"), priority=9) for _ in range(4)
    ]
    short = await enqueue_short(field, storage, short_ones)
    worker = field.worker(concurrency=8, lease=30.0, grace_s=grace_s)
    worker.line("READY")  # before that it has no handler for signals
    await eventually(lambda: begun(field, long))
    return worker, long, short


async def enqueue_short(field: Field, storage: SQLiteStorage, how_many: int) -> list[str]:
    ids = await storage.enqueue_many([Task("tests.faults.bodies.nap", (0.002,)) for _ in range(how_many)])
    field.ledger.write("ENQ", *ids)
    return [str(task_id) for task_id in ids]


async def finish(field: Field, storage: SQLiteStorage, ids: list[str]) -> None:
    """Somebody else does the rest; nothing was lost and nothing was spent."""
    (field.folder / "go").touch()
    field.worker(concurrency=50, lease=30.0)
    await drained(storage, ids)
    for run in field.ledger.runs():
        if run.until is None:
            field.ledger.write("KILL", "stop", run.pid)  # it was told to end; its body did not come to END
    for task_id in ids:
        task = await storage.get_task(task_id)
        assert task is not None
        assert (task.status, task.losses, task.attempts) == (TaskStatus.SUCCESS, 0, 0)


@pytest.mark.parametrize(("number", "short_ones"), [(signal.SIGTERM, 1000), (signal.SIGINT, 100)])
async def test_f29_a_signal_ends_a_busy_worker_within_its_grace(
    field: Field, number: signal.Signals, short_ones: int
) -> None:
    async with SQLiteStorage(field.database) as storage:
        worker, long, short = await busy_worker(field, storage, 0.5, short_ones)
        begin = time.monotonic()
        worker.signal(number)
        assert worker.wait() == 0, worker.log.read_text()
        assert time.monotonic() - begin < 0.5 + CANCEL_GRACE_S + 2.0
        assert await running(storage) == 0
        assert await storage.workers() == []
        await finish(field, storage, [*long, *short])


async def test_f29_a_second_signal_ends_it_at_once(field: Field) -> None:
    async with SQLiteStorage(field.database) as storage:
        worker, long, _ = await busy_worker(field, storage, grace_s=60.0)
        worker.signal(signal.SIGTERM)
        before = len(field.ledger.runs())

        async def no_more_short_ones() -> bool:
            return await running(storage) == len(long)

        await eventually(no_more_short_ones, what="it drains")
        begin = time.monotonic()
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.log.read_text()
        assert time.monotonic() - begin < CANCEL_GRACE_S + 2.0
        assert await running(storage) == 0
        assert len(field.ledger.runs()) - before < 50, "it went on claiming after the first signal"


@pytest.mark.bound(90)
async def test_f29_a_store_that_is_away_does_not_keep_a_worker_from_ending(field: Field) -> None:
    """The file is locked by somebody for good: the end is bounded, and the leases lapse afterwards."""
    async with SQLiteStorage(field.database) as storage:
        task_id = await field.enqueue(storage, "until_file", str(field.folder / "go"))
        worker = field.worker(lease=1.0, grace_s=0.5, busy_timeout_s=0.5)
        worker.line("READY")
        await eventually(lambda: begun(field, [task_id]))
        with closing(sqlite3.connect(field.database, isolation_level=None)) as conn:
            conn.execute("BEGIN IMMEDIATE")
            begin = time.monotonic()
            worker.signal(signal.SIGTERM)
            code = await asyncio.get_running_loop().run_in_executor(None, worker.wait, 40)
            took_s = time.monotonic() - begin
            conn.execute("ROLLBACK")
        assert code == 0, worker.log.read_text()
        # Grace, cancel grace, the last tries of the report, and what the try takes that is out by then.
        assert took_s < 0.5 + CANCEL_GRACE_S + 5.0 + 5.0
        (field.folder / "go").touch()
        field.worker(lease=1.0)
        await drained(storage, [task_id])
        task = await storage.get_task(task_id)
        assert task is not None
        assert (task.status, task.losses) == (TaskStatus.SUCCESS, 1)
