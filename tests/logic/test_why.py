"""One reason, one test; and the order in which they are given."""

# ruff: noqa: E501

from datetime import UTC, datetime, timedelta

import pytest

from omniq.logic.why import Because, Facts, at_a_glance, why
from omniq.reports import PoolInfo
from omniq.task import Run, RunOutcome, Task, TaskError, TaskStatus, WorkerInfo, replace

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BOOM = TaskError("ValueError", "boom")
TASK = Task("jobs.resize", id="t1", queue="mail", enqueued_at=NOW - timedelta(hours=1))


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def worker(
    seen_s: float = -1,
    *,
    queues: tuple[str, ...] | None = None,
    busy: int = 0,
    functions: tuple[str, ...] | None = None,
) -> WorkerInfo:
    return WorkerInfo("ann", "ann", "host", 1, queues, 4, busy, functions, None, at(seen_s))


def run(outcome: RunOutcome) -> Run:
    return Run(1, "ann", at(-10), at(-5), outcome, BOOM)


IDLE = (worker(),)
POOL = PoolInfo("tasks", 0, 2, free=0, queues=("mail",))
RUNNING = replace(TASK, status=TaskStatus.RUNNING, owner="ann", started_at=at(-3700))
AHEAD = replace(TASK, eta=at(90))
BACKOFF = replace(AHEAD, attempts=2, error=BOOM)
FAILED = replace(TASK, status=TaskStatus.FAILED, error=BOOM, finished_at=at(-9))


# fmt: off
@pytest.mark.parametrize(("facts", "because", "says"), [
    (Facts(FAILED, NOW),                                        Because.ENDED, "FAILED since 2026-01-01 11:59:51+00:00: error: ValueError: boom"),
    (Facts(replace(FAILED, status=TaskStatus.CANCELLED, error=TaskError("Cancelled", "while it ran", kind="cancelled")), NOW), Because.ENDED, "11:59:51+00:00: Cancelled: while it ran"),
    (Facts(RUNNING, NOW, workers=IDLE),                         Because.RUNNING, "worker ann holds it since 2026-01-01 10:58:20+00:00 (1 h 1 min)"),
    (Facts(RUNNING, NOW, workers=(replace(worker(), blocked_s=75.0),)), Because.RUNNING, "event loop of that worker has not moved for 1 min 15 s"),
    (Facts(TASK, NOW, workers=(replace(worker(busy=4), blocked_s=75.0),)), Because.FULL, "nothing moves on ann: its event loop is blocked"),
    (Facts(replace(RUNNING, cancel_requested=True), NOW, workers=IDLE), Because.CANCELLING, "asked to stop"),
    (Facts(RUNNING, NOW),                                       Because.SILENT, "is not known any more"),
    (Facts(RUNNING, NOW, workers=(worker(-61),)),               Because.SILENT, "was last heard of 2026-01-01 11:58:59"),
    (Facts(TASK, NOW, paused=frozenset({"mail"}), workers=IDLE), Because.PAUSED, "queue mail is paused"),
    (Facts(replace(TASK, expires_at=at(-1)), NOW, workers=IDLE), Because.EXPIRED, "expired 2026-01-01 11:59:59"),
    (Facts(TASK, NOW),                                          Because.UNSERVED_QUEUE, "no living worker serves queue mail"),
    (Facts(TASK, NOW, workers=(worker(-61),)),                  Because.UNSERVED_QUEUE, "no living worker"),
    (Facts(TASK, NOW, workers=(worker(queues=("video",)),)),    Because.UNSERVED_QUEUE, "no living worker"),
    (Facts(TASK, NOW, workers=(worker(functions=("jobs.other",)),)), Because.UNKNOWN_FUNCTION, "knows jobs.resize"),
    (Facts(TASK, NOW, workers=(worker(functions=("jobs.*",)),)), Because.NEXT, "nothing is in its way"),
    (Facts(AHEAD, NOW, workers=IDLE),                           Because.SCHEDULED, "ahead: 2026-01-01 12:01:30"),
    (Facts(replace(TASK, eta=at(7 * 86400)), NOW, workers=IDLE), Because.SCHEDULED, "ahead: 2026-01-08 12:00:00+00:00 (in 7 d 0 h)"),
    (Facts(BACKOFF, NOW, (run(RunOutcome.RETRIED),), workers=IDLE), Because.BACKOFF, "until 2026-01-01 12:01:30+00:00 (in 1 min 30 s) after ValueError: boom (failure 2, of at most 4)"),
    (Facts(replace(AHEAD, losses=2), NOW, (run(RunOutcome.LOST),), workers=IDLE), Because.AFTER_LOSS, "(2 so far)"),
    (Facts(replace(AHEAD, losses=1), NOW, (run(RunOutcome.DIED),), workers=IDLE), Because.AFTER_LOSS, "(1 so far)"),
    (Facts(AHEAD, NOW, (run(RunOutcome.GIVEN_BACK),), workers=IDLE), Because.GIVEN_BACK, "worker ann gave it back"),
    (Facts(replace(TASK, suspicions=1), NOW, workers=IDLE),     Because.SUSPECT, "a process of its own"),
    (Facts(TASK, NOW, workers=(worker(busy=4),)),               Because.FULL, "4 of 4 taken, on the only worker"),
    (Facts(TASK, NOW, workers=(replace(worker(), pools=(POOL,)),)), Because.FULL, "all 2 processes of the only worker"),
    (Facts(TASK, NOW, workers=(replace(worker(), pools=(replace(POOL, free=1),)),)), Because.NEXT, "nothing is in its way"),
    (Facts(TASK, NOW, workers=(replace(worker(), pools=(replace(POOL, queues=("video",)),)),)), Because.NEXT, "nothing is in its way"),
    (Facts(TASK, NOW, workers=(replace(worker(), pools=(POOL,)), worker())), Because.NEXT, "nothing is in its way"),
    (Facts(TASK, NOW, workers=(replace(worker(), pools=(POOL,)), worker(busy=4))), Because.FULL, "all 2 processes of the 2 workers"),
    (Facts(TASK, NOW, workers=IDLE, ahead=17),                  Because.BEHIND, "behind 17 others in queue mail"),
    (Facts(TASK, NOW, workers=IDLE, ahead=1),                   Because.BEHIND, "behind 1 other in queue mail"),
    (Facts(TASK, NOW, workers=IDLE, ahead=10_000),              Because.BEHIND, "behind more than 9,999 others"),
    (Facts(TASK, NOW, workers=IDLE),                            Because.NEXT, "nothing is in its way"),
])  # fmt: skip
def test_the_first_reason(facts: Facts, because: Because, says: str) -> None:
    first, *_ = why(facts)
    assert (first.because, says in first.text) == (because, True), first


