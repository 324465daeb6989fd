"""Runs the benchmarks: `python -m benchmarks.run [--quick] [--update-docs] [--scratch DIR] [NAME ...]`.

A name is a system (`omniq-sqlite`), all systems on a server (`postgres`), a measure (`drain`), a group of
measures (`pools`), or several of these; without any it is the group `tasks`. In every round all systems take
their turn, A B C A B C, so that whatever else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from benchmarks import peers, report
from benchmarks.bench import Bench
from benchmarks.machine import Noise, describe
from benchmarks.marks import Marks
from benchmarks.measures import Measure, task_measures
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.pool_base import PoolSystem
from benchmarks.pool_measures import pool_measures
from benchmarks.processes import ROOT, ChildFailed
from benchmarks.samples import Case, Failure, Record, Sample
from benchmarks.servers import NoServer
from benchmarks.systems import load_all
from benchmarks.systems.base import System

RESULTS = Path(__file__).with_name("results")
DOCUMENT = ROOT / "docs" / "benchmarks.md"
MEMORY = Path("/dev/shm")
DISK = Path("/var/tmp")
GROUPS = ("tasks", "pools")
PLACES = (*GROUPS, "redis")


class Run:
    """One run: takes the samples, tells how far it is, and writes every one down as it comes."""

    def __init__(
        self, plan: Plan, scratch: Path, marks: Path, results: TextIO, cases: Container[Case] | None = None
    ) -> None:
        self._pythons: dict[str, Path] = {}
        self.bench = Bench(plan, scratch, Marks(marks), self._pythons)
        self.record = Record()
        self.noises: list[Noise] = []
        self.cut: str | None = None
        self._results = results
        self._cases = cases
        self._started = time.monotonic()

    def take_all(self, systems: Mapping[str, System], measures: Sequence[Measure]) -> None:
        plan = self.bench.plan
        self._prepare(s for s in systems.values() if any(m.variants(s, plan) for m in measures))
        self._started = time.monotonic()
        schedule = list(self._schedule(systems, measures))
        for turn, (measure, case, round_) in enumerate(schedule, 1):
            if round_ and time.monotonic() - self._started > self.bench.plan.total_s:
                self.cut = f"the time was over after {turn - 1} of {len(schedule)} samples"
                break
            if all(failure.case != case for failure in self.record.failures):
                self._take(measure, systems[case.system], case, round_, f"{turn}/{len(schedule)}")

    def _prepare(self, systems: Iterable[System]) -> None:
        """Find or make an interpreter for each system. A peer that cannot be had is left out."""
        for system in systems:
            self._tell(f"preparing {system.name}")
            try:
                server = self.bench.server_of(system)
                if server is not None:
                    server.start()
                self._pythons[system.name] = _python_of(system)
            except (peers.NotInstalled, NoServer) as exc:
                self._fail(Case("", system.name, ""), str(exc))

    def _schedule(
        self, systems: Mapping[str, System], measures: Sequence[Measure]
    ) -> Iterator[tuple[Measure, Case, int]]:
        plan = self.bench.plan
        for round_ in range(max(measure.rounds(plan) for measure in measures)):
            for measure in (measure for measure in measures if round_ < measure.rounds(plan)):
                for system in (system for system in systems.values() if system.name in self._pythons):
                    cases = (Case(measure.name, system.name, v) for v in measure.variants(system, plan))
                    for case in cases:
                        if self._cases is None or case in self._cases:
                            yield measure, case, round_

    def _take(self, measure: Measure, system: System, case: Case, round_: int, turn: str) -> None:
        self.noises.append(Noise.now(self.bench.scratch))
        what = f"{turn} {case}, round {round_ + 1}"
        try:
            values = measure.take(self.bench, system, case.variant)
        except ChildFailed as exc:
            self._fail(case, str(exc))
            return
        self.record.samples.append(Sample(case, round_, values))
        self._write(**case._asdict(), round=round_, values=values, noise=self.noises[-1]._asdict())
        first = measure.metrics[0]
        self._tell(f"{what}: {report.number(values[first.key], first.digits)} {first.title}")

    def _fail(self, case: Case, reason: str) -> None:
        self.record.failures.append(Failure(case, reason))
        self._write(failed=case._asdict(), reason=reason)
        self._tell(f"FAILED {case}: {reason}")

    def _tell(self, what: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        print(f"[{minutes}:{seconds:02}] {what}", file=sys.stderr, flush=True)

    def _write(self, **line: Any) -> None:
        self._results.write(json.dumps(line) + "\n")
        self._results.flush()


def run(
    plan: Plan,
    systems: Mapping[str, System],
    measures: Sequence[Measure],
    scratch: Path,
    results: Path,
    command: str,
    cases: Container[Case] | None = None,
) -> tuple[Record, str]:
    """Measure, all cases or these, and say what came out. Everything in `scratch` is removed again."""
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "command": f"`{command}`", **describe()}
    folder = Path(tempfile.mkdtemp(prefix="omniq-benchmarks-", dir=scratch))
    in_memory = Path(tempfile.mkdtemp(prefix="omniq-benchmarks-", dir=MEMORY if MEMORY.is_dir() else scratch))
    results.mkdir(parents=True, exist_ok=True)
    file = results / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"
    try:
        with file.open("w", encoding="utf-8") as lines:
            lines.write(json.dumps({"about": about, "plan": asdict(plan)}) + "\n")
            one = Run(plan, folder, in_memory, lines, cases)
            try:
                one.take_all(systems, measures)
            finally:
                for server in one.bench.servers.values():
                    server.stop()
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(in_memory)
    if one.cut:
        about["cut short"] = one.cut
    return one.record, report.full(one.record, systems, measures, about, one.noises)


def main(arguments: Sequence[str]) -> int:
    known_systems, known_measures = load_all(), all_measures()
    stores = sorted({system.store for system in known_systems.values() if system.server})
    names = [*known_systems, *known_measures, *GROUPS, *stores]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Measure OmniQ beside others."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="in a few minutes, with wider error bars")
    parser.add_argument("--update-docs", action="store_true", help=f"write the tables into {DOCUMENT.name}")
    parser.add_argument("--scratch", type=Path, default=DISK, help="a folder on a real disk (%(default)s)")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in names]:
        parser.error(f"there is no {', '.join(unknown)}; choose from {', '.join(names)}")
    if not options.scratch.is_dir():
        parser.error(f"there is no folder {options.scratch}")

    systems = chosen_systems(known_systems, options.names, quick=options.quick)
    measures = chosen_measures(known_measures, options.names, systems)
    place = place_of(systems, measures)
    if options.update_docs and place is None:
        parser.error(f"the page has a place for each of {', '.join(PLACES)}; choose one of them")
    chosen = [*(["--quick"] if options.quick else []), *options.names]
    record, text = run(
        QUICK if options.quick else FULL, systems, measures, options.scratch, RESULTS,
        " ".join(["python -m benchmarks.run", *chosen]),
    )  # fmt: skip
    if not record.samples and not record.failures:
        parser.error("there is nothing to measure; depth, for one, is only part of the full run")
    print(text)
    if options.update_docs and place is not None:
        report.write_into(DOCUMENT, place, text)
    return 1 if record.failures else 0


def place_of(systems: Mapping[str, System], measures: Sequence[Measure]) -> str | None:
    """Where on the page this run belongs: what was measured on Redis alone has a place of its own."""
    groups = {measure.group for measure in measures}
    if len(groups) > 1:
        return None
    on_redis = all(system.server in ("redis", "redis-aof") for system in systems.values())
    return "redis" if on_redis else groups.pop()


def all_measures() -> dict[str, Measure]:
    return task_measures() | pool_measures()


def chosen_systems(known: Mapping[str, System], names: Sequence[str], *, quick: bool) -> Mapping[str, System]:
    """Those that were named, by themselves or by their store; else all, in a quick run none on a server."""
    named = {name: system for name, system in known.items() if name in names or system.store in names}
    return named or {name: system for name, system in known.items() if not (quick and system.server)}


def chosen_measures(
    known: Mapping[str, Measure], names: Sequence[str], systems: Mapping[str, System]
) -> list[Measure]:
    """Those that were named, by themselves or as a group; or all of the group that the systems belong to."""
    named = [measure for measure in known.values() if measure.name in names or measure.group in names]
    if named:
        return named
    are_pools = bool(names) and all(isinstance(system, PoolSystem) for system in systems.values())
    return [measure for measure in known.values() if (measure.group == "pools") == are_pools]


def _python_of(system: System) -> Path:
    if system.package is None:
        return Path(sys.executable)
    for package in system.needs:
        peers.python_with(package, system.environment)
    return peers.python_with(system.package, system.environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
