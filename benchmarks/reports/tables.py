"""From samples to text: one table per measure, the ratios, the goals, and how noisy the machine was.

The tables are Markdown with aligned columns, so that the terminal and the documentation show the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.goals import GOALS
from benchmarks.harness.machine import Noise
from benchmarks.harness.measure import Measure
from benchmarks.harness.results import Results
from benchmarks.harness.samples import Case, Record
from benchmarks.harness.stats import Spread, paired_ratio
from benchmarks.reasons import why
from benchmarks.systems.base import System

BEGIN = "<!-- {}: begin -->"
END = "<!-- {}: end -->"
ROLES = ("omniq", "limit", "peer")
STORES = ("memory", "sqlite", "postgres", "redis", "redis-aof")


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


def figures(record: Record, measure: Measure, systems: Mapping[str, System]) -> str:
    """Store by store; beside each figure, in a word, what it buys."""
    cases = sorted(record.cases(measure.name), key=lambda case: _place(systems[case.system]))
    metrics = [m for m in measure.metrics if any(record.spread(case, m.key) for case in cases)]
    buys = ("delivery", "results") if measure.buys else ()
    rows = [
        [
            case.system,
            case.variant,
            *(shown(record.spread(case, m.key), m.digits) for m in metrics),
            *(getattr(systems[case.system], word) for word in buys),
        ]
        for case in cases
    ]
    return table(["system", "", *(metric.title for metric in metrics), *buys], rows)


def _place(system: System) -> tuple[int, int]:
    store = STORES.index(system.store) if system.store in STORES else len(STORES)
    return store, ROLES.index(system.role)


def ratios(record: Record, systems: Mapping[str, System], measures: Iterable[Measure]) -> Iterator[list[str]]:
    """How many times faster OmniQ is than each peer and limit on the same store, in the same rounds."""
    for measure in measures:
        for metric in (metric for metric in measure.metrics if metric.compared):
            cases = list(record.cases(measure.name))
            ours = [case for case in cases if systems[case.system].role == "omniq"]
            others = [case for case in cases if systems[case.system].role != "omniq"]
            for our, other in _counterparts(ours, others, systems):
                ratio = paired_ratio(record.by_round(our, metric.key), record.by_round(other, metric.key))
                yield [str(our), f"{other.system} {other.variant}".strip(), metric.title, shown(ratio, 2)]


def _counterparts(
    ours: Sequence[Case], others: Sequence[Case], systems: Mapping[str, System]
) -> Iterator[tuple[Case, Case]]:
    """Like with like: async beside async, sync beside sync. A limit that knows no such difference, as in a
    drain, stands beside all of them."""
    ours_are = {our.variant for our in ours}
    for our in ours:
        for name in dict.fromkeys(case.system for case in others):
            if systems[name].store != systems[our.system].store:
                continue
            theirs = [case for case in others if case.system == name]
            same = [case for case in theirs if case.variant == our.variant]
            if not same and systems[name].role == "limit":
                same = [case for case in theirs if case.variant not in ours_are]
            if same:
                yield our, same[0]


def goals(record: Record) -> Iterator[list[str]]:
    for goal in GOALS:
        value = goal.value(record)
        if value is not None:
            yield [goal.title, goal.bound, shown(value, 2), "met" if goal.met(value) else "MISSED"]


def missed(record: Record) -> Iterator[str]:
    """Each goal that was missed, and why, as far as that is known."""
    for goal in GOALS:
        value = goal.value(record)
        if value is not None and not goal.met(value):
            yield f"- {goal.title}: {why(goal, record)}"


def noise(taken: Sequence[Noise]) -> list[str]:
    spin, sync = Spread.of(n.spin_ms for n in taken), Spread.of(n.sync_ms for n in taken)
    return [
        f"a fixed loop took {shown(spin, 1)} ms: the slowest {spin.high / spin.low:.1f} times the fastest",
        f"a durable write of 4 KiB took {shown(sync, 2)} ms: the slowest {sync.high / sync.low:.1f} times "
        "the fastest",
    ]


def full(results: Results, systems: Mapping[str, System], measures: Sequence[Measure]) -> str:
    """The whole report. Cells are medians; what stands in brackets is the smallest and the largest round."""
    record = results.record
    parts = ["\n".join(f"- {name}: {value}" for name, value in results.about.items())]
    if results.noises:
        parts[0] += "".join(f"\n- noise: {line}" for line in noise(results.noises))
    if checked := list(goals(record)):
        parts += ["### Goals", table(["goal", "bound", "this run", ""], checked)]
    if lines := list(missed(record)):
        parts += ["### Why those are missed", "\n".join(lines)]
    for measure in measures:
        if any(record.cases(measure.name)):
            parts += [f"### {measure.title}", figures(record, measure, systems)]
    if compared := list(ratios(record, systems, measures)):
        parts += ["### Ratios, round by round", table(["OmniQ", "against", "of", "times"], compared)]
    used = dict.fromkeys(sample.case.system for sample in record.samples)
    promises = [[name, systems[name].promise] for name in used]
    parts += ["### What the figures buy", table(["system", ""], promises)]
    if record.failures:
        parts += [
            "### Not measured",
            "\n".join(f"- {f.case}: {_last_line(f.reason)}" for f in record.failures),
        ]
    return "\n\n".join(parts) + "\n"


def _last_line(reason: str) -> str:
    """What broke stands in the first, what it said in the last."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"


def write_into(document: Path, group: str, text: str) -> None:
    """Replace what stands between the two markers of `group` in `document`."""
    first, last = BEGIN.format(group), END.format(group)
    before, begin, rest = document.read_text(encoding="utf-8").partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{document} has no {first} ... {last} to write between")
    document.write_text(f"{before}{first}\n\n{text}\n{last}{after}", encoding="utf-8")
