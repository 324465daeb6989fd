"""The figures of a run as pictures: a bar for each case, in the colour of OmniQ, of the limit or of a peer.

Each picture carries its own background and both palettes: it can be read on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from benchmarks.harness.samples import Record
from benchmarks.harness.stats import Spread
from benchmarks.reports.tables import number
from benchmarks.systems.base import System

WIDTH, LETTER_WIDTH, VALUE_WIDTH = 760, 6.6, 96
TOP, ROW, BAR, BOTTOM = 64, 22, 14, 14
COLOURS = {  # of a light page, of a dark one
    "page": ("#ffffff", "#12161c"),
    "ink": ("#1f2933", "#e4e7eb"),
    "faint": ("#616e7c", "#9aa5b1"),
    "omniq": ("#2b6cb0", "#63a4e8"),
    "limit": ("#9aa5b1", "#616e7c"),
    "peer": ("#d9822b", "#e0a35c"),
}
LEGEND = {"omniq": "OmniQ", "limit": "raw limit", "peer": "others"}


class Chart(NamedTuple):
    """What is drawn: one figure of one measure, of all systems or of those on one store."""

    name: str  # of the file
    title: str
    measure: str
    metric: str
    store: str | None = None
    variants: tuple[str, ...] | None = None
    digits: int = 0
    less: bool = False  # less is better


class Bar(NamedTuple):
    label: str
    role: str
    value: Spread


STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis"}
CHARTS = (
    *(Chart(f"drain-{s}", f"{n}: tasks run in a second", "drain", "per_s", s) for s, n in STORES.items()),
    *(
        Chart(f"enqueue-{s}", f"{n}: tasks enqueued in a second, one by one", "enqueue", "per_s", s,
              ("blocking", "async"))
        for s, n in STORES.items()
    ),
    *(
        Chart(f"cpu-{s}", f"{n}: µs of the worker's CPU for a task", "drain", "cpu_us", s, less=True)
        for s, n in STORES.items()
    ),
    *(
        Chart(f"latency-{s}", f"{n}: ms from enqueue to start, the 99th of 100", "latency", "p99_ms", s,
              digits=2, less=True)
        for s, n in STORES.items()
    ),
    Chart("waiting", "Bodies that await 100 ms, 1,000 at once: run in a second", "waiting", "per_s"),
    Chart("computing", "Bodies that compute, two processes: run in a second", "computing", "per_s"),
    Chart("pool-calls", "Process pools: calls in a second, each by itself", "pool-calls", "per_s"),
    Chart("pool-batches", "Process pools: calls in a second, in batches", "pool-batches", "per_s"),
    Chart("pool-arrays", "Process pools: MiB there and back in a second", "pool-arrays", "mib_per_s"),
    Chart("loading", "Data pools: GB received in a second", "loading", "gb_per_s", digits=2),
    Chart("loaders", "Loaders: samples in a second", "loaders", "samples_per_s"),
)  # fmt: skip


def draw_into(folder: Path, record: Record, systems: Mapping[str, System]) -> dict[str, str]:
    """Write what this run has figures for; what each picture is called and shows."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, str] = {}
    for chart in CHARTS:
        bars = list(bars_of(chart, record, systems))
        if len(bars) > 1:
            (folder / f"{chart.name}.svg").write_text(drawing(chart, bars), encoding="utf-8")
            drawn[chart.name] = chart.title
    return drawn


def bars_of(chart: Chart, record: Record, systems: Mapping[str, System]) -> Iterator[Bar]:
    for case in record.cases(chart.measure):
        system = systems[case.system]
        if chart.store not in (None, system.store):
            continue
        if chart.variants is not None and case.variant not in chart.variants:
            continue
        value = record.spread(case, chart.metric)
        if value is not None:
            yield Bar(f"{case.system} {case.variant}".strip(), system.role, value)


def drawing(chart: Chart, bars: Sequence[Bar]) -> str:
    """Grouped by role as they come; the whisker reaches from the smallest round to the largest."""
    height = TOP + ROW * len(bars) + BOTTOM
    title = chart.title + (" (less is better)" if chart.less else "")
    longest = max(bar.value.high for bar in bars) or 1.0
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f"<style>{_style()}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text class="ink" x="16" y="26" font-size="14" font-weight="600">{escape(title)}</text>',
        *_legend([bar.role for bar in bars]),
    ]
    left = round(24 + LETTER_WIDTH * max(len(bar.label) for bar in bars))
    for place, bar in enumerate(bars):
        lines += _bar(bar, left, TOP + ROW * place, longest, chart.digits)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _style() -> str:
    light, dark = (
        " ".join(f".{name}{{fill:{pair[which]};stroke:none}}" for name, pair in COLOURS.items())
        for which in (0, 1)
    )
    reach = ".reach{{stroke:{};stroke-width:1.5}}"
    ink = COLOURS["ink"]
    on_dark = f"@media (prefers-color-scheme: dark) {{{dark} {reach.format(ink[1])}}}"
    return f"{light} {reach.format(ink[0])} {on_dark}"


def _legend(roles: Sequence[str]) -> Iterator[str]:
    left = 16
    for role, text in LEGEND.items():
        if role in roles:
            yield f'<rect class="{role}" x="{left}" y="40" width="10" height="10" rx="2"/>'
            yield f'<text class="faint" x="{left + 16}" y="49">{text}</text>'
            left += 40 + 7 * len(text)


def _bar(bar: Bar, base: int, top: int, longest: float, digits: int) -> Iterator[str]:
    room = WIDTH - base - VALUE_WIDTH
    low, middle, high = (
        room * value / longest for value in (bar.value.low, bar.value.median, bar.value.high)
    )
    text_y, line_y = top + BAR - 3, top + BAR / 2
    yield f'<text class="ink" x="{base - 10}" y="{text_y}" text-anchor="end">{escape(bar.label)}</text>'
    size = f'width="{max(middle, 1):.1f}" height="{BAR}"'
    yield f'<rect class="{bar.role}" x="{base}" y="{top}" {size} rx="2"/>'
    if high - low > 1:
        yield f'<path class="reach" d="M{base + low:.1f},{line_y}H{base + high:.1f}"/>'
    end = base + max(middle, high) + 6
    yield f'<text class="faint" x="{end:.1f}" y="{text_y}">{number(bar.value.median, digits)}</text>'
