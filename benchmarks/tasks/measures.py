"""Everything that is measured of task queues, in the order in which it is told."""

from __future__ import annotations

from benchmarks.harness.measure import Measure
from benchmarks.tasks.bodies import Computing, Waiting
from benchmarks.tasks.busy import Busy
from benchmarks.tasks.depth import Depth
from benchmarks.tasks.drain import Drain, Settings
from benchmarks.tasks.enqueue import Enqueue
from benchmarks.tasks.footprint import Idle, Import, Size
from benchmarks.tasks.latency import Latency
from benchmarks.tasks.payload import Payload


def task_measures() -> dict[str, Measure]:
    every = (
        Drain(), Settings(), Enqueue(), Busy(), Latency(), Payload(), Waiting(), Computing(), Idle(), Size(),
        Import(), Depth(),
    )  # fmt: skip
    return {measure.name: measure for measure in every}
