"""Data loaders side by side, two workers each: samples a second, the first batch, memory.

Time to the first batch: from the moment at which the loader is made; its package is imported before.
"""

from __future__ import annotations

from typing import ClassVar

from benchmarks.data.loader_sets import SETS
from benchmarks.data.loader_systems import SYSTEMS, WORKERS
from benchmarks.data.side_by_side import SideBySide
from benchmarks.harness.measure import Metric


class Loaders(SideBySide):
    group = "loaders"
    name = "loaders"
    title = f"Batches of samples, {WORKERS} workers each"
    metrics = (
        Metric("samples_per_s", "samples/s", compared=True),
        Metric("first_s", "s to the first batch", 2),
        Metric("memory_mib", "MiB of all processes together"),
    )
    program = "benchmarks.data.loader_child"
    cases = tuple(SETS)
    ours = ("omniq",)
    packages: ClassVar = {system: ("pillow", *packages) for system, (_, packages, _) in SYSTEMS.items()}
