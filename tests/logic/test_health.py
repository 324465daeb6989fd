"""Health is progress: a table of facts and what is said of them."""

from datetime import UTC, datetime, timedelta

import pytest

from omniq.logic.health import Backlog, Beat, Health, judge

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def worker(
    seen_s: float | None = 1,
    queues: tuple[str, ...] | None = None,
    in_flight: int = 0,
    blocked_s: float = 0.0,
) -> Beat:
    return Beat("ann", queues, None if seen_s is None else ago(seen_s), 1, in_flight, blocked_s)


def backlog(waited_s: float | None, ended: int = 0, paused: bool = False) -> Backlog:
    return Backlog("mail", paused, None if waited_s is None else ago(waited_s), ended)


@pytest.mark.parametrize(
    ("queue", "beats", "problem"),
    [
        (backlog(None), [], ""),  # nothing to do, and nobody there to do it
        (backlog(-30), [], ""),  # due later
        (backlog(5), [worker()], ""),
        (backlog(61, ended=1), [worker()], ""),  # behind, but it moves
        (backlog(61), [worker(in_flight=1, blocked_s=60)], "nothing ends"),  # full of what waits for its loop
        (backlog(61), [worker(in_flight=1, blocked_s=59)], ""),
        (backlog(61), [worker(in_flight=1), worker(in_flight=1, blocked_s=60)], "nothing ends"),
        (backlog(5), [worker(blocked_s=60)], ""),
        (backlog(61), [worker()], "nothing ends"),
        (backlog(61, paused=True), [worker()], ""),
        (backlog(61, paused=True), [], ""),
        (backlog(59), [], ""),  # its worker may be starting
        (backlog(61), [], "no living worker"),
        (backlog(61), [worker(seen_s=61)], "no living worker"),  # a process, perhaps, but no progress
        (backlog(61), [worker(seen_s=None)], "no living worker"),
        (backlog(61), [worker(queues=("video",))], "no living worker"),
        (backlog(61), [worker(queues=("video", "mail"))], "nothing ends"),
        (backlog(61), [worker(in_flight=1)], ""),  # a run that takes its time, and no free slot
        (backlog(61), [worker(in_flight=1), worker()], "nothing ends"),
    ],
)
def test_health_is_progress(queue: Backlog, beats: list[Beat], problem: str) -> None:
    health = judge([queue], beats, NOW)
    assert health.ok is (not problem)
    assert all(problem in line for line in health.problems)
    assert bool(health.problems) is bool(problem)


@pytest.mark.parametrize(
    ("others", "ok"),
    [
        ([], False),
        ([Beat("bob", None, ago(1), functions=("jobs.new",))], True),  # a new version is being rolled out
        ([Beat("bob", None, ago(1), functions=("jobs.*",))], True),
        ([Beat("bob", None, ago(1))], True),  # it imports whatever it is asked for
        ([Beat("bob", ("video",), ago(1), functions=("jobs.new",))], False),
        ([Beat("bob", None, ago(61), functions=("jobs.new",))], False),  # silent
    ],
)
def test_what_nobody_knows_is_a_problem(others: list[Beat], ok: bool) -> None:
    """Its tasks are handed out and given back, again and again: none of them is ever due for long."""
    old = Beat("ann", None, ago(1), functions=("jobs.old",), unserved=(("mail", "jobs.new"),))
    health = judge([backlog(None)], [old, *others], NOW)
    assert health.ok is ok
    said = "queue mail: no living worker knows jobs.new, and its tasks wait"
    assert health.problems == (() if ok else (said,))


def test_a_blocked_loop_is_named() -> None:
    [noted] = judge([], [worker(blocked_s=150)], NOW).notes
    assert noted == "worker ann: its event loop has not moved for 2 min"


def test_what_is_odd_but_well_is_noted() -> None:
    health = judge([backlog(90, ended=3), Backlog("video", True)], [worker(), worker(600)], NOW)
    assert health == Health(
        True,
        (),
        (
            "worker ann has not been heard of for 10 min",
            "queue mail: 90 s behind, but it moves",
            "queue video is paused",
        ),
    )
