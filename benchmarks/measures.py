"""What is measured, and how one sample of it is taken.

Each measure says which cases a system has (drain with async bodies, drain with sync ones ...) and takes one
sample of a case: a fresh folder, fresh processes, numbers. Nothing here knows a particular system.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from benchmarks.bench import FILL_LIMIT_S, LOOK_EVERY_S, Bench
from benchmarks.marks import Marks
from benchmarks.plan import Plan
from benchmarks.processes import CAN_WATCH, Child, ChildFailed
from benchmarks.redis import RedisServers
from benchmarks.stats import percentile
from benchmarks.systems.base import Limit, System

START_LIMIT_S = 20.0  # from the start of a worker process to its first task
ANSWER_LIMIT_S = 60.0  # beyond the bound of the load itself
SETTLE_LIMIT_S = 5.0

TIMED_IMPORT = """
import time
wall, cpu = time.perf_counter(), time.process_time()
{}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""

Values = dict[str, float]


@dataclass(frozen=True)
class Metric:
    key: str
    title: str
    digits: int = 0
    compared: bool = False  # it is set against the others


class Measure(ABC):
    group: ClassVar[Literal["tasks", "pools"]] = "tasks"  # measured together, told together
    name: ClassVar[str]
    title: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]

    @abstractmethod
    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        """The cases of `system`, in the order in which they are measured; none where it has no answer."""

    @abstractmethod
    def rounds(self, plan: Plan) -> int: ...

    @abstractmethod
    def take(self, bench: Bench, system: System, variant: str) -> Values:
        """One sample."""


class Drain(Measure):
    name = "drain"
    title = "Drain: one worker process (or two), waiting tasks that do nothing"
    metrics = (
        Metric("per_s", "tasks/s, first start to last", compared=True),
        Metric("durable_per_s", "tasks/s, to the last end on disk"),
        Metric("cpu_us", "CPU µs/task"),
        Metric("tasks", "tasks"),
    )

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        if isinstance(system, Limit):
            return ("statements",)
        more = [
            f"{system.bodies[0]} x{copies}" for copies in system.processes if copies > 1 and system.bodies
        ]
        return (*system.bodies, *more)

    def rounds(self, plan: Plan) -> int:
        return plan.rounds

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        plan = bench.plan
        with bench.folder(system) as folder:
            if isinstance(system, Limit):
                return raw_rate(
                    bench, system, "drain", folder, plan.drain_tasks, plan.concurrency, plan.drain_s
                )
            body, _, copies = variant.partition(" x")
            tasks = plan.drain_tasks
            return drained(bench, system, folder, body, tasks, tasks, copies=int(copies or 1))


def drained(
    bench: Bench, system: System, folder: Path, body: str, waiting: int, tasks: int, *, copies: int = 1
) -> Values:
    """The rate at which the first `tasks` of a backlog start; `waiting` are put there before."""
    with bench.worker(system, folder, waiting, body) as child, contextlib.ExitStack() as stack:
        others = [bench.start(system, "work", folder, tasks=0, body=body) for _ in range(copies - 1)]
        for other in others:
            stack.enter_context(other)
        if not bench.wait_for_starts(child, 1, START_LIMIT_S + (0 if system.across else FILL_LIMIT_S)):
            raise ChildFailed(f"{system.name} has started nothing")
        before = _cpu_s(child, *others)
        early = bench.marks.started()
        bench.wait_for_starts(child, tasks, bench.plan.drain_s)
        if system.tells_settles:
            _wait_for_settles(bench.marks, bench.marks.started())
        after = _cpu_s(child, *others)
        late = bench.marks.started()
    moments = sorted(started_at for _, started_at in bench.marks.starts())[:tasks]
    if len(moments) < 2:
        raise ChildFailed(f"{system.name} has started {len(moments)} of {tasks} tasks")
    values = {
        "tasks": float(len(moments)),
        "per_s": (len(moments) - 1) / (moments[-1] - moments[0]),
    }
    if before is not None and after is not None and late > early:
        values["cpu_us"] = 1e6 * (after - before) / (late - early)
    if system.tells_settles:
        values["durable_per_s"] = _durable_rate(bench.marks, moments[0], len(moments))
    return values


def _cpu_s(*children: Child) -> float | None:
    return sum(child.usage().cpu_s for child in children) if CAN_WATCH else None


def _wait_for_settles(marks: Marks, tasks: int) -> None:
    end_at = time.monotonic() + SETTLE_LIMIT_S
    while sum(count for count, _ in marks.settles()) < tasks and time.monotonic() < end_at:
        time.sleep(LOOK_EVERY_S)


def _durable_rate(marks: Marks, first_start: float, tasks: int) -> float:
    """Up to the moment at which the store had confirmed the end of that many tasks."""
    settled = 0.0
    for count, moment in marks.settles():
        settled += count
        if settled >= tasks:
            return tasks / (moment - first_start)
    raise ChildFailed(f"only {settled:.0f} of {tasks} tasks were settled")


