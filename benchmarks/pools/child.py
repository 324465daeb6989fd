"""What is asked of a process that owns a pool: `python -m benchmarks.harness.child pool-... VERB ARGUMENTS`.

Every verb begins with a pool that does not exist yet, and but for `start` it is warm before anything counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import CAN_WATCH, cpu_s
from benchmarks.pools.base import PoolSystem

# Calls that go out together, before the clock is looked at again.
STEPS = {"one by one": 100, "all at once": 1_000}
CHUNKS = 100
ARRAYS = {1: 32, 16: 4}


def calls(pool: PoolSystem, *, workers: int, variant: str, seconds: float) -> dict[str, float]:
    """Calls that do nothing, each by itself."""
    run = pool.one_by_one if variant == "one by one" else pool.all_at_once
    return _rate(pool, workers, seconds, STEPS[variant], run)


def batches(pool: PoolSystem, *, workers: int, size: int, seconds: float) -> dict[str, float]:
    """The same, `size` of them at a time."""
    return _rate(pool, workers, seconds, CHUNKS * size, lambda count: pool.batches(count, size))


def arrays(pool: PoolSystem, *, workers: int, mib: int, seconds: float) -> dict[str, float]:
    """An array there and back, with two on their way for each worker."""
    from benchmarks.pools.bodies import an_array

    array = an_array(mib)
    values = _rate(
        pool, workers, seconds, ARRAYS[mib], lambda count: pool.arrays(array, count, ahead=2 * workers)
    )
    return {**values, "mib_per_s": values["per_s"] * mib}


def start(pool: PoolSystem, *, workers: int) -> dict[str, float]:
    """From nothing to the first result."""
    import benchmarks.pools.bodies  # noqa: F401 - a program has imported what it calls

    pool.load()
    began_at = time.perf_counter()
    pool.start(workers)
    try:
        pool.one_by_one(1)
        return {"ms": 1e3 * (time.perf_counter() - began_at)}
    finally:
        pool.close()


def memory(pool: PoolSystem, *, workers: int) -> dict[str, float]:
    """What the pool's processes hold after a few calls, those that help the workers included."""
    pool.load()
    pool.start(workers)
    try:
        pool.all_at_once(STEPS["all at once"])
        held = [_held_kib(process) for process in _others()]
    finally:
        pool.close()
    return {
        "pss_mib": sum(pss for pss, _ in held) / workers / 1024,
        "private_mib": sum(private for _, private in held) / workers / 1024,
        "processes": float(len(held)),
    }


VERBS: dict[str, Callable[..., Any]] = {
    "calls": calls,
    "batches": batches,
    "arrays": arrays,
    "start": start,
    "memory": memory,
}


def _rate(
    pool: PoolSystem, workers: int, seconds: float, step: int, run: Callable[[int], int]
) -> dict[str, float]:
    pool.load()
    pool.start(workers)
    try:
        run(step)
        cpu_before = _cpu_s()
        done, began_at = 0, time.perf_counter()
        while (took_s := time.perf_counter() - began_at) < seconds:
            ended = run(step)
            assert ended == step, f"{ended} results of {step} calls"
            done += ended
        return {"per_s": done / took_s, "cpu_us": 1e6 * (_cpu_s() - cpu_before) / done}
    finally:
        pool.close()


def _cpu_s() -> float:
    """Of this program and of the pool's processes."""
    return sum(map(cpu_s, [Path("/proc/self"), *_others()])) if CAN_WATCH else time.process_time()


def _others() -> list[Path]:
    """The other processes of this session: nobody but the pool has started any."""
    session, own = os.getsid(0), os.getpid()
    found: list[Path] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) != own and os.getsid(int(folder.name)) == session:
                found.append(folder)
        except ProcessLookupError:
            continue
    return found


def _held_kib(process: Path) -> tuple[int, int]:
    """Its share of all memory that it uses, and what it shares with nobody."""
    fields: dict[str, int] = {}
    for line in (process / "smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, value, *_ = line.split()
        fields[name.rstrip(":")] = int(value)
    return fields["Pss"], fields["Private_Clean"] + fields["Private_Dirty"]
