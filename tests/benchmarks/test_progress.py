"""How long a run still takes, what it leaves in its file, and how many tasks a slow peer gets."""

import json
from pathlib import Path

import pytest

from benchmarks.harness import marks, peers
from benchmarks.harness.machine import Noise
from benchmarks.harness.progress import Progress, clock
from benchmarks.harness.results import Results, read
from benchmarks.harness.samples import Case, Failure, Sample
from benchmarks.plan import FULL, QUICK
from benchmarks.run import all_measures, all_systems, chosen_systems
from benchmarks.systems import load_all
from benchmarks.tasks.bodies import after_the_first
from benchmarks.tasks.drain import Drain


def test_the_estimate_learns_from_what_is_over() -> None:
    progress = Progress([2.0, 2.0, 6.0])
    assert progress.left_s == 10.0
    progress.took(4.0)  # twice as long as thought
    assert progress.left_s == 16.0
    progress.took(2.0)
    assert progress.left_s == pytest.approx(9.0)
    progress.took(1.0)
    assert progress.left_s == 0.0


def test_minutes_and_seconds() -> None:
    assert [clock(seconds) for seconds in (0, 9.9, 60, 3_725)] == ["0:00", "0:09", "1:00", "62:05"]


@pytest.mark.parametrize(("plan", "quick", "minutes"), [(QUICK, True, 3), (FULL, False, 40)])
def test_the_plans_are_meant_to_take_no_longer_than_the_page_says(
    plan: object, quick: bool, minutes: float
) -> None:
    """By the estimate; the bound of a run itself is `total_s`."""
    chosen = QUICK if quick else FULL
    assert plan is chosen
    systems = chosen_systems(all_systems(), [], quick=quick)
    expected_s = sum(
        measure.expected_s(chosen) * measure.rounds(chosen) * len(measure.variants(system, chosen))
        for measure in all_measures().values()
        if measure.group == "tasks"
        for system in systems.values()
    )
    assert expected_s < 60 * minutes
    assert chosen.total_s < 60 * minutes


def test_what_a_run_has_written_can_be_told_again(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        results = Results({"cores": "2"}, file=lines)
        results.begin({"rounds": 3})
        results.add(Sample(Case("drain", "omniq-sqlite", "async"), 1, {"per_s": 7.0}), Noise(1.0, 2.0))
        results.fail(Failure(Case("idle", "huey-sqlite", ""), "it died"))
        results.cut("the time was over")
    again = read(file)
    assert (again.about, again.record, again.noises) == (results.about, results.record, results.noises)
    assert again.about["cut short"] == "the time was over"
    assert json.loads(file.read_text(encoding="utf-8").splitlines()[0])["plan"] == {"rounds": 3}


def test_a_peer_drains_as_many_as_keep_it_busy_for_a_while() -> None:
    drain, peer, ours = Drain(), load_all()["rq-redis"], load_all()["omniq-redis"]
    assert drain._tasks(FULL, ours, "sync") == FULL.drain_tasks
    assert drain._tasks(FULL, peer, "sync") == FULL.peer_tasks
    for rate, tasks in ((100.0, FULL.peer_tasks), (4_000.0, 6_000), (1e9, FULL.drain_tasks)):
        drain._seen["rq-redis", "sync"] = rate
        assert drain._tasks(FULL, peer, "sync") == tasks


def test_waiting_bodies_are_counted_once_all_slots_are_taken() -> None:
    # Ten at once, each for 0.1 s: a hundred in a second, although the first ten start together.
    moments = [0.1 * (number // 10) for number in range(100)]
    assert after_the_first(moments, 10) == pytest.approx(100.0)
    assert after_the_first([0.0, 1.0], 10) == pytest.approx(1.0)  # fewer than slots: from the middle on


def test_a_payload_travels_with_the_moment_of_its_call() -> None:
    stamped = marks.stamp(1_000)
    assert isinstance(stamped, str)
    assert len(stamped) > 1_000
    assert marks._moment(stamped) == pytest.approx(marks._moment(marks.stamp()), abs=60)


def test_the_environments_of_the_peers_may_lie_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / ".venv-peers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    version = peers.pinned("peers")["huey"]
    python.write_text(f"#!/bin/sh\necho {version}\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setenv(peers.WHERE, str(tmp_path))
    assert peers.python_with("huey") == python