def raw_rate(
    bench: Bench, limit: Limit, verb: str, folder: Path, tasks: int, batch: int, limit_s: float
) -> Values:
    answer = bench.ask(
        limit, verb, folder, ANSWER_LIMIT_S + limit_s, tasks=tasks, batch=batch, limit_s=limit_s
    )
    return rates(answer)


def rates(reached: dict[str, float]) -> Values:
    tasks = reached["tasks"]
    return {
        "tasks": tasks,
        "per_s": tasks / reached["seconds"],
        "cpu_us": 1e6 * reached["cpu_s"] / tasks,
    }


class Enqueue(Measure):
    name = "enqueue"
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


class Latency(Measure):
    name = "latency"
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
        shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}
        return {name: percentile(waits_ms, share) for name, share in shares.items()}


class Idle(Measure):
    name = "idle"
    title = "Idle: a worker process that has nothing to do"
    metrics = (
        Metric("cpu_percent", "% of a core", 2),
        Metric("rss_mib", "RSS MiB", 1),
        Metric("requests_per_s", "transactions or commands/s at the server", 1),
    )

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        return ("",) if system.bodies and CAN_WATCH else ()

    def rounds(self, plan: Plan) -> int:
        return plan.live_rounds

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        plan = bench.plan
        with (
            bench.folder(system) as folder,
            bench.worker(system, folder, plan.warm_up_tasks, system.bodies[0]) as child,
        ):
            bench.wait_for_starts(child, plan.warm_up_tasks, START_LIMIT_S)
            time.sleep(plan.settle_down_s)
            server = bench.server_of(system)
            asked = server.requests(folder) if server else 0
            before, start = child.usage(), time.monotonic()
            time.sleep(plan.idle_s)
            after, seconds = child.usage(), time.monotonic() - start
            child.check_alive()
            asked_again = server.requests(folder) if server else 0
        values = {
            "cpu_percent": 100 * (after.cpu_s - before.cpu_s) / seconds,
            "rss_mib": after.rss_bytes / 2**20,
        }
        if server:
            values["requests_per_s"] = (asked_again - asked) / seconds
        return values


class Size(Measure):
    """Of a server that keeps all in memory: tasks that wait, and the same tasks when they have ended."""

    name = "size"
    title = "Size: bytes of the server's memory per task that does nothing"
    metrics = (Metric("pending_bytes", "while it waits"), Metric("finished_bytes", "after it has ended"))

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        return ("",) if system.bodies and system.server == "redis" else ()

    def rounds(self, plan: Plan) -> int:
        return plan.live_rounds

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        plan, server, body = bench.plan, bench.server_of(system), system.bodies[0]
        assert isinstance(server, RedisServers)
        with bench.folder(system) as folder:
            # One ran already, so that what a worker leaves behind once is not counted among the tasks.
            self._work_off(bench, system, folder, 1, body)
            empty = server.used_bytes(folder)
            bench.ask(system, "fill", folder, FILL_LIMIT_S, tasks=plan.size_tasks, body=body)
            values = {"pending_bytes": (server.used_bytes(folder) - empty) / plan.size_tasks}
            if self._work_off(bench, system, folder, 0, body, tasks=plan.size_tasks):
                values["finished_bytes"] = (server.used_bytes(folder) - empty) / plan.size_tasks
        return values

    def _work_off(
        self, bench: Bench, system: System, folder: Path, fill: int, body: str, *, tasks: int = 1
    ) -> bool:
        with bench.worker(system, folder, fill, body) as child:
            all_started = bench.wait_for_starts(child, tasks, START_LIMIT_S + bench.plan.drain_s)
            time.sleep(bench.plan.settle_down_s)
        return all_started


class Import(Measure):
    name = "import"
    title = "Import: in a fresh interpreter, median of several, ms"
    metrics = (Metric("ms", "ms", 1), Metric("cpu_ms", "CPU ms", 1))

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        return system.imports

    def rounds(self, plan: Plan) -> int:
        return plan.rounds

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        command = [str(bench.pythons[system.name]), "-c", TIMED_IMPORT.format(variant)]
        with bench.folder() as bytecode:
            # As an installed package has it: compiled once, before the first that counts.
            environment = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
            environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
            times = [self._import(command, environment) for _ in range(bench.plan.imports + 1)][1:]
        wall_ms, cpu_ms = map(statistics.median, zip(*times, strict=True))
        return {"ms": wall_ms, "cpu_ms": cpu_ms}

    def _import(self, command: list[str], environment: dict[str, str]) -> list[float]:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=START_LIMIT_S, check=False, env=environment
        )
        if ended.returncode != 0:
            raise ChildFailed(f"{command[-1]}: {ended.stderr.strip()[-200:]}")
        return [1e3 * float(text) for text in ended.stdout.split()]


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


def task_measures() -> dict[str, Measure]:
    return {m.name: m for m in (Drain(), Enqueue(), Latency(), Idle(), Size(), Import(), Depth())}
