"""How fast tasks are stored by one producer while nobody works."""

from __future__ import annotations

from benchmarks.harness.bench import Bench
from benchmarks.harness.measure import ANSWER_LIMIT_S, Measure, Metric, Values
from benchmarks.plan import Plan
from benchmarks.systems.base import Limit, System
from benchmarks.tasks.drain import rates, raw_rate


class Enqueue(Measure):
    name = "enqueue"
    buys = True
    title = "Enqueue: one producer process, nobody works"
    metrics = (
        Metric("per_s", "tasks/s", compared=True),
        Metric("cpu_us", "CPU µs/task"),
        Metric("tasks", "tasks"),
    )

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        return system.faces

    def rounds(self, plan: Plan) -> int:
        return plan.rounds

    def expected_s(self, plan: Plan) -> float:
        return 0.7 + plan.enqueue_s

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        plan = bench.plan
        tasks = plan.enqueue_tasks * (5 if variant in ("in-flight", "bulk") else 1)
        with bench.folder(system) as folder:
            if isinstance(system, Limit):
                batch = {"blocking": 1, "in-flight": plan.concurrency, "bulk": plan.bulk}[variant]
                return raw_rate(bench, system, "insert", folder, tasks, batch, plan.enqueue_s)
            answer = bench.ask(
                system, "produce", folder, ANSWER_LIMIT_S + plan.enqueue_s,
                face=variant, tasks=tasks, limit_s=plan.enqueue_s, width=plan.concurrency, bulk=plan.bulk,
            )  # fmt: skip
        return rates(answer)