def test_every_reason_has_its_test() -> None:
    [mark] = [one for one in test_the_first_reason.pytestmark if one.name == "parametrize"]  # type: ignore[attr-defined]
    assert {because for _, because, _ in mark.args[1]} == set(Because)


def test_reasons_are_given_in_the_order_in_which_they_must_go() -> None:
    full = (worker(busy=4),)
    reasons = why(Facts(TASK, NOW, paused=frozenset({"mail"}), workers=full, ahead=3))
    assert [one.because for one in reasons] == [Because.PAUSED, Because.FULL, Because.BEHIND]
    assert reasons[0].do == "resume queue mail"
    assert [one.because for one in why(Facts(BACKOFF, NOW, (run(RunOutcome.RETRIED),)))] == [
        Because.UNSERVED_QUEUE,
        Because.BACKOFF,
    ]


# fmt: off
@pytest.mark.parametrize(("paused", "workers", "because"), [
    ({"mail"}, (),                                                  Because.PAUSED),
    ({"video"}, (),                                                 Because.UNSERVED_QUEUE),
    (set(), (worker(-61),),                                         Because.UNSERVED_QUEUE),
    (set(), (worker(queues=("video",)),),                           Because.UNSERVED_QUEUE),
    (set(), (worker(functions=("jobs.other",)),),                   Because.UNKNOWN_FUNCTION),
    (set(), (worker(busy=4),),                                      Because.FULL),
    (set(), (worker(busy=4), replace(worker(), pools=(POOL,))),     Because.FULL),
    (set(), (worker(busy=4), worker(-61)),                          Because.FULL),  # who is not heard of has no slots
    (set(), (worker(busy=4), worker()),                             None),
])  # fmt: skip
def test_at_a_glance_it_is_said_in_the_same_words(
    paused: set[str], workers: tuple[WorkerInfo, ...], because: Because | None
) -> None:
    assert at_a_glance("mail", TASK.func_path, paused, workers, NOW) == because
    [first, *_] = why(Facts(TASK, NOW, paused=frozenset(paused), workers=workers))
    assert first.because == (because or Because.NEXT)
