"""Runs the benchmarks: `python -m benchmarks.run [--quick] [--update-docs] [--scratch DIR] [NAME ...]`.

A name is a system (`omniq-sqlite`), all systems on a store (`postgres`), a measure (`drain`), a group of
measures (`tasks`, `pools`, `loading`, `loaders`), or several of these; without any it is the group `tasks`.
In every round all systems take their turn, A B C A B C, so that whatever else the machine does meets all of
them. `--from FILE` measures nothing and tells again what an earlier run has written to its file.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from benchmarks.data.loaders import Loaders
from benchmarks.data.loading import Loading
from benchmarks.harness import peers
from benchmarks.harness.bench import Bench
from benchmarks.harness.machine import Noise, describe
from benchmarks.harness.marks import Marks
from benchmarks.harness.measure import Measure
from benchmarks.harness.processes import ChildFailed
from benchmarks.harness.progress import Progress, clock
from benchmarks.harness.results import Results, read
from benchmarks.harness.samples import Case, Failure, Record, Sample
from benchmarks.harness.servers import NoServer
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.pools.measures import pool_measures
from benchmarks.reports import page, tables
from benchmarks.systems import load_all
from benchmarks.systems.base import Group, System
from benchmarks.tasks.measures import task_measures

RESULTS = Path(__file__).with_name("results")
MEMORY = Path("/dev/shm")
DISK = Path("/var/tmp")
GROUPS: tuple[Group, ...] = get_args(Group)


class Run:
    """One run: takes the samples, tells how far it is, and writes every one down as it comes."""

    def __init__(
        self, plan: Plan, scratch: Path, marks: Path, results: Results, cases: Container[Case] | None = None
    ) -> None:
        self._pythons: dict[str, Path] = {}
        self.bench = Bench(plan, scratch, Marks(marks), self._pythons)
        self.results = results
        self._cases = cases
        self._started = time.monotonic()

    def take_all(self, systems: Mapping[str, System], measures: Sequence[Measure]) -> None:
        plan = self.bench.plan
        self._prepare(s for s in systems.values() if any(m.variants(s, plan) for m in measures))
        self._started = time.monotonic()
        schedule = list(self._schedule(systems, measures))
        progress = Progress([measure.expected_s(plan) for measure, _, _ in schedule])
        self._tell(
            f"{progress.total} samples of {len(self._pythons)} systems: about {clock(progress.left_s)}"
        )
        for turn, (measure, case, round_) in enumerate(schedule, 1):
            if round_ and time.monotonic() - self._started > plan.total_s:
                self.results.cut(f"the time was over after {turn - 1} of {progress.total} samples")
                break
            began_at = time.monotonic()
            if all(failure.case != case for failure in self.results.record.failures):
                at = f"{turn}/{progress.total}, {clock(progress.left_s)} left:"
                self._take(measure, systems[case.system], case, round_, at)
            progress.took(time.monotonic() - began_at)

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
        noise = Noise.now(self.bench.scratch)
        try:
            values = measure.take(self.bench, system, case.variant)
        except ChildFailed as exc:
            self._fail(case, str(exc))
            return
        self.results.add(Sample(case, round_, values), noise)
        first = measure.metrics[0]
        figure = f"{tables.number(values[first.key], first.digits)} {first.title}"
        self._tell(f"{turn} {case}, round {round_ + 1}: {figure}")

    def _fail(self, case: Case, reason: str) -> None:
        self.results.fail(Failure(case, reason))
        self._tell(f"FAILED {case}: {reason}")

    def _tell(self, what: str) -> None:
        print(f"[{clock(time.monotonic() - self._started)}] {what}", file=sys.stderr, flush=True)


def run(
    plan: Plan,
    systems: Mapping[str, System],
    measures: Sequence[Measure],
    scratch: Path,
    results: Path,
    command: str,
    cases: Container[Case] | None = None,
) -> Results:
    """Measure, all cases or these. Everything in `scratch` is removed again."""
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "command": f"`{command}`", **describe()}
    folder = Path(tempfile.mkdtemp(prefix="omniq-benchmarks-", dir=scratch))
    in_memory = Path(tempfile.mkdtemp(prefix="omniq-benchmarks-", dir=MEMORY if MEMORY.is_dir() else scratch))
    results.mkdir(parents=True, exist_ok=True)
    file = results / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"
    try:
        with file.open("w", encoding="utf-8") as lines:
            found = Results(about, file=lines)
            found.begin(asdict(plan))
            one = Run(plan, folder, in_memory, found, cases)
            try:
                one.take_all(systems, measures)
            finally:
                for server in one.bench.servers.values():
                    server.stop()
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(in_memory)
    return found


def main(arguments: Sequence[str]) -> int:
    known_systems, known_measures = all_systems(), all_measures()
    stores = sorted({system.store for system in known_systems.values() if system.group == "tasks"})
    names = [*known_systems, *known_measures, *GROUPS, *stores]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Measure OmniQ beside others."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="in a few minutes, with wider error bars")
    parser.add_argument("--update-docs", action="store_true", help=f"write into {page.DOCUMENT.name}")
    parser.add_argument("--scratch", type=Path, default=DISK, help="a folder on a real disk (%(default)s)")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="file", help="tell an earlier run again")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in names]:
        parser.error(f"there is no {', '.join(unknown)}; choose from {', '.join(names)}")
    if not options.scratch.is_dir():
        parser.error(f"there is no folder {options.scratch}")
    if options.file is not None:
        results = read(options.file)
        systems, measures = known_systems, list(known_measures.values())
    else:
        systems = dict(chosen_systems(known_systems, options.names, quick=options.quick))
        measures = chosen_measures(known_measures, options.names, systems)
        chosen = [*(["--quick"] if options.quick else []), *options.names]
        results = run(
            QUICK if options.quick else FULL, systems, measures, options.scratch, RESULTS,
            " ".join(["python -m benchmarks.run", *chosen]),
        )  # fmt: skip
    if not results.record.samples and not results.record.failures:
        parser.error("there is nothing to measure; depth, for one, is only part of the full run")
    for group, part, told in by_group(results, systems, measures):
        print(tables.full(part, systems, told))
        if options.update_docs:
            page.write(group, part, systems, told)
    return 1 if results.record.failures else 0


def by_group(
    results: Results, systems: Mapping[str, System], measures: Sequence[Measure]
) -> Iterator[tuple[Group, Results, Sequence[Measure]]]:
    """What belongs together, each with what is said of the run as a whole."""
    for group in GROUPS:
        told = [measure for measure in measures if measure.group == group]
        names = {measure.name for measure in told}
        part = Record(
            [sample for sample in results.record.samples if sample.case.measure in names],
            [fail for fail in results.record.failures if systems[fail.case.system].group == group],
        )
        if part.samples or part.failures:
            yield group, Results(results.about, part, results.noises), told


def all_systems() -> dict[str, System]:
    return load_all() | Loading().systems() | Loaders().systems()


def all_measures() -> dict[str, Measure]:
    data = {measure.name: measure for measure in (Loading(), Loaders())}
    return task_measures() | pool_measures() | data


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
    groups = {system.group for system in systems.values()} if names else {"tasks"}
    return [measure for measure in known.values() if measure.group in groups]


def _python_of(system: System) -> Path:
    if system.package is None:
        return Path(sys.executable)
    for package in system.needs:
        peers.python_with(package, system.environment)
    return peers.python_with(system.package, system.environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
