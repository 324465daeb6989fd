"""Tasks, queues and workers as the pages get them: JSON of plain values, nothing that only a store needs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from omniq.logic.health import is_silent, judge
from omniq.logic.why import Reason, at_a_glance
from omniq.reports import PoolInfo
from omniq.schedule import Schedule
from omniq.storage.base import BaseStorage
from omniq.storage.facts import Look, look_at, signs_in
from omniq.storage.tallying import counted, minute_of, rated
from omniq.task import Head, Run, Tally, Task, TaskError, TaskStatus, Timing, WorkerInfo
from omniq.web import redacting

CHART_MINUTES: Final = 60
SAMPLE: Final = 1_000
LATE_SHOWN: Final = 8
RUNNING_SHOWN: Final = 8
MAX_RUNNING: Final = 1_000
MAX_QUEUES: Final = 200
MAX_LINES: Final = 12
TIMES_S: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


def moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def error(said: TaskError | None, *, whole: bool) -> dict[str, Any] | None:
    if said is None:
        return None
    shape = {
        "type": redacting.text(said.type, 200),
        "message": redacting.text(said.message),
        "kind": said.kind,
    }
    if whole:
        shape["traceback"] = redacting.text(said.traceback, redacting.MAX_TRACE_CHARS)
    return shape


def state(task: Task, now: datetime) -> str:
    """The status, or the word for it that is never stored."""
    if task.status is TaskStatus.RUNNING and task.cancel_requested:
        return "CANCELLING"
    if task.status is TaskStatus.PENDING and task.eta is not None and task.eta > now:
        return "RETRYING" if task.attempts or task.losses or task.suspicions else "SCHEDULED"
    return str(task.status)


def brief(task: Task, now: datetime) -> dict[str, Any]:
    """A line in a list."""
    return {
        "id": task.id,
        "func": task.func_path,
        "queue": task.queue,
        "priority": task.priority,
        "status": task.status,
        "state": state(task, now),
        "attempts": task.attempts,
        "runs": task.epoch,
        "owner": task.owner,
        "enqueued_at": moment(task.enqueued_at),
        "eta": moment(task.eta),
        "started_at": moment(task.started_at),
        "finished_at": moment(task.finished_at),
        "progress": task.progress,
        "error": error(task.error, whole=False),
    }


def whole(
    task: Task, runs: Sequence[Run], reasons: Iterable[Reason], now: datetime, *, with_args: bool
) -> dict[str, Any]:
    """One task, with everything that may be shown."""
    shape = brief(task, now) | {
        "error": error(task.error, whole=True),
        "expires_at": moment(task.expires_at),
        "interval": task.interval,
        "timeout": task.timeout,
        "max_retries": task.max_retries,
        "losses": task.losses,
        "max_losses": task.max_losses,
        "suspicions": task.suspicions,
        "unique_key": None if task.unique_key is None else redacting.text(task.unique_key),
        "cancel_requested": task.cancel_requested,
        "headers": redacting.mapping(task.headers),
        "why": [{"because": one.because, "text": redacting.text(one.text), "do": one.do} for one in reasons],
        "history": [
            {
                "run": run.epoch,
                "owner": run.owner,
                "started_at": moment(run.started_at),
                "finished_at": moment(run.finished_at),
                "outcome": run.outcome,
                "error": error(run.error, whole=True),
            }
            for run in reversed(runs)
        ],
        "args_hidden": not with_args,
    }
    if with_args:
        shape |= {"args": redacting.value(list(task.args)), "kwargs": redacting.mapping(task.kwargs)}
    return shape


def worker(one: WorkerInfo, in_flight: int, holding: Sequence[Task], now: datetime) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "host": one.host,
        "pid": one.pid,
        "queues": one.queues,
        "concurrency": one.concurrency,
        "in_flight": in_flight,  # by the store's own account: a beat may be seconds old
        "functions": None if one.functions is None else first_of(one.functions, redacting.MAX_ITEMS),
        "loop_stalls": one.loop_stalls,
        "blocked_s": one.blocked_s,
        "started_at": moment(one.started_at),
        "seen_at": moment(one.seen_at),
        "silent": is_silent(one.seen_at, now),
        "slots": [brief(task, now) for task in holding],
        "pools": [pool(known) for known in one.pools],
    }


def pool(one: PoolInfo) -> dict[str, Any]:
    """A worker's processes, as of its latest beat."""
    return {
        "purpose": one.purpose,
        "least": one.least,
        "most": one.most,
        "reason": redacting.text(one.reason, 300),
        "processes": [
            {
                "pid": process.pid,
                "status": process.status,
                "since": moment(process.since),
                "runs": process.runs,
                "id": process.task_id,
                "func": process.func_path,
                "reason": redacting.text(process.reason, 300),
            }
            for process in one.processes
        ],
        "scalings": [
            {
                "at": moment(scaled.at),
                "before": scaled.before,
                "after": scaled.after,
                "reason": redacting.text(scaled.reason, 300),
            }
            for scaled in one.scalings
        ],
    }


