"""What a system costs that does nothing: an idle worker, a task that lies there, an import."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from pathlib import Path

from benchmarks.harness.bench import FILL_LIMIT_S, Bench
from benchmarks.harness.measure import START_LIMIT_S, Measure, Metric, Values
from benchmarks.harness.processes import CAN_WATCH, ChildFailed
from benchmarks.harness.redis import RedisServers
from benchmarks.plan import Plan
from benchmarks.systems.base import System

TIMED_IMPORT = """
import time
wall, cpu = time.perf_counter(), time.process_time()
{}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


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

    def expected_s(self, plan: Plan) -> float:
        return 1.5 + plan.settle_down_s + plan.idle_s

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
        return plan.live_rounds

    def expected_s(self, plan: Plan) -> float:
        return 0.2 * (plan.imports + 1)

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
