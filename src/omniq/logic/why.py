"""Why a task stands where it stands: from the facts of one look to reasons, the weightiest first.

By the predicates of the claim itself: whatever keeps a claim from handing a task out is a reason here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from omniq.logic import lifecycle
from omniq.logic.health import SILENT_AFTER_S, knows
from omniq.task import Run, RunOutcome, Task, TaskStatus, WorkerInfo


class Because(StrEnum):
    ENDED = "ended"
    RUNNING = "running"  # a worker holds it
    CANCELLING = "cancelling"  # and was asked to stop
    SILENT = "silent"  # the worker that holds it is not heard of
    EXPIRED = "expired"
    PAUSED = "paused"
    UNSERVED_QUEUE = "unserved queue"
    UNKNOWN_FUNCTION = "unknown function"
    SCHEDULED = "scheduled"  # its eta is ahead
    BACKOFF = "backoff"  # after an error
    AFTER_LOSS = "after loss"  # after a death of its worker
    GIVEN_BACK = "given back"
    SUSPECT = "suspect"  # runs next in a process of its own
    FULL = "full"  # every slot of those who serve it is taken
    BEHIND = "behind"
    NEXT = "next"  # nothing is in its way


class Facts(Struct, frozen=True):
    """What one look at the store found."""

    task: Task
    now: datetime
    history: tuple[Run, ...] = ()
    paused: frozenset[str] = frozenset()
    workers: tuple[WorkerInfo, ...] = ()
    ahead: int = 0
    most_ahead: int = 10_000  # `ahead` stops counting there


class Reason(Struct, frozen=True):
    because: Because
    text: str
    do: str = ""  # what helps, where something does


def why(facts: Facts) -> list[Reason]:
    """The reasons, the one that must go first in front."""
    if facts.task.status.final:
        return [_ended(facts.task)]
    if facts.task.status is TaskStatus.RUNNING:
        return _held(facts)
    return _waiting(facts)


def at_a_glance(
    queue: str, func_path: str, paused: Collection[str], workers: Sequence[WorkerInfo], now: datetime
) -> Because | None:
    """What keeps a due task waiting, as far as its queue and the latest beats tell; `why` says all of it."""
    if queue in paused:
        return Because.PAUSED
    serving, able = _who_could(queue, func_path, workers, now)
    if not serving:
        return Because.UNSERVED_QUEUE
    if not able:
        return Because.UNKNOWN_FUNCTION
    return Because.FULL if all(_is_full(one) or _lacks_processes(one, queue) for one in able) else None


# --- it ended, or it runs ------------------------------------------------------------------------


def _ended(task: Task) -> Reason:
    text = f"it is {task.status} since {_moment(task.finished_at)}"
    if task.error is not None:
        is_said = task.error.kind == task.error.type.lower()
        text += f": {task.error}" if is_said else f": {task.error.kind}: {task.error}"
    again = task.status in (TaskStatus.FAILED, TaskStatus.CANCELLED)
    return Reason(Because.ENDED, text, "retry it to run it again" if again else "")


def _held(facts: Facts) -> list[Reason]:
    task, reasons = facts.task, list[Reason]()
    holder = next((one for one in facts.workers if one.id == task.owner), None)
    if holder is None or not _lives(holder, facts.now):
        heard = "is not known any more" if holder is None else f"was last heard of {_moment(holder.seen_at)}"
        reasons.append(
            Reason(
                Because.SILENT,
                f"worker {task.owner}, which holds it, {heard}; it is taken back when its lease is over",
                "start a worker, so that somebody takes it back",
            )
        )
    if task.cancel_requested:
        reasons.append(Reason(Because.CANCELLING, f"worker {task.owner} was asked to stop it"))
    since_s = 0.0 if task.started_at is None else (facts.now - task.started_at).total_seconds()
    text = f"worker {task.owner} holds it since {_moment(task.started_at)} ({span(since_s)})"
    if task.timeout is not None:
        text += f"; its timeout is {task.timeout:g} s"
    help_it = "" if task.cancel_requested else "cancel it, if it is stuck"
    if holder is not None and holder.blocked_s:
        text += f"; the event loop of that worker has not moved for {span(holder.blocked_s)}"
        help_it = "the log of that worker says what blocks its loop; end the worker, if it goes on"
    reasons.append(Reason(Because.RUNNING, text, help_it))
    return reasons


# --- it waits ------------------------------------------------------------------------------------


def _waiting(facts: Facts) -> list[Reason]:
    task, now = facts.task, facts.now
    reasons = list[Reason]()
    if task.expires_at is not None and task.expires_at <= now:
        reasons.append(Reason(Because.EXPIRED, f"it expired {_moment(task.expires_at)} and is about to end"))
    if task.queue in facts.paused:
        reasons.append(Reason(Because.PAUSED, f"queue {task.queue} is paused", f"resume queue {task.queue}"))
    serving, able = _who_could(task.queue, task.func_path, facts.workers, now)
    if not serving:
        reasons.append(
            Reason(
                Because.UNSERVED_QUEUE,
                f"no living worker serves queue {task.queue}",
                f"start a worker with --queues {task.queue}, or without --queues",
            )
        )
    elif not able:
        reasons.append(
            Reason(
                Because.UNKNOWN_FUNCTION,
                f"no worker of queue {task.queue} knows {task.func_path}",
                "deploy the code that defines it, or add its name as an alias",
            )
        )
    if not lifecycle.is_due(task, now):
        reasons.append(_later(facts))
    else:
        reasons += _due(facts, able)
    return reasons


def _later(facts: Facts) -> Reason:
    """Its eta is ahead: who moved it there?"""
    task, until = facts.task, _moment(facts.task.eta)
    if task.eta is not None:
        until += f" (in {span((task.eta - facts.now).total_seconds())})"
    last = facts.history[-1] if facts.history else None
    if last is not None and last.outcome is RunOutcome.RETRIED and task.error is not None:
        text = f"it waits until {until} after {task.error} (failure {task.attempts}, of at most "
        return Reason(Because.BACKOFF, f"{text}{task.max_retries + 1})", "run it now, if the cause is gone")
    if last is not None and last.outcome in (RunOutcome.LOST, RunOutcome.DIED):
        died = task.losses + task.suspicions
        text = f"it waits until {until}, because its worker died while running it ({died} so far)"
        return Reason(Because.AFTER_LOSS, text)
    if last is not None and last.outcome is RunOutcome.GIVEN_BACK:
        text = f"worker {last.owner} gave it back until {until}: it snoozed, or nobody there knows it"
        return Reason(Because.GIVEN_BACK, text)
    return Reason(Because.SCHEDULED, f"its time is ahead: {until}", "run it now, to bring that forward")


def _due(facts: Facts, able: Sequence[WorkerInfo]) -> list[Reason]:
    task, reasons = facts.task, list[Reason]()
    if task.suspicions > 0:
        text = f"in flight when a worker died ({task.suspicions} so far): it waits for a process of its own"
        reasons.append(Reason(Because.SUSPECT, text))
    whose = "the only worker that serves it" if len(able) == 1 else f"the {len(able)} workers that serve it"
    if able and all(_is_full(one) for one in able):
        slots = sum(one.concurrency for one in able)
        text = f"no slot is free: {slots} of {slots} taken, on {whose}"
        do = "raise --concurrency, or start another worker"
        if blocked := [one.id for one in able if one.blocked_s]:
            text += f"; nothing moves on {blocked[0]}: its event loop is blocked"
            do = "its log says what blocks the loop; start another worker"
        reasons.append(Reason(Because.FULL, text, do))
    elif able and all(_is_full(one) or _lacks_processes(one, task.queue) for one in able):
        most = sum(pool.most for one in able for pool in one.pools if task.queue in pool.queues)
        text = f"all {most} processes of {whose} are taken"
        reasons.append(Reason(Because.FULL, text, "raise --task-processes, or start another worker"))
    if facts.ahead > 0:
        many = f"more than {facts.ahead - 1:,}" if facts.ahead >= facts.most_ahead else f"{facts.ahead:,}"
        others = "other" if facts.ahead == 1 else "others"
        reasons.append(Reason(Because.BEHIND, f"behind {many} {others} in queue {task.queue}"))
    if not reasons and able and task.queue not in facts.paused:
        reasons.append(Reason(Because.NEXT, "nothing is in its way: the next claim hands it out"))
    return reasons


# --- words ---------------------------------------------------------------------------------------


def _lives(worker: WorkerInfo, now: datetime) -> bool:
    return worker.seen_at is not None and now - worker.seen_at <= timedelta(seconds=SILENT_AFTER_S)


def serves(worker: WorkerInfo, queue: str) -> bool:
    return worker.queues is None or queue in worker.queues


def _who_could(
    queue: str, func_path: str, workers: Sequence[WorkerInfo], now: datetime
) -> tuple[list[WorkerInfo], list[WorkerInfo]]:
    """The living workers that serve the queue, and those of them that know the function."""
    serving = [one for one in workers if _lives(one, now) and serves(one, queue)]
    return serving, [one for one in serving if knows(one.functions, func_path)]


def _is_full(worker: WorkerInfo) -> bool:
    return worker.in_flight >= worker.concurrency


def _lacks_processes(worker: WorkerInfo, queue: str) -> bool:
    """It claims no more from this queue than it has free processes, and it has none."""
    return any(queue in pool.queues and pool.free <= 0 for pool in worker.pools)


def _moment(moment: datetime | None) -> str:
    return "an unknown moment" if moment is None else moment.isoformat(" ", "seconds")


def span(seconds: float) -> str:
    """In the largest two units that say something."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days:,} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
