"""Compares the ledger with the store once the queue has drained. The rules are numbered as in the test plan.

J1  everything that a producer was told is stored has ended
J2  what the store calls a success did end its body
J3  two runs of one task overlap only where the older one's lease was over
J4  every epoch has one closing outcome, and the counters are the sums of them
J5  nothing is left RUNNING
J6  no descriptor, thread, child, lock file or socket is left behind
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from omniq.storage import SQLiteStorage
from omniq.task import Run, RunOutcome, Task, TaskStatus
from tests.faults.ledger import Begun, Ledger
from tests.pool.leftovers import children, descriptors

HISTORY_LIMIT = 20


async def judge(storage: SQLiteStorage, ledger: Ledger, *, lease_s: float | None = None) -> dict[str, Task]:
    """Hold J1 to J5; `lease_s` is the lease that may have run out, None where no run may overlap another."""
    tasks: dict[str, Task] = {}
    for task_id in ledger.enqueued():
        task = await storage.get_task(task_id)
        assert task is not None, f"J1: {task_id} was enqueued and is gone"
        assert task.status.final, f"J1: {task_id} is {task.status}"
        assert task.status is not TaskStatus.SUCCESS or ledger.ended(task_id), f"J2: {task_id} never ended"
        check_counters(task, await storage.history(task_id))
        tasks[task_id] = task
    check_overlaps(ledger, lease_s)
    counts = await storage.counts()
    assert not sum(per_status[TaskStatus.RUNNING] for per_status in counts.values()), "J5: RUNNING rows"
    assert await storage.verify() == []
    return tasks


def check_counters(task: Task, history: list[Run]) -> None:
    """J4, for a task that nobody retried by hand."""
    assert len(history) < HISTORY_LIMIT, "J4 cannot be judged: the oldest runs are forgotten"
    on_the_task_itself = 1 if task.status is TaskStatus.SUCCESS else 0
    assert [run.epoch for run in history] == list(range(1, task.epoch + 1 - on_the_task_itself)), "J4"
    outcomes = [run.outcome for run in history]
    assert task.losses == outcomes.count(RunOutcome.LOST), f"J4: {task.losses} losses, {outcomes}"
    failures = outcomes.count(RunOutcome.RETRIED) + outcomes.count(RunOutcome.FAILED)
    assert task.attempts == failures, f"J4: {task.attempts} attempts, {outcomes}"


def check_overlaps(ledger: Ledger, lease_s: float | None) -> None:
    """J3: by the store's clock, which on one host is the monotonic clock of everybody."""
    by_task: dict[str, list[Begun]] = {}
    for run in ledger.runs():
        by_task.setdefault(run.task_id, []).append(run)
    for runs in by_task.values():
        for older, newer in pairwise(runs):
            assert older.epoch < newer.epoch, f"J3: {newer} is not newer than {older}"
            if older.until is not None and older.until <= newer.at:
                continue
            assert lease_s is not None, f"J3: {older} and {newer} overlap"
            renewed = [e.at for e in ledger.entries("RENEW") if e.fields[0] == str(older.pid)]
            held_from = max([older.at, *(at for at in renewed if at < newer.at)])
            assert newer.at >= held_from + lease_s, f"J3: {newer} began within the lease of {older}"


@contextmanager
def nothing_left_behind(database: Path) -> Iterator[None]:
    """J6, for this process and for the folder beside the database."""
    before = _having()
    yield
    for kind, now in _having().items():
        assert now <= before[kind], f"J6: {kind}"
    folder = database.with_name(database.name + "-omniq")
    left = {path.name for path in folder.iterdir()} - {"write.lock"} if folder.exists() else set()
    assert left == set(), f"J6: {left}"


def _having() -> dict[str, set[Any]]:
    # The threads that asyncio keeps for the loop of the test end with that loop.
    threads = {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}
    return {"descriptors": descriptors(), "threads": threads, "children": children()}
