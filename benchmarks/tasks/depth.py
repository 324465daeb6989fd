"""Whether a worker slows down with what waits."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.bench import FILL_LIMIT_S, Bench
from benchmarks.harness.measure import Measure, Metric, Values
from benchmarks.plan import Plan
from benchmarks.systems.base import System
from benchmarks.tasks.drain import drained


class Depth(Measure):
    """The same number of tasks from a small and from a large backlog, one after the other.

    The large one is filled once, with enough in reserve that it is still as large in the last round.
    """

    name = "depth"
    title = "Depth: the same drain from a small and from a large backlog, async bodies"
    metrics = (Metric("per_s", "tasks/s, first start to last", compared=True),)

    def __init__(self) -> None:
        self._kept: dict[str, Path] = {}

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        return tuple(f"{backlog:,}" for backlog in plan.backlogs) if system.deep else ()

    def rounds(self, plan: Plan) -> int:
        return plan.depth_rounds

    def expected_s(self, plan: Plan) -> float:
        return 5.0

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        plan, backlog = bench.plan, int(variant.replace(",", ""))
        if backlog == min(plan.backlogs):
            with bench.folder(system) as folder:
                return drained(bench, system, folder, "async", backlog, plan.depth_tasks)
        folder = self._large(bench, system, backlog + 2 * plan.depth_rounds * plan.depth_tasks)
        return drained(bench, system, folder, "async", 0, plan.depth_tasks)

    def _large(self, bench: Bench, system: System, tasks: int) -> Path:
        if system.name not in self._kept:
            folder = self._kept[system.name] = bench.lasting_folder(system)
            bench.ask(system, "fill", folder, FILL_LIMIT_S, tasks=tasks, body="async")
        return self._kept[system.name]
