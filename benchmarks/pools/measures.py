"""What is measured of process pools, and how one sample of it is taken: a fresh program with a fresh pool."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from benchmarks.harness.bench import Bench
from benchmarks.harness.measure import ANSWER_LIMIT_S, Measure, Metric, Values
from benchmarks.harness.processes import CAN_WATCH
from benchmarks.plan import Plan
from benchmarks.pools.base import PoolSystem
from benchmarks.systems.base import System


class PoolMeasure(Measure):
    group = "pools"
    cases: ClassVar[tuple[str, ...]] = ("",)

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        return self.cases if isinstance(system, PoolSystem) else ()

    def rounds(self, plan: Plan) -> int:
        return plan.pool_rounds

    def expected_s(self, plan: Plan) -> float:
        return 1.2 + plan.pool_s

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        plan = bench.plan
        verb, arguments = self.question(variant, plan)
        with bench.folder() as folder:
            answer: Values = bench.ask(
                system, verb, folder, ANSWER_LIMIT_S + plan.pool_s, workers=plan.pool_workers, **arguments
            )
        return answer

    @abstractmethod
    def question(self, variant: str, plan: Plan) -> tuple[str, dict[str, Any]]:
        """A verb of `pool_child`, and its arguments."""


class PoolCalls(PoolMeasure):
    name = "pool-calls"
    title = "Calls that do nothing, each by itself"
    metrics = (Metric("per_s", "calls/s", compared=True), Metric("cpu_us", "CPU µs/call, all processes", 2))
    cases = ("one by one", "all at once")

    def question(self, variant: str, plan: Plan) -> tuple[str, dict[str, Any]]:
        return "calls", {"variant": variant, "seconds": plan.pool_s}


class PoolBatches(PoolMeasure):
    name = "pool-batches"
    title = "Calls that do nothing, in batches"
    metrics = (Metric("per_s", "calls/s", compared=True), Metric("cpu_us", "CPU µs/call, all processes", 2))
    cases = ("of 100", "of 1,000")

    def question(self, variant: str, plan: Plan) -> tuple[str, dict[str, Any]]:
        return "batches", {"size": _number_in(variant), "seconds": plan.pool_s}


class PoolArrays(PoolMeasure):
    name = "pool-arrays"
    title = "An array of floats, there and back"
    metrics = (
        Metric("per_s", "calls/s", compared=True),
        Metric("mib_per_s", "MiB/s each way"),
        Metric("cpu_us", "CPU µs/call, all processes"),
    )
    cases = ("1 MiB", "16 MiB")

    def question(self, variant: str, plan: Plan) -> tuple[str, dict[str, Any]]:
        return "arrays", {"mib": _number_in(variant), "seconds": plan.pool_s}


class PoolStart(PoolMeasure):
    name = "pool-start"
    title = "Start: from nothing to the first result"
    metrics = (Metric("ms", "ms", 1, compared=True),)

    def question(self, variant: str, plan: Plan) -> tuple[str, dict[str, Any]]:
        return "start", {}


class PoolMemory(PoolMeasure):
    name = "pool-memory"
    title = "Memory per worker, after a thousand calls; helping processes included"
    metrics = (
        Metric("pss_mib", "MiB, with its share of shared pages", 1, compared=True),
        Metric("private_mib", "MiB shared with nobody", 1),
        Metric("processes", "processes"),
    )

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        return super().variants(system, plan) if CAN_WATCH else ()

    def question(self, variant: str, plan: Plan) -> tuple[str, dict[str, Any]]:
        return "memory", {}


def _number_in(variant: str) -> int:
    return int("".join(filter(str.isdigit, variant)))


def pool_measures() -> dict[str, Measure]:
    return {m.name: m for m in (PoolCalls(), PoolBatches(), PoolArrays(), PoolStart(), PoolMemory())}
