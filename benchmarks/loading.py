"""Measures the data pool beside other pools: arrays received in order, two workers each.

    python -m benchmarks.loading [--rounds N] [--seconds S] [SYSTEM ...]

GB/s received, CPU seconds of the parent per GB, and the memory of everybody together, for arrays of 64 KiB,
1 MiB and 16 MiB. Systems take turns within a round, so that a busy machine is busy for all of them; each has
a process of its own with the pinned packages of the peers. The parent looks at the first and last number of
each array. "In place": omniq.data.empty. What cannot be installed here is named and left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.loaders import asked
from benchmarks.loading_systems import LENGTHS, SYSTEMS, WORKERS

TITLES = {
    "gb_per_s": "GB/s received",
    "cpu_s_per_gb": "CPU seconds of the parent per GB",
    "memory_mib": "MiB of all processes together",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help="; ".join(SYSTEMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    told = parser.parse_args()
    if unknown := set(told.systems) - set(SYSTEMS):
        parser.error(f"no pool is called {'; '.join(sorted(unknown))}; there are: {'; '.join(SYSTEMS)}")
    pythons = _installed(told.systems or list(SYSTEMS))
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="omniq-loading-") as folder:
        for _ in range(told.rounds):
            for size in LENGTHS:
                for system, python in pythons.items():
                    program = ["benchmarks.loading_child", system, size, folder, str(told.seconds)]
                    figures: Any = asked(python, program, folder, 4 * told.seconds)
                    if isinstance(figures, str):
                        print(f"{system}, {size}: {figures}", flush=True)
                    else:
                        found.setdefault((system, size), []).append(figures)
    for figure, title in TITLES.items():
        print(f"\n| {title}, {WORKERS} workers, median of {told.rounds} | " + " | ".join(LENGTHS) + " |")
        print("|---" * (len(LENGTHS) + 1) + "|")
        for system in pythons:
            cells = [_cell([one[figure] for one in found.get((system, size), [])]) for size in LENGTHS]
            print(f"| {system} | " + " | ".join(cells) + " |")


def _installed(systems: list[str]) -> dict[str, Path]:
    pythons: dict[str, Path] = {}
    for system in systems:
        try:
            for package in ("numpy", *SYSTEMS[system][2]):
                pythons[system] = peers.python_with(package)
        except peers.NotInstalled as exc:
            pythons.pop(system, None)
            print(f"left out: {system}: {exc}")
    return pythons


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):,.3g}" if values else "-"


if __name__ == "__main__":
    main()
