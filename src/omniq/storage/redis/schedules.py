"""The schedules of a namespace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from omniq.schedule import Schedule
from omniq.storage.redis import records
from omniq.storage.redis.records import microseconds, moment_of, name_bytes
from omniq.storage.redis.wire import Argument
from omniq.storage.scheduling import pack
from omniq.storage.serverschedules import ServerSchedules, Timetable
from omniq.task import StoredTask


class RedisSchedules(ServerSchedules):
    """A part of `RedisStorage`."""

    @abstractmethod
    async def _ask(self, script: str, *arguments: Argument) -> Any: ...

    @abstractmethod
    async def _write(self, script: str, *arguments: Argument) -> Any: ...

    @abstractmethod
    async def _tell(self, script: str, *arguments: Argument) -> Any: ...

    async def _timetable(self) -> Timetable:
        now, next_at, *found = await self._ask("schedules", "all")
        named = sorted(zip(found[::2], found[1::2], strict=True))
        return _timetable(now, next_at, [record for _, record in named])

    async def _due_schedules(self, limit: int) -> Timetable:
        now, next_at, *found = await self._ask("schedules", "due", limit)
        return _timetable(now, next_at, found[1::2])

    async def _known_schedule(self, name: str) -> Timetable:
        now, next_at, *found = await self._ask("schedules", "known", name_bytes(name))
        return _timetable(now, next_at, found[1::2])

    async def _write_schedule(
        self, before: int, schedule: Schedule, tasks: Sequence[StoredTask]
    ) -> list[str] | None:
        next_at = "" if schedule.next_at is None else microseconds(schedule.next_at)
        kept = (name_bytes(schedule.name), before, schedule.revision, next_at, pack(schedule))
        written, *made = await self._tell("write_schedule", *kept, *records.enqueue_arguments(tasks))
        return [task_id.decode() for task_id in made] if written else None

    async def _drop_schedule(self, name: str) -> bool:
        return bool(await self._write("drop_schedule", name_bytes(name)))


def _timetable(now: bytes, next_at: bytes, found: list[bytes]) -> Timetable:
    return Timetable(moment_of(int(now)), moment_of(int(float(next_at))) if next_at else None, found)
