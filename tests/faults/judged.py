"""The rules of tests/faults/judge.py for thousands of tasks on a server: everything is read once."""

from collections.abc import Collection

from omniq.storage import BaseStorage
from omniq.task import Task, TaskStatus
from tests.faults.judge import check_counters, check_overlaps
from tests.faults.ledger import Ledger

PAGE = 1000


async def all_tasks(store: BaseStorage) -> dict[str, Task]:
    tasks: dict[str, Task] = {}
    page = await store.list_tasks(limit=PAGE)
    while page:
        tasks.update((task.id, task) for task in page)
        page = await store.list_tasks(after=page[-1].id, limit=PAGE)
    return tasks


async def judge(
    store: BaseStorage,
    ledger: Ledger,
    *,
    lease_s: float | None = None,
    may_be_gone: Collection[str] = (),
    lost_ends: bool = False,
) -> dict[str, Task]:
    """Of a server that forgets: `may_be_gone` are the tasks, `lost_ends` says that runs may be forgotten."""
    tasks = await all_tasks(store)
    ended = {entry.fields[0] for entry in ledger.entries("END")}
    for task_id in ledger.enqueued():
        task = tasks.get(task_id)
        if task is None and task_id in may_be_gone:
            continue
        assert task is not None, f"J1: {task_id} was enqueued and is gone"
        assert task.status is TaskStatus.SUCCESS, f"J1: {task_id} is {task.status}: {task.error}"
        assert task_id in ended, f"J2: {task_id} never ended"
        if task.epoch > 1:
            check_counters(task, await store.history(task_id))
    if not lost_ends:  # a claim that was forgotten is made again with the same epoch
        check_overlaps(ledger, lease_s)
    running = [task.id for task in tasks.values() if task.status is TaskStatus.RUNNING]
    assert running == [], "J5"
    assert await store.verify() == []
    return tasks
