"""What a worker decides from its claimed copy once the run has ended."""

import pytest

from omniq.logic.lifecycle import settle
from omniq.logic.retry import RetryPolicy
from omniq.task import Action, Failed, Interrupted, Outcome, Settlement, Snoozed, Succeeded, TaskStatus
from tests.logic.rows import BOOM, RESULT, running

POLICY = RetryPolicy(base_s=1.0, max_s=60.0)

# Of a task with max_retries=3. A delay of None: the action has none.
ONCE = [
    (0, Succeeded(RESULT), Action.SUCCEED, TaskStatus.SUCCESS, 0.0),
    (3, Succeeded(RESULT), Action.SUCCEED, TaskStatus.SUCCESS, 0.0),  # the last chance counts
    (0, Failed(BOOM), Action.RETRY, TaskStatus.PENDING, 1.0),
    (1, Failed(BOOM), Action.RETRY, TaskStatus.PENDING, 2.0),
    (2, Failed(BOOM), Action.RETRY, TaskStatus.PENDING, 4.0),  # doubles each time
    (3, Failed(BOOM), Action.FAIL, TaskStatus.FAILED, 0.0),  # max_retries is 3
    (9, Failed(BOOM), Action.FAIL, TaskStatus.FAILED, 0.0),  # max_retries was lowered meanwhile
    (0, Failed(BOOM, delay_s=0.0), Action.RETRY, TaskStatus.PENDING, 0.0),  # Retry(0) is no "no wish"
    (1, Failed(BOOM, delay_s=99.0), Action.RETRY, TaskStatus.PENDING, 99.0),  # Retry(delay) over max_s too
    (3, Failed(BOOM, delay_s=99.0), Action.FAIL, TaskStatus.FAILED, 0.0),  # a wish buys no extra run
    (0, Failed(BOOM, final=True), Action.FAIL, TaskStatus.FAILED, 0.0),  # GiveUp, undecodable
    (0, Failed(BOOM, delay_s=5.0, final=True), Action.FAIL, TaskStatus.FAILED, 0.0),
    (3, Snoozed(9.0), Action.GIVE_BACK, TaskStatus.PENDING, 9.0),  # snoozing costs no attempt
    (3, Interrupted(), Action.GIVE_BACK, TaskStatus.PENDING, 0.0),  # nor does our own shutdown
]


@pytest.mark.requirement("S000-13")
@pytest.mark.requirement("S000-15")
@pytest.mark.requirement("S001-23")
@pytest.mark.requirement("S001-25")
@pytest.mark.parametrize(("attempts", "outcome", "action", "status", "delay_s"), ONCE)
def test_settle(attempts: int, outcome: Outcome, action: Action, status: TaskStatus, delay_s: float) -> None:
    settlement = settle(running(attempts=attempts), outcome, POLICY, jitter=0.0)
    assert (settlement.action, settlement.status, settlement.delay_s) == (action, status, delay_s)


# Of a task with interval=20 and max_retries=1.
REPEATING = [
    ("stop", 0, Succeeded(RESULT), Action.REPEAT, 20.0),
    ("stop", 1, Succeeded(RESULT), Action.REPEAT, 20.0),
    ("continue", 0, Succeeded(RESULT), Action.REPEAT, 20.0),
    ("stop", 0, Failed(BOOM), Action.RETRY, 1.0),  # a failed run goes the retry way
    ("continue", 0, Failed(BOOM), Action.RETRY, 1.0),
    ("stop", 1, Failed(BOOM), Action.FAIL, 0.0),  # and then it stops
    ("continue", 1, Failed(BOOM), Action.CONTINUE, 20.0),  # unless told to go on
    ("continue", 0, Failed(BOOM, final=True), Action.CONTINUE, 20.0),
    ("continue", 1, Snoozed(3.0), Action.GIVE_BACK, 3.0),
    ("stop", 1, Interrupted(), Action.GIVE_BACK, 0.0),
]


@pytest.mark.requirement("S000-18")
@pytest.mark.requirement("S000-19")
@pytest.mark.requirement("S001-27")
@pytest.mark.parametrize(("on_failure", "attempts", "outcome", "action", "delay_s"), REPEATING)
def test_settle_of_an_interval_task(
    on_failure: str, attempts: int, outcome: Outcome, action: Action, delay_s: float
) -> None:
    task = running(attempts=attempts, max_retries=1, interval=20.0, on_failure=on_failure)
    settlement = settle(task, outcome, POLICY, jitter=0.0)
    assert (settlement.action, settlement.delay_s) == (action, delay_s)


@pytest.mark.requirement("S000-19")
@pytest.mark.parametrize("interval", [None, 0.0, -5.0])
def test_settle_without_a_positive_interval_does_not_repeat(interval: float | None) -> None:
    task = running(interval=interval, on_failure="continue", max_retries=0)
    assert settle(task, Succeeded(RESULT), POLICY, 0.0).action is Action.SUCCEED
    assert settle(task, Failed(BOOM), POLICY, 0.0).action is Action.FAIL


@pytest.mark.requirement("S000-16")
@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_settle_gives_k_retries_k_plus_one_runs(max_retries: int) -> None:
    runs, action = 0, Action.RETRY
    while action is Action.RETRY:
        task = running(attempts=runs, max_retries=max_retries)
        action = settle(task, Failed(BOOM), POLICY, 0.0).action
        runs += 1
    assert (runs, action) == (max_retries + 1, Action.FAIL)


def test_settle_without_a_retry_policy_is_one_run() -> None:
    settlement = settle(running(), Failed(BOOM), RetryPolicy(retries=False), 0.0)
    assert settlement.action is Action.FAIL


@pytest.mark.parametrize("outcome", [Succeeded(RESULT), Failed(BOOM), Snoozed(1.0), Interrupted()])
@pytest.mark.parametrize("cancel_requested", [False, True])
def test_settle_leaves_a_cancel_request_to_the_store(outcome: Outcome, cancel_requested: bool) -> None:
    """The worker's copy may be old, so the atomic write decides (T12)."""
    asked = settle(running(cancel_requested=cancel_requested), outcome, POLICY, 0.0)
    assert asked.action is settle(running(), outcome, POLICY, 0.0).action


def test_settle_names_the_run_and_carries_what_it_came_to() -> None:
    task = running(epoch=6)
    done = settle(task, Succeeded(RESULT), POLICY, 0.0)
    failed = settle(task, Failed(BOOM, final=True), POLICY, 0.0)
    retried = settle(task, Failed(BOOM), POLICY, 0.0)
    again = settle(running(interval=5.0), Succeeded(RESULT), POLICY, 0.0)
    assert (done.task.id, done.task.epoch, done.result, done.error) == ("t", 6, RESULT, None)
    assert (failed.result, failed.error, retried.result, retried.error) == (None, BOOM, None, BOOM)
    assert again.result == RESULT


@pytest.mark.parametrize(
    ("settlement", "status"),
    [
        (Settlement.success(running(), RESULT), TaskStatus.SUCCESS),
        (Settlement.repeat(running(), RESULT, 1.0), TaskStatus.PENDING),
        (Settlement.retry(running(), 1.0, BOOM), TaskStatus.PENDING),
        (Settlement.failed(running(), BOOM), TaskStatus.FAILED),
        (Settlement.carry_on(running(), 1.0, BOOM), TaskStatus.PENDING),
        (Settlement.give_back(running()), TaskStatus.PENDING),
    ],
)
def test_settlement_says_which_status_it_asks_for(settlement: Settlement, status: TaskStatus) -> None:
    assert settlement.status is status
