"""Bodies that do something: many that wait at once, and some that compute."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.harness import marks
from benchmarks.harness.bench import Bench, Setting
from benchmarks.harness.measure import ANSWER_LIMIT_S, Measure, Metric, Values
from benchmarks.harness.processes import ROOT, ChildFailed
from benchmarks.plan import Plan
from benchmarks.systems.base import System
from benchmarks.tasks.drain import drained

WORKERS = 2
BARE_S = 0.5
BARE = """
import time
from benchmarks.harness import marks
done, end_at = 0, time.perf_counter() + {}
while time.perf_counter() < end_at:
    marks.spin()
    done += 1
print(done)
"""


class Waiting(Measure):
    """What is possible: the concurrency divided by how long a body waits."""

    name = "waiting"
    buys = True
    title = "Waiting: async bodies that await 100 ms, 1,000 at once"
    metrics = (
        Metric("per_s", "tasks/s"),
        Metric("possible_per_s", "possible/s"),
        Metric("cpu_us", "CPU µs/task"),
    )

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        return ("async",) if system.widths and "async" in system.bodies else ()

    def rounds(self, plan: Plan) -> int:
        return plan.more_rounds

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        plan = bench.plan
        width, tasks = plan.waiting_concurrency, plan.waiting_tasks
        if system.role == "peer":  # as many as the fastest could start within the time, no more
            tasks = min(tasks, 2 * width + plan.peer_tasks)
        setting = Setting(width, {marks.AWAIT_VARIABLE: str(plan.waiting_s)})
        with bench.folder(system) as folder:
            values = drained(bench, system, folder, variant, tasks, tasks, setting)
        values["per_s"] = after_the_first(sorted(at for _, at in bench.marks.starts())[:tasks], width)
        return {**values, "possible_per_s": width / plan.waiting_s}


def after_the_first(moments: list[float], width: int) -> float:
    """The rate once all slots are taken: the first of all wait for nobody."""
    skipped = min(width, len(moments) // 2)
    return (len(moments) - skipped) / (moments[-1] - moments[skipped - 1])


class Computing(Measure):
    """What is possible: the same loop in bare processes, right before."""

    name = "computing"
    buys = True
    title = f"Computing: bodies that keep a core busy for some milliseconds, {WORKERS} processes"
    metrics = (
        Metric("per_s", "tasks/s"),
        Metric("possible_per_s", "bare loops/s"),
        Metric("share", "of what is possible", 2),
    )

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        pooled = ("in its process pool",) if system.pools else ()
        return (*pooled, *(("two workers",) if WORKERS in system.processes and system.bodies else ()))

    def rounds(self, plan: Plan) -> int:
        return plan.more_rounds

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        plan = bench.plan
        setting = Setting(environment={marks.SPIN_VARIABLE: str(plan.computing_spins)})
        pooled = variant == "in its process pool"
        body = "process" if pooled else "sync" if "sync" in system.bodies else system.bodies[0]
        possible = bare_rate(plan.computing_spins)
        with bench.folder(system) as folder:
            values = drained(
                bench, system, folder, body, plan.computing_tasks, plan.computing_tasks, setting,
                copies=1 if pooled else WORKERS,
            )  # fmt: skip
        rate = values["per_s"]
        return {"per_s": rate, "possible_per_s": possible, "share": rate / possible}


def bare_rate(spins: int) -> float:
    """How often the body's loop runs in a second, in as many processes, with nothing around it."""
    command = [sys.executable, "-c", BARE.format(BARE_S)]
    environment = {"PYTHONPATH": str(ROOT), marks.SPIN_VARIABLE: str(spins)}
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(WORKERS)
    ]
    said = [one.communicate(timeout=ANSWER_LIMIT_S)[0] for one in running]
    if any(one.returncode for one in running):
        raise ChildFailed("the bare loop ended with an error")
    return sum(map(int, said)) / BARE_S
