"""What a payload costs: stored by the widest face that a system has, then run."""

from __future__ import annotations

from benchmarks.harness.bench import Bench, Setting
from benchmarks.harness.measure import ANSWER_LIMIT_S, Measure, Metric, Values
from benchmarks.plan import Plan
from benchmarks.systems.base import Limit, System
from benchmarks.tasks.drain import drained, raw_rate

ENVELOPE = 256  # a payload of 1 MiB is one together with what is around it
# Bytes, the share of the plan's tasks, how many of them are stored in one call and how many run at once: few,
# so that a worker comes for more several times.
SIZES = {
    "100 B": (100, 1.0, 100, 100),
    "10 KiB": (10 * 2**10, 0.5, 50, 20),
    "1 MiB": (2**20, 0.05, 4, 4),
}
FACES = ("bulk", "in-flight", "async", "blocking")  # the widest first


class Payload(Measure):
    name = "payload"
    buys = True
    title = "Payload: tasks with arguments of 100 bytes, 10 KiB and 1 MiB, stored and then run"
    metrics = (
        Metric("per_s", "run/s", compared=True),
        Metric("stored_per_s", "stored/s", compared=True),
        Metric("mib_per_s", "MiB/s run", 1),
        Metric("tasks", "tasks"),
    )

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        return tuple(SIZES) if isinstance(system, Limit) or (system.bodies and system.across) else ()

    def rounds(self, plan: Plan) -> int:
        return plan.more_rounds

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        plan = bench.plan
        size, share, together, at_once = SIZES[variant]
        tasks, payload_bytes = max(together, int(plan.payload_tasks * share)), size - min(ENVELOPE, size // 4)
        with bench.folder(system) as folder:
            if isinstance(system, Limit):
                stored = raw_rate(
                    bench, system, "insert", folder, tasks, together, plan.drain_s, payload_bytes
                )
                ran = self._raw(bench, system, tasks, at_once, payload_bytes)
            else:
                face = next(face for face in FACES if face in system.faces)
                answer = bench.ask(
                    system, "produce", folder, ANSWER_LIMIT_S + plan.drain_s, face=face, tasks=tasks,
                    limit_s=plan.drain_s, width=together, bulk=together, payload_bytes=payload_bytes,
                )  # fmt: skip
                stored = {"per_s": answer["tasks"] / answer["seconds"]}
                ran = drained(
                    bench, system, folder, system.bodies[0], 0, int(answer["tasks"]), Setting(at_once)
                )
        return {
            "per_s": ran["per_s"],
            "stored_per_s": stored["per_s"],
            "mib_per_s": ran["per_s"] * size / 2**20,
            "tasks": ran["tasks"],
        }

    def _raw(self, bench: Bench, limit: Limit, tasks: int, at_once: int, payload_bytes: int) -> Values:
        with bench.folder(limit) as folder:
            return raw_rate(bench, limit, "drain", folder, tasks, at_once, bench.plan.drain_s, payload_bytes)
