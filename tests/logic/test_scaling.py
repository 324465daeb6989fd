"""How many workers a pool should have: a table, and what holds for every load."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniq.logic.scaling import History, Limits, Load, Wanted, next_look_s, start_pause_s, wanted_workers

LIMITS = Limits(min_workers=1, max_workers=4, scaledown_wait_s=15.0, target_wait_s=0.02)
LATE = 1.0  # longer than a call may wait
HELD = ", but 3 deaths in a row: no start for 0.2 s"


# fmt: off
@pytest.mark.parametrize(("load", "workers", "reason"), [
    (Load(),                                        1, "0 waiting, 0 busy, at least 1"),
    (Load(idle=1),                                  1, "0 waiting, 0 busy, 1 idle"),
    (Load(waiting=9, oldest_wait_s=LATE, busy=2),   4, "9 waiting, 2 busy, at most 4"),
    (Load(waiting=1, oldest_wait_s=LATE, busy=2),   3, "1 waiting, 2 busy"),
    (Load(waiting=1, oldest_wait_s=LATE, busy=4),   4, "1 waiting, 4 busy, at most 4"),
    # one that is starting was started for a call that waits
    (Load(waiting=2, oldest_wait_s=LATE, busy=1, starting=2), 3, "2 waiting, 1 busy, 2 starting"),
    (Load(waiting=3, oldest_wait_s=LATE, busy=1, starting=2), 4, "3 waiting, 1 busy, 2 starting"),
    # a call may wait a moment, if there is anybody to wait for
    (Load(waiting=1, oldest_wait_s=0.001, busy=1),  1, "1 waiting, 1 busy, the oldest may wait 0.02 s"),
    (Load(waiting=1, oldest_wait_s=0.02, busy=1),   2, "1 waiting, 1 busy"),
    # fewer, when they were not needed for a while
    (Load(busy=1, idle=3, spare=2),                 2, "0 waiting, 1 busy, 3 idle, 2 not needed for 15 s"),
    (Load(idle=4, spare=4),                         1, "0 waiting, 0 busy, 4 idle, 3 not needed for 15 s"),
    (Load(busy=1, idle=3),                          4, "0 waiting, 1 busy, 3 idle"),
    (Load(waiting=1, busy=1, idle=3, spare=3),      4, "1 waiting, 1 busy, 3 idle"),
    # the limit was lowered
    (Load(busy=6),                                  4, "0 waiting, 6 busy, at most 4"),
    # the place of one who leaves is not free before it has gone
    (Load(waiting=5, oldest_wait_s=LATE, busy=2, leaving=1), 3, "5 waiting, 2 busy, at most 4"),
    (Load(waiting=5, oldest_wait_s=LATE, busy=2, leaving=2), 2, "5 waiting, 2 busy, 2 leaving"),
    # workers that keep dying
    (Load(waiting=1, oldest_wait_s=LATE, busy=1, deaths=3, held_s=0.2), 1, f"1 waiting, 1 busy{HELD}"),
    (Load(deaths=3, held_s=0.2),                    0, f"0 waiting, 0 busy{HELD}"),
])  # fmt: skip
def test_wanted(load: Load, workers: int, reason: str) -> None:
    assert wanted_workers(load, LIMITS) == Wanted(workers, reason)


def test_with_nobody_there_a_call_does_not_wait_for_its_target() -> None:
    patient = Limits(0, 4, 15.0, target_wait_s=60.0)
    assert wanted_workers(Load(waiting=3), patient).workers == 3
    assert wanted_workers(Load(), patient).workers == 0


counts = st.integers(0, 12)
loads = st.builds(
    Load,
    waiting=counts,
    oldest_wait_s=st.sampled_from([0.0, 0.01, 0.02, 5.0]),
    busy=counts,
    idle=counts,
    starting=counts,
    leaving=counts,
    spare=counts,
    deaths=counts,
    held_s=st.sampled_from([0.0, 1.0]),
)
limits = st.builds(
    lambda least, more, target: Limits(least, least + more, 15.0, target),
    st.integers(0, 6),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.02, 1.0]),
)


@given(loads, limits)
def test_whatever_the_load(load: Load, limits: Limits) -> None:
    wanted = wanted_workers(load, limits)
    grows, shrinks = wanted.workers > load.workers, wanted.workers < load.workers
    assert wanted.workers <= max(limits.max_workers, load.workers)
    assert wanted.reason
    if grows:
        assert wanted.workers + load.leaving <= limits.max_workers
        assert wanted.workers <= max(load.needed, limits.min_workers), "nobody is started for nothing"
        assert load.held_s == 0
    if shrinks and load.workers <= limits.max_workers:
        assert not load.waiting
        assert wanted.workers >= limits.min_workers
        assert load.workers - wanted.workers <= min(load.idle, load.spare)


@given(loads, limits)
def test_a_call_that_waited_too_long_gets_a_worker_if_there_is_room(load: Load, limits: Limits) -> None:
    wanted = wanted_workers(load, limits)
    late = load.waiting > 0 and load.oldest_wait_s >= limits.target_wait_s and not load.held_s
    if late and load.needed > load.workers and load.workers + load.leaving < limits.max_workers:
        assert wanted.workers > load.workers


@pytest.mark.parametrize(
    ("load", "look_s"),
    [
        (Load(idle=1), None),  # nothing can change by itself
        (Load(idle=2), 15 / 8),  # one may turn out to be superfluous
        (Load(waiting=1, oldest_wait_s=0.005, busy=1), 0.015),  # it may wait that much longer
        (Load(waiting=1, oldest_wait_s=1.0, busy=1, deaths=3, held_s=0.2), 0.2),
        (Load(deaths=3, held_s=0.2), 0.2),
        (Load(waiting=1, oldest_wait_s=1.0, starting=1), None),  # somebody is on the way
        (Load(waiting=1, oldest_wait_s=1.0, busy=1, leaving=3), None),  # somebody has to go first
    ],
)
def test_when_to_look_again(load: Load, look_s: float | None) -> None:
    assert next_look_s(load, LIMITS, wanted_workers(load, LIMITS)) == pytest.approx(look_s)


@pytest.mark.parametrize(
    ("deaths", "pause_s"), [(0, 0.0), (1, 0.0), (2, 0.1), (3, 0.2), (6, 1.6), (8, 5.0), (10**6, 5.0)]
)
def test_pauses_grow_when_workers_keep_dying(deaths: int, pause_s: float) -> None:
    assert start_pause_s(deaths) == pytest.approx(pause_s)


# --- need over time ------------------------------------------------------------------------------


def watched(*observed: tuple[float, int], window_s: float = 8.0) -> History:
    history = History(0.0)
    for now, idle in observed:
        history = history.noting(now, idle, window_s)
    return history


def test_nothing_is_spare_before_the_window_has_passed() -> None:
    assert watched((0, 3), (7.9, 3)).spare(7.9, 8.0) == 0
    assert watched((0, 3), (8.0, 3)).spare(8.0, 8.0) == 3


def test_the_busiest_moment_of_the_window_counts() -> None:
    history = watched(*((float(second), 3) for second in range(10)), (10.0, 1), (11.0, 3), (12.0, 3))
    assert history.spare(12.0, 8.0) == 1
    assert history.noting(18.5, 3, 8.0).spare(18.5, 8.0) == 1
    assert history.noting(19.5, 3, 8.0).spare(19.5, 8.0) == 3


@given(st.lists(st.tuples(st.floats(0.001, 5.0), st.integers(0, 9)), min_size=1, max_size=200))
def test_history_is_small_and_never_forgets_a_busy_moment_early(steps: list[tuple[float, int]]) -> None:
    history, now, seen = History(0.0), 0.0, list[tuple[float, int]]()
    for step_s, idle in steps:
        now += step_s
        seen.append((now, idle))
        history = history.noting(now, idle, 8.0)
    assert len(history.lows) <= 10
    inside = [idle for at, idle in seen if at > now - 8.0]
    assert history.spare(now, 8.0) <= min(inside)
