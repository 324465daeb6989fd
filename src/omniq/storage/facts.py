"""What several verbs say together: the facts that `why` and `health` are decided from."""

from __future__ import annotations

from datetime import datetime, timedelta

from omniq.errors import NotFound
from omniq.logic.health import Backlog, Beat
from omniq.logic.why import Facts
from omniq.storage.base import BaseStorage
from omniq.storage.tallying import counted
from omniq.task import WorkerInfo, replace

# Health looks at what ended in this time, in whole minutes.
HEALTH_WINDOW_S = 120.0
# More than these are not asked one by one.
MAX_WORKERS = 200


async def facts_about(storage: BaseStorage, task_id: str) -> Facts:
    """What `why` needs to know of one task."""
    task = await storage.get_task(task_id)
    if task is None:
        raise NotFound(f"no task {task_id!r} in this store: never enqueued here, deleted, or pruned")
    if task.status.final:
        return Facts(task, storage.clock.now())
    return Facts(
        task,
        storage.clock.now(),
        tuple(await storage.history(task_id)),
        frozenset(await storage.paused()),
        tuple([await _with_slots(storage, worker) for worker in (await storage.workers())[:MAX_WORKERS]]),
        await storage.ahead(task_id),
    )


async def _with_slots(storage: BaseStorage, worker: WorkerInfo) -> WorkerInfo:
    """What it holds by the store's own account: its latest beat may be seconds old."""
    return replace(worker, in_flight=len(await storage.held(worker.id)))


async def vital_signs(storage: BaseStorage) -> tuple[list[Backlog], list[Beat], datetime]:
    """What `judge` needs to know of a store."""
    now = storage.clock.now()
    since = now - timedelta(seconds=HEALTH_WINDOW_S)
    tallies, paused = await storage.tallies(), await storage.paused()
    oldest: dict[str, datetime] = {}
    for head in await storage.heads():
        oldest[head.queue] = min(head.due_at, oldest.get(head.queue, head.due_at))
    ended: dict[str, int] = {}
    for tally in tallies:
        if tally.minute >= since:
            done = tally.succeeded + tally.given_up + tally.stopped + tally.retried
            ended[tally.queue] = ended.get(tally.queue, 0) + done
    queues = sorted({*counted(tallies), *paused})
    backlogs = [Backlog(name, name in paused, oldest.get(name), ended.get(name, 0)) for name in queues]
    beats = [Beat(w.id, w.queues, w.seen_at, w.concurrency, w.in_flight) for w in await storage.workers()]
    return backlogs, beats, now
