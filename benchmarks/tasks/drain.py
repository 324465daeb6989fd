"""How fast waiting tasks are run: by one worker process and by two."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from benchmarks.harness.bench import AS_EVER, FILL_LIMIT_S, LOOK_EVERY_S, Bench, Setting
from benchmarks.harness.marks import Marks
from benchmarks.harness.measure import ANSWER_LIMIT_S, START_LIMIT_S, Measure, Metric, Values
from benchmarks.harness.processes import CAN_WATCH, Child, ChildFailed
from benchmarks.plan import Plan
from benchmarks.systems.base import LOGS_VARIABLE, Limit, System

SETTLE_LIMIT_S = 5.0


class Drain(Measure):
    name = "drain"
    buys = True
    title = "Drain: one worker process (or two), waiting tasks that do nothing"
    metrics = (
        Metric("per_s", "tasks/s, first start to last", compared=True),
        Metric("durable_per_s", "tasks/s, to the last end on disk"),
        Metric("cpu_us", "CPU µs/task"),
        Metric("tasks", "tasks"),
    )

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], float] = {}

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
        tasks = self._tasks(plan, system, variant)
        with bench.folder(system) as folder:
            if isinstance(system, Limit):
                return raw_rate(bench, system, "drain", folder, tasks, plan.concurrency, plan.drain_s)
            body, _, copies = variant.partition(" x")
            values = drained(bench, system, folder, body, tasks, tasks, copies=int(copies or 1))
        self._seen[system.name, variant] = values["per_s"]
        return values

    def _tasks(self, plan: Plan, system: System, variant: str) -> int:
        """Filling a slow peer takes longest: it gets what it needs to be busy for a while."""
        if system.role != "peer":
            return plan.drain_tasks
        seen = self._seen.get((system.name, variant))
        wanted = plan.peer_tasks if seen is None else int(seen * plan.peer_s)
        return max(min(plan.peer_tasks, plan.drain_tasks), min(wanted, plan.drain_tasks))


class Settings(Measure):
    """What a system does at another concurrency, and with the logs that its command writes by itself."""

    name = "settings"
    buys = True
    title = "Settings: the same drain at concurrency 10, at the default one, and with logs"
    metrics = (
        Metric("per_s", "tasks/s, first start to last", compared=True),
        Metric("cpu_us", "CPU µs/task"),
        Metric("at_once", "at once"),
    )

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        if isinstance(system, Limit):
            return ("10",)
        widths = ["10", *(["default"] if system.own_width else [])] if system.widths else []
        logs = system.logs and (plan.peers_log or system.role == "omniq")
        kinds = [*widths, *(["with logs"] if logs else [])]
        pairs = [f"{kind} x2" for kind in kinds] if system.role == "omniq" and 2 in system.processes else []
        return (*kinds, *pairs)

    def rounds(self, plan: Plan) -> int:
        return plan.more_rounds

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        plan = bench.plan
        kind, _, copies = variant.partition(" x")
        own = system.own_width or plan.concurrency
        at_once = {"10": 10, "default": own}.get(kind, plan.concurrency)
        tasks = plan.peer_tasks if system.role == "peer" else plan.drain_tasks
        with bench.folder(system) as folder:
            if isinstance(system, Limit):
                values = raw_rate(bench, system, "drain", folder, tasks, at_once, plan.drain_s)
            else:
                setting = Setting(at_once, {LOGS_VARIABLE: "1"} if kind == "with logs" else {})
                values = drained(
                    bench, system, folder, system.bodies[0], tasks, tasks, setting, copies=int(copies or 1)
                )
        return {**values, "at_once": at_once}


def drained(
    bench: Bench, system: System, folder: Path, body: str, waiting: int, tasks: int,
    setting: Setting = AS_EVER, *, copies: int = 1,
) -> Values:  # fmt: skip
    """The rate at which the first `tasks` of a backlog start; `waiting` are put there before."""
    with bench.worker(system, folder, waiting, body, setting) as child, contextlib.ExitStack() as stack:
        others = [bench.start(system, "work", folder, setting, tasks=0, body=body) for _ in range(copies - 1)]
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
    bench: Bench, limit: Limit, verb: str, folder: Path, tasks: int, batch: int, limit_s: float,
    payload_bytes: int = 0,
) -> Values:  # fmt: skip
    answer = bench.ask(
        limit, verb, folder, ANSWER_LIMIT_S + limit_s,
        tasks=tasks, batch=batch, limit_s=limit_s, payload_bytes=payload_bytes,
    )  # fmt: skip
    return rates(answer)


def rates(reached: dict[str, float]) -> Values:
    tasks = reached["tasks"]
    return {
        "tasks": tasks,
        "per_s": tasks / reached["seconds"],
        "cpu_us": 1e6 * reached["cpu_s"] / tasks,
    }
