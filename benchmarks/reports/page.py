"""The page of the documentation that shows what was measured, and its pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness.measure import Measure
from benchmarks.harness.processes import ROOT
from benchmarks.harness.results import Results
from benchmarks.reports import plots, tables
from benchmarks.systems.base import System

DOCUMENT = ROOT / "docs" / "benchmarks.md"


def write(
    group: str,
    results: Results,
    systems: Mapping[str, System],
    measures: Sequence[Measure],
    document: Path = DOCUMENT,
) -> None:
    """The pictures into a folder beside the page, which is called like it; everything else into its place."""
    folder = document.with_suffix("")
    drawn = plots.draw_into(folder, results.record, systems)
    pictures = [f"![{title}]({folder.name}/{name}.svg)" for name, title in drawn.items()]
    tables.write_into(document, group, "\n\n".join([*pictures, tables.full(results, systems, measures)]))
