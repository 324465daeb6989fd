"""How long a task waits for an idle worker."""

from __future__ import annotations

import time

from benchmarks.harness.bench import Bench
from benchmarks.harness.measure import ANSWER_LIMIT_S, START_LIMIT_S, Measure, Metric, Values
from benchmarks.harness.processes import ChildFailed
from benchmarks.harness.stats import percentile
from benchmarks.plan import Plan
from benchmarks.systems.base import System

SHARES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}


class Latency(Measure):
    name = "latency"
    buys = True
    title = "Latency: from the enqueue call in one process to the start in another, ms"
    metrics = (
        Metric("p50_ms", "p50", 2),
        Metric("p95_ms", "p95", 2),
        Metric("p99_ms", "p99", 2),
        Metric("max_ms", "max", 2),
    )

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        return ("",) if system.bodies and system.across else ()

    def rounds(self, plan: Plan) -> int:
        return plan.live_rounds

    def expected_s(self, plan: Plan) -> float:
        return 1.5 + plan.settle_down_s + plan.latency_gap_s * plan.latency_tasks

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        plan = bench.plan
        paced_s = plan.latency_gap_s * plan.latency_tasks
        with (
            bench.folder(system) as folder,
            bench.worker(system, folder, plan.warm_up_tasks, system.bodies[0]) as child,
        ):
            bench.wait_for_starts(child, plan.warm_up_tasks, START_LIMIT_S)
            time.sleep(plan.settle_down_s)
            bench.marks.clear()
            bench.ask(
                system, "pace", folder, ANSWER_LIMIT_S + paced_s,
                tasks=plan.latency_tasks, gap_s=plan.latency_gap_s,
            )  # fmt: skip
            bench.wait_for_starts(child, plan.latency_tasks, START_LIMIT_S)
        waits_ms = [1e3 * (started_at - enqueued_at) for enqueued_at, started_at in bench.marks.starts()]
        if len(waits_ms) != plan.latency_tasks:
            raise ChildFailed(f"{system.name} has started {len(waits_ms)} of {plan.latency_tasks} tasks")
        return {name: percentile(waits_ms, share) for name, share in SHARES.items()}
