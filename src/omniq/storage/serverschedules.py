"""Schedules in a store on a server: read a record, let `logic.schedule` decide here, and write what came out.

It is written only if the record is still the one that was read; otherwise somebody else was faster, and this
looks again. A tick that two workers decide on at the same time is so fired by one of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from loguru import logger
from msgspec import Struct

from omniq.errors import CorruptRecord, InvalidOption, StoreUnavailable
from omniq.logic import schedule as logic
from omniq.schedule import Fired, Schedule
from omniq.storage.batched import BatchedStorage
from omniq.storage.scheduling import checked, unknown_schedule, unpack
from omniq.task import Enqueued, StoredTask, count, new_id, shown

# So often somebody else may be faster before the caller hears of it.
TRIES: Final = 20
# So many records that cannot be read may be due before others; more would keep those from being found.
BAD_RECORDS: Final = 100


class Timetable(Struct, frozen=True):
    """What a server says of its schedules: the moment, the next tick of all, the records asked for."""

    now: datetime
    next_at: datetime | None
    records: Sequence[bytes]


class ServerSchedules(BatchedStorage):
    """The verbs about schedules over five questions to a server. Each is one round trip."""

    def __init__(self) -> None:
        super().__init__()
        self._reported: set[str] = set()

    @abstractmethod
    async def _timetable(self) -> Timetable:
        """All schedules by name."""

    @abstractmethod
    async def _due_schedules(self, limit: int) -> Timetable:
        """Those whose next tick has come, the one that has waited longest first."""

    @abstractmethod
    async def _known_schedule(self, name: str) -> Timetable:
        """The schedule of that name, if there is one."""

    @abstractmethod
    async def _write_schedule(
        self, before: int, schedule: Schedule, tasks: Sequence[StoredTask]
    ) -> list[str] | None:
        """Keep `schedule` and insert `tasks`, in one atomic write, if its revision there is `before`.

        0 says that there must be none. Returns the ids of the tasks that were made (a task whose id is known
        or whose unique key is held is not), or None where the revision is another one.
        """

    @abstractmethod
    async def _drop_schedule(self, name: str) -> bool:
        """Whether there was one."""

    async def save_schedule(self, schedule: Schedule) -> Schedule:
        wanted = checked(self, schedule)
        return await self._change(wanted.name, lambda known, now: logic.begin(wanted, known, now))

    async def pause_schedule(self, name: str) -> None:
        await self._change(name, lambda known, now: logic.pause(_there(name, known)))

    async def resume_schedule(self, name: str) -> None:
        await self._change(name, lambda known, now: logic.resume(_there(name, known), now))

    async def _change(self, name: str, decide: Callable[[Schedule | None, datetime], Schedule]) -> Schedule:
        await self.open()
        for _ in range(TRIES):
            found = await self._known_schedule(name)
            known = unpack(found.records[0]) if found.records else None
            wanted = decide(known, found.now)
            if wanted is known:
                return wanted
            if await self._write_schedule(0 if known is None else known.revision, wanted, ()) is not None:
                return wanted
        raise StoreUnavailable(f"schedule {shown(name)} is being changed by many others; try again")

    async def schedules(self) -> list[Schedule]:
        await self.open()
        return self._readable_schedules((await self._timetable()).records)

    async def fire_due(self, limit: int = 100) -> Fired:
        count(limit, "limit", least=1)
        await self.open()
        found = await self._due_schedules(limit + BAD_RECORDS)
        ids: list[str] = []
        for schedule in self._readable_schedules(found.records)[:limit]:
            try:
                after, tasks = logic.advance(schedule, found.now)
            except (InvalidOption, ArithmeticError) as exc:
                logger.error("schedule {} cannot be fired: {}", shown(schedule.name), exc)
                continue
            ids += await self._write_schedule(schedule.revision, after, tasks) or ()
        if found.records:
            found = await self._due_schedules(1)
        until = None if found.next_at is None else max(0.0, (found.next_at - found.now).total_seconds())
        return Fired(ids, until)

    def _readable_schedules(self, records: Sequence[bytes]) -> list[Schedule]:
        """What cannot be read is named once: it is asked for every second."""
        found: list[Schedule] = []
        for record in records:
            try:
                found.append(unpack(record))
            except CorruptRecord as corrupt:
                if str(corrupt) not in self._reported:
                    self._reported.add(str(corrupt))
                    logger.error("passed over: {}", corrupt)
        return found

    async def run_schedule(self, name: str, task_id: str | None = None) -> Enqueued:
        await self.open()
        found = await self._known_schedule(name)
        schedule = _there(name, unpack(found.records[0]) if found.records else None)
        [made] = await self.enqueue_many([logic.by_hand(schedule, task_id or new_id())])
        return made

    async def delete_schedule(self, name: str) -> None:
        await self.open()
        if not await self._drop_schedule(name):
            raise unknown_schedule(name)


def _there(name: str, known: Schedule | None) -> Schedule:
    if known is None:
        raise unknown_schedule(name)
    return known
