"""What people, and the passing of time, do to a row: T1, T2, T10, T11, T13, T14, T15."""

from datetime import datetime
from typing import Any

import pytest

from omniq.errors import Conflict
from omniq.logic import lifecycle
from omniq.task import StoredTask, TaskStatus, replace
from tests.logic.rows import BOOM, NOW, RESULT, after, ended, running, waiting

FINAL = [status for status in TaskStatus if status.final]
EVERY_STATUS = [waiting(), running(), *(ended(status) for status in FINAL)]


def differing(before: StoredTask, afterwards: StoredTask) -> set[str]:
    return {name for name in before.__struct_fields__ if getattr(before, name) != getattr(afterwards, name)}


# --- arrive --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "eta", "expires_at"),
    [
        ({}, None, None),
        ({"eta": after(9), "expires_at": after(99)}, after(9), after(99)),
        ({"delay_s": 5.0}, after(5), None),
        ({"delay_s": 0.0}, NOW, None),
        ({"expires_in_s": 5.0}, None, after(5)),
        ({"delay_s": 5.0, "expires_in_s": 7.0}, after(5), after(7)),
        ({"eta": after(9), "expires_in_s": 5.0}, after(9), after(5)),
        ({"delay_s": 5.0, "expires_at": after(99)}, after(5), after(99)),
    ],
)
def test_arrive_makes_moments_of_durations(
    given: dict[str, Any], eta: datetime | None, expires_at: datetime | None
) -> None:
    """Durations cross the border, because one clock per store is the only one that counts."""
    task = lifecycle.arrive(waiting(enqueued_at=None, **given), NOW)
    assert (task.enqueued_at, task.eta, task.expires_at) == (NOW, eta, expires_at)
    assert (task.delay_s, task.expires_in_s) == (None, None)
    assert task.status is TaskStatus.PENDING


# --- claim ---------------------------------------------------------------------------------------


def test_claim_takes_the_next_epoch_and_nothing_else_than_it_says() -> None:
    before = waiting(epoch=4, attempts=1, losses=1, error=BOOM, progress=(1.0, 2.0))
    claimed = lifecycle.claim(before, "ann", NOW)
    assert differing(before, claimed) == {"status", "epoch", "owner", "started_at", "progress"}
    assert (claimed.status, claimed.epoch, claimed.owner) == (TaskStatus.RUNNING, 5, "ann")
    assert (claimed.started_at, claimed.progress) == (NOW, None)


@pytest.mark.parametrize("task", EVERY_STATUS[1:], ids=lambda task: task.status)
def test_claim_is_for_waiting_tasks_only(task: StoredTask) -> None:
    with pytest.raises(AssertionError):
        lifecycle.claim(task, "ann", NOW)


# --- cancel --------------------------------------------------------------------------------------


def test_cancel_of_a_waiting_task_ends_it() -> None:
    cancelled = lifecycle.cancel(waiting(epoch=2, error=BOOM, attempts=1), NOW)
    assert (cancelled.status, cancelled.finished_at) == (TaskStatus.CANCELLED, NOW)
    assert cancelled.error is not None
    assert cancelled.error.kind == "cancelled"
    assert (cancelled.epoch, cancelled.attempts, cancelled.cancel_requested) == (2, 1, False)
    assert (cancelled.result_status, cancelled.result_at) == (TaskStatus.CANCELLED, NOW)


@pytest.mark.parametrize("asked_before", [False, True])
def test_cancel_of_a_running_task_only_asks(asked_before: bool) -> None:
    before = running(cancel_requested=asked_before)
    assert lifecycle.cancel(before, NOW) == replace(before, cancel_requested=True)


@pytest.mark.parametrize("status", FINAL)
def test_cancel_of_what_has_ended_changes_nothing(status: TaskStatus) -> None:
    before = ended(status)
    assert lifecycle.cancel(before, NOW) is before


