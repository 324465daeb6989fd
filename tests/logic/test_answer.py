"""The fence, and what a report hears that comes too late or twice."""

import pytest

from omniq.logic.lifecycle import answer, close, holds, lapse
from omniq.task import Action, Answer, Run, RunOutcome, Settlement, StoredTask, TaskStatus
from tests.logic.rows import BOOM, NOW, RESULT, closed_run, ended, held, running, waiting

Status = TaskStatus
Was = RunOutcome


@pytest.mark.parametrize(
    ("task", "epoch", "held"),
    [
        (running(epoch=4), 4, True),
        (running(epoch=4), 3, False),  # an older claim: a zombie
        (running(epoch=4), 5, False),
        (running(epoch=4), 0, False),  # 0 is never handed out
        (running(epoch=4, cancel_requested=True), 4, True),
        (waiting(epoch=4), 4, False),  # given back or lapsed
        (ended(Status.SUCCESS, epoch=4), 4, False),
        (ended(Status.FAILED, epoch=4), 4, False),
        (ended(Status.CANCELLED, epoch=4), 4, False),
    ],
)
def test_only_the_newest_claim_of_a_running_task_holds(task: StoredTask, epoch: int, held: bool) -> None:
    assert holds(task, epoch) is held


# Reports of epoch 4 that do not hold. The history is what is known of epoch 4, unless a row says else.
LATE = [
    ("deleted or never there", None, None, Action.SUCCEED, Answer.STALE),
    ("deleted or never there", None, None, Action.FAIL, Answer.STALE),
    ("done, told again", ended(Status.SUCCESS), None, Action.SUCCEED, Answer.ALREADY),
    ("done by a later run", ended(Status.SUCCESS, epoch=5), Was.LOST, Action.SUCCEED, Answer.STALE),
    ("done, but we say failed", ended(Status.SUCCESS), None, Action.FAIL, Answer.STALE),
    ("done, but we give it back", ended(Status.SUCCESS), None, Action.GIVE_BACK, Answer.STALE),
    ("repeated, told again", waiting(epoch=4), Was.SUCCESS, Action.REPEAT, Answer.ALREADY),
    ("repeated and claimed again", running(epoch=5), Was.SUCCESS, Action.REPEAT, Answer.ALREADY),
    ("retried, told again", waiting(epoch=4), Was.RETRIED, Action.RETRY, Answer.ALREADY),
    ("retried and claimed again", running(epoch=5), Was.RETRIED, Action.RETRY, Answer.ALREADY),
    ("retried, but we say done", waiting(epoch=4), Was.RETRIED, Action.SUCCEED, Answer.STALE),
    ("retried, but we say failed", waiting(epoch=4), Was.RETRIED, Action.FAIL, Answer.STALE),
    ("failed, told again", ended(Status.FAILED), Was.FAILED, Action.FAIL, Answer.ALREADY),
    ("failed and retried by hand", waiting(epoch=4), Was.FAILED, Action.FAIL, Answer.ALREADY),
    ("failed, but we say done", ended(Status.FAILED), Was.FAILED, Action.SUCCEED, Answer.STALE),
    ("went on, told again", waiting(epoch=4), Was.FAILED, Action.CONTINUE, Answer.ALREADY),
    ("given back, told again", waiting(epoch=4), Was.GIVEN_BACK, Action.GIVE_BACK, Answer.ALREADY),
    ("given back, but we say done", waiting(epoch=4), Was.GIVEN_BACK, Action.SUCCEED, Answer.STALE),
    ("lapsed", waiting(epoch=4), Was.LOST, Action.SUCCEED, Answer.STALE),
    ("lapsed", waiting(epoch=4), Was.LOST, Action.REPEAT, Answer.STALE),
    ("lapsed", waiting(epoch=4), Was.LOST, Action.RETRY, Answer.STALE),
    ("lapsed", waiting(epoch=4), Was.LOST, Action.FAIL, Answer.STALE),
    ("lapsed", waiting(epoch=4), Was.LOST, Action.GIVE_BACK, Answer.STALE),
    ("lapsed and claimed again", running(epoch=5), Was.LOST, Action.SUCCEED, Answer.STALE),
    ("poisoned", ended(Status.FAILED), Was.LOST, Action.FAIL, Answer.STALE),
    ("lapsed while being cancelled", ended(Status.CANCELLED), Was.LOST, Action.GIVE_BACK, Answer.STALE),
    # T12 turned the report into a cancellation, so the same report again is no news.
    ("cancelled, told again", ended(Status.CANCELLED), Was.CANCELLED, Action.GIVE_BACK, Answer.ALREADY),
    ("cancelled, told again", ended(Status.CANCELLED), Was.CANCELLED, Action.RETRY, Answer.ALREADY),
    ("cancelled, told again", ended(Status.CANCELLED), Was.CANCELLED, Action.FAIL, Answer.ALREADY),
    ("cancelled, told again", ended(Status.CANCELLED), Was.CANCELLED, Action.REPEAT, Answer.ALREADY),
    ("cancelled, but we say done", ended(Status.CANCELLED), Was.CANCELLED, Action.SUCCEED, Answer.STALE),
    ("cancelled while it waited", ended(Status.CANCELLED, epoch=3), None, Action.GIVE_BACK, Answer.STALE),
]


@pytest.mark.parametrize(
    ("task", "outcome", "action", "expected"),
    [row[1:] for row in LATE],
    ids=[f"{row[0]}: {row[3]}" for row in LATE],
)
def test_answer(
    task: StoredTask | None, outcome: RunOutcome | None, action: Action, expected: Answer
) -> None:
    history = [] if outcome is None else [closed_run(4, outcome)]
    assert answer(task, history, Settlement(held(4), action)) is expected


def test_answer_looks_at_the_epoch_of_the_report_and_no_other() -> None:
    history = [closed_run(3, Was.RETRIED), closed_run(4, Was.LOST), closed_run(5, Was.FAILED)]
    task = ended(Status.FAILED, epoch=5)
    answers = {
        epoch: {
            action for action in Action if answer(task, history, Settlement(held(epoch), action)) != "stale"
        }
        for epoch in range(7)
    }
    assert answers == {
        0: set(),
        1: set(),
        2: set(),
        3: {Action.RETRY},
        4: set(),
        5: {Action.FAIL, Action.CONTINUE},
        6: set(),
    }


@pytest.mark.parametrize("cancel_requested", [False, True])
@pytest.mark.parametrize("action", Action)
def test_a_settlement_that_was_applied_is_already_there(action: Action, cancel_requested: bool) -> None:
    settlement = Settlement(held(), action, RESULT, 5.0, BOOM)
    change = close(running(cancel_requested=cancel_requested), settlement, NOW)
    assert not holds(change.task, 4)
    assert answer(change.task, runs(change.run), settlement) is Answer.ALREADY


@pytest.mark.parametrize("cancel_requested", [False, True])
@pytest.mark.parametrize("action", Action)
def test_a_settlement_after_the_lease_ended_is_stale(action: Action, cancel_requested: bool) -> None:
    change = lapse(running(cancel_requested=cancel_requested), NOW)
    assert not holds(change.task, 4)
    assert answer(change.task, runs(change.run), Settlement(held(), action)) is Answer.STALE


def runs(run: Run | None) -> list[Run]:
    return [] if run is None else [run]
