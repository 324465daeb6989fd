"""How long to wait before the next attempt."""

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniq.logic.lifecycle import lapse, settle
from omniq.logic.retry import RetryPolicy, loss_delay_s, unserved_delay_s
from omniq.task import Failed
from tests.logic.rows import BOOM, FEW, NOW, running

CHANCE = st.floats(0, 1, exclude_max=True)
ANY_ATTEMPTS = st.integers(0, 2**31 - 1)


@pytest.mark.requirement("S000-13")
@pytest.mark.requirement("C7")
@pytest.mark.parametrize(
    ("base_s", "attempts", "delay_s"),
    [
        (1.0, 0, 1.0),  # the first delay is the base
        (1.0, 1, 2.0),
        (1.0, 5, 32.0),
        (0.5, 3, 4.0),
        (10.0, 2, 40.0),
        (0.0, 7, 0.0),
        (1.0, 11, 2048.0),
        (1.0, 12, 3600.0),  # 4096 is over the cap of an hour
        (1.0, 10_000, 3600.0),
        (1.0, 2**31, 3600.0),
    ],
)
def test_delay_doubles_up_to_its_cap(base_s: float, attempts: int, delay_s: float) -> None:
    assert RetryPolicy(base_s=base_s).delay_s(attempts, jitter=0.0) == delay_s


@pytest.mark.requirement("S001-22")
@pytest.mark.requirement("C8")
@FEW
@given(base_s=st.floats(0.001, 60), attempts=st.integers(0, 20), jitter=CHANCE)
def test_delay_is_at_least_the_backoff_and_at_most_a_tenth_more(
    base_s: float, attempts: int, jitter: float
) -> None:
    backoff_s = base_s * 2**attempts
    delay_s = RetryPolicy(base_s=base_s, max_s=1e9).delay_s(attempts, jitter)
    assert backoff_s <= delay_s <= backoff_s * 1.1


@pytest.mark.requirement("S001-22")
def test_delay_uses_its_chance() -> None:
    delays = [RetryPolicy(base_s=100.0).delay_s(0, jitter) for jitter in (0.0, 0.25, 0.5, 0.999)]
    assert delays == pytest.approx([100.0, 102.5, 105.0, 109.99])


@FEW
@given(base_s=st.floats(0, 1e300), max_s=st.floats(0, 1e9), attempts=ANY_ATTEMPTS, jitter=CHANCE)
def test_delay_is_finite_and_under_its_cap_whatever_happened(
    base_s: float, max_s: float, attempts: int, jitter: float
) -> None:
    delay_s = RetryPolicy(base_s, max_s).delay_s(attempts, jitter)
    assert math.isfinite(delay_s)
    assert 0 <= delay_s <= max_s


@FEW
@given(attempts=st.integers(0, 100), jitter=CHANCE)
def test_delay_never_shrinks_from_one_attempt_to_the_next(attempts: int, jitter: float) -> None:
    policy = RetryPolicy()
    # The latest moment of one attempt is before the earliest of the next, so order needs no luck.
    assert policy.delay_s(attempts, jitter) <= policy.delay_s(attempts + 1, 0.0)


@pytest.mark.requirement("C7")
@pytest.mark.parametrize(
    ("attempts", "max_retries", "allowed"),
    [(0, 0, False), (0, 1, True), (1, 1, False), (2, 3, True), (3, 3, False), (4, 3, False)],
)
def test_a_retry_is_allowed_while_failures_so_far_are_fewer_than_retries(
    attempts: int, max_retries: int, allowed: bool
) -> None:
    assert RetryPolicy().allows(attempts, max_retries) is allowed
    assert not RetryPolicy(retries=False).allows(attempts, max_retries)


@pytest.mark.requirement("S000-14")
@FEW
@given(attempts=st.integers(0, 2), jitter=CHANCE)
def test_settle_asks_for_the_delay_of_its_policy(attempts: int, jitter: float) -> None:
    policy = RetryPolicy(base_s=3.0)
    settlement = settle(running(attempts=attempts), Failed(BOOM), policy, jitter)
    assert settlement.delay_s == policy.delay_s(attempts, jitter)


@pytest.mark.parametrize(("losses", "delay_s"), [(0, 0.0), (1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0)])
def test_the_pause_after_a_dead_worker_doubles_after_the_first(losses: int, delay_s: float) -> None:
    assert loss_delay_s(losses) == delay_s


@FEW
@given(losses=st.integers(0, 2**31 - 3))
def test_the_pause_after_a_dead_worker_is_always_a_moment_that_exists(losses: int) -> None:
    """A row that cannot be lapsed would keep everybody's lapse from going on."""
    change = lapse(running(losses=losses, max_losses=2**31 - 1), NOW)
    assert change.task.eta is not None
    assert timedelta(0) <= change.task.eta - NOW <= timedelta(days=366)


@pytest.mark.parametrize(
    ("epoch", "delay_s"), [(0, 5.0), (1, 5.0), (2, 10.0), (3, 20.0), (4, 40.0), (5, 60.0), (10**6, 60.0)]
)
def test_unserved_delay(epoch: int, delay_s: float) -> None:
    assert unserved_delay_s(epoch) == delay_s
