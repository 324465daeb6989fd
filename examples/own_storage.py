"""A storage of your own: five verbs, and every worker of OmniQ runs on it.

    python examples/own_storage.py

This one keeps tasks in a dict, which is good for reading and for nothing else. `reschedule` is not one of
the five: without it, a retry is enqueued as a new task with `headers["retry_of"]`.
"""

import asyncio
from datetime import UTC, datetime
from typing import Any

from loguru import logger

from omniq import AsyncWorkerPool, Task, TaskError, TaskResult, TaskStatus
from omniq.storage import BaseStorage
from omniq.task import replace

logger.disable("omniq")


class DictStorage(BaseStorage):
    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.results: dict[str, TaskResult] = {}
        self.ended = asyncio.Event()

    async def enqueue(self, task: Task, *, conn: Any = None) -> str:
        """Keep it. Once this returns, the task must not be lost."""
        self.tasks[task.id] = task
        return task.id

    async def dequeue(self, now: datetime | None = None) -> Task | None:
        """Claim the first due task: nobody else may get it from here on."""
        now = now or datetime.now(UTC)
        for task in self.tasks.values():
            if task.status is TaskStatus.PENDING and (task.eta is None or task.eta <= now):
                self.tasks[task.id] = replace(task, status=TaskStatus.RUNNING)
                return self.tasks[task.id]
        return None

    async def mark_running(self, task_id: str) -> None:
        """`dequeue` has claimed it already; this only confirms."""

    async def mark_done(self, task_id: str, result: TaskResult) -> None:
        self.tasks[task_id] = replace(self.tasks[task_id], status=TaskStatus.SUCCESS)
        self.results[task_id] = result
        self.ended.set()

    async def mark_failed(self, task_id: str, error: TaskError, will_retry: bool = False) -> None:
        """With `will_retry` the worker now enqueues another task that makes the same call."""
        self.tasks[task_id] = replace(self.tasks[task_id], status=TaskStatus.FAILED, error=error)


calls = 0


def double(number: int) -> int:
    """Fails the first time it is called."""
    global calls  # noqa: PLW0603 - an example in one file
    calls += 1
    if calls == 1:
        raise ConnectionError("the first call always fails")
    return number * 2


async def main() -> None:
    storage = DictStorage()
    first_id = await storage.enqueue(Task(func_path=f"{__name__}.double", args=(21,), max_retries=3))
    async with AsyncWorkerPool(storage, concurrency=2, poll_interval=0.05, base_retry_delay=0.1):
        await asyncio.wait_for(storage.ended.wait(), timeout=10)
    [(task_id, result)] = storage.results.items()
    print("first run:", storage.tasks[first_id].error)
    print("retry is another task:", storage.tasks[task_id].headers["retry_of"] == first_id)
    print("result:", result.result)


if __name__ == "__main__":
    asyncio.run(main())
