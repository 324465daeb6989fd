"""Schedules in a store: their records, and the verbs of a store that lives in this process.

`logic.schedule` decides; what is here reads a schedule, writes it back and inserts the tasks of its ticks,
within the one atomic write that the store puts around it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec
from loguru import logger
from msgspec import Struct

from omniq.errors import CorruptRecord, InvalidOption, NotFound, QueueFull
from omniq.logic import lifecycle
from omniq.logic import schedule as logic
from omniq.schedule import CatchUp, Fired, Overlap, Schedule
from omniq.storage.batched import BatchedStorage
from omniq.task import Enqueued, StoredTask, count, new_id, replace, shown

if TYPE_CHECKING:
    from omniq.storage.rows import Rows

T = TypeVar("T")


# --- records -------------------------------------------------------------------------------------


class _Record(Struct, frozen=True, kw_only=True):
    """A schedule as it is kept, its call encoded."""

    name: str
    call: StoredTask
    every: float | None
    cron: str | None
    tz: str
    catch_up: CatchUp
    overlap: Overlap
    paused: bool
    created_at: datetime
    next_at: datetime | None
    last_at: datetime | None
    revision: int


_to_msgpack = msgspec.msgpack.Encoder()
_read = msgspec.msgpack.Decoder(_Record)
_FIELDS = _Record.__struct_fields__


def pack(schedule: Schedule) -> bytes:
    return _to_msgpack.encode({name: getattr(schedule, name) for name in _FIELDS})


def unpack(record: bytes) -> Schedule:
    try:
        read = _read.decode(record)
        schedule = Schedule(**{name: getattr(read, name) for name in _FIELDS})
        logic.zone(schedule.tz)
    except (msgspec.MsgspecError, TypeError, ValueError) as exc:
        raise CorruptRecord(f"the record of a schedule makes no sense: {exc}") from exc
    return schedule


def checked(storage: BatchedStorage, schedule: Schedule) -> Schedule:
    """What a caller wants to save, in one form, its call encoded; raises `InvalidOption`."""
    if not isinstance(schedule, Schedule):
        raise InvalidOption(f"save_schedule takes a Schedule, not {shown(schedule)}")
    stored = storage.encode(schedule.call)
    every = None if schedule.every is None else logic.every_s(schedule.every)
    logic.check(schedule)
    # What only an enqueue sets would make two savings of one call look different.
    return replace(schedule, call=replace(stored, id=schedule.name, enqueued_at=None), every=every)


def unknown_schedule(name: str) -> NotFound:
    return NotFound(f"no schedule {shown(name)} in this store; `omniq schedules` lists them")


# --- over rows -----------------------------------------------------------------------------------


def save(schedule: Schedule, rows: Rows) -> Schedule:
    known = rows.schedule(schedule.name)
    kept = logic.begin(schedule, known, rows.now())
    if kept is not known:
        rows.put_schedule(kept)
    return kept


def fire_due(limit: int, rows: Rows) -> Fired:
    now = rows.now()
    ids: list[str] = []
    for schedule in rows.schedules_due(now, limit):
        try:
            after, tasks = logic.advance(schedule, now)
        except (InvalidOption, ArithmeticError) as exc:
            logger.error("schedule {} cannot be fired: {}", shown(schedule.name), exc)
            continue
        rows.put_schedule(after)
        ids += [task.id for task in tasks if _insert(task, now, rows)]
    next_at = rows.next_tick()
    return Fired(ids, None if next_at is None else max(0.0, (next_at - now).total_seconds()))


def _insert(task: StoredTask, now: datetime, rows: Rows) -> bool:
    """T1 for a tick, unless this tick has its task, a living one has its key, or the queue is full."""
    if rows.get(task.id) is not None or rows.remembered(task.id) is not None:
        return False
    if task.unique_key is not None and rows.holder(task.unique_key) is not None:
        return False
    try:
        rows.check_room([task])
    except QueueFull as full:  # a schedule has nobody to tell
        logger.warning("no task for {}: {}", task.id, full)
        return False
    rows.insert(lifecycle.arrive(task, now))
    rows.rang_due = True
    return True


def pause(name: str, rows: Rows) -> None:
    _change(name, rows, logic.pause)


def resume(name: str, rows: Rows) -> None:
    now = rows.now()
    _change(name, rows, lambda schedule: logic.resume(schedule, now))


def _change(name: str, rows: Rows, change: Callable[[Schedule], Schedule]) -> None:
    schedule = _must_get(name, rows)
    changed = change(schedule)
    if changed is not schedule:
        rows.put_schedule(changed)


def run(name: str, task_id: str, rows: Rows) -> Enqueued:
    [enqueued] = rows.enqueue_many([logic.by_hand(_must_get(name, rows), task_id)], "skip")
    return enqueued


def delete(name: str, rows: Rows) -> None:
    if not rows.drop_schedule(name):
        raise unknown_schedule(name)


def _must_get(name: str, rows: Rows) -> Schedule:
    schedule = rows.schedule(name)
    if schedule is None:
        raise unknown_schedule(name)
    return schedule


class EmbeddedSchedules(BatchedStorage):
    """The verbs about schedules over `Rows`."""

    @abstractmethod
    async def _do(self, job: Callable[[Rows], T]) -> T: ...

    @abstractmethod
    async def _look(self, job: Callable[[Rows], T]) -> T: ...

    async def save_schedule(self, schedule: Schedule) -> Schedule:
        return await self._do(partial(save, checked(self, schedule)))

    async def schedules(self) -> list[Schedule]:
        return await self._look(lambda rows: rows.schedules())

    async def fire_due(self, limit: int = 100) -> Fired:
        """Asked often, so it writes only when there is something to fire."""
        count(limit, "limit", least=1)
        until_next = await self._look(_until_next)
        if until_next is None or until_next > 0:
            return Fired([], until_next)
        return await self._do(partial(fire_due, limit))

    async def pause_schedule(self, name: str) -> None:
        await self._do(partial(pause, name))

    async def resume_schedule(self, name: str) -> None:
        await self._do(partial(resume, name))

    async def run_schedule(self, name: str, task_id: str | None = None) -> Enqueued:
        return await self._do(partial(run, name, task_id or new_id()))

    async def delete_schedule(self, name: str) -> None:
        await self._do(partial(delete, name))


def _until_next(rows: Rows) -> float | None:
    next_at = rows.next_tick()
    return None if next_at is None else max(0.0, (next_at - rows.now()).total_seconds())
