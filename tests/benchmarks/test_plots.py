"""The pictures: what is in them, and that they are drawings at all."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.harness.results import Results
from benchmarks.harness.samples import Case, Record, Sample
from benchmarks.harness.stats import Spread
from benchmarks.reports import page, tables
from benchmarks.reports.plots import CHARTS, COLOURS, WIDTH, Bar, Chart, draw_into, drawing
from benchmarks.run import all_measures
from benchmarks.systems import load_all

SVG = "{http://www.w3.org/2000/svg}"
CHART = Chart("rates", "Rates & <more>", "drain", "per_s")
BARS = [
    Bar("omniq-sqlite async", "omniq", Spread(1_000.0, 500.0, 2_000.0, 3)),
    Bar("huey-sqlite sync", "peer", Spread(100.0, 100.0, 100.0, 1)),
]


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def test_a_bar_is_as_long_as_its_median_and_the_longest_reaches_no_label() -> None:
    root = parsed(drawing(CHART, BARS))
    ours, theirs = (
        next(r for r in root.iter(f"{SVG}rect") if r.get("class") == role and r.get("height") == "14")
        for role in ("omniq", "peer")
    )
    assert float(ours.attrib["width"]) == pytest.approx(10 * float(theirs.attrib["width"]), rel=0.01)
    ends = [float(text.attrib["x"]) for text in root.iter(f"{SVG}text")]
    assert max(ends) < WIDTH - 60
    [whisker] = root.iter(f"{SVG}path")  # one round only has nothing to reach for
    assert whisker.get("class") == "reach"


def test_a_picture_says_what_it_shows_in_text() -> None:
    root = parsed(drawing(CHART._replace(less=True), BARS))
    said = [text.text for text in root.iter(f"{SVG}text")]
    assert "Rates & <more> (less is better)" in said
    assert {"omniq-sqlite async", "huey-sqlite sync", "1,000", "100", "OmniQ", "others"} <= set(said)
    assert "raw limit" not in said
    assert root.find(f"{SVG}title") is not None


def test_both_palettes_are_in_the_picture_with_a_background_of_their_own() -> None:
    light, dark = drawing(CHART, BARS).split("@media (prefers-color-scheme: dark)")
    for name, (on_light, on_dark) in COLOURS.items():
        assert f".{name}{{fill:{on_light}" in light
        assert f".{name}{{fill:{on_dark}" in dark
    assert 'class="page"' in drawing(CHART, BARS)


@pytest.mark.parametrize("side", [0, 1])
def test_text_stands_out_from_its_background(side: int) -> None:
    """4.5 is what WCAG asks of text of this size."""

    def light_of(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    page_light = light_of(COLOURS["page"][side])
    for name in ("ink", "faint"):
        darker, lighter = sorted([page_light, light_of(COLOURS[name][side])])
        assert (lighter + 0.05) / (darker + 0.05) > 4.5, name


def test_a_run_draws_what_it_has_measured_and_the_page_shows_it(tmp_path: Path) -> None:
    samples = [
        Sample(Case("drain", name, variant), 0, {"per_s": 10.0})
        for name, variant in (
            ("omniq-sqlite", "async"),
            ("raw-sqlite", "statements"),
            ("omniq-redis", "async"),
        )
    ]
    systems, record = load_all(), Record(samples)
    assert draw_into(tmp_path / "alone", record, systems) == {"drain-sqlite": "SQLite: tasks run in a second"}
    document = tmp_path / "page.md"
    document.write_text(f"{tables.BEGIN.format('tasks')}\n{tables.END.format('tasks')}\n", encoding="utf-8")
    page.write("tasks", Results({}, record), systems, [all_measures()["drain"]], document)
    assert "![SQLite: tasks run in a second](page/drain-sqlite.svg)" in document.read_text(encoding="utf-8")
    drawn = (tmp_path / "page" / "drain-sqlite.svg").read_text(encoding="utf-8")
    assert "raw-sqlite statements" in drawn
    assert "omniq-redis" not in drawn


def test_every_chart_draws_a_figure_that_its_measure_has() -> None:
    for chart in CHARTS:
        assert chart.metric in {metric.key for metric in all_measures()[chart.measure].metrics}, chart.name
    assert len({chart.name for chart in CHARTS}) == len(CHARTS)