def schedule(one: Schedule) -> dict[str, Any]:
    """Without the arguments of its call: those are on the tasks that it makes, where they may be shown."""
    return {
        "name": one.name,
        "func": one.call.func_path,
        "queue": one.call.queue,
        "every": one.every,
        "cron": one.cron,
        "tz": one.tz,
        "catch_up": one.catch_up,
        "overlap": one.overlap,
        "paused": one.paused,
        "next_at": moment(one.next_at),
        "last_at": moment(one.last_at),
    }


def head(one: Head, look: Look) -> dict[str, Any]:
    return {
        "id": one.task_id,
        "func": one.func_path,
        "queue": one.queue,
        "priority": one.priority,
        "due_at": moment(one.due_at),
        "paused": one.queue in look.paused,
        "because": at_a_glance(one.queue, one.func_path, look.paused, look.workers, look.now),
    }


def percentiles(samples: list[float]) -> dict[str, float] | None:
    """The value that so many of a hundred are not above: one of the samples, nothing in between."""
    if not samples:
        return None
    ordered = sorted(samples)
    return {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 95, 99)}


def timings(found: Sequence[Timing]) -> dict[str, Any]:
    return {
        "of": len(found),
        "wait": percentiles([one.wait_s for one in found]),
        "run": percentiles([one.run_s for one in found]),
        "spread": spread(found),
    }


def spread(found: Sequence[Timing]) -> list[dict[str, float | int | None]]:
    """How many waited and ran up to each time, and longer than the one before; the last has no end."""
    waited, ran = [0] * (len(TIMES_S) + 1), [0] * (len(TIMES_S) + 1)
    for one in found:
        waited[bisect_left(TIMES_S, one.wait_s)] += 1
        ran[bisect_left(TIMES_S, one.run_s)] += 1
    bounds: list[float | None] = [*TIMES_S, None]
    return [{"to_s": to, "waited": waited[n], "ran": ran[n]} for n, to in enumerate(bounds)]


def series(tallies: Iterable[Tally], now: datetime) -> list[dict[str, Any]]:
    """One point for every minute of the last hour, also where nothing happened."""
    first = minute_of(now) - timedelta(minutes=CHART_MINUTES - 1)
    names = ("enqueued", "succeeded", "given_up", "stopped", "retried", "lost")
    points: dict[datetime, dict[str, int]] = {
        first + timedelta(minutes=n): dict.fromkeys(names, 0) for n in range(CHART_MINUTES)
    }
    waiting = 0  # at the end of a minute: what every minute up to it has changed
    changes = dict.fromkeys(points, 0)
    for tally in tallies:
        if (point := points.get(tally.minute)) is not None:
            changes[tally.minute] += tally.pending
            for name in names:
                point[name] += getattr(tally, name)
        elif tally.minute < first:
            waiting += tally.pending
    for at, point in points.items():
        waiting += changes[at]
        point["waiting"] = waiting
    return [{"at": at.isoformat(), **point} for at, point in points.items()]


