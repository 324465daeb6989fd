"""Measures data loaders side by side, two workers each: samples a second, the first batch, memory.

    python -m benchmarks.loaders [--rounds N] [--seconds S] [SYSTEM ...]

Systems take turns within a round, each in a process of its own with the pinned packages of the peers. What
cannot be installed here is named and left out. Time to the first batch: from the call, imports included.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.loader_sets import SETS
from benchmarks.loader_systems import SYSTEMS, WORKERS
from benchmarks.processes import ROOT

COMMON = ("numpy", "pillow")
PATIENCE_S = 60.0
Figures = dict[str, float]


def measured(python: Path, system: str, dataset: str, folder: str, seconds: float) -> Figures | str:
    """Figures, or why there are none."""
    return asked(python, ["benchmarks.loader_child", system, dataset, folder, str(seconds)], folder, seconds)


def asked(python: Path, program: list[str], folder: str, seconds: float) -> Any:
    """What a program has written to `figures` in that folder, or why it has not."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [str(python), "-m", *program]
    answer = Path(folder, "figures")
    answer.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, env=env, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(PATIENCE_S + seconds)
        except subprocess.TimeoutExpired:
            return f"not done within {PATIENCE_S + seconds:g} s"
        finally:
            with suppress(ProcessLookupError):  # its workers, which some leave behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    if not answer.exists():
        return (lines or [f"exit code {process.returncode}"])[-1]
    return json.loads(answer.read_text())


def install(system: str) -> Path:
    for package in (*COMMON, *SYSTEMS[system][1]):
        python = peers.python_with(package)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=", ".join(SYSTEMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    told = parser.parse_args()
    if unknown := set(told.systems) - set(SYSTEMS):
        parser.error(f"no loader is called {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    pythons: dict[str, Path] = {}
    for system in told.systems or SYSTEMS:
        try:
            pythons[system] = install(system)
        except peers.NotInstalled as exc:
            print(f"left out: {system}: {exc}")
    found: dict[tuple[str, str], list[Figures]] = {}
    with tempfile.TemporaryDirectory(prefix="omniq-loaders-") as folder:
        for round_ in range(told.rounds):
            for dataset in SETS:
                for system, python in pythons.items():
                    figures = measured(python, system, dataset, folder, told.seconds)
                    if isinstance(figures, str):
                        print(f"round {round_ + 1}: {system} on {dataset}: {figures}", flush=True)
                    else:
                        found.setdefault((system, dataset), []).append(figures)
    report(list(pythons), found, told.rounds)


def report(systems: list[str], found: dict[tuple[str, str], list[Figures]], rounds: int) -> None:
    titles = {
        "samples_per_s": "samples/s",
        "first_s": "seconds to the first batch",
        "memory_mib": "MiB of all processes together",
    }
    for figure, title in titles.items():
        print(f"\n| {title}, {WORKERS} workers, median of {rounds} | " + " | ".join(SETS) + " |")
        print("|---" * (len(SETS) + 1) + "|")
        for system in systems:
            cells = [_cell([one[figure] for one in found.get((system, name), [])]) for name in SETS]
            print(f"| {system} | " + " | ".join(cells) + " |")


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    value = statistics.median(values)
    return f"{value:,.0f}" if value >= 20 else f"{value:.2f}"


if __name__ == "__main__":
    main()
