"""The limits of queues in a PostgreSQL schema, and what moves to and from other stores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from loguru import logger

from omniq.errors import CorruptRecord
from omniq.parcel import Moved, Parcel, TakenIn, pack, unpack
from omniq.storage import scheduling
from omniq.storage.batched import BatchedStorage
from omniq.storage.moving import BAD_RECORDS, MAX_PARCEL_TASKS, blocked, check_parcel, fits, id_conflict
from omniq.storage.postgres import records
from omniq.storage.postgres.records import Row
from omniq.storage.postgres.schema import Statements, lock
from omniq.storage.rows import digest
from omniq.task import StoredTask, TaskStatus, count, new_id, queue_name, replace

if TYPE_CHECKING:
    from omniq.storage.postgres.connections import Ask, Connections

T = TypeVar("T")
# A plan that reads and sorts the whole table would do so for every parcel.
BY_INDEX = "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true)"


class PostgresMoving(BatchedStorage):
    """A part of `PostgresStorage`."""

    _sql: Statements
    _connections: Connections | None

    @abstractmethod
    async def _ask(self, statement: str, *arguments: Any) -> list[Row]: ...

    @abstractmethod
    def _ring(self, *, due: bool | None, result: bool | None) -> None: ...

    # --- limits ----------------------------------------------------------------------------------

    async def limit_queue(self, queue: str, max_depth: int | None) -> None:
        queue_name(queue)
        if max_depth is None:
            await self._ask("unlimit_queue", queue)
        else:
            await self._ask("limit_queue", queue, count(max_depth, "max_depth", least=0))

    async def queue_limits(self) -> dict[str, int]:
        return _pairs(await self._ask("queue_limits"))

    # --- parcels ---------------------------------------------------------------------------------

    async def take_out(self, limit: int = 500) -> Parcel | None:
        most, parcel_id = min(MAX_PARCEL_TASKS, count(limit, "limit", least=1)), new_id()
        try:
            return await self._together(lambda ask: self._take_out(ask, most, parcel_id))
        finally:
            if self.is_open:
                self._ring(due=False, result=True)

    async def take_in(self, parcel: Parcel) -> TakenIn:
        check_parcel(parcel)
        try:
            return await self._together(lambda ask: self._take_in(ask, parcel))
        finally:
            if self.is_open:
                self._ring(due=True, result=True)

    async def drop_parcel(self, parcel_id: str) -> None:
        await self._ask("drop_parcel", parcel_id)

    async def _together(self, work: Callable[[Ask], Awaitable[T]]) -> T:
        await self.open()
        assert self._connections is not None

        async def named(ask: Ask) -> T:
            async def by_name(sql: str, *arguments: Any) -> list[Row]:
                return await ask(self._sql[sql], *arguments)

            # One mover at a time: two would make two parcels of what the source says is one.
            await ask(lock(f"{self._sql.schema} parcels").strip().rstrip(";"))
            await ask(BY_INDEX)
            return await work(by_name)

        return await self._connections.together(named)

    async def _take_out(self, ask: Ask, limit: int, parcel_id: str) -> Parcel | None:
        known = await ask("outgoing")
        if known:
            return unpack(known[0][0])
        most = limit + BAD_RECORDS
        rows = await ask("movable_waiting", most)
        if len(rows) < most:
            rows += await ask("movable_ended", most - len(rows))
        tasks = await self._with_runs(ask, _readable(rows, limit))
        [(_, _, schedules)] = await ask("schedules")
        parcel = Parcel(
            id=parcel_id,
            tasks=tasks,
            schedules=_readable_schedules(schedules),
            paused=sorted(row[0] for row in await ask("paused")),
            limits=_pairs(await ask("queue_limits")),
        )
        if parcel.is_empty:
            return None
        await ask("keep_parcel", parcel.id, pack(parcel))
        await ask("move_away", [one.task.id for one in tasks])
        names = [scheduling.unpack(record).name for record in parcel.schedules]
        await ask("move_settings_away", names, list(parcel.limits), parcel.paused)
        await ask("ring", self._sql.due_channel, self._sql.result_channel)
        return parcel

    async def _with_runs(self, ask: Ask, tasks: list[StoredTask]) -> list[Moved]:
        runs = await ask("runs_of", [task.seq for task in tasks])
        of_task = {
            seq: [records.read_run(row[1:]) for row in rows]
            for seq, rows in groupby(runs, lambda row: int(row[0]))
        }
        return [Moved(task, of_task.get(task.seq, [])) for task in tasks]

    async def _take_in(self, ask: Ask, parcel: Parcel) -> TakenIn:
        returned = bool(await ask("drop_parcel", parcel.id))
        if not returned and not await ask("keep_parcel", parcel.id, None):
            return TakenIn()
        [(now,)] = await ask("clock")
        ids = [one.task.id for one in parcel.tasks]
        known = _pairs(await ask("known_digests", ids))
        for one in parcel.tasks:
            if one.task.id in known and known[one.task.id] != digest(one.task):
                raise id_conflict(one.task.id)
        new = [one for one in parcel.tasks if one.task.id not in known]
        tasks = await self._held_back(ask, [one.task for one in new], now)
        placed = await ask("move_in", *records.move_arguments(tasks, self._kept_until))
        ahead = [t.enqueued_at for t in tasks if t.enqueued_at is not None and t.enqueued_at > now]
        if ahead:
            await ask("enqueued_until", max(ahead))
        numbers = _pairs(placed)
        runs = [(numbers[one.task.id], run) for one in new for run in one.runs]
        await ask("move_runs_in", *records.run_arguments(runs))
        names = sorted({task.queue for task in tasks})
        limits = parcel.limits
        await ask("move_settings_in", names, list(limits), list(limits.values()), parcel.paused)
        schedules = await self._schedules_in(ask, parcel.schedules)
        await ask("ring", self._sql.due_channel, self._sql.result_channel)
        many_blocked = sum(task is not one.task for task, one in zip(tasks, new, strict=True))
        return TakenIn(len(new), len(known), many_blocked, schedules, returned)

    async def _held_back(self, ask: Ask, tasks: list[StoredTask], now: datetime) -> list[StoredTask]:
        keys = [task.unique_key for task in tasks if task.unique_key and not task.status.final]
        holders = _pairs(await ask("key_holders", keys))
        return [
            blocked(task, holders[task.unique_key], now)
            if task.unique_key in holders and not task.status.final
            else task
            for task in tasks
        ]

    async def _schedules_in(self, ask: Ask, packed: Sequence[bytes]) -> int:
        schedules = [scheduling.unpack(record) for record in packed]
        columns = (
            [one.name for one in schedules],
            [one.revision for one in schedules],
            [one.next_at for one in schedules],
            list(packed),
        )
        return len(await ask("move_schedules_in", *columns))

    def _kept_until(self, task: StoredTask) -> datetime | None:
        if task.finished_at is None:
            return None
        keep_s = self.failed_ttl_s
        if task.status is TaskStatus.SUCCESS:
            keep_s = self.result_ttl_s if task.result_ttl is None else task.result_ttl
        return task.finished_at + timedelta(seconds=keep_s)


def _pairs(rows: Sequence[Row]) -> dict[str, Any]:
    return {row[0]: row[1] for row in rows}


def _readable(rows: Sequence[Row], limit: int) -> list[StoredTask]:
    """As many as a parcel holds; what cannot be read stays where it is."""
    taken: list[Moved] = []
    for row in rows:
        try:
            *columns, content = row
            task = replace(records.read_task(columns), first_content=content)
        except CorruptRecord as corrupt:
            logger.error("passed over: {}", corrupt)
            continue
        if len(taken) == limit or not fits(taken, task):
            break
        taken.append(Moved(task))
    return [one.task for one in taken]


def _readable_schedules(packed: Sequence[bytes]) -> list[bytes]:
    readable: list[bytes] = []
    for record in packed:
        try:
            scheduling.unpack(record)
        except CorruptRecord as corrupt:
            logger.error("passed over: {}", corrupt)
        else:
            readable.append(record)
    return readable