async def overview(storage: BaseStorage) -> dict[str, Any]:
    """Everything of the first page; its cost does not grow with the store."""
    look = await look_at(storage)
    now, tallies, workers = look.now, look.tallies, look.workers
    counts = counted(tallies)
    heads = sorted(look.heads, key=lambda one: one.due_at)
    longest = await storage.longest_running(RUNNING_SHOWN)
    living = [one for one in workers if not is_silent(one.seen_at, now)]
    health = judge(*signs_in(look))
    rates = rated(tallies, now - timedelta(minutes=5), now)
    return {
        "now": now.isoformat(),
        "health": {
            "ok": health.ok,
            "problems": first_of(health.problems),
            "notes": first_of(health.notes),
        },
        "queues": queues(counts, heads, look),
        "queue_count": len({*counts, *look.paused}),
        "held": held(counts),
        "rates": {
            "over_s": rates.over_s,
            "enqueued": rates.enqueued,
            "succeeded": rates.succeeded,
            "failed": rates.failed,
            "retried": rates.retried,
            "lost": rates.lost,
        },
        "totals": totals(tallies),
        "series": series(tallies, now),
        "timings": timings(await storage.timings(SAMPLE)),
        "late": [head(one, look) for one in heads[:LATE_SHOWN]],
        "longest": [brief(task, now) for task in longest],
        "workers": {
            "known": len(workers),
            "silent": len(workers) - len(living),
            "slots": sum(one.concurrency for one in living),
            "busy": sum(of[TaskStatus.RUNNING] for of in counts.values()),
        },
    }


def totals(tallies: Iterable[Tally]) -> dict[str, int]:
    """Since the store began: they only ever grow, so two of them make a rate."""
    names = ("enqueued", "succeeded", "given_up", "stopped", "retried", "lost")
    found = list(tallies)
    return {name: sum(getattr(one, name) for one in found) for name in names}


def queues(
    counts: dict[str, dict[TaskStatus, int]], heads: Sequence[Head], look: Look
) -> list[dict[str, Any]]:
    """Those that need a look, if there are too many to show: paused, waiting, or just at work."""
    paused, recent = look.paused, minute_of(look.now) - timedelta(minutes=5)
    ended, failed = dict[str, int](), dict[str, int]()
    for tally in look.tallies:
        if tally.minute >= recent:
            ended[tally.queue] = ended.get(tally.queue, 0) + tally.succeeded + tally.given_up
            failed[tally.queue] = failed.get(tally.queue, 0) + tally.given_up
    oldest: dict[str, Head] = {}
    for one in heads:  # the oldest comes first
        oldest.setdefault(one.queue, one)
    names = sorted({*counts, *paused})
    if len(names) > MAX_QUEUES:
        wanted = [*sorted(paused), *oldest, *(name for name in names if ended.get(name)), *names]
        names = sorted(islice(dict.fromkeys(wanted), MAX_QUEUES))
    none = dict.fromkeys(TaskStatus, 0)
    return [
        {
            "name": name,
            "paused": name in paused,
            "counts": {str(s): n for s, n in counts.get(name, none).items()},
            "ended_5m": ended.get(name, 0),
            "failed_5m": failed.get(name, 0),
            "oldest": head(oldest[name], look) if name in oldest else None,
        }
        for name in names
    ]


def held(counts: dict[str, dict[TaskStatus, int]]) -> dict[str, int]:
    """How many tasks there are in each status, in all queues."""
    return {str(status): sum(of[status] for of in counts.values()) for status in TaskStatus}


def first_of(lines: Sequence[str], most: int = MAX_LINES) -> list[str]:
    more = len(lines) - most
    return [*lines[:most], f"and {more:,} more"] if more > 0 else list(lines)
