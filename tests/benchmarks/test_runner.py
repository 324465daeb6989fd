"""The benchmark's arithmetic and its report on made-up numbers, and one very small run of the real thing."""

import json
from pathlib import Path

import pytest

from benchmarks.goals import KEEPERS_ON_REDIS, Goal
from benchmarks.harness import peers, redis
from benchmarks.harness.machine import Noise
from benchmarks.harness.redis import RedisServers
from benchmarks.harness.results import Results
from benchmarks.harness.samples import Case, Failure, Record, Sample
from benchmarks.harness.servers import NoServer
from benchmarks.harness.stats import Spread, paired_ratio, percentile
from benchmarks.plan import Plan
from benchmarks.reports import tables
from benchmarks.reports.page import DOCUMENT
from benchmarks.run import all_measures, all_systems, by_group, chosen_measures, chosen_systems, main, run
from benchmarks.systems import load_all
from benchmarks.tasks.drain import Drain
from benchmarks.tasks.latency import Latency
from tests.redis.server import find_program

STORE_BY_STORE = ("omniq-sqlite", "huey-sqlite", "omniq-postgres", "omniq-redis", "omniq-redis-aof")
TASKS = [
    "drain", "settings", "enqueue", "busy", "latency", "payload", "waiting", "computing", "idle", "size",
    "import", "depth",
]  # fmt: skip
POOLS = ["pool-calls", "pool-batches", "pool-arrays", "pool-start", "pool-memory"]
OURS = Case("drain", "omniq-sqlite", "async")
HUEY = Case("drain", "huey-sqlite", "sync")
TINY = Plan(
    rounds=1,
    live_rounds=1,
    concurrency=10,
    drain_tasks=200,
    drain_s=20.0,
    enqueue_tasks=40,
    enqueue_s=5.0,
    bulk=50,
    latency_tasks=5,
    latency_gap_s=0.001,
    warm_up_tasks=2,
    size_tasks=300,
    idle_s=0.2,
    settle_down_s=0.0,
    imports=1,
    depth_rounds=1,
    depth_tasks=100,
    backlogs=(100, 1_000),
    pool_rounds=1,
    pool_s=0.05,
    peer_tasks=100,
    busy_s=0.1,
    busy_tasks=100,
    payload_tasks=20,
    waiting_tasks=300,
    waiting_concurrency=100,
    waiting_s=0.01,
    computing_tasks=20,
    computing_spins=1_000,
    data_rounds=1,
    data_s=0.05,
)


def recorded(**per_s: tuple[float, ...]) -> Record:
    """A drain by name of system, one figure per round."""
    cases = {"ours": OURS, "huey": HUEY}
    return Record(
        [
            Sample(cases[name], round_, {"per_s": figure, "tasks": 10.0})
            for name, figures in per_s.items()
            for round_, figure in enumerate(figures)
        ]
    )


# --- arithmetic ----------------------------------------------------------------------------------


def test_a_spread_is_the_median_with_its_extremes() -> None:
    assert Spread.of([3.0, 9.0, 1.0]) == Spread(median=3.0, low=1.0, high=9.0, count=3)
    assert Spread.of([1.0, 2.0]).median == 1.5


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.5, 50), (0.95, 95), (0.99, 99), (0.991, 100), (1.0, 100), (0.0, 1)],
)
def test_a_percentile_is_a_value_that_occurred(share: float, expected: int) -> None:
    assert percentile(range(100, 0, -1), share) == expected


def test_ratios_compare_within_a_round_and_leave_out_what_has_no_partner() -> None:
    # The medians alone would say 40 / 2 = 20; no single round was like that.
    over, under = {0: 10.0, 1: 40.0, 2: 90.0, 3: 1.0}, {0: 1.0, 1: 4.0, 2: 2.0}
    assert paired_ratio(over, under) == Spread(median=10.0, low=10.0, high=45.0, count=3)
    assert paired_ratio(over, {7: 1.0}) is None
    assert paired_ratio({0: 1.0}, {0: 0.0}) is None


