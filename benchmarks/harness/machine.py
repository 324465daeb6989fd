"""The machine of a run: what it is, and how evenly it worked."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

SPIN_LOOPS = 500_000
SYNCED_WRITES = 11
PAGE = b"\0" * 4096


def describe() -> dict[str, str]:
    """What a reader needs to compare figures; nothing that names the machine."""
    return {
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "processor": _processor(),
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": sqlite3.sqlite_version,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


class Noise(NamedTuple):
    """The same small piece of work, done before every sample. An even machine takes equally long."""

    spin_ms: float
    sync_ms: float

    @classmethod
    def now(cls, folder: Path) -> Noise:
        return cls(_spin_ms(), _sync_ms(folder))


def _spin_ms() -> float:
    start = time.perf_counter()
    for _ in range(SPIN_LOOPS):
        pass
    return 1e3 * (time.perf_counter() - start)


def _sync_ms(folder: Path) -> float:
    """What one small durable write costs on the disk that the stores use."""
    times = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(SYNCED_WRITES):
            start = time.perf_counter()
            file.write(PAGE)
            os.fsync(file.fileno())
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)
