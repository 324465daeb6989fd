"""Measures one pool with arrays of one size, in a process of its own, for `benchmarks.loading`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.loading_systems import LENGTHS, SYSTEMS
from benchmarks.memory import family_mib

FIRST = 20


def main(system: str, size: str, folder: str, seconds: float) -> None:
    start, kind, _ = SYSTEMS[system]
    function = kind(LENGTHS[size])
    with start() as mapped:
        begin = time.perf_counter()
        for _ in mapped(function, range(FIRST)):
            pass
        # As many as fit into the time: what is started anew for each call is not counted twice.
        count = max(FIRST, int(FIRST * seconds / max(time.perf_counter() - begin, seconds / 200)))
        Path(folder, "figures").write_text(json.dumps(_measured(mapped, function, count)))
        os._exit(0)  # some need long to end, which is not what is measured


def _measured(mapped: Any, function: Any, count: int) -> dict[str, float]:
    """From the first result on, since some start their workers for each call."""
    results = iter(mapped(function, range(count)))
    next(results)
    begin, cpu, received, memory = time.perf_counter(), time.process_time(), 0, 0.0
    for n, array in enumerate(results, 1):
        assert array[0] == n == array[-1]
        received += array.nbytes
        if n == count // 2:
            before, before_cpu = time.perf_counter(), time.process_time()
            memory = family_mib()
            begin += time.perf_counter() - before
            cpu += time.process_time() - before_cpu
    elapsed, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    return {
        "gb_per_s": received / elapsed / 1e9,
        "cpu_s_per_gb": cpu_s / received * 1e9,
        "memory_mib": memory,
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
