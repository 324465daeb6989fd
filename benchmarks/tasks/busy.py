"""How long an enqueue takes while others enqueue too and a worker drains."""

from __future__ import annotations

import contextlib
import time

from benchmarks.harness.bench import Bench
from benchmarks.harness.measure import ANSWER_LIMIT_S, START_LIMIT_S, Measure, Metric, Values
from benchmarks.harness.processes import ChildFailed
from benchmarks.harness.stats import percentile
from benchmarks.plan import Plan
from benchmarks.systems.base import System

PRODUCERS = 4
SHARES = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}


class Busy(Measure):
    name = "busy"
    buys = True
    title = f"Busy: enqueue one by one from {PRODUCERS} processes while a worker drains, ms per call"
    metrics = (
        Metric("p50_ms", "p50", 2),
        Metric("p99_ms", "p99", 2),
        Metric("max_ms", "max", 2),
        Metric("per_s", "enqueued/s, all together"),
        Metric("run_per_s", "run/s meanwhile"),
    )

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        """Through the face that waits for the answer, whichever it has."""
        if not system.bodies or not system.across:
            return ()
        return ("blocking",) if "blocking" in system.faces else ("async",)

    def rounds(self, plan: Plan) -> int:
        return plan.live_rounds

    def expected_s(self, plan: Plan) -> float:
        return 2.0 + plan.busy_s

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        plan = bench.plan
        waiting = plan.peer_tasks if system.role == "peer" else plan.busy_tasks
        with (
            bench.folder(system) as folder,
            bench.worker(system, folder, waiting, system.bodies[0]) as child,
            contextlib.ExitStack() as stack,
        ):
            if not bench.wait_for_starts(child, 1, START_LIMIT_S):
                raise ChildFailed(f"{system.name} has started nothing")
            producers = [
                stack.enter_context(
                    bench.start(system, "call_by_call", folder, face=variant, limit_s=plan.busy_s)
                )
                for _ in range(PRODUCERS)
            ]
            began_at, before = time.monotonic(), bench.marks.started()
            took_ms = [ms for one in producers for ms in one.answer(ANSWER_LIMIT_S + plan.busy_s)]
            ran, seconds = bench.marks.started() - before, time.monotonic() - began_at
        values = {name: percentile(took_ms, share) for name, share in SHARES.items()}
        return {**values, "per_s": len(took_ms) / plan.busy_s, "run_per_s": ran / seconds}
