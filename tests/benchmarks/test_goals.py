"""Goals: that each can be answered by a run, and that a missed one says why."""

import pytest

from benchmarks import reasons
from benchmarks.goals import GOALS, Goal
from benchmarks.harness.results import Results
from benchmarks.harness.samples import Case, Record, Sample
from benchmarks.harness.stats import Spread
from benchmarks.plan import FULL
from benchmarks.reasons import why
from benchmarks.reports import tables
from benchmarks.run import all_measures, all_systems

DEEP = Case("depth", "omniq-sqlite", "1,000,000")


def test_every_goal_is_about_cases_that_a_full_run_measures() -> None:
    systems, measures = all_systems(), all_measures()
    for goal in GOALS:
        against = () if goal.against is None else goal.against
        for case in (goal.case, *([against] if isinstance(against, Case) else against)):
            measure = measures[case.measure]
            assert case.variant in measure.variants(systems[case.system], FULL), (goal.title, case)
            assert goal.metric in {metric.key for metric in measure.metrics}, goal.title


def test_every_goal_has_one_bound_and_a_title_of_its_own() -> None:
    assert len({goal.title for goal in GOALS}) == len(GOALS)
    for goal in GOALS:
        assert (goal.at_least is None) != (goal.at_most is None), goal.title
    assert set(reasons.WHY) <= {goal.title for goal in GOALS}


@pytest.mark.parametrize(
    ("bound", "expected"),
    [({"at_least": 1.0}, 10 / 40), ({"at_most": 1.0}, 10 / 5)],
    ids=["more is better", "less is better"],
)
def test_the_best_other_is_the_one_that_is_hardest_to_beat(bound: dict[str, float], expected: float) -> None:
    ours, others = Case("loader", "a", ""), (Case("loader", "b", ""), Case("loader", "c", ""))
    record = Record(
        [
            Sample(case, 0, {"figure": figure})
            for case, figure in zip((ours, *others), (10.0, 5.0, 40.0), strict=True)
        ]
    )
    assert Goal("first", ours, "figure", others, **bound).value(record) == Spread.of([expected])


def test_a_missed_goal_says_why_as_far_as_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Case("depth", "omniq-sqlite", "10,000")
    record = Record([Sample(DEEP, 0, {"per_s": 50.0}), Sample(small, 0, {"per_s": 100.0})])
    title = "SQLite: drain at a backlog of 1,000,000 / 10,000"
    results = Results({}, record)

    def told() -> str:
        return tables.full(results, all_systems(), [all_measures()["depth"]])

    assert "MISSED" in told()
    monkeypatch.setitem(reasons.WHY, title, "the index does not fit into the cache")
    assert f"- {title}: the index does not fit into the cache" in told()
    monkeypatch.delitem(reasons.WHY, title)
    assert f"- {title}: not explained yet" in told()
    record.samples[0] = Sample(DEEP, 0, {"per_s": 95.0})
    assert "MISSED" not in told()
    assert "Why those are missed" not in told()


def _drained(system: str, variant: str, per_s: float, cpu_us: float) -> Sample:
    return Sample(Case("drain", system, variant), 0, {"per_s": per_s, "cpu_us": cpu_us})


def test_a_reason_has_the_figures_of_the_run_that_missed_the_goal() -> None:
    by_title = {goal.title: goal for goal in GOALS}
    record = Record(
        [
            _drained("omniq-postgres", "async", 30_000, 11.0),
            _drained("pgqueuer-postgres", "async", 20_000, 30.0),
            _drained("raw-postgres", "statements", 50_000, 3.0),
        ]
    )
    beside_peer = why(by_title["PostgreSQL: drain with one process / pgqueuer"], record)
    assert beside_peer.endswith("it asks for 40,000 tasks/s, 0.80 of what the bare statements do")
    beside_limit = why(by_title["PostgreSQL: drain with async bodies / raw limit"], record)
    assert beside_limit.endswith("11 µs of CPU a task, of which the bare statements need 3")


def _enqueued(system: str, face: str, per_s: float, cpu_us: float) -> Sample:
    return Sample(Case("enqueue", system, face), 0, {"per_s": per_s, "cpu_us": cpu_us})


IN_FLIGHT = "SQLite: enqueue, 100 in flight / raw insert"


def _in_flight(ours_us: float) -> str:
    record = Record(
        [
            _enqueued("omniq-sqlite", "in-flight", 14_000, ours_us),
            _enqueued("raw-sqlite", "blocking", 2_000, 72.0),
            _enqueued("raw-sqlite", "in-flight", 50_000, 8.0),
        ]
    )
    return why(next(goal for goal in GOALS if goal.title == IN_FLIGHT), record)


def test_a_reason_compares_what_is_enqueued_as_many_at_a_time() -> None:
    """The goal is set in single inserts; a task among a hundred is held against inserts of a hundred."""
    assert _in_flight(15.0).endswith(
        "15 µs of CPU a task, of which the bare statements need 8; "
        "it asks for 20,000 tasks/s, 0.40 of what the bare statements do"
    )


def test_a_part_is_not_said_to_be_larger_than_the_whole() -> None:
    told = _in_flight(7.0)
    assert "7 µs of CPU a task, where the bare statements alone took 8" in told
    assert "of which" not in told


def test_two_processes_are_not_held_against_the_limit_of_one() -> None:
    goal = next(goal for goal in GOALS if goal.title == "PostgreSQL: drain with two processes / pgqueuer")
    record = Record(
        [
            _drained("omniq-postgres", "async x2", 40_000, 11.0),
            _drained("pgqueuer-postgres", "async x2", 50_000, 30.0),
            _drained("raw-postgres", "statements", 50_000, 3.0),
        ]
    )
    assert "bare statements" not in why(goal, record)


def test_a_reason_without_a_limit_in_the_run_has_no_figures() -> None:
    goal = next(goal for goal in GOALS if goal.title == "PostgreSQL: drain with one process / pgqueuer")
    record = Record([_drained("pgqueuer-postgres", "async", 20_000, 30.0)])
    assert why(goal, record) == reasons.WHY[goal.title]


def test_no_reason_carries_a_figure_of_another_run() -> None:
    for title, reason in reasons.WHY.items():
        assert not any(letter.isdigit() for letter in reason), title
