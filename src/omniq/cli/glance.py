"""What `omniq top` shows, as plain rows: bounded looks at a store, whose cost does not grow with it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from omniq.cli.text import safe
from omniq.logic.health import is_silent, judge
from omniq.logic.why import at_a_glance, span
from omniq.storage.base import BaseStorage
from omniq.storage.facts import vital_signs
from omniq.storage.tallying import counted, rated
from omniq.task import Task, TaskFilter, TaskStatus

RATES_OVER: Final = timedelta(minutes=5)
SHOWN: Final = 50  # of each kind of task
NAME_CHARS: Final = 36


class QueueRow(Struct, frozen=True):
    name: str
    cells: tuple[str, ...]
    paused: bool


class TaskRow(Struct, frozen=True):
    id: str
    cells: tuple[str, ...]


class Glance(Struct, frozen=True):
    lines: list[str]
    is_well: bool
    queues: list[QueueRow]
    tasks: list[TaskRow]


async def glance(storage: BaseStorage) -> Glance:
    now = storage.clock.now()
    tallies, paused = await storage.tallies(), await storage.paused()
    heads = sorted(await storage.heads(), key=lambda head: head.due_at)
    longest = await storage.longest_running(SHOWN)
    failed = (await storage.page(TaskFilter(status=TaskStatus.FAILED), limit=SHOWN)).tasks
    workers, health = await storage.workers(), judge(*await vital_signs(storage))
    oldest: dict[str, datetime] = {}
    for head in heads:
        oldest.setdefault(head.queue, head.due_at)
    counts = counted(tallies)
    queues = [
        _queue(name, counts.get(name, {}), oldest.get(name), name in paused, now)
        for name in sorted({*counts, *paused})
    ]
    tasks = [_task(task, "running", task.started_at, task.owner or "", now) for task in longest]
    for head in heads[:SHOWN]:
        state = "paused" if head.queue in paused else "waiting"
        because = at_a_glance(head.queue, head.func_path, paused, workers, now) or ""
        cells = (state, _name(head.func_path), _name(head.queue), _ago(head.due_at, now), because)
        tasks.append(TaskRow(head.task_id, cells))
    for task in failed:
        tasks.append(_task(task, "failed", task.finished_at, task.error.type if task.error else "", now))
    rates = rated(tallies, now - RATES_OVER, now)
    living = [one for one in workers if not is_silent(one.seen_at, now)]
    slots = sum(one.concurrency for one in living)
    running = sum(of[TaskStatus.RUNNING] for of in counts.values())
    lines = [
        f"{len(living)} {'worker' if len(living) == 1 else 'workers'}, {running} of {slots} slots busy",
        f"in 5 min: {rates.enqueued} enqueued, {rates.succeeded} done, {rates.failed} failed, "
        f"{rates.retried} retried, {rates.lost} lost",
        *(safe(one) for one in (*health.problems, *health.notes)),
    ]
    return Glance(lines, health.ok, queues, tasks)


def _queue(
    name: str, counts: dict[TaskStatus, int], oldest: datetime | None, paused: bool, now: datetime
) -> QueueRow:
    numbers = (str(counts.get(status, 0)) for status in TaskStatus)
    state = "paused" if paused else "open"
    return QueueRow(name, (safe(name), state, *numbers, _ago(oldest, now)), paused)


def _task(task: Task, state: str, since: datetime | None, note: str, now: datetime) -> TaskRow:
    if task.cancel_requested:
        state = "cancelling"
    return TaskRow(task.id, (state, _name(task.func_path), _name(task.queue), _ago(since, now), safe(note)))


def _name(text: str) -> str:
    """Its end says most. What is longer would push whoever holds it off the screen."""
    shown = safe(text)
    return shown if len(shown) <= NAME_CHARS else f"…{shown[1 - NAME_CHARS :]}"


def _ago(since: datetime | None, now: datetime) -> str:
    return "" if since is None else span((now - since).total_seconds())
