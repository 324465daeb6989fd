"""What OmniQ promises about its speed and size, each as a number that a run can answer.

Where a promise is about two systems, it is about their ratio in the same round.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.samples import Case, Record
from benchmarks.stats import Spread, paired_ratio

OURS = "omniq-sqlite"


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
        others = [self.against] if isinstance(self.against, Case) else self.against
        best: dict[int, float] = {}
        for other in others:
            for round_, figure in record.by_round(other, self.metric).items():
                best[round_] = max(figure, best.get(round_, 0.0))
        return paired_ratio(record.by_round(self.case, self.metric), best)

    def met(self, value: Spread) -> bool:
        if self.at_least is not None and value.median < self.at_least:
            return False
        return self.at_most is None or value.median <= self.at_most

    @property
    def bound(self) -> str:
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"


def _drain(variant: str, system: str = OURS) -> Case:
    return Case("drain", system, variant)


def _enqueue(variant: str, system: str = OURS) -> Case:
    return Case("enqueue", system, variant)


RAW_DRAIN = _drain("statements", "raw-sqlite")
RAW_INSERT = _enqueue("blocking", "raw-sqlite")
HUEY = _drain("sync", "huey-sqlite")

ON_POSTGRES = "omniq-postgres"
RAW_POSTGRES = "raw-postgres"


def _on_postgres(against: str, peer: str, at_least: float, variant: str = "async") -> Goal:
    theirs = Case("drain", peer, "statements" if peer == RAW_POSTGRES else variant)
    return Goal(
        f"PostgreSQL: drain {against}", _drain(variant, ON_POSTGRES), "per_s", theirs, at_least=at_least
    )


POSTGRES_GOALS = (
    _on_postgres("/ pgqueuer", "pgqueuer-postgres", 2),
    _on_postgres("with two processes / pgqueuer", "pgqueuer-postgres", 1.3, "async x2"),
    _on_postgres("/ procrastinate", "procrastinate-postgres", 50),
    _on_postgres("/ raw limit", RAW_POSTGRES, 0.5),
    Goal(
        "PostgreSQL: drain at a backlog of 1,000,000 / 10,000",
        Case("depth", ON_POSTGRES, "1,000,000"), "per_s", Case("depth", ON_POSTGRES, "10,000"), at_least=0.9,
    ),
    Goal("PostgreSQL: latency p50, ms", Case("latency", ON_POSTGRES, ""), "p50_ms", at_most=4.3),
    Goal("PostgreSQL: latency p99, ms", Case("latency", ON_POSTGRES, ""), "p99_ms", at_most=8),
)  # fmt: skip

ON_REDIS = "omniq-redis"
RAW_REDIS = _drain("statements", "raw-redis")
# A queue that forgets a task before it runs does less, so it is no measure of speed: not huey, not Celery.
KEEPERS_ON_REDIS = (
    *(_drain("async", f"{peer}-redis") for peer in ("arq", "saq", "streaq", "taskiq")),
    _drain("sync", "dramatiq-redis"),
)

REDIS_GOALS = (
    Goal(
        "Redis: drain with async bodies / the best at-least-once peer",
        _drain("async", ON_REDIS), "per_s", KEEPERS_ON_REDIS, at_least=12,
    ),
    Goal(
        "Redis: drain with sync bodies / the best at-least-once peer",
        _drain("sync", ON_REDIS), "per_s", KEEPERS_ON_REDIS, at_least=8,
    ),
    Goal("Redis: drain / raw limit", _drain("async", ON_REDIS), "per_s", RAW_REDIS, at_least=0.5),
    Goal(
        "Redis: drain / raw limit, file synced",
        _drain("async", "omniq-redis-aof"), "per_s", _drain("statements", "raw-redis-aof"), at_least=0.5,
    ),
    Goal(
        "Redis: drain at a backlog of 1,000,000 / 10,000",
        Case("depth", ON_REDIS, "1,000,000"), "per_s", Case("depth", ON_REDIS, "10,000"), at_least=0.9,
    ),
    Goal(
        "Redis: enqueue one by one, sync / huey",
        _enqueue("blocking", ON_REDIS), "per_s", _enqueue("blocking", "huey-redis"), at_least=1,
    ),
    Goal("Redis: latency p50, ms", Case("latency", ON_REDIS, ""), "p50_ms", at_most=1.3),
    Goal("Redis: latency p99, ms", Case("latency", ON_REDIS, ""), "p99_ms", at_most=2.9),
)  # fmt: skip

POOL = "pool-omniq"
OTHER_POOLS = ("pool-executor", "pool-multiprocessing", "pool-loky", "pool-mpire", "pool-pebble")


def _twice_the_executor(variant: str) -> Goal:
    ours, theirs = (Case("pool-calls", system, variant) for system in (POOL, "pool-executor"))
    return Goal(f"calls {variant} / ProcessPoolExecutor", ours, "per_s", theirs, at_least=2)


def _first(measure: str, variant: str, what: str) -> Goal:
    others = tuple(Case(measure, system, variant) for system in OTHER_POOLS)
    return Goal(f"{what} / the best other", Case(measure, POOL, variant), "per_s", others, at_least=1)


GOALS = (
    Goal("drain with async bodies / huey", _drain("async"), "per_s", HUEY, at_least=12),
    Goal("drain with sync bodies / huey", _drain("sync"), "per_s", HUEY, at_least=8),
    Goal("drain with async bodies / raw limit", _drain("async"), "per_s", RAW_DRAIN, at_least=0.5),
    Goal("drain with sync bodies / raw limit", _drain("sync"), "per_s", RAW_DRAIN, at_least=0.5),
    Goal(
        "drain at a backlog of 1,000,000 / 10,000",
        Case("depth", OURS, "1,000,000"), "per_s", Case("depth", OURS, "10,000"), at_least=0.9,
    ),
    Goal("enqueue one by one, sync / raw insert", _enqueue("blocking"), "per_s", RAW_INSERT, at_least=0.8),
    Goal("enqueue one by one, async / raw insert", _enqueue("async"), "per_s", RAW_INSERT, at_least=0.8),
    Goal("enqueue, 100 in flight / raw insert", _enqueue("in-flight"), "per_s", RAW_INSERT, at_least=8),
    Goal("latency p50, ms", Case("latency", OURS, ""), "p50_ms", at_most=2),
    Goal("latency p99, ms", Case("latency", OURS, ""), "p99_ms", at_most=6),
    Goal("idle worker, % of a core", Case("idle", OURS, ""), "cpu_percent", at_most=0.2),
    Goal("idle worker, RSS MiB", Case("idle", OURS, ""), "rss_mib", at_most=40),
    Goal("import omniq, ms", Case("import", OURS, "import omniq"), "ms", at_most=100),
    Goal("from omniq import OmniQ, ms", Case("import", OURS, "from omniq import OmniQ"), "ms", at_most=100),
    *POSTGRES_GOALS,
    *REDIS_GOALS,
    _twice_the_executor("one by one"),
    _twice_the_executor("all at once"),
    _first("pool-batches", "of 100", "batches of 100"),
    _first("pool-batches", "of 1,000", "batches of 1,000"),
    _first("pool-arrays", "1 MiB", "arrays of 1 MiB"),
    _first("pool-arrays", "16 MiB", "arrays of 16 MiB"),
)  # fmt: skip
