"""What may happen to a task: the transition table, and one function per decision.

`settle` is decided by the worker from its claimed copy. Everything else is what a store does to a row:
from the row and the moment to the row afterwards and, where a run was closed, its line in the history.
A store may write the same as SQL or a script; the conformance suite holds it to these functions.

    PENDING ──claim──> RUNNING ──settle──> SUCCESS | FAILED | CANCELLED      (final)
       ^                  │
       └── retry, repeat, give back, lapse ──┘
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import assert_never

from msgspec import Struct

from omniq.errors import Conflict
from omniq.logic.retry import RetryPolicy, loss_delay_s
from omniq.task import (
    Action,
    Answer,
    Died,
    ErrorKind,
    Failed,
    Interrupted,
    Outcome,
    Run,
    RunOutcome,
    Settlement,
    Snoozed,
    StoredTask,
    Succeeded,
    Task,
    TaskError,
    TaskFields,
    TaskStatus,
    Timing,
    replace,
)

# Every way from one stored status to another. `None` is "no such task".
TRANSITIONS: frozenset[tuple[str, TaskStatus | None, TaskStatus | None]] = frozenset(
    {
        ("T1", None, TaskStatus.PENDING),
        ("T2", TaskStatus.PENDING, TaskStatus.RUNNING),
        ("T3", TaskStatus.RUNNING, TaskStatus.RUNNING),
        ("T4", TaskStatus.RUNNING, TaskStatus.SUCCESS),
        ("T4i", TaskStatus.RUNNING, TaskStatus.PENDING),
        ("T5", TaskStatus.RUNNING, TaskStatus.PENDING),
        ("T6", TaskStatus.RUNNING, TaskStatus.FAILED),
        ("T6c", TaskStatus.RUNNING, TaskStatus.PENDING),
        ("T7", TaskStatus.RUNNING, TaskStatus.PENDING),
        ("T8", TaskStatus.RUNNING, TaskStatus.PENDING),
        ("T9", TaskStatus.RUNNING, TaskStatus.FAILED),
        ("T10", TaskStatus.PENDING, TaskStatus.CANCELLED),
        ("T11", TaskStatus.RUNNING, TaskStatus.RUNNING),
        ("T12", TaskStatus.RUNNING, TaskStatus.CANCELLED),
        ("T13", TaskStatus.FAILED, TaskStatus.PENDING),
        ("T13", TaskStatus.CANCELLED, TaskStatus.PENDING),
        ("T14", TaskStatus.PENDING, TaskStatus.FAILED),
        ("T15", TaskStatus.PENDING, TaskStatus.PENDING),
        ("T16", TaskStatus.SUCCESS, None),
        ("T16", TaskStatus.FAILED, None),
        ("T16", TaskStatus.CANCELLED, None),
    }
)

HISTORY_LIMIT = 20
# Every task passes these; on Python 3.11 to ask an enum for a member is a call.
_PENDING, _RUNNING, _SUCCEED = TaskStatus.PENDING, TaskStatus.RUNNING, Action.SUCCEED
# So often a task may be in flight when a whole worker dies, and count as innocent.
MAX_SUSPICIONS = 10

_OUTCOMES: dict[Action, RunOutcome] = {
    Action.SUCCEED: RunOutcome.SUCCESS,
    Action.REPEAT: RunOutcome.SUCCESS,
    Action.RETRY: RunOutcome.RETRIED,
    Action.FAIL: RunOutcome.FAILED,
    Action.CONTINUE: RunOutcome.FAILED,
    Action.GIVE_BACK: RunOutcome.GIVEN_BACK,
    Action.LOSE: RunOutcome.DIED,
}


class Change(Struct, frozen=True):
    """A row afterwards, and the history line of the run that this closed, if it closed one."""

    task: StoredTask
    run: Run | None = None


# --- decided by the worker -----------------------------------------------------------------------


def settle(task: StoredTask | Task, outcome: Outcome, policy: RetryPolicy, jitter: float) -> Settlement:
    """Decide what becomes of a claimed `task` once its run has ended."""
    if type(outcome) is Succeeded and task.interval is None:  # nearly always; patterns cost a microsecond
        return Settlement(task, _SUCCEED, outcome.result)
    match outcome:
        case Succeeded(result) if task.repeats:
            assert task.interval is not None
            return Settlement.repeat(task, result, task.interval)
        case Succeeded(result):
            return Settlement.success(task, result)
        case Snoozed(delay_s):
            return Settlement.give_back(task, delay_s)
        case Interrupted():
            return Settlement.give_back(task)
        case Died(cause):
            return Settlement.lost(task, _error("WorkerDied", f"its process died: {cause}", "poison"))
        case Failed(error, delay_s, final) if not final and policy.allows(task.attempts, task.max_retries):
            return Settlement.retry(
                task, policy.delay_s(task.attempts, jitter) if delay_s is None else delay_s, error
            )
        case Failed(error) if task.repeats and task.on_failure == "continue":
            assert task.interval is not None
            return Settlement.carry_on(task, task.interval, error)
        case Failed(error):
            return Settlement.failed(task, error)
        case _:
            assert_never(outcome)


# --- done by the store ---------------------------------------------------------------------------


def arrive(task: StoredTask, now: datetime) -> StoredTask:
    """T1: durations become moments of the store's clock."""
    if task.delay_s is None and task.expires_in_s is None:
        return replace(task, enqueued_at=now)
    eta = task.eta if task.delay_s is None else now + timedelta(seconds=task.delay_s)
    expires_at = task.expires_at if task.expires_in_s is None else now + timedelta(seconds=task.expires_in_s)
    return replace(task, enqueued_at=now, eta=eta, expires_at=expires_at, delay_s=None, expires_in_s=None)