def test_a_goal_is_met_by_the_median() -> None:
    goal = Goal("against huey", OURS, "per_s", HUEY, at_least=12)
    reached = goal.value(recorded(ours=(1200.0, 1200.0, 2400.0), huey=(100.0, 110.0, 100.0)))
    assert reached == Spread(12.0, pytest.approx(10.909, abs=0.001), 24.0, 3)  # type: ignore[arg-type]
    assert goal.met(Spread(12.0, 1.0, 24.0, 3))
    assert not goal.met(Spread(11.9, 1.0, 24.0, 3))
    assert not Goal("p50", OURS, "p50_ms", at_most=2).met(Spread(2.1, 1.0, 3.0, 3))
    assert goal.value(recorded(ours=(1200.0,))) is None


def test_to_be_first_is_to_beat_the_best_of_each_round() -> None:
    slower = Case("drain", "flexiq-sqlite", "async")
    goal = Goal("first", OURS, "per_s", (HUEY, slower), at_least=1)
    record = recorded(ours=(10.0, 10.0, 10.0), huey=(5.0, 20.0, 8.0))
    record.samples.append(Sample(slower, 0, {"per_s": 40.0}))
    assert goal.value(record) == Spread(0.5, 0.25, 1.25, 3)


# --- report --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "digits", "text"),
    [
        ((1234.6, 900.0, 20000.0), 0, "1,235 (900-20,000)"),
        ((1.234,), 2, "1.23"),
        ((1.001, 1.002), 1, "1.0"),  # no spread to be seen
    ],
)
def test_a_cell_shows_the_spread_where_there_is_one(
    values: tuple[float, ...], digits: int, text: str
) -> None:
    assert tables.shown(Spread.of(values), digits) == text


def test_a_table_shows_only_what_was_measured() -> None:
    drawn = tables.figures(recorded(ours=(12.0, 10.0, 20.0), huey=(1.0,)), Drain(), load_all())
    assert drawn.splitlines() == [
        "| system       |       | tasks/s, first start to last | tasks | delivery      | results       |",
        "|--------------|-------|------------------------------|-------|---------------|---------------|",
        "| omniq-sqlite | async | 12 (10-20)                   | 10    | at least once | kept          |",
        "| huey-sqlite  | sync  | 1                            | 10    | at most once  | none for None |",
    ]


def test_a_table_goes_store_by_store() -> None:
    record = Record([Sample(Case("latency", name, ""), 0, {"p50_ms": 1.0}) for name in STORE_BY_STORE[::-1]])
    lines = tables.figures(record, Latency(), load_all()).splitlines()[2:]
    assert [line.split()[1] for line in lines] == list(STORE_BY_STORE)


def test_like_is_compared_with_like_and_everything_with_the_limit() -> None:
    """Async with async and sync with sync; a limit has no bodies."""
    record = recorded(ours=(12.0, 10.0), huey=(1.0, 2.0))
    record.samples += [
        Sample(Case("drain", "omniq-sqlite", "sync"), 0, {"per_s": 6.0}),
        Sample(Case("drain", "raw-sqlite", "statements"), 0, {"per_s": 24.0}),
    ]
    title = Drain.metrics[0].title
    assert list(tables.ratios(record, load_all(), [Drain()])) == [
        ["drain omniq-sqlite async", "raw-sqlite statements", title, "0.50"],
        ["drain omniq-sqlite sync", "huey-sqlite sync", title, "6.00"],
        ["drain omniq-sqlite sync", "raw-sqlite statements", title, "0.25"],
    ]


def test_the_report_names_noise_goals_and_what_could_not_be_measured() -> None:
    record = recorded(ours=(24.0,), huey=(1.0,))
    reason = "work ended with 1: Traceback\n  File ...\ncannot install flexiq"
    record.failures.append(Failure(Case("idle", "flexiq-sqlite", ""), reason))
    results = Results({"cores": "2"}, record, [Noise(10.0, 0.2), Noise(30.0, 0.3)])
    text = tables.full(results, load_all(), [Drain()])
    assert "- cores: 2\n" in text
    assert "20.0 (10.0-30.0) ms: the slowest 3.0 times the fastest" in text
    assert "- idle flexiq-sqlite: work ended with 1: Traceback ... cannot install flexiq" in text
    goal = next(line for line in text.splitlines() if "async bodies / huey" in line)
    assert [cell.strip() for cell in goal.split("|")[2:5]] == ["at least 12", "24.00", "met"]


