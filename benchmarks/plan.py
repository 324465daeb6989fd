"""How much a run does. Every load has a bound in number and a bound in time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    total_s: float = 2100.0  # rounds that would begin later than this are left out, except the first
    rounds: int = 3
    live_rounds: int = 1  # of what takes its time: latency, idling
    more_rounds: int = 1  # of other settings, payloads and bodies
    peers_log: bool = True  # measured with their logs as well
    concurrency: int = 100
    drain_tasks: int = 20_000
    drain_s: float = 10.0
    peer_s: float = 1.5  # a drain of a peer is about as long, from its second round on
    peer_tasks: int = 2_000  # in its first, when nobody knows yet how fast it is
    enqueue_tasks: int = 20_000
    enqueue_s: float = 1.0
    bulk: int = 1_000
    busy_s: float = 2.0
    busy_tasks: int = 40_000
    latency_tasks: int = 200
    latency_gap_s: float = 0.02
    warm_up_tasks: int = 20
    payload_tasks: int = 2_000  # of 100 bytes; of larger ones fewer
    waiting_tasks: int = 10_000
    waiting_concurrency: int = 1_000
    waiting_s: float = 0.1
    computing_tasks: int = 600
    computing_spins: int = 100_000  # turns of an empty loop: about two milliseconds
    size_tasks: int = 5_000
    idle_s: float = 5.0
    settle_down_s: float = 1.0
    imports: int = 5  # fresh interpreters per round
    depth_rounds: int = 5
    depth_tasks: int = 10_000  # drained from each of the backlogs
    backlogs: tuple[int, ...] = (10_000, 1_000_000)
    pool_rounds: int = 5
    pool_workers: int = 2
    pool_s: float = 0.5
    data_rounds: int = 3
    data_s: float = 1.5


FULL = Plan()
QUICK = Plan(
    total_s=150.0,
    rounds=2,
    peers_log=False,
    drain_tasks=5_000,
    drain_s=3.0,
    peer_s=0.5,
    peer_tasks=1_000,
    enqueue_tasks=5_000,
    enqueue_s=0.25,
    busy_s=0.5,
    busy_tasks=10_000,
    latency_tasks=100,
    payload_tasks=500,
    waiting_tasks=5_000,
    computing_tasks=200,
    size_tasks=2_000,
    idle_s=2.0,
    settle_down_s=0.5,
    imports=3,
    depth_rounds=0,
    pool_rounds=3,
    pool_s=0.2,
    data_rounds=1,
    data_s=0.5,
)