def claim(task: StoredTask, worker: str, now: datetime, isolates: bool = False) -> StoredTask:
    """T2. The caller has checked that the task is due, not expired, and in a queue that runs."""
    assert task.status is _PENDING
    return replace(
        task,
        status=_RUNNING,
        epoch=task.epoch + 1,
        owner=worker,
        started_at=now,
        progress=None,
        isolates=isolates,
    )


def holds(task: StoredTask, epoch: int) -> bool:
    """The fence: only the newest claim may say anything about a running task."""
    return task.status is TaskStatus.RUNNING and task.epoch == epoch


def close(task: StoredTask, settlement: Settlement, now: datetime) -> Change:
    """T4 to T7: apply a settlement that holds. A cancel request wins over everything but success (T12)."""
    assert holds(task, settlement.task.epoch)
    error = settlement.error
    if settlement.action is Action.SUCCEED:
        done = replace(_ended(task, TaskStatus.SUCCESS, None, now), result=settlement.result)
        return Change(done)
    if task.cancel_requested:
        return _cancelled(task, RunOutcome.CANCELLED, error, now)
    if settlement.action is Action.LOSE:
        return _one_loss_more(task, RunOutcome.DIED, error, now)
    run = _run(task, _OUTCOMES[settlement.action], error, now)
    if settlement.action is Action.FAIL:
        failed = replace(_ended(task, TaskStatus.FAILED, error, now), attempts=task.attempts + 1)
        return Change(failed, run)
    waiting = _waiting(task, now, settlement.delay_s)
    return Change(_wait_for_next(waiting, settlement, now), run)


def _wait_for_next(waiting: StoredTask, settlement: Settlement, now: datetime) -> StoredTask:
    match settlement.action:
        case Action.REPEAT:
            return replace(
                waiting,
                attempts=0,
                losses=0,
                suspicions=0,
                error=None,
                result=settlement.result,
                result_status=TaskStatus.SUCCESS,
                result_at=now,
            )
        case Action.CONTINUE:
            return replace(
                waiting,
                attempts=0,
                error=settlement.error,
                result=None,
                result_status=TaskStatus.FAILED,
                result_at=now,
            )
        case Action.RETRY:
            return replace(waiting, attempts=waiting.attempts + 1, error=settlement.error)
        case _:
            return waiting


def answer(task: StoredTask | None, history: list[Run], settlement: Settlement) -> Answer:
    """What to say to a settlement that does not hold: was this very outcome recorded before?"""
    if task is None:
        return Answer.STALE
    epoch = settlement.task.epoch
    if settlement.action is Action.SUCCEED and task.status is TaskStatus.SUCCESS and task.epoch == epoch:
        return Answer.ALREADY
    wanted = {_OUTCOMES[settlement.action]}
    if settlement.action is not Action.SUCCEED:
        wanted.add(RunOutcome.CANCELLED)
    closed = any(run.epoch == epoch and run.outcome in wanted for run in history)
    return Answer.ALREADY if closed else Answer.STALE


def lapse(task: StoredTask, now: datetime) -> Change:
    """T8, T9: the worker is gone. The caller has checked that the lease is over, or the owner dead.

    Whoever was in flight beside others may be innocent: a worker that isolates runs it alone next, and only
    a death there counts.
    """
    assert task.status is TaskStatus.RUNNING
    if task.cancel_requested:
        return _cancelled(task, RunOutcome.LOST, None, now)
    if task.isolates and task.suspicions < MAX_SUSPICIONS:
        waiting = _waiting(task, now, loss_delay_s(task.suspicions))
        suspect = replace(waiting, suspicions=task.suspicions + 1)
        return Change(suspect, _run(task, RunOutcome.LOST, None, now))
    return _one_loss_more(task, RunOutcome.LOST, None, now)


