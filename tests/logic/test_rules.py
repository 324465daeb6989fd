"""What a task says about its own retries: `retry_on`, `give_up_on`, `retry_delay`."""

from __future__ import annotations

from datetime import timedelta

import pytest

from omniq import InvalidOption
from omniq.calls import retry_rules
from omniq.logic.retry import RetryRules
from omniq.names import class_names
from omniq.task import Failed, TaskError

ERROR = TaskError("X", "it went wrong")


def failed(kind: type[BaseException] | None, delay_s: float | None = None, *, final: bool = False) -> Failed:
    return Failed(ERROR, delay_s, final, () if kind is None else class_names(kind))


@pytest.mark.parametrize(
    ("retry_on", "give_up_on", "raised", "final"),
    [
        (None, None, ValueError, False),
        (ConnectionError, None, ConnectionError, False),
        (ConnectionError, None, ConnectionResetError, False),  # as `except ConnectionError` would
        (OSError, None, TimeoutError, False),  # a timeout counts as the built-in TimeoutError
        (ConnectionError, None, OSError, True),
        ((ConnectionError, ValueError), None, UnicodeError, False),
        ((), None, ValueError, True),  # nothing is worth another try
        (None, ValueError, UnicodeError, True),
        (None, ValueError, TypeError, False),
        (Exception, ValueError, ValueError, True),  # give_up_on counts before retry_on
        (ConnectionError, None, None, False),  # the body asked for it with Retry: nothing to judge
    ],
)
def test_who_is_retried(retry_on: object, give_up_on: object, raised: object, final: bool) -> None:
    rules = retry_rules(retry_on, give_up_on, None)  # type: ignore[arg-type]
    assert rules.judged(failed(raised), 1).final is final  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("retry_delay", "attempt", "delay_s"),
    [
        (None, 1, None),
        (5, 1, 5.0),
        (5, 7, 5.0),  # a number is the pause each time
        (timedelta(minutes=2), 1, 120.0),
        (lambda attempt: attempt * 10, 3, 30.0),
        (lambda attempt, error: len(error.message) + attempt, 1, 14.0),
        (lambda attempt, base=2: base**attempt, 3, 8.0),
        (lambda attempt: timedelta(minutes=attempt), 1, 60.0),
        (lambda attempt: -5, 1, 0.0),
    ],
)
def test_how_long_it_waits(retry_delay: object, attempt: int, delay_s: float | None) -> None:
    rules = retry_rules(None, None, retry_delay)  # type: ignore[arg-type]
    assert rules.judged(failed(ValueError), attempt).delay_s == delay_s


def test_what_the_body_asked_for_counts_before_the_rules() -> None:
    rules = retry_rules(None, None, 5)
    assert rules.judged(failed(None, 1.0), 1).delay_s == 1.0
    given_up = failed(None, final=True)
    assert rules.judged(given_up, 1) is given_up


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"retry_on": "ConnectionError"}, "takes exception classes"),
        ({"retry_on": 5}, "takes exception classes"),
        ({"retry_on": (ConnectionError, 5)}, "takes exception classes"),
        ({"give_up_on": int}, "takes exception classes"),
        ({"retry_delay": "5"}, "retry_delay must be seconds"),
        ({"retry_delay": -1}, "must not be negative"),
        ({"retry_delay": lambda: 5}, "retry_delay\\(attempt\\) or retry_delay\\(attempt, error\\)"),
    ],
)
def test_nonsense_is_refused_where_it_is_written(options: dict[str, object], says: str) -> None:
    wanted = {"retry_on": None, "give_up_on": None, "retry_delay": None} | options
    with pytest.raises(InvalidOption, match=says):
        retry_rules(**wanted)  # type: ignore[arg-type]


async def test_a_coroutine_function_is_no_delay() -> None:
    async def delay(attempt: int) -> float:
        return attempt

    with pytest.raises(InvalidOption, match="ordinary function"):
        retry_rules(None, None, delay)  # type: ignore[arg-type]


def test_a_function_that_returns_nonsense_says_so() -> None:
    rules = RetryRules(delay=lambda attempt, error: "soon")  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidOption, match="retry_delay must be seconds"):
        rules.judged(failed(ValueError), 1)
