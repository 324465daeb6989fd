"""Data pools and loaders compared: names, goals on made-up numbers, two real small samples."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.data.loaders import Loaders
from benchmarks.data.loading import Loading
from benchmarks.data.side_by_side import SideBySide, asked, name_of
from benchmarks.harness import peers
from benchmarks.harness.processes import ChildFailed
from benchmarks.harness.results import Results
from benchmarks.harness.samples import Case, Record, Sample
from benchmarks.reports import tables


def told(measure: SideBySide, **per_system: tuple[float, ...]) -> str:
    """One figure per round for each system, the same for all that is measured."""
    cases = {key: Case(measure.name, name_of(measure.name, key), measure.cases[0]) for key in per_system}
    samples = [
        Sample(cases[key], round_, {metric.key: figure for metric in measure.metrics})
        for key, figures in per_system.items()
        for round_, figure in enumerate(figures)
    ]
    return tables.full(Results({"date": "today"}, Record(samples)), measure.systems(), [measure])


def verdict(text: str, goal: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {goal} ")]
    return [cell.strip() for cell in line.split("|")[2:5]]


def test_a_loader_is_compared_with_the_best_of_the_others() -> None:
    text = told(Loaders(), omniq=(10, 30), torch=(10, 10), grain=(40, 40))
    assert "- date: today" in text
    assert verdict(text, "loader: samples/s, jpeg / the best other") == [
        "at least 1", "0.50 (0.25-0.75)", "MISSED",
    ]  # fmt: skip
    # Less is better: the best is torch here, which took 10 in both rounds.
    assert verdict(text, "loader: time to the first batch, jpeg / the best other") == [
        "at most 1", "2.00 (1.00-3.00)", "MISSED",
    ]  # fmt: skip


def test_the_data_pool_is_compared_with_the_best_of_the_others_in_each_round() -> None:
    text = told(Loading(), **{"data pool": (8, 8)}, loky=(1, 4), mpire=(2, 1))
    assert verdict(text, "data pool: arrays of 64 KiB / the best other") == [
        "at least 1", "3.00 (2.00-4.00)", "met",
    ]  # fmt: skip


@pytest.mark.parametrize("measure", [Loading(), Loaders()], ids=lambda measure: measure.name)
def test_every_system_has_a_name_that_can_be_typed_and_is_pinned(measure: SideBySide) -> None:
    systems = measure.systems()
    assert len(systems) == len(measure.packages)
    pinned = peers.pinned("peers")
    for name, system in systems.items():
        assert " " not in name
        assert {*system.needs, system.package} <= set(pinned), name
    assert sum(system.role == "omniq" for system in systems.values()) == len(measure.ours)


def test_a_pool_is_measured(tmp_path: Path) -> None:
    program = ["benchmarks.data.loading_child", "data pool", "64 KiB", str(tmp_path), "0.05"]
    figures = asked(Path(sys.executable), program, tmp_path / "figures", 60)
    assert all(figures[metric.key] > 0 for metric in Loading.metrics)


def test_a_loader_is_measured(tmp_path: Path) -> None:
    program = ["benchmarks.data.loader_child", "omniq", "small", str(tmp_path), "0.05"]
    figures = asked(Path(sys.executable), program, tmp_path / "figures", 60)
    assert all(figures[metric.key] > 0 for metric in Loaders.metrics)


def test_a_program_that_fails_or_takes_too_long_is_told() -> None:
    nowhere = Path("/nonexistent")
    with pytest.raises(ChildFailed, match="No module named"):
        asked(Path(sys.executable), ["benchmarks.nothing"], nowhere, 60)
    with pytest.raises(ChildFailed, match=r"not done within 0\.5 s"):
        asked(Path(sys.executable), ["timeit", "-n1", "import time; time.sleep(60)"], nowhere, 0.5)