def _one_loss_more(task: StoredTask, outcome: RunOutcome, cause: TaskError | None, now: datetime) -> Change:
    """T8, T9. The `cause` is there if the worker lives and tells it."""
    losses = task.losses + 1
    if losses >= task.max_losses:
        why = "its worker died" if cause is None else cause.message
        error = _error("WorkerLost", f"{why}, {losses} times while running it", "poison")
        ended = replace(_ended(task, TaskStatus.FAILED, error, now), losses=losses)
        return Change(ended, _run(task, outcome, cause or error, now))
    waiting = replace(_waiting(task, now, loss_delay_s(task.losses)), losses=losses)
    return Change(waiting, _run(task, outcome, cause, now))


def cancel(task: StoredTask, now: datetime) -> StoredTask:
    """T10 for a waiting task, T11 for a running one; a final one stays as it is."""
    if task.status is TaskStatus.PENDING:
        error = _error("Cancelled", "cancelled before it ran", "cancelled")
        return _ended(task, TaskStatus.CANCELLED, error, now)
    if task.status is TaskStatus.RUNNING:
        return replace(task, cancel_requested=True)
    return task


def requeue(task: StoredTask, now: datetime) -> StoredTask:
    """T13: run it again by hand, with all its chances. The epoch goes on, so old reports stay stale."""
    if task.status not in (TaskStatus.FAILED, TaskStatus.CANCELLED):
        raise Conflict(f"task {task.id} is {task.status}; only FAILED and CANCELLED tasks can be retried")
    return replace(
        task,
        status=TaskStatus.PENDING,
        attempts=0,
        losses=0,
        suspicions=0,
        eta=now,
        expires_at=None,
        cancel_requested=False,
        error=None,
        finished_at=None,
        result=None,
        result_status=None,
        result_at=None,
    )


def expire(task: StoredTask, now: datetime) -> StoredTask:
    """T14: it waited too long to be of use."""
    assert task.status is TaskStatus.PENDING
    assert task.expires_at is not None
    error = _error("Expired", f"not started before {task.expires_at.isoformat()}", "expired")
    return _ended(task, TaskStatus.FAILED, error, now)


def expired(task: StoredTask, now: datetime) -> bool:
    return task.expires_at is not None and task.expires_at <= now


def reschedule(task: StoredTask, eta: datetime) -> StoredTask:
    """T15: another moment for a waiting task."""
    if task.status is not TaskStatus.PENDING:
        raise Conflict(f"task {task.id} is {task.status}; only PENDING tasks can be rescheduled")
    return replace(task, eta=eta)


def substitute(task: StoredTask, new: StoredTask) -> StoredTask:
    """T15: a waiting task takes over another's call and eta, and keeps its own id."""
    if task.status is not TaskStatus.PENDING:
        return task
    return replace(task, func_path=new.func_path, payload=new.payload, eta=new.eta)


def is_due(task: TaskFields, now: datetime) -> bool:
    """What has no eta is due whatever the clock says."""
    return task.eta is None or task.eta <= now


def due_at(task: StoredTask) -> datetime:
    """The moment that orders a waiting task: its eta, or when it was enqueued."""
    moment = task.eta if task.eta is not None else task.enqueued_at
    assert moment is not None
    return moment


def claim_order(task: StoredTask) -> tuple[int, datetime, int]:
    """Who goes first: priority, then the moment it was due, then order of enqueueing."""
    return -task.priority, due_at(task), task.seq


def timing(task: StoredTask) -> Timing | None:
    """How long a task that ended waited since it was due, and ran."""
    if task.started_at is None or task.finished_at is None:
        return None
    wait_s = (task.started_at - due_at(task)).total_seconds()
    return Timing(task.queue, max(0.0, wait_s), (task.finished_at - task.started_at).total_seconds())


# --- straight lines ------------------------------------------------------------------------------


def _ended(task: StoredTask, status: TaskStatus, error: TaskError | None, now: datetime) -> StoredTask:
    return replace(
        task,
        status=status,
        error=error,
        owner=None,
        isolates=False,
        cancel_requested=False,
        finished_at=now,
        result=None,
        result_status=status,
        result_at=now,
    )


def _waiting(task: StoredTask, now: datetime, delay_s: float) -> StoredTask:
    eta = now + timedelta(seconds=max(0.0, delay_s))
    return replace(task, status=TaskStatus.PENDING, owner=None, isolates=False, eta=eta)


def _cancelled(task: StoredTask, outcome: RunOutcome, cause: TaskError | None, now: datetime) -> Change:
    error = _error("Cancelled", "cancelled while it ran", "cancelled")
    ended = _ended(task, TaskStatus.CANCELLED, error, now)
    return Change(ended, _run(task, outcome, cause, now))


def _run(task: StoredTask, outcome: RunOutcome, error: TaskError | None, now: datetime) -> Run:
    return Run(task.epoch, task.owner, task.started_at, now, outcome, error)


def _error(name: str, message: str, kind: ErrorKind) -> TaskError:
    return TaskError(name, message, "", kind)
