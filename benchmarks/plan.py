"""How much a run does. Every load has a bound in number and a bound in time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    total_s: float = 3600.0  # rounds that would begin later than this are left out, except the first
    rounds: int = 5
    live_rounds: int = 3  # of latency and idling, which take their time
    concurrency: int = 100
    drain_tasks: int = 20_000
    drain_s: float = 30.0
    enqueue_tasks: int = 20_000
    enqueue_s: float = 2.0
    bulk: int = 1_000
    latency_tasks: int = 200
    latency_gap_s: float = 0.02
    warm_up_tasks: int = 20
    size_tasks: int = 10_000
    idle_s: float = 10.0
    settle_down_s: float = 1.5
    imports: int = 9  # fresh interpreters per round
    depth_rounds: int = 10
    depth_tasks: int = 10_000  # drained from each of the backlogs
    backlogs: tuple[int, ...] = (10_000, 1_000_000)
    pool_rounds: int = 7
    pool_workers: int = 2
    pool_s: float = 1.0


FULL = Plan()
QUICK = Plan(
    total_s=150.0,
    rounds=3,
    live_rounds=1,
    drain_tasks=5_000,
    drain_s=3.0,
    enqueue_tasks=5_000,
    enqueue_s=0.5,
    size_tasks=2_000,
    idle_s=5.0,
    settle_down_s=1.0,
    imports=3,
    depth_rounds=0,
    pool_rounds=3,
    pool_s=0.2,
)
