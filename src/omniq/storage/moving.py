"""Moving tasks to another store: parcels, over the rows of a store that lives in this process.

    source: take_out ──> parcel ──> target: take_in ──> source: drop_parcel

A task is in the source, in a parcel, or in the target. Whoever is killed in between finds the parcel again,
and a target takes each parcel in once: nothing is lost, nothing is there twice.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from omniq.errors import IdConflict, InvalidOption
from omniq.logic import lifecycle
from omniq.parcel import Moved, Parcel, TakenIn, pack, unpack
from omniq.storage import scheduling
from omniq.storage.batched import BatchedStorage
from omniq.task import StoredTask, count, new_id, replace, shown

if TYPE_CHECKING:
    from omniq.storage.rows import Rows

T = TypeVar("T")
# Arguments and results may be large: a parcel is full when it has this much, or so many tasks.
PARCEL_BYTES: Final = 8 << 20
MAX_PARCEL_TASKS: Final = 10_000
# So many records that cannot be read may stand before others; more would keep those from being found.
BAD_RECORDS: Final = 100


def fits(taken: list[Moved], task: StoredTask) -> bool:
    """Whether one more goes into a parcel. The first one always does."""
    size = sum(size_of(one.task) for one in taken)
    return not taken or size + size_of(task) <= PARCEL_BYTES


def size_of(task: StoredTask) -> int:
    return len(task.payload) + len(task.result or b"")


def check_parcel(parcel: Parcel) -> Parcel:
    if not isinstance(parcel, Parcel):
        raise InvalidOption(f"take_in takes what take_out gave, not {shown(parcel)}")
    return parcel


def blocked(task: StoredTask, holder: str, now: datetime) -> StoredTask:
    """A waiting task whose unique key another one holds here."""
    cancelled = lifecycle.cancel(task, now)
    assert cancelled.error is not None
    why = f"moved here while task {holder} held its unique key; retry it when that has ended"
    return replace(cancelled, error=replace(cancelled.error, message=why))


def id_conflict(task_id: str) -> IdConflict:
    return IdConflict(
        f"id {shown(task_id)} belongs to another call in the store that is moved to; delete one of the two"
    )


# --- over rows -----------------------------------------------------------------------------------


def take_out(limit: int, parcel_id: str, rows: Rows) -> Parcel | None:
    known = rows.outgoing()
    if known is not None:
        return unpack(known)
    tasks: list[Moved] = []
    for task in rows.movable(limit):
        if not fits(tasks, task):
            break
        tasks.append(Moved(task, rows.runs(task.id)))
    parcel = Parcel(
        id=parcel_id,
        tasks=tasks,
        schedules=[scheduling.pack(one) for one in rows.schedules()],
        paused=sorted(rows.paused()),
        limits=rows.limits(),
    )
    if parcel.is_empty:
        return None
    rows.keep_parcel(parcel.id, pack(parcel))
    _empty(parcel, rows)
    return parcel


def _empty(parcel: Parcel, rows: Rows) -> None:
    for one in parcel.tasks:
        rows.move_away(one.task)
    for record in parcel.schedules:
        rows.drop_schedule(scheduling.unpack(record).name)
    for queue in parcel.paused:
        rows.set_paused(queue, False)
    for queue in parcel.limits:
        rows.put_limit(queue, None)
    rows.rang_result = True  # who waits for one of these is told that it is gone


def take_in(parcel: Parcel, rows: Rows) -> TakenIn:
    """Everything is looked at before anything is written."""
    if rows.has_receipt(parcel.id):
        return TakenIn()
    known = rows.outgoing()
    returned = known is not None and unpack(known).id == parcel.id
    now = rows.now()
    new = [one for one in parcel.tasks if not _is_known(one.task, rows)]
    schedules = [scheduling.unpack(record) for record in parcel.schedules]
    many_blocked = 0
    placed: list[Moved] = []
    for one in new:
        task = _held_back(one.task, now, rows)
        many_blocked += task is not one.task
        placed.append(replace(one, task=task))
    unknown = [one for one in schedules if rows.schedule(one.name) is None]
    if returned:
        rows.drop_parcel(parcel.id)
    else:
        rows.keep_parcel(parcel.id, None)
    for one in placed:
        _insert(one, rows)
    for schedule in unknown:
        rows.put_schedule(schedule)
    for queue in parcel.paused:
        rows.set_paused(queue, True)
    known_limits = rows.limits()
    for queue, most in parcel.limits.items():
        if queue not in known_limits:
            rows.put_limit(queue, most)
    rows.rang_due = rows.rang_result = True
    return TakenIn(len(placed), len(parcel.tasks) - len(placed), many_blocked, len(unknown), returned)


def _is_known(task: StoredTask, rows: Rows) -> bool:
    from omniq.storage.rows import digest

    there = rows.get(task.id)
    if there is None:
        return False
    if digest(there) != digest(task):
        raise id_conflict(task.id)
    return True


def _held_back(task: StoredTask, now: datetime, rows: Rows) -> StoredTask:
    if task.unique_key is None or task.status.final:
        return task
    holder = rows.holder(task.unique_key)
    return task if holder is None else blocked(task, holder.id, now)


def _insert(one: Moved, rows: Rows) -> None:
    rows.insert(replace(one.task, seq=0))
    kept = rows.get(one.task.id)
    assert kept is not None
    for run in one.runs:
        rows.add_run(kept, run)


class EmbeddedMoving(BatchedStorage):
    """The verbs about moving over `Rows`."""

    @abstractmethod
    async def _do(self, job: Callable[[Rows], T]) -> T: ...

    async def take_out(self, limit: int = 500) -> Parcel | None:
        most = min(MAX_PARCEL_TASKS, count(limit, "limit", least=1))
        return await self._do(partial(take_out, most, new_id()))

    async def take_in(self, parcel: Parcel) -> TakenIn:
        return await self._do(partial(take_in, check_parcel(parcel)))

    async def drop_parcel(self, parcel_id: str) -> None:
        await self._do(lambda rows: rows.drop_parcel(parcel_id))
