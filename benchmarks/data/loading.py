"""The data pool beside other pools: arrays received in order, two workers each.

GB/s received, CPU seconds of the parent per GB, and the memory of everybody together, for arrays of 64 KiB,
1 MiB and 16 MiB. The parent looks at the first and last number of each array. "In place": omniq.data.empty.
"""

from __future__ import annotations

from typing import ClassVar

from benchmarks.data.loading_systems import LENGTHS, SYSTEMS, WORKERS
from benchmarks.data.side_by_side import SideBySide
from benchmarks.harness.measure import Metric


class Loading(SideBySide):
    group = "loading"
    name = "loading"
    title = f"Arrays received in order, {WORKERS} workers each"
    metrics = (
        Metric("gb_per_s", "GB/s received", 2, compared=True),
        Metric("cpu_s_per_gb", "CPU s of the parent per GB", 3),
        Metric("memory_mib", "MiB of all processes together"),
    )
    program = "benchmarks.data.loading_child"
    cases = tuple(LENGTHS)
    ours = ("data pool", "data pool, in place")
    packages: ClassVar = {system: packages for system, (_, _, packages) in SYSTEMS.items()}
