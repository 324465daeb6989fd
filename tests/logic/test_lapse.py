"""What becomes of a running task whose worker is gone (T8, T9, T12)."""

import pytest

from omniq.logic.lifecycle import lapse
from omniq.task import Run, RunOutcome, TaskError, TaskStatus
from tests.logic.rows import NOW, after, running

TABLE = [
    # losses, max_losses, status, due in s
    (0, 3, TaskStatus.PENDING, 0.0),  # a first death may be anybody's fault: at once
    (1, 3, TaskStatus.PENDING, 1.0),
    (2, 3, TaskStatus.FAILED, None),  # the third in a row
    (3, 3, TaskStatus.FAILED, None),
    (0, 1, TaskStatus.FAILED, None),
    (1, 9, TaskStatus.PENDING, 1.0),
    (2, 9, TaskStatus.PENDING, 2.0),
    (5, 9, TaskStatus.PENDING, 16.0),
]


@pytest.mark.parametrize(("losses", "max_losses", "status", "due_in_s"), TABLE)
def test_lapse(losses: int, max_losses: int, status: TaskStatus, due_in_s: float | None) -> None:
    change = lapse(running(losses=losses, max_losses=max_losses, eta=after(-9)), NOW)
    task = change.task
    assert (task.status, task.losses, task.owner) == (status, losses + 1, None)
    assert task.eta == (after(-9) if due_in_s is None else after(due_in_s))
    assert change.run == Run(4, "ann", after(-5), NOW, RunOutcome.LOST, task.error)


def test_lapse_spends_no_attempt() -> None:
    assert lapse(running(attempts=2), NOW).task.attempts == 2


def test_lapse_for_the_last_time_is_poison_and_says_how_often() -> None:
    task = lapse(running(losses=2, max_losses=3), NOW).task
    assert task.error is not None
    assert (task.error.kind, task.result_status, task.finished_at) == ("poison", TaskStatus.FAILED, NOW)
    assert "3 times" in task.error.message


def test_lapse_keeps_the_error_of_the_failure_before() -> None:
    boom = TaskError("ValueError", "boom")
    change = lapse(running(error=boom), NOW)
    assert (change.task.error, change.run and change.run.error) == (boom, None)


@pytest.mark.parametrize(("losses", "max_losses"), [(0, 3), (2, 3), (0, 1)])
def test_lapse_of_a_task_that_was_to_be_cancelled_ends_it(losses: int, max_losses: int) -> None:
    """Also where it would be poison: nobody wanted it any more."""
    change = lapse(running(losses=losses, max_losses=max_losses, cancel_requested=True), NOW)
    assert (change.task.status, change.task.losses) == (TaskStatus.CANCELLED, losses)
    assert change.task.error is not None
    assert change.task.error.kind == "cancelled"
    assert change.run is not None
    assert change.run.outcome is RunOutcome.LOST


def test_lapse_is_for_running_tasks_only() -> None:
    with pytest.raises(AssertionError):
        lapse(running(status=TaskStatus.PENDING), NOW)
