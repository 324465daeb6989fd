"""What holds for every decision about every task, whatever its fields are."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniq.errors import Conflict
from omniq.logic import lifecycle
from omniq.logic.lifecycle import HISTORY_LIMIT, MAX_SUSPICIONS, TRANSITIONS, Change
from omniq.logic.retry import RetryPolicy, loss_delay_s
from omniq.task import (
    Action,
    Died,
    Failed,
    Held,
    Interrupted,
    Outcome,
    RunOutcome,
    Settlement,
    Snoozed,
    StoredTask,
    Succeeded,
    TaskError,
    TaskStatus,
    replace,
)
from tests.logic.rows import BOOM, FEW, NOW, RESULT, after

# What nothing but T15 (replace: the call) may ever change.
IDENTITY = (
    *("id", "queue", "priority", "interval", "timeout", "max_retries", "max_losses", "unique_key"),
    *("headers", "on_failure", "result_ttl", "enqueued_at", "seq", "func_path", "payload"),
)
MOMENTS = st.integers(-10_000, 10_000).map(after)
DELAYS = st.floats(-10, 1e9)
COUNTS = st.integers(0, 30)  # more losses than that are the business of test_retry


# Drawn as one value, so that an example costs little: the folder has two seconds.
FACTS = st.fixed_dictionaries(
    {
        "eta": st.none() | MOMENTS,
        "interval": st.sampled_from([None, -1.0, 0.0, 0.5, 86400.0]),
        "max_retries": COUNTS,
        "max_losses": st.integers(1, 40),
        "on_failure": st.sampled_from(["stop", "continue"]),
        "epoch": st.integers(1, 50),
        "attempts": COUNTS,
        "losses": COUNTS,
        "suspicions": st.sampled_from([0, 1, MAX_SUSPICIONS]),
        "error": st.sampled_from([None, BOOM]),
    }
)


def rows(*statuses: TaskStatus) -> st.SearchStrategy[StoredTask]:
    """Any row that a store could hold in one of these statuses."""
    return st.builds(row, st.sampled_from(statuses or tuple(TaskStatus)), st.booleans(), FACTS)


def row(status: TaskStatus, asked: bool, facts: dict[str, Any]) -> StoredTask:
    running, succeeded = status is TaskStatus.RUNNING, status is TaskStatus.SUCCESS
    ended = {"finished_at": after(-1), "result_status": status, "result_at": after(-1)}
    return StoredTask(
        "jobs.resize",
        b"encoded call",
        id="t",
        queue="mail",
        priority=3,
        expires_at=after(99),
        timeout=5.0,
        unique_key="k",
        headers={"trace": "1"},
        result_ttl=60.0,
        status=status,
        owner="ann" if running else None,
        cancel_requested=running and asked,
        progress=(1.0, 3.0),
        enqueued_at=after(-60),
        started_at=after(-5),
        seq=7,
        result=RESULT if succeeded else None,
        **(facts | {"error": None} if succeeded else facts),
        **(ended if status.final else {}),
    )


def settlement_of(task: StoredTask, action: Action, delay_s: float) -> Settlement:
    result = RESULT if action in (Action.SUCCEED, Action.REPEAT) else None
    error = BOOM if action in (Action.RETRY, Action.FAIL, Action.CONTINUE) else None
    return Settlement(Held(task.id, task.epoch), action, result, delay_s, error)


OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.just(Succeeded(RESULT)),
    st.builds(Failed, st.just(BOOM), st.none() | DELAYS, st.booleans()),
    st.builds(Snoozed, DELAYS),
    st.just(Interrupted()),
    st.builds(Died, st.text(max_size=9)),
)

OF_ACTION = {
    Action.SUCCEED: "T4",
    Action.REPEAT: "T4i",
    Action.RETRY: "T5",
    Action.FAIL: "T6",
    Action.CONTINUE: "T6c",
    Action.GIVE_BACK: "T7",
    Action.LOSE: "T8",
}


def assert_lawful(name: str, before: StoredTask, afterwards: StoredTask) -> None:
    """The transition exists, the epoch does not go back, and a row is all of its status or nothing of it."""
    assert (name, before.status, afterwards.status) in TRANSITIONS
    assert afterwards.epoch == before.epoch + (1 if name == "T2" else 0)
    assert all(getattr(before, field) == getattr(afterwards, field) for field in IDENTITY)
    final, running = afterwards.status.final, afterwards.status is TaskStatus.RUNNING
    assert (afterwards.finished_at is not None) == final
    assert (afterwards.owner is not None) == running
    assert running or not afterwards.cancel_requested
    if final:
        assert (afterwards.finished_at, afterwards.result_at) == (NOW, NOW)
        assert afterwards.result_status is afterwards.status
        assert (afterwards.error is None) == (afterwards.status is TaskStatus.SUCCESS)
        assert (afterwards.result is None) == (afterwards.status is not TaskStatus.SUCCESS)


def assert_closed(before: StoredTask, change: Change) -> None:
    """A run that ends has one line in the history, except the successful one of an ended task."""
    succeeded = change.task.status is TaskStatus.SUCCESS
    assert (change.run is None) == succeeded
    if change.run is not None:
        assert (change.run.epoch, change.run.owner) == (before.epoch, before.owner)
        assert (change.run.started_at, change.run.finished_at) == (before.started_at, NOW)


@FEW
@given(task=rows(TaskStatus.PENDING))
def test_every_claim_is_lawful(task: StoredTask) -> None:
    assert_lawful("T2", task, lifecycle.claim(task, "bob", NOW))


@FEW
@given(task=rows(TaskStatus.RUNNING), action=st.sampled_from(Action), delay_s=DELAYS)
def test_every_close_is_lawful(task: StoredTask, action: Action, delay_s: float) -> None:
    settlement = settlement_of(task, action, delay_s)
    change = lifecycle.close(task, settlement, NOW)
    stopped = task.cancel_requested and settlement.action is not Action.SUCCEED
    poisoned = action is Action.LOSE and change.task.status is TaskStatus.FAILED
    assert_lawful("T12" if stopped else "T9" if poisoned else OF_ACTION[settlement.action], task, change.task)
    assert_closed(task, change)
    if change.task.status is TaskStatus.PENDING:
        delay_s = loss_delay_s(task.losses) if action is Action.LOSE else settlement.delay_s
        assert change.task.eta == NOW + timedelta(seconds=max(0.0, delay_s))


@FEW
@given(task=rows(TaskStatus.RUNNING), outcome=OUTCOMES, jitter=st.floats(0, 1, exclude_max=True))
def test_what_a_worker_decides_can_be_closed_and_is_then_already_there(
    task: StoredTask, outcome: Outcome, jitter: float
) -> None:
    settlement = lifecycle.settle(task, outcome, RetryPolicy(), jitter)
    change = lifecycle.close(task, settlement, NOW)
    if not task.cancel_requested:
        poisoned = settlement.action is Action.LOSE and task.losses + 1 >= task.max_losses
        assert change.task.status is (TaskStatus.FAILED if poisoned else settlement.status)
        assert change.task.attempts <= task.attempts + isinstance(outcome, Failed)
    history = [] if change.run is None else [change.run]
    assert lifecycle.answer(change.task, history, settlement) == "already"


@FEW
@given(task=rows(TaskStatus.RUNNING), isolates=st.booleans())
def test_every_lapse_is_lawful(task: StoredTask, isolates: bool) -> None:
    task = replace(task, isolates=isolates)
    change = lifecycle.lapse(task, NOW)
    suspected = change.task.suspicions - task.suspicions
    assert suspected == (isolates and task.suspicions < MAX_SUSPICIONS and not task.cancel_requested)
    assert change.task.losses == task.losses + (not suspected and not task.cancel_requested)
    name = {TaskStatus.PENDING: "T8", TaskStatus.FAILED: "T9", TaskStatus.CANCELLED: "T12"}
    assert_lawful(name[change.task.status], task, change.task)
    assert_closed(task, change)
    assert change.run is not None
    assert change.run.outcome is RunOutcome.LOST
    assert change.task.attempts == task.attempts


@FEW
@given(task=rows())
def test_every_cancel_is_lawful(task: StoredTask) -> None:
    cancelled = lifecycle.cancel(task, NOW)
    if task.status.final:
        assert cancelled is task
        return
    assert_lawful("T10" if task.status is TaskStatus.PENDING else "T11", task, cancelled)


@FEW
@given(task=rows(TaskStatus.FAILED, TaskStatus.CANCELLED))
def test_every_requeue_is_lawful(task: StoredTask) -> None:
    assert_lawful("T13", task, lifecycle.requeue(task, NOW))


@FEW
@given(task=rows(TaskStatus.PENDING), expires_at=MOMENTS)
def test_every_expiry_is_lawful(task: StoredTask, expires_at: datetime) -> None:
    assert_lawful("T14", task, lifecycle.expire(replace(task, expires_at=expires_at), NOW))


@FEW
@given(task=rows(TaskStatus.PENDING), eta=MOMENTS)
def test_every_reschedule_is_lawful(task: StoredTask, eta: datetime) -> None:
    assert_lawful("T15", task, lifecycle.reschedule(task, eta))


def test_the_table_holds_exactly_what_is_written_about_it() -> None:
    """SEMANTICS section 2, as pairs: whoever adds a way from one status to another changes this too."""
    pairs = {
        (before and before.value, afterwards and afterwards.value) for _, before, afterwards in TRANSITIONS
    }
    assert pairs == {
        (None, "PENDING"),
        ("PENDING", "RUNNING"),
        ("PENDING", "PENDING"),
        ("PENDING", "CANCELLED"),
        ("PENDING", "FAILED"),
        ("RUNNING", "RUNNING"),
        ("RUNNING", "PENDING"),
        ("RUNNING", "SUCCESS"),
        ("RUNNING", "FAILED"),
        ("RUNNING", "CANCELLED"),
        ("FAILED", "PENDING"),
        ("CANCELLED", "PENDING"),
        ("SUCCESS", None),
        ("FAILED", None),
        ("CANCELLED", None),
    }
    numbers = {name for name, _, _ in TRANSITIONS}
    assert numbers == {f"T{number}" for number in range(1, 17)} | {"T4i", "T6c"}
    assert HISTORY_LIMIT == 20


@FEW
@given(task=rows(TaskStatus.SUCCESS))
def test_by_hand_nothing_touches_a_success(task: StoredTask) -> None:
    assert lifecycle.cancel(task, NOW) is task
    assert lifecycle.substitute(task, replace(task, id="new", payload=b"other")) is task
    for refuse in (lifecycle.requeue, lifecycle.reschedule):
        with pytest.raises(Conflict):
            refuse(task, NOW)


def test_an_error_is_shown_with_its_type() -> None:
    assert str(TaskError("ValueError", "boom")) == "ValueError: boom"
    assert str(TaskError("ValueError", "")) == "ValueError"
