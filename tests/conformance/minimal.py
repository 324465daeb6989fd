"""Storages as somebody else would write them: the seed's five verbs, no `super().__init__()`."""

from datetime import datetime
from typing import Any

from omniq.clock import Clock
from omniq.storage import BaseStorage
from omniq.task import Task, TaskError, TaskResult, TaskStatus, replace


class FiveVerbs(BaseStorage):
    """A dict, and nothing that the contract does not ask for."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.tasks: dict[str, Task] = {}
        self.results: dict[str, TaskResult] = {}

    async def enqueue(self, task: Task, *, conn: Any = None) -> str:
        self.tasks[task.id] = task
        return task.id

    async def dequeue(self, now: datetime | None = None) -> Task | None:
        now = now or self.clock.now()
        for task in self.tasks.values():
            if task.status is TaskStatus.PENDING and (task.eta is None or task.eta <= now):
                self.tasks[task.id] = replace(task, status=TaskStatus.RUNNING)
                return self.tasks[task.id]
        return None

    async def mark_running(self, task_id: str) -> None:
        assert self.tasks[task_id].status is TaskStatus.RUNNING

    async def mark_done(self, task_id: str, result: TaskResult) -> None:
        self.results[task_id] = result
        self.tasks[task_id] = replace(self.tasks[task_id], status=TaskStatus.SUCCESS, attempts=0)

    async def mark_failed(self, task_id: str, error: TaskError, will_retry: bool = False) -> None:
        task = self.tasks[task_id]
        self.tasks[task_id] = replace(task, status=TaskStatus.FAILED, attempts=task.attempts + 1, error=error)
        if not will_retry:
            self.results[task_id] = TaskResult(task_id, TaskStatus.FAILED, None, error)


class WithReschedule(FiveVerbs):
    """One verb more: a retry and an interval keep the id. It shows its results as well."""

    async def reschedule(self, task_id: str, eta: datetime) -> None:
        self.tasks[task_id] = replace(self.tasks[task_id], status=TaskStatus.PENDING, eta=eta)

    async def get_result(self, task_id: str) -> TaskResult | None:
        return self.results.get(task_id)