def test_figures_go_between_the_markers_and_nowhere_else(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    begin, end = tables.BEGIN.format("pools"), tables.END.format("pools")
    document.write_text(f"before\n{begin}\nold\n{end}\nafter\n", encoding="utf-8")
    tables.write_into(document, "pools", "new")
    tables.write_into(document, "pools", "newer")
    assert document.read_text(encoding="utf-8") == f"before\n{begin}\n\nnewer\n{end}\nafter\n"
    document.write_text("no markers", encoding="utf-8")
    with pytest.raises(ValueError, match="has no"):
        tables.write_into(document, "tasks", "new")


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["omniq-postgres-typo"])
    assert "there is no omniq-postgres-typo; choose from omniq-memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], TASKS),
        (["huey-sqlite"], TASKS),
        (["pools"], POOLS),
        (["pool-loky"], POOLS),
        (["pools", "pool-omniq"], POOLS),
        (["pool-start", "drain"], ["drain", "pool-start"]),
        (["loading"], ["loading"]),
        (["loaders-torch"], ["loaders"]),
        (["loading", "loaders"], ["loading", "loaders"]),
    ],
)
def test_names_choose_what_is_measured(names: list[str], expected: list[str]) -> None:
    chosen = chosen_measures(all_measures(), names, chosen_systems(all_systems(), names, quick=False))
    assert [measure.name for measure in chosen] == expected


def test_a_store_names_all_its_systems_and_a_quick_run_needs_no_server() -> None:
    known = load_all()
    on_server = {"omniq-postgres", "raw-postgres", "pgqueuer-postgres", "procrastinate-postgres"}
    on_server |= {"chancy-postgres", "saq-postgres", "dbos-postgres"}
    assert set(chosen_systems(known, ["postgres", "drain"], quick=True)) == on_server
    assert on_server.isdisjoint(chosen_systems(known, ["drain"], quick=True))
    assert on_server <= set(chosen_systems(known, [], quick=False))


def test_what_belongs_together_is_told_together_and_has_a_place_on_the_page() -> None:
    names = {"tasks": "drain", "pools": "pool-start", "loaders": "loaders"}
    systems = {"tasks": "omniq-sqlite", "pools": "pool-omniq", "loaders": "loaders-omniq"}
    samples = [Sample(Case(names[group], systems[group], ""), 0, {"ms": 1.0}) for group in reversed(names)]
    failure = Failure(Case("", "pool-loky", ""), "cannot install loky")
    results = Results({}, Record(samples, [failure]))
    parts = list(by_group(results, all_systems(), list(all_measures().values())))
    assert [(group, [s.case.measure for s in part.record.samples]) for group, part, _ in parts] == [
        (group, [name]) for group, name in names.items()
    ]
    assert [part.record.failures for _, part, _ in parts] == [[], [failure], []]
    document = DOCUMENT.read_text(encoding="utf-8")
    for group, _, told in parts:
        assert {measure.group for measure in told} == {group}
        assert tables.BEGIN.format(group) in document
        assert tables.END.format(group) in document


def test_every_measure_and_every_group_is_explained_on_the_page() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    for name in all_measures():
        assert f"`{name}`" in document or f"benchmarks.run {name} " in document, name


def test_every_peer_says_what_its_figures_buy() -> None:
    for system in (system for system in load_all().values() if system.bodies):
        assert system.delivery, system.name
        assert system.results, system.name
        assert system.promise, system.name


# --- the real thing ------------------------------------------------------------------------------


@pytest.mark.bound(180)
def test_a_very_small_run_measures_everything(tmp_path: Path) -> None:
    systems = {
        name: system
        for name, system in load_all().items()
        if system.package is None and system.server is None
    }
    measures = list(all_measures().values())
    scratch, results = tmp_path / "scratch", tmp_path / "results"
    scratch.mkdir()

    found = run(TINY, systems, measures, scratch, results, "a test")
    record, text = found.record, tables.full(found, systems, measures)

    assert record.failures == []
    cases = [s.case for s in record.samples]
    assert cases == [
        Case(measure.name, name, variant)
        for measure in measures
        for name, system in systems.items()
        for variant in measure.variants(system, TINY)
    ]
    for sample in record.samples:
        # So short a look at an idle worker may well find it asleep.
        assert all(value > 0 for name, value in sample.values.items() if name != "cpu_percent"), sample
    drains = [s.values for s in record.samples if s.case.measure == "drain"]
    assert {values["tasks"] for values in drains} == {200.0}
    assert Case("depth", "omniq-sqlite", "1,000") in cases
    [file] = results.iterdir()
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 1 + len(cases)
    assert "### Goals" in text
    assert list(scratch.iterdir()) == []


