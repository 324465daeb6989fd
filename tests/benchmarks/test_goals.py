"""Goals: that each can be answered by a run, and that a missed one says why."""

import pytest

from benchmarks import goals
from benchmarks.goals import GOALS, WHY, Goal
from benchmarks.harness.results import Results
from benchmarks.harness.samples import Case, Record, Sample
from benchmarks.harness.stats import Spread
from benchmarks.plan import FULL
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
    assert set(WHY) <= {goal.title for goal in GOALS}


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
    monkeypatch.setitem(goals.WHY, title, "the index does not fit into the cache")
    assert f"- {title}: the index does not fit into the cache" in told()
    monkeypatch.delitem(goals.WHY, title)
    assert f"- {title}: not explained yet" in told()
    record.samples[0] = Sample(DEEP, 0, {"per_s": 95.0})
    assert "MISSED" not in told()
    assert "Why those are missed" not in told()
