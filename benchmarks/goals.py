"""What OmniQ promises about its speed and size, each as a number that a run can answer.

Where a promise is about two systems, it is about their ratio in the same round. Why one is missed is said in
`reasons.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.harness.samples import Case, Record
from benchmarks.harness.stats import Spread, paired_ratio


@dataclass(frozen=True)
class Goal:
    title: str
    case: Case
    metric: str
    against: Case | tuple[Case, ...] | None = None  # of several the best in each round
    at_least: float | None = None
    at_most: float | None = None

    def value(self, record: Record) -> Spread | None:
        """None where this run has not measured it."""
        if self.against is None:
            return record.spread(self.case, self.metric)
        return paired_ratio(record.by_round(self.case, self.metric), self._best_others(record))

    def asked(self, record: Record) -> float | None:
        """What would have been enough in this run."""
        others, times = self._best_others(record), self.at_least or self.at_most
        return Spread.of(others.values()).median * times if others and times is not None else None

    def _best_others(self, record: Record) -> dict[int, float]:
        against = self.against or ()
        better = max if self.at_least is not None else min
        best: dict[int, float] = {}
        for other in [against] if isinstance(against, Case) else against:
            for round_, figure in record.by_round(other, self.metric).items():
                best[round_] = better(figure, best.get(round_, figure))
        return best

    def met(self, value: Spread) -> bool:
        if self.at_least is not None and value.median < self.at_least:
            return False
        return self.at_most is None or value.median <= self.at_most

    @property
    def bound(self) -> str:
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"


# --- task queues -----------------------------------------------------------------------------------

ON_SQLITE, ON_POSTGRES, ON_REDIS = "omniq-sqlite", "omniq-postgres", "omniq-redis"
# A queue that forgets a task before it runs does less, so it is no measure of speed: not huey, not Celery.
KEEPERS_ON_REDIS = (
    *(Case("drain", f"{peer}-redis", "async") for peer in ("arq", "saq", "streaq", "taskiq")),
    Case("drain", "dramatiq-redis", "sync"),
)


def _drain(title: str, ours: str, bodies: str, against: Case | tuple[Case, ...], at_least: float) -> Goal:
    return Goal(title, Case("drain", ours, bodies), "per_s", against, at_least=at_least)


def _limit(store: str, ours: str, bodies: str, at_least: float) -> Goal:
    statements = Case("drain", ours.replace("omniq", "raw"), "statements")
    return _drain(f"{store}: drain with {bodies} bodies / raw limit", ours, bodies, statements, at_least)


def _deep(store: str, ours: str) -> Goal:
    large, small = Case("depth", ours, "1,000,000"), Case("depth", ours, "10,000")
    return Goal(f"{store}: drain at a backlog of 1,000,000 / 10,000", large, "per_s", small, at_least=0.9)


def _waits(store: str, ours: str) -> Goal:
    title = f"{store}: bodies that await 100 ms, 1,000 at once, tasks/s"
    return Goal(title, Case("waiting", ours, "async"), "per_s", at_least=8_000)


def _latency(store: str, ours: str, p50_ms: float, p99_ms: float) -> Iterator[Goal]:
    yield Goal(f"{store}: latency p50, ms", Case("latency", ours, ""), "p50_ms", at_most=p50_ms)
    yield Goal(f"{store}: latency p99, ms", Case("latency", ours, ""), "p99_ms", at_most=p99_ms)


def _enqueue(title: str, ours: str, face: str, theirs: str, at_least: float) -> Goal:
    """Against one durable call after the other."""
    return Goal(
        title, Case("enqueue", ours, face), "per_s", Case("enqueue", theirs, "blocking"), at_least=at_least
    )


HUEY = Case("drain", "huey-sqlite", "sync")
SQLITE_GOALS = (
    _drain("SQLite: drain with async bodies / huey", ON_SQLITE, "async", HUEY, 12),
    _drain("SQLite: drain with sync bodies / huey", ON_SQLITE, "sync", HUEY, 8),
    _limit("SQLite", ON_SQLITE, "async", 0.6),
    _limit("SQLite", ON_SQLITE, "sync", 0.5),
    _deep("SQLite", ON_SQLITE),
    _enqueue("SQLite: enqueue one by one, sync / raw insert", ON_SQLITE, "blocking", "raw-sqlite", 0.8),
    _enqueue("SQLite: enqueue one by one, async / raw insert", ON_SQLITE, "async", "raw-sqlite", 0.8),
    _enqueue("SQLite: enqueue, 100 in flight / raw insert", ON_SQLITE, "in-flight", "raw-sqlite", 10),
    *_latency("SQLite", ON_SQLITE, 2, 6),
    _waits("SQLite", ON_SQLITE),
    Goal("SQLite: idle worker, % of a core", Case("idle", ON_SQLITE, ""), "cpu_percent", at_most=0.2),
    Goal("SQLite: idle worker, RSS MiB", Case("idle", ON_SQLITE, ""), "rss_mib", at_most=40),
    Goal("import omniq, ms", Case("import", ON_SQLITE, "import omniq"), "ms", at_most=100),
    Goal(
        "from omniq import OmniQ, ms",
        Case("import", ON_SQLITE, "from omniq import OmniQ"), "ms", at_most=100,
    ),
)  # fmt: skip


def _beside(what: str, peer: str, at_least: float, bodies: str = "async") -> Goal:
    theirs = Case("drain", f"{peer}-postgres", bodies)
    return _drain(f"PostgreSQL: drain {what} / {peer}", ON_POSTGRES, bodies, theirs, at_least)


POSTGRES_GOALS = (
    _beside("with one process", "pgqueuer", 2),
    _beside("with two processes", "pgqueuer", 1.3, "async x2"),
    _beside("with one process", "procrastinate", 50),
    _limit("PostgreSQL", ON_POSTGRES, "async", 0.6),
    _limit("PostgreSQL", ON_POSTGRES, "sync", 0.5),
    _deep("PostgreSQL", ON_POSTGRES),
    *_latency("PostgreSQL", ON_POSTGRES, 4.3, 8),
    _waits("PostgreSQL", ON_POSTGRES),
)

BEST_KEEPER = "the best at-least-once peer"
REDIS_GOALS = (
    _drain(f"Redis: drain with async bodies / {BEST_KEEPER}", ON_REDIS, "async", KEEPERS_ON_REDIS, 12),
    _drain(f"Redis: drain with sync bodies / {BEST_KEEPER}", ON_REDIS, "sync", KEEPERS_ON_REDIS, 8),
    _limit("Redis", ON_REDIS, "async", 0.5),
    _limit("Redis", ON_REDIS, "sync", 0.5),
    _limit("Redis, file synced", "omniq-redis-aof", "async", 0.5),
    _deep("Redis", ON_REDIS),
    _enqueue("Redis: enqueue one by one, sync / huey", ON_REDIS, "blocking", "huey-redis", 1),
    *_latency("Redis", ON_REDIS, 1.3, 2.9),
    _waits("Redis", ON_REDIS),
)

# --- process pools ---------------------------------------------------------------------------------

POOL = "pool-omniq"
OTHER_POOLS = ("pool-executor", "pool-multiprocessing", "pool-loky", "pool-mpire", "pool-pebble")


def _twice_the_executor(variant: str) -> Goal:
    ours, theirs = (Case("pool-calls", system, variant) for system in (POOL, "pool-executor"))
    return Goal(f"calls {variant} / ProcessPoolExecutor", ours, "per_s", theirs, at_least=2)


def _first(measure: str, variant: str, what: str) -> Goal:
    others = tuple(Case(measure, system, variant) for system in OTHER_POOLS)
    return Goal(f"{what} / the best other", Case(measure, POOL, variant), "per_s", others, at_least=1)


POOL_GOALS = (
    _twice_the_executor("one by one"),
    _twice_the_executor("all at once"),
    _first("pool-batches", "of 100", "batches of 100"),
    _first("pool-batches", "of 1,000", "batches of 1,000"),
    _first("pool-arrays", "1 MiB", "arrays of 1 MiB"),
    _first("pool-arrays", "16 MiB", "arrays of 16 MiB"),
)

# --- data pools and loaders ------------------------------------------------------------------------

# In place is for what is large: to copy 64 KiB costs less than to keep account of where they lie.
DATA_POOLS = {"data-pool": "arrays", "data-pool-in-place": "arrays made in place"}
OTHER_DATA_POOLS = (
    "torch-dataloader-tensors", "torch-dataloader-numpy", "multiprocessing-pool-imap",
    "processpoolexecutor-map", "loky", "mpire",
)  # fmt: skip
LOADER = "loaders-omniq"
OTHER_LOADERS = ("torch", "torchdata", "grain", "spdl")
DATASETS = ("jpeg", "small", "records")


def _received(size: str, at_least: float, pools: Iterable[str] = DATA_POOLS) -> Iterator[Goal]:
    others = tuple(Case("loading", f"loading-{name}", size) for name in OTHER_DATA_POOLS)
    for pool in pools:
        ours = Case("loading", f"loading-{pool}", size)
        yield Goal(
            f"data pool: {DATA_POOLS[pool]} of {size} / the best other",
            ours,
            "gb_per_s",
            others,
            at_least=at_least,
        )


def _loads(dataset: str) -> Iterator[Goal]:
    """Ahead of each in each."""
    ours = Case("loaders", LOADER, dataset)
    others = tuple(Case("loaders", f"loaders-{name}", dataset) for name in OTHER_LOADERS)
    ahead = f"{dataset} / the best other"
    yield Goal(f"loader: samples/s, {ahead}", ours, "samples_per_s", others, at_least=1)
    yield Goal(f"loader: time to the first batch, {ahead}", ours, "first_s", others, at_most=1)
    yield Goal(f"loader: memory, {ahead}", ours, "memory_mib", others, at_most=1)


BLOCKS, TORCH_BLOCKS = Case("loaders", LOADER, "blocks"), Case("loaders", "loaders-torch", "blocks")
DATA_GOALS = (
    *_received("64 KiB", 1, ["data-pool"]),
    *_received("1 MiB", 4),
    *_received("16 MiB", 4),
    *(goal for dataset in DATASETS for goal in _loads(dataset)),
    Goal("loader: batches of 16 MiB / torch", BLOCKS, "samples_per_s", TORCH_BLOCKS, at_least=2),
)

GOALS = (*SQLITE_GOALS, *POSTGRES_GOALS, *REDIS_GOALS, *POOL_GOALS, *DATA_GOALS)
