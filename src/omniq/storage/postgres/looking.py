"""What can be seen of a PostgreSQL schema: tasks, history, counts, workers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Final

from loguru import logger

from omniq.errors import CorruptRecord
from omniq.storage.batched import BatchedStorage, check_page, unknown
from omniq.storage.postgres import records
from omniq.storage.postgres.records import Row, can_be_kept
from omniq.task import Head, Held, Page, Run, StoredTask, Tally, Task, TaskFilter, Timing, WorkerInfo, count

# One page looks at so many tasks at most, and first at fewer; so many of one status are sorted instead.
FIRST_LOOK: Final = 500
LOOK: Final = 10_000
FEW: Final = 5_000


class PostgresLooking(BatchedStorage):
    """A part of `PostgresStorage`."""

    @abstractmethod
    async def _ask(self, statement: str, *arguments: Any) -> list[Row]: ...

    async def _get(self, task_id: str) -> StoredTask | None:
        rows = await self._ask("get", task_id) if can_be_kept(task_id) else []
        return records.read_task(rows[0]) if rows else None

    async def held(self, worker: str) -> list[Held]:
        return [Held(*row) for row in await self._ask("held", worker)]

    async def page(
        self, filter: TaskFilter | None = None, after: str | None = None, limit: int = 100
    ) -> Page:
        """A short look first: where matches are frequent it is enough."""
        check_page(limit)
        wanted = filter or TaskFilter()
        if after is not None:
            await self._must_be_there(after)
        tasks: list[Task] = []
        for look in (max(FIRST_LOOK, limit), LOOK):
            found, after = await self._look_at(wanted, after, look, limit - len(tasks))
            tasks += found
            if after is None or len(tasks) == limit:
                break
        return Page(tasks, after)

    async def _look_at(
        self, wanted: TaskFilter, after: str | None, look: int, limit: int
    ) -> tuple[list[Task], str | None]:
        whole, *rows = await self._ask("page", *records.filter_arguments(wanted), after, FEW, look, limit)
        found = self._tasks_in(row[1:] for row in rows)
        tasks = [task for task in found if wanted.matches(task, task.func_path)]
        return tasks, rows[-1][2] if len(rows) == limit else whole[0]

    async def longest_running(self, limit: int = 100) -> list[Task]:
        check_page(limit)
        return self._tasks_in(await self._ask("longest_running", limit))

    def _tasks_in(self, rows: Iterable[Any]) -> list[Task]:
        tasks: list[Task] = []
        for row in rows:
            try:
                tasks.append(self.decode(records.read_task(row)))
            except CorruptRecord as corrupt:
                logger.error("passed over: {}", corrupt)
        return tasks

    async def _must_be_there(self, task_id: str) -> None:
        if not can_be_kept(task_id) or not await self._ask("is_there", task_id):
            raise unknown(task_id)

    async def history(self, task_id: str) -> list[Run]:
        rows = await self._ask("history", task_id) if can_be_kept(task_id) else []
        return [records.read_run(row) for row in rows]

    async def tallies(self) -> list[Tally]:
        return [Tally(*row) for row in await self._ask("tallies")]

    async def heads(self) -> list[Head]:
        rows = await self._ask("heads")
        return [Head(queue, -rank, task_id, path, due) for queue, rank, task_id, path, due in rows]

    async def timings(self, limit: int = 1000) -> list[Timing]:
        check_page(limit)
        rows = await self._ask("timings", limit)
        return [
            Timing(queue, max(0.0, wait_s), run_s)
            for queue, wait_s, run_s in rows
            if wait_s is not None and run_s is not None
        ]

    async def ahead(self, task_id: str, most: int = 10_000) -> int:
        count(most, "most", least=1)
        must_be_possible(task_id)
        [(many,)] = await self._ask("ahead", task_id, most)
        if many is None:
            raise unknown(task_id)
        return int(many)

    async def paused(self) -> set[str]:
        return {row[0] for row in await self._ask("paused")}

    async def workers(self) -> list[WorkerInfo]:
        return list(records.read_workers(await self._ask("workers")))

    async def verify(self) -> list[str]:
        return [row[0] for row in await self._ask("verify")]


def must_be_possible(task_id: str) -> None:
    if not can_be_kept(task_id):
        raise unknown(task_id)
