"""Measures one loader on one dataset, in a process of its own, for `benchmarks.data.loaders`."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path

from benchmarks.data.loader_sets import SETS
from benchmarks.data.loader_systems import SYSTEMS
from benchmarks.harness.memory import family_mib


def main(system: str, name: str, folder: str, seconds: float) -> None:
    if system == "omniq":
        from loguru import logger

        logger.remove()
    dataset = SETS[name](folder)
    load, _, modules = SYSTEMS[system]
    for module in modules:  # a program that trains has imported all of it
        importlib.import_module(module)
    begin = time.perf_counter()
    batches = load(dataset)
    _looked_at(next(batches))
    first_s = time.perf_counter() - begin
    for _ in range(8):  # whoever has loaded ahead meanwhile gets no present
        _looked_at(next(batches))
    begin, samples = time.perf_counter(), 0
    memory: float | None = None
    while (now := time.perf_counter()) < begin + seconds:
        if memory is None and now > begin + seconds / 2:
            memory = family_mib()
            begin += time.perf_counter() - now
        samples += _looked_at(next(batches))
    elapsed = time.perf_counter() - begin
    found = {
        "samples_per_s": samples / elapsed,
        "first_s": first_s,
        "memory_mib": memory or family_mib(),
    }
    Path(folder, "figures").write_text(json.dumps(found))
    os._exit(0)  # some need long to end, which is not what is measured


def _looked_at(batch: object) -> int:
    flat = batch.reshape(len(batch), -1)  # type: ignore[attr-defined, arg-type]
    assert flat[0, 0] is not None and flat[-1, -1] is not None
    return len(flat)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
