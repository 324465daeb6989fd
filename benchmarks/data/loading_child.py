"""Measures one pool with arrays of one size, in a process of its own, for `benchmarks.data.loading`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.data.loading_systems import LENGTHS, START_FOR_EACH_CALL, SYSTEMS
from benchmarks.harness.memory import family_mib

FIRST = 40


def main(system: str, size: str, folder: str, seconds: float) -> None:
    start, kind, _ = SYSTEMS[system]
    function = kind(LENGTHS[size])
    starts_anew = system in START_FOR_EACH_CALL
    with start() as mapped:
        for _ in mapped(function, range(FIRST)):
            pass
        found, count = _measured(mapped, function, FIRST, starts_anew), FIRST
        if found["elapsed_s"] < seconds / 2:  # as many as fit into the time
            count = int(count * seconds / found["elapsed_s"])
            found = _measured(mapped, function, count, starts_anew)
        Path(folder, "figures").write_text(json.dumps(found))
        os._exit(0)  # some need long to end, which is not what is measured


def _measured(mapped: Any, function: Any, count: int, starts_anew: bool) -> dict[str, float]:
    """From the call on, since some work while they are still submitting; or from the first result on."""
    begin, cpu, received, memory = time.perf_counter(), time.process_time(), 0, 0.0
    for n, array in enumerate(mapped(function, range(count))):
        assert array[0] == n == array[-1]
        received += array.nbytes
        if n == 0 and starts_anew:
            begin, cpu, received = time.perf_counter(), time.process_time(), 0
        if n == count // 2:
            before, before_cpu = time.perf_counter(), time.process_time()
            memory = family_mib()
            begin += time.perf_counter() - before
            cpu += time.process_time() - before_cpu
        if n == count - 1:  # how long it takes to end is not what is measured
            elapsed, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    return {
        "gb_per_s": received / elapsed / 1e9,
        "cpu_s_per_gb": cpu_s / received * 1e9,
        "memory_mib": memory,
        "elapsed_s": elapsed,
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
