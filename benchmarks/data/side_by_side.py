"""Pools and loaders that are compared: each sample is a program of its own, asked for its figures.

Knows neither; `loading` and `loaders` say what is compared, and `benchmarks.run` lets them take turns.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from benchmarks.harness.bench import Bench
from benchmarks.harness.measure import Measure, Values
from benchmarks.harness.processes import ROOT, ChildFailed
from benchmarks.plan import Plan
from benchmarks.systems.base import System

PATIENCE_S = 25.0  # for one sample, beyond the time that it measures
STARTING_S = 2.0  # what a sample takes besides: imports, workers, a first look at how fast it is


class DataSystem(System):
    """What it does stands in `loading_systems` or `loader_systems`."""

    package = "numpy"
    key: ClassVar[str]  # what it is called there


class SideBySide(Measure):
    """`program` is asked `SYSTEM VARIANT FOLDER SECONDS` and leaves its figures in that folder."""

    program: ClassVar[str]
    cases: ClassVar[tuple[str, ...]]
    ours: ClassVar[tuple[str, ...]]
    packages: ClassVar[Mapping[str, Sequence[str]]]  # of each system

    def systems(self) -> dict[str, System]:
        made = [self._system(key, tuple(packages)) for key, packages in self.packages.items()]
        return {system.name: system for system in made}

    def _system(self, key: str, packages: tuple[str, ...]) -> System:
        ours = key in self.ours
        told = {
            "group": self.group,
            "store": self.name,
            "key": key,
            "name": name_of(self.name, key),
            "role": "omniq" if ours else "peer",
            "needs": packages,
            "promise": "after a death exactly the lost items are done again"
            if ours
            else "a death ends it, or whoever waits for it",
        }
        system: System = type(key, (DataSystem,), told)()
        return system

    def variants(self, system: System, plan: Plan) -> tuple[str, ...]:
        return self.cases if system.group == self.group else ()

    def rounds(self, plan: Plan) -> int:
        return plan.data_rounds

    def expected_s(self, plan: Plan) -> float:
        return STARTING_S + plan.data_s

    def take(self, bench: Bench, system: System, variant: str) -> Values:
        assert isinstance(system, DataSystem)
        seconds = bench.plan.data_s
        with bench.folder() as folder:
            program = [self.program, system.key, variant, str(folder), str(seconds)]
            return asked(bench.pythons[system.name], program, folder / "figures", PATIENCE_S + seconds)


def name_of(measure: str, key: str) -> str:
    """One that can be typed without quotes."""
    return f"{measure}-{re.sub(r'[^a-z0-9]+', '-', key.lower())}"


def asked(python: Path, program: Sequence[str], answer: Path, limit_s: float) -> Values:
    """The figures that a program has written; or `ChildFailed` says why there are none."""
    # Installed packages have been compiled; ours would be anew for every sample, where that is forbidden.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [str(python), "-m", *program],
            env=env, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"not done within {limit_s:g} s") from None
        finally:
            with suppress(ProcessLookupError):  # its workers, which some leave behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    if not answer.exists():
        raise ChildFailed((lines or [f"exit code {process.returncode}"])[-1])
    figures: Values = json.loads(answer.read_text(encoding="utf-8"))
    return figures