def test_the_redis_that_is_named_is_the_one_that_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIQ_BENCH_REDIS", "/opt/redis/bin/redis-server")
    assert redis.program() == Path("/opt/redis/bin/redis-server")
    monkeypatch.delenv("OMNIQ_BENCH_REDIS")
    assert redis.program() == find_program()


@pytest.mark.bound(180)
def test_a_very_small_run_on_a_server(
    tmp_path: Path, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sample in a database of its own, which is gone afterwards; two worker processes count as one."""
    monkeypatch.setenv("OMNIQ_BENCH_POSTGRES", postgres_dsn)
    systems = {name: load_all()[name] for name in ("omniq-postgres", "raw-postgres")}
    measures = [all_measures()[name] for name in ("drain", "idle")]
    (tmp_path / "scratch").mkdir()
    found = run(TINY, systems, measures, tmp_path / "scratch", tmp_path / "results", "a test")
    record, text = found.record, tables.full(found, systems, measures)
    assert record.failures == []
    assert [(s.case.system, s.case.variant) for s in record.samples] == [
        ("omniq-postgres", "async"),
        ("omniq-postgres", "sync"),
        ("omniq-postgres", "async x2"),
        ("raw-postgres", "statements"),
        ("omniq-postgres", ""),
    ]
    assert {s.values["tasks"] for s in record.samples if s.case.measure == "drain"} == {200.0}
    assert "requests_per_s" in record.samples[-1].values
    assert "PostgreSQL: drain with async bodies / raw limit" in text


@pytest.mark.bound(180)
def test_a_very_small_run_on_redis(tmp_path: Path, redis_url: str) -> None:
    """A server for every sample, with a file and without one."""
    known, scratch = load_all(), tmp_path / "scratch"
    scratch.mkdir()
    synced = {name: known[name] for name in ("omniq-redis-aof", "raw-redis-aof")}
    found = run(TINY, synced, [Drain()], scratch, tmp_path / "drained", "a test")
    drained, text = found.record, tables.full(found, synced, [Drain()])
    assert drained.failures == []
    assert [s.case.variant for s in drained.samples] == ["async", "sync", "async x2", "statements"]
    assert {s.values["tasks"] for s in drained.samples} == {200.0}
    assert "Redis, file synced: drain with async bodies / raw limit" in text

    watching = [all_measures()[name] for name in ("idle", "size")]
    looked = run(
        TINY, {"omniq-redis": known["omniq-redis"]}, watching, scratch, tmp_path / "looked", "a test"
    ).record
    assert looked.failures == []
    idle, size = (sample.values for sample in looked.samples)
    assert "requests_per_s" in idle
    assert 100 < size["pending_bytes"] < 2_000
    assert 100 < size["finished_bytes"] < 2_000


def test_every_peer_is_pinned_with_what_it_needs() -> None:
    for system in (system for system in load_all().values() if system.package):
        assert {*system.needs, system.package} <= set(peers.pinned(system.environment)), system.name


def test_a_peer_without_its_server_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_server: RedisServers) -> None:
        raise NoServer("no Valkey or Redis that runs here")

    monkeypatch.setattr(RedisServers, "start", none)
    (tmp_path / "scratch").mkdir()
    systems = {"raw-redis": load_all()["raw-redis"]}
    found = run(TINY, systems, [Drain()], tmp_path / "scratch", tmp_path / "results", "a test")
    text = tables.full(found, systems, [Drain()])
    assert found.record.samples == []
    assert "- raw-redis: no Valkey or Redis that runs here" in text


def test_on_redis_only_peers_that_keep_a_task_until_it_has_run_are_a_measure_of_speed() -> None:
    known = load_all()
    keepers = {case.system for case in KEEPERS_ON_REDIS}
    assert keepers == {
        name
        for name, system in known.items()
        if system.store == "redis" and system.role == "peer" and system.delivery == "at least once"
    }
