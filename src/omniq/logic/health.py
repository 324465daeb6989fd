"""Whether work gets done: judged by progress, not by living processes.

A process can live and do nothing for hours. What counts is that whatever is due is taken, and that what was
taken ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from msgspec import Struct

# A worker beats at least every ten seconds (a third of the default lease).
SILENT_AFTER_S = 60.0
LATE_AFTER_S = 60.0


class Backlog(Struct, frozen=True):
    """One queue, as far as its health goes."""

    queue: str
    paused: bool = False
    oldest_due_at: datetime | None = None  # of what is due and waits
    ended: int = 0  # runs that ended in the time that is looked at


class Beat(Struct, frozen=True):
    """One worker, as far as its health goes."""

    id: str
    queues: tuple[str, ...] | None
    seen_at: datetime | None
    concurrency: int = 1
    in_flight: int = 0
    blocked_s: float = 0.0  # its event loop has not moved for so long
    functions: tuple[str, ...] | None = None  # None: whatever can be imported
    unserved: tuple[tuple[str, str], ...] = ()  # queue and function of what it gave back, unknown to it


class Health(Struct, frozen=True):
    """`problems` says what is wrong, one line each; there are none when all is well."""

    ok: bool
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def judge(
    backlogs: Sequence[Backlog],
    workers: Sequence[Beat],
    now: datetime,
    *,
    late_after_s: float = LATE_AFTER_S,
    silent_after_s: float = SILENT_AFTER_S,
) -> Health:
    """Well is: everything due waits for less than `late_after_s`, or its queue moves, or it is paused."""
    problems: list[str] = []
    notes: list[str] = []
    living = [worker for worker in workers if lives(worker, now, silent_after_s)]
    for worker in workers:
        if worker not in living:
            notes.append(f"worker {worker.id} has not been heard of {_since(worker.seen_at, now)}")
        elif worker.blocked_s >= late_after_s:
            notes.append(f"worker {worker.id}: its event loop has not moved for {_span(worker.blocked_s)}")
    for queue, func_path in sorted({what for worker in living for what in worker.unserved}):
        if not any(serves(worker, queue) and knows(worker.functions, func_path) for worker in living):
            problems.append(f"queue {queue}: no living worker knows {func_path}, and its tasks wait")
    for backlog in sorted(backlogs, key=lambda one: one.queue):
        waited_s = waits_s(backlog, now)
        serving = [worker for worker in living if serves(worker, backlog.queue)]
        if backlog.paused:
            notes.append(f"queue {backlog.queue} is paused")
        elif waited_s is None or waited_s <= late_after_s:
            continue
        elif not serving:
            problems.append(
                f"queue {backlog.queue}: no living worker serves it, and a task has waited {_span(waited_s)}"
            )
        elif backlog.ended:
            notes.append(f"queue {backlog.queue}: {_span(waited_s)} behind, but it moves")
        elif all(_has_long_runs(worker, late_after_s) for worker in serving):
            notes.append(f"queue {backlog.queue}: {_span(waited_s)} behind, every slot has a long run in it")
        else:
            problems.append(
                f"queue {backlog.queue}: nothing ends, and the oldest due task has waited {_span(waited_s)}"
            )
    return Health(not problems, tuple(problems), tuple(notes))


def lives(worker: Beat, now: datetime, silent_after_s: float = SILENT_AFTER_S) -> bool:
    return not is_silent(worker.seen_at, now, silent_after_s)


def is_silent(seen_at: datetime | None, now: datetime, silent_after_s: float = SILENT_AFTER_S) -> bool:
    return seen_at is None or now - seen_at > timedelta(seconds=silent_after_s)


def serves(worker: Beat, queue: str) -> bool:
    return worker.queues is None or queue in worker.queues


def _has_long_runs(worker: Beat, late_after_s: float) -> bool:
    """In every slot. Where the loop is blocked they are no longer at work, they wait for it."""
    return worker.in_flight >= worker.concurrency and worker.blocked_s < late_after_s


def knows(functions: tuple[str, ...] | None, func_path: str) -> bool:
    """A worker names its functions, and what it may import as patterns; None: whatever can be imported."""
    return functions is None or any(fnmatchcase(func_path, name) for name in functions)


def waits_s(backlog: Backlog, now: datetime) -> float | None:
    """How long the oldest due task has waited; None where nothing is due."""
    if backlog.oldest_due_at is None or backlog.oldest_due_at > now:
        return None
    return (now - backlog.oldest_due_at).total_seconds()


def _since(seen_at: datetime | None, now: datetime) -> str:
    return "at all" if seen_at is None else f"for {_span((now - seen_at).total_seconds())}"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
