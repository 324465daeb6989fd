"""What several verbs say together: the facts that `why` and `health` are decided from."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from omniq.logic.health import Backlog, Beat
from omniq.logic.why import Facts, serves
from omniq.storage.base import BaseStorage
from omniq.storage.batched import unknown
from omniq.storage.tallying import counted
from omniq.task import Head, Tally, Task, TaskStatus, WorkerInfo, replace

# Health looks at what ended in this time, in whole minutes.
HEALTH_WINDOW_S = 120.0
# More than these are not asked one by one for what they hold: of the others their latest beat counts.
MAX_ASKED = 200


async def facts_about(storage: BaseStorage, task_id: str) -> Facts:
    """What `why` needs to know of one task."""
    task = await storage.get_task(task_id)
    if task is None:
        raise unknown(task_id)
    if task.status.final:
        return Facts(task, storage.clock.now())
    return Facts(
        task,
        storage.clock.now(),
        tuple(await storage.history(task_id)),
        frozenset(await storage.paused()),
        await _workers_for(storage, task),
        await storage.ahead(task_id),
    )


async def _workers_for(storage: BaseStorage, task: Task) -> tuple[WorkerInfo, ...]:
    """All of them, and what those hold that may take it: where it runs, only its holder matters."""
    workers = await storage.workers()
    able = [one for one in workers if task.status is TaskStatus.PENDING and serves(one, task.queue)]
    asked = {one.id: await with_slots(storage, one) for one in able[:MAX_ASKED]}
    return tuple(asked.get(one.id, one) for one in workers)


async def with_slots(storage: BaseStorage, worker: WorkerInfo) -> WorkerInfo:
    """What it holds by the store's own account: its latest beat may be seconds old."""
    return replace(worker, in_flight=len(await storage.held(worker.id)))


class Look(Struct, frozen=True):
    """What a store says of all its queues and workers, each asked for once."""

    now: datetime
    tallies: list[Tally]
    paused: set[str]
    heads: list[Head]
    workers: list[WorkerInfo]


async def look_at(storage: BaseStorage) -> Look:
    return Look(
        storage.clock.now(),
        await storage.tallies(),
        await storage.paused(),
        await storage.heads(),
        await storage.workers(),
    )


async def vital_signs(storage: BaseStorage) -> tuple[list[Backlog], list[Beat], datetime]:
    """What `judge` needs to know of a store."""
    return signs_in(await look_at(storage))


def signs_in(look: Look) -> tuple[list[Backlog], list[Beat], datetime]:
    since = look.now - timedelta(seconds=HEALTH_WINDOW_S)
    oldest: dict[str, datetime] = {}
    for head in look.heads:
        oldest[head.queue] = min(head.due_at, oldest.get(head.queue, head.due_at))
    ended: dict[str, int] = {}
    for tally in look.tallies:
        if tally.minute >= since:
            done = tally.succeeded + tally.given_up + tally.stopped + tally.retried
            ended[tally.queue] = ended.get(tally.queue, 0) + done
    queues = sorted({*counted(look.tallies), *look.paused})
    backlogs = [Backlog(name, name in look.paused, oldest.get(name), ended.get(name, 0)) for name in queues]
    beats = [
        Beat(w.id, w.queues, w.seen_at, w.concurrency, w.in_flight, w.blocked_s, w.functions, w.unserved)
        for w in look.workers
    ]
    return backlogs, beats, look.now
