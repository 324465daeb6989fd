"""The guard against becoming slower, on made-up figures."""

import json
from pathlib import Path

import pytest

from benchmarks import guard
from benchmarks.guard import KEPT, STORES, findings, pairs, write
from benchmarks.harness.results import Results
from benchmarks.harness.samples import Case, Record, Sample
from benchmarks.plan import QUICK
from benchmarks.systems import load_all
from benchmarks.tasks.measures import task_measures

ASYNC = "drain omniq-redis async / raw-redis"


def measured(ours: tuple[float, ...], limit: tuple[float, ...]) -> Record:
    cases = ((Case("drain", "omniq-redis", "async"), ours), (Case("drain", "raw-redis", "statements"), limit))
    return Record(
        [
            Sample(case, round_, {"per_s": figure})
            for case, figures in cases
            for round_, figure in enumerate(figures)
        ]
    )


@pytest.mark.parametrize(
    ("ours", "kept", "verdict"),
    [
        ((60.0, 50.0, 40.0), 0.5, "holds"),
        ((40.0, 40.0, 90.0), 0.5, "holds"),  # a loss of a fifth
        ((36.0, 37.0, 90.0), 0.5, "SLOWER"),  # the median counts, not the best round
        ((60.0, 60.0, 60.0), None, "NOT RECORDED"),
        ((), 0.5, "NOT MEASURED"),
    ],
)
def test_a_ratio_may_fall_by_the_stated_loss(
    ours: tuple[float, ...], kept: float | None, verdict: str
) -> None:
    recorded = {} if kept is None else {ASYNC: kept}
    record = measured(ours, (100.0, 100.0, 100.0))
    first = next(iter(findings(record, ["redis"], recorded, loss=0.25)))
    assert str(first.pair) == ASYNC
    assert first.verdict == verdict
    assert first.fails == (verdict != "holds")


def test_recording_keeps_what_was_not_measured(tmp_path: Path) -> None:
    file = tmp_path / "guard.json"
    said = {"loss": 0.25, "ratios": {ASYNC: 0.9, "drain omniq-sqlite async / raw-sqlite": 0.7}}
    found = list(findings(measured((60.0,), (100.0,)), ["redis"], {}, 0.25))
    write(file, said, found)
    kept = json.loads(file.read_text(encoding="utf-8"))
    assert kept == {"loss": 0.25, "ratios": {ASYNC: 0.6, "drain omniq-sqlite async / raw-sqlite": 0.7}}


@pytest.mark.parametrize(("ours", "code"), [((60.0,), 0), ((), 1)], ids=["measured", "not measured"])
def test_recording_says_when_there_was_nothing_to_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: tuple[float, ...], code: int
) -> None:
    file = tmp_path / "guard.json"
    file.write_text(json.dumps({"loss": 0.25, "ratios": {ASYNC: 0.9}}), encoding="utf-8")
    monkeypatch.setattr(guard, "KEPT", file)
    monkeypatch.setattr(guard, "pairs", lambda store: [next(iter(pairs(store)))])
    monkeypatch.setattr(guard, "run", lambda *_: Results({}, measured(ours, (100.0,))))
    assert guard.main(["--record", "redis"]) == code
    kept = json.loads(file.read_text(encoding="utf-8"))["ratios"]
    assert kept == {ASYNC: 0.6 if ours else 0.9}


def test_every_ratio_is_recorded_and_is_one_that_a_run_measures() -> None:
    said = json.loads(KEPT.read_text(encoding="utf-8"))
    known, measures = load_all(), task_measures()
    every = [pair for store in STORES for pair in pairs(store)]
    assert set(said["ratios"]) == {str(pair) for pair in every}
    assert 0 < said["loss"] < 0.5
    for case in (case for pair in every for case in pair):
        assert case.variant in measures[case.measure].variants(known[case.system], QUICK), case
