"""From samples to text: one table per measure, the ratios, the goals, and how noisy the machine was.

The tables are Markdown with aligned columns, so that the terminal and the documentation show the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.goals import GOALS
from benchmarks.machine import Noise
from benchmarks.measures import Measure
from benchmarks.samples import Case, Record
from benchmarks.stats import Spread, paired_ratio
from benchmarks.systems.base import System

BEGIN = "<!-- {}: begin -->"
END = "<!-- {}: end -->"


def number(value: float, digits: int = 0) -> str:
    return f"{value:,.{digits}f}"


def shown(spread: Spread | None, digits: int = 0) -> str:
    """`1,200 (1,100-1,300)`: the median, and the smallest and largest of all rounds."""
    if spread is None:
        return ""
    median = number(spread.median, digits)
    low, high = number(spread.low, digits), number(spread.high, digits)
    return median if low == high else f"{median} ({low}-{high})"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def drawn(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([drawn(lines[0]), rule, *map(drawn, lines[1:])])


def figures(record: Record, measure: Measure) -> str:
    cases = list(record.cases(measure.name))
    metrics = [m for m in measure.metrics if any(record.spread(case, m.key) for case in cases)]
    rows = [
        [case.system, case.variant, *(shown(record.spread(case, m.key), m.digits) for m in metrics)]
        for case in cases
    ]
    return table(["system", "", *(metric.title for metric in metrics)], rows)


def ratios(record: Record, systems: Mapping[str, System], measures: Iterable[Measure]) -> Iterator[list[str]]:
    """How many times faster OmniQ is than each peer and limit on the same store, in the same rounds."""
    for measure in measures:
        for metric in (metric for metric in measure.metrics if metric.compared):
            cases = list(record.cases(measure.name))
            ours = [case for case in cases if systems[case.system].role == "omniq"]
            others = [case for case in cases if systems[case.system].role != "omniq"]
            for our, other in _counterparts(ours, others, systems):
                ratio = paired_ratio(record.by_round(our, metric.key), record.by_round(other, metric.key))
                yield [str(our), f"{other.system} {other.variant}", shown(ratio, 2)]


def _counterparts(
    ours: Sequence[Case], others: Sequence[Case], systems: Mapping[str, System]
) -> Iterator[tuple[Case, Case]]:
    """Each of our cases beside the same case of every other system, or beside its first where it has none."""
    for our in ours:
        for name in dict.fromkeys(case.system for case in others):
            if systems[name].store != systems[our.system].store:
                continue
            theirs = [case for case in others if case.system == name]
            same = [case for case in theirs if case.variant == our.variant]
            yield our, (same or theirs)[0]


def goals(record: Record) -> Iterator[list[str]]:
    for goal in GOALS:
        value = goal.value(record)
        if value is not None:
            yield [goal.title, goal.bound, shown(value, 2), "met" if goal.met(value) else "MISSED"]


def noise(taken: Sequence[Noise]) -> list[str]:
    spin, sync = Spread.of(n.spin_ms for n in taken), Spread.of(n.sync_ms for n in taken)
    return [
        f"a fixed loop took {shown(spin, 1)} ms: the slowest {spin.high / spin.low:.1f} times the fastest",
        f"a durable write of 4 KiB took {shown(sync, 2)} ms: the slowest {sync.high / sync.low:.1f} times "
        "the fastest",
    ]


def full(
    record: Record,
    systems: Mapping[str, System],
    measures: Sequence[Measure],
    about: Mapping[str, str],
    noises: Sequence[Noise],
) -> str:
    """The whole report. Cells are medians; what stands in brackets is the smallest and the largest round."""
    parts = ["\n".join(f"- {name}: {value}" for name, value in about.items())]
    if noises:
        parts[0] += "".join(f"\n- noise: {line}" for line in noise(noises))
    for measure in measures:
        if any(record.cases(measure.name)):
            parts += [f"### {measure.title}", figures(record, measure)]
    if compared := list(ratios(record, systems, measures)):
        parts += ["### Ratios, round by round", table(["OmniQ", "against", "times"], compared)]
    if checked := list(goals(record)):
        parts += ["### Goals", table(["goal", "bound", "this run", ""], checked)]
    used = dict.fromkeys(sample.case.system for sample in record.samples)
    parts += ["### What the figures buy", table(["system", ""], [[n, systems[n].promise] for n in used])]
    if record.failures:
        parts += ["### Not measured", "\n".join(f"- {f.case}: {f.reason}" for f in record.failures)]
    return "\n\n".join(parts) + "\n"


def write_into(document: Path, group: str, text: str) -> None:
    """Replace what stands between the two markers of `group` in `document`."""
    first, last = BEGIN.format(group), END.format(group)
    before, begin, rest = document.read_text(encoding="utf-8").partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{document} has no {first} ... {last} to write between")
    document.write_text(f"{before}{first}\n\n{text}\n{last}{after}", encoding="utf-8")
