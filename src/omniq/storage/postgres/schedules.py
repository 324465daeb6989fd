"""The schedules of a PostgreSQL schema."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from omniq.schedule import Schedule
from omniq.storage.postgres import records
from omniq.storage.postgres.records import Row
from omniq.storage.scheduling import pack
from omniq.storage.serverschedules import ServerSchedules, Timetable
from omniq.task import StoredTask


class PostgresSchedules(ServerSchedules):
    """A part of `PostgresStorage`."""

    @abstractmethod
    async def _ask(self, statement: str, *arguments: Any) -> list[Row]: ...

    @abstractmethod
    async def _tell(self, statement: str, *arguments: Any) -> list[Row]: ...

    @abstractmethod
    async def _announce(self, tasks: Iterable[StoredTask]) -> None: ...

    async def _timetable(self) -> Timetable:
        [(now, next_at, found)] = await self._ask("schedules")
        return Timetable(now, next_at, found)

    async def _due_schedules(self, limit: int) -> Timetable:
        [(now, next_at, found)] = await self._ask("due_schedules", limit)
        return Timetable(now, next_at, found)

    async def _known_schedule(self, name: str) -> Timetable:
        wanted = name if records.can_be_kept(name) else ""
        [(now, next_at, found)] = await self._ask("known_schedule", wanted)
        return Timetable(now, next_at, found)

    async def _write_schedule(
        self, before: int, schedule: Schedule, tasks: Sequence[StoredTask]
    ) -> list[str] | None:
        *columns, _ = records.enqueue_arguments(tasks, "skip")
        kept = (schedule.name, before, schedule.revision, schedule.next_at, pack(schedule))
        await self.open()
        await self._announce(tasks)
        write = self._tell if tasks else self._ask
        [(made,)] = await write("write_schedule", *kept, *columns)
        return made if made is None else list(made)

    async def _drop_schedule(self, name: str) -> bool:
        return records.can_be_kept(name) and bool(await self._ask("drop_schedule", name))
