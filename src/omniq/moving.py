"""Moving everything from one store to another: `omniq move`.

Parcel by parcel: out of the source, into the target, and only then forgotten by the source. Killed anywhere,
the next call goes on with the parcel that was on its way; a target takes each parcel in once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from omniq.errors import Conflict, IdConflict, InvalidOption
from omniq.storage.base import BaseStorage
from omniq.task import TaskStatus, WorkerInfo, replace

# A worker beats every ten seconds; one that was silent for longer than this has ended.
SILENT: Final = timedelta(seconds=60)
PARCEL_TASKS: Final = 500


class Removal(Struct, frozen=True):
    """What has been moved so far, and what could not be."""

    tasks: int = 0
    schedules: int = 0
    known: int = 0  # were in the target already
    blocked: int = 0  # in the target as CANCELLED, because a task there holds their unique key
    running: int = 0  # stayed, because they run


async def check_still(source: BaseStorage, now: datetime) -> None:
    """Refuse to move from under those who work there."""
    running = await running_in(source)
    living = [worker for worker in await source.workers() if _lives(worker, now)]
    if running or living:
        names = ", ".join(sorted(worker.name for worker in living)[:5])
        who = f"live: {counted(len(living), 'worker')} ({names})" if living else "live: no worker"
        raise Conflict(
            f"the source is in use (running: {counted(running, 'task')}; {who}); stop its workers first, or "
            "write --while-running to move what does not run"
        )


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _lives(worker: WorkerInfo, now: datetime) -> bool:
    return worker.seen_at is not None and now - worker.seen_at < SILENT


async def running_in(storage: BaseStorage) -> int:
    return sum(per_status[TaskStatus.RUNNING] for per_status in (await storage.counts()).values())


async def move(
    source: BaseStorage,
    target: BaseStorage,
    *,
    parcel_tasks: int = PARCEL_TASKS,
    tell: Callable[[Removal], None] = lambda _: None,
) -> Removal:
    """Everything that does not run, until the source has nothing left. May be repeated and killed."""
    done = Removal()
    while (parcel := await source.take_out(parcel_tasks)) is not None:
        try:
            taken = await target.take_in(parcel)
        except IdConflict:
            await source.take_in(parcel)  # back to where it was, so that nothing is in between
            raise
        if taken.returned:
            raise InvalidOption("both addresses are the same store; nothing was moved")
        await source.drop_parcel(parcel.id)
        done = replace(
            done,
            tasks=done.tasks + taken.tasks,
            schedules=done.schedules + taken.schedules,
            known=done.known + taken.known,
            blocked=done.blocked + taken.blocked,
        )
        tell(done)
    return replace(done, running=await running_in(source))