# --- requeue -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [TaskStatus.FAILED, TaskStatus.CANCELLED])
def test_requeue_gives_all_chances_again_and_keeps_the_epoch(status: TaskStatus) -> None:
    before = ended(status, attempts=4, losses=2, error=BOOM, eta=after(-99), expires_at=after(-50))
    again = lifecycle.requeue(before, NOW)
    assert (again.status, again.attempts, again.losses, again.epoch) == (TaskStatus.PENDING, 0, 0, 4)
    assert (again.eta, again.expires_at, again.finished_at, again.error) == (NOW, None, None, None)
    assert (again.result, again.result_status, again.result_at) == (None, None, None)
    assert not again.cancel_requested


@pytest.mark.parametrize("task", [waiting(), running(), ended(TaskStatus.SUCCESS)], ids=lambda t: t.status)
def test_requeue_of_anything_else_is_a_conflict_that_says_why(task: StoredTask) -> None:
    with pytest.raises(Conflict, match=f"{task.status}.*only FAILED and CANCELLED"):
        lifecycle.requeue(task, NOW)


# --- expire --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expires_at", "expected"),
    [(None, False), (after(0.001), False), (NOW, True), (after(-0.001), True)],
)
def test_a_task_is_expired_from_the_moment_it_names(expires_at: datetime | None, expected: bool) -> None:
    assert lifecycle.expired(waiting(expires_at=expires_at), NOW) is expected


def test_expire_fails_it_and_spends_nothing() -> None:
    dead = lifecycle.expire(waiting(expires_at=after(-1), attempts=1, losses=1, epoch=2), NOW)
    assert (dead.status, dead.attempts, dead.losses, dead.epoch) == (TaskStatus.FAILED, 1, 1, 2)
    assert dead.error is not None
    assert (dead.error.kind, dead.finished_at) == ("expired", NOW)
    assert after(-1).isoformat() in dead.error.message


@pytest.mark.parametrize("task", [running(expires_at=NOW), ended(TaskStatus.FAILED, expires_at=NOW)])
def test_expire_is_for_waiting_tasks_only(task: StoredTask) -> None:
    """What has begun in time may end late."""
    with pytest.raises(AssertionError):
        lifecycle.expire(task, NOW)


# --- reschedule, substitute ----------------------------------------------------------------------


def test_reschedule_changes_the_eta_and_nothing_else() -> None:
    before = waiting(attempts=1, error=BOOM, eta=after(5))
    assert lifecycle.reschedule(before, after(99)) == replace(before, eta=after(99))


@pytest.mark.parametrize("task", EVERY_STATUS[1:], ids=lambda task: task.status)
def test_reschedule_of_anything_else_is_a_conflict_that_says_why(task: StoredTask) -> None:
    with pytest.raises(Conflict, match=f"{task.status}.*only PENDING"):
        lifecycle.reschedule(task, NOW)


def test_substitute_takes_the_call_and_the_eta_and_keeps_the_rest() -> None:
    before = waiting(attempts=1, priority=3, unique_key="k", queue="mail")
    new = StoredTask("jobs.other", b"other call", id="new", eta=after(9), priority=9, unique_key="k")
    replaced = lifecycle.substitute(before, new)
    assert differing(before, replaced) == {"func_path", "payload", "eta"}
    assert (replaced.func_path, replaced.payload, replaced.eta) == ("jobs.other", b"other call", after(9))


def test_substitute_without_an_eta_runs_now() -> None:
    new = StoredTask("jobs.other", b"other call", id="new")
    assert lifecycle.substitute(waiting(eta=after(99)), new).eta is None


@pytest.mark.parametrize("task", EVERY_STATUS[1:], ids=lambda task: task.status)
def test_substitute_leaves_alone_what_does_not_wait(task: StoredTask) -> None:
    assert lifecycle.substitute(task, StoredTask("jobs.other", RESULT, id="new")) is task


# --- due -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("eta", "due"), [(None, after(-60)), (after(5), after(5)), (after(-99), after(-99))])
def test_a_task_is_due_at_its_eta_or_from_when_it_was_enqueued(eta: datetime | None, due: datetime) -> None:
    assert lifecycle.due_at(waiting(eta=eta)) == due
