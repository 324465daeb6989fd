"""What a settlement that holds does to the row (T4 to T7, T12)."""

from dataclasses import dataclass

import pytest

from omniq.logic.lifecycle import close
from omniq.task import Action, Run, RunOutcome, Settlement, TaskError, TaskStatus
from tests.logic.rows import BOOM, NOW, RESULT, after, held, running

OLD_ERROR = TaskError("KeyError", "of the run before")
CANCELLED = TaskError("Cancelled", "cancelled while it ran", kind="cancelled")


@dataclass
class Closed:
    """The row afterwards, of a task with attempts=1, losses=1, an older error and an older result."""

    status: TaskStatus
    attempts: int
    losses: int
    error: TaskError | None
    result: tuple[TaskStatus | None, bytes | None]
    outcome: RunOutcome | None
    due_in_s: float | None = None


OLD_RESULT = (TaskStatus.SUCCESS, b"older")
STOPPED = Closed(TaskStatus.CANCELLED, 1, 1, CANCELLED, (TaskStatus.CANCELLED, None), RunOutcome.CANCELLED)
TABLE = {
    (Action.SUCCEED, False): Closed(TaskStatus.SUCCESS, 1, 1, None, (TaskStatus.SUCCESS, RESULT), None),
    (Action.REPEAT, False): Closed(
        TaskStatus.PENDING, 0, 0, None, (TaskStatus.SUCCESS, RESULT), RunOutcome.SUCCESS, 20.0
    ),
    (Action.RETRY, False): Closed(TaskStatus.PENDING, 2, 1, BOOM, OLD_RESULT, RunOutcome.RETRIED, 20.0),
    (Action.FAIL, False): Closed(TaskStatus.FAILED, 2, 1, BOOM, (TaskStatus.FAILED, None), RunOutcome.FAILED),
    (Action.CONTINUE, False): Closed(
        TaskStatus.PENDING, 0, 1, BOOM, (TaskStatus.FAILED, None), RunOutcome.FAILED, 20.0
    ),
    (Action.GIVE_BACK, False): Closed(
        TaskStatus.PENDING, 1, 1, OLD_ERROR, OLD_RESULT, RunOutcome.GIVEN_BACK, 20.0
    ),
    (Action.LOSE, False): Closed(TaskStatus.PENDING, 1, 2, OLD_ERROR, OLD_RESULT, RunOutcome.DIED, 1.0),
    # It was done: a cancel request that came too late changes nothing.
    (Action.SUCCEED, True): Closed(TaskStatus.SUCCESS, 1, 1, None, (TaskStatus.SUCCESS, RESULT), None),
    (Action.REPEAT, True): STOPPED,
    (Action.RETRY, True): STOPPED,
    (Action.FAIL, True): STOPPED,
    (Action.CONTINUE, True): STOPPED,
    (Action.GIVE_BACK, True): STOPPED,
    (Action.LOSE, True): STOPPED,
}


def settlement_of(action: Action, delay_s: float = 20.0) -> Settlement:
    result = RESULT if action in (Action.SUCCEED, Action.REPEAT) else None
    error = BOOM if action in (Action.RETRY, Action.FAIL, Action.CONTINUE, Action.LOSE) else None
    return Settlement(held(), action, result, delay_s, error)


def test_the_table_has_every_action_with_and_without_a_cancel_request() -> None:
    assert set(TABLE) == {(action, asked) for action in Action for asked in (False, True)}


@pytest.mark.parametrize(("action", "cancel_requested"), TABLE)
def test_close(action: Action, cancel_requested: bool) -> None:
    row = running(
        attempts=1,
        losses=1,
        error=OLD_ERROR,
        eta=after(-30),
        result=b"older",
        result_status=TaskStatus.SUCCESS,
        result_at=after(-90),
        cancel_requested=cancel_requested,
    )
    expected = TABLE[action, cancel_requested]

    change = close(row, settlement_of(action), NOW)

    task = change.task
    assert (task.status, task.attempts, task.losses) == (
        expected.status,
        expected.attempts,
        expected.losses,
    )
    assert task.error == expected.error
    assert (task.result_status, task.result) == expected.result
    assert task.result_at == (after(-90) if expected.result is OLD_RESULT else NOW)
    assert task.eta == (after(-30) if expected.due_in_s is None else after(expected.due_in_s))
    assert task.finished_at == (NOW if expected.status.final else None)
    assert (task.owner, task.cancel_requested, task.epoch) == (None, False, 4)
    assert change.run == history_line(action, expected.outcome)


def history_line(action: Action, outcome: RunOutcome | None) -> Run | None:
    """The successful run stands on the task itself; every other one is a line that keeps its cause."""
    if outcome is None:
        return None
    return Run(4, "ann", after(-5), NOW, outcome, settlement_of(action).error)


@pytest.mark.parametrize("action", [Action.REPEAT, Action.RETRY, Action.CONTINUE, Action.GIVE_BACK])
@pytest.mark.parametrize(("delay_s", "due_in_s"), [(-5.0, 0.0), (0.0, 0.0), (0.25, 0.25)])
def test_close_never_sets_an_eta_in_the_past(action: Action, delay_s: float, due_in_s: float) -> None:
    change = close(running(), settlement_of(action, delay_s), NOW)
    assert change.task.eta == after(due_in_s)


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("row", [running(epoch=5), running(epoch=3)])
def test_close_is_only_for_the_current_claim(action: Action, row: object) -> None:
    assert row != running()
    with pytest.raises(AssertionError):
        close(row, settlement_of(action), NOW)  # type: ignore[arg-type]
