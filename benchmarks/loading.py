"""Measures the data pool beside what the standard library has: arrays received per second, two workers each.

    python -m benchmarks.loading [ROUNDS]

Each figure is the median of the rounds; the systems take turns within a round, so that a busy machine is busy
for all of them. The parent looks at the first and last number of each array. "In place": omniq.data.empty.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

import numpy as np
from loguru import logger

from omniq.data import WorkerPool, empty

WORKERS: Final = 2
ARENA: Final = 256 * 2**20
COUNTS: Final = {16_384: 4000, 262_144: 1500, 4_194_304: 150}  # floats in an array, arrays
Mapped = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]


def copied_64k(n: int) -> Any:
    return np.full(16_384, n, np.float32)


def copied_1m(n: int) -> Any:
    return np.full(262_144, n, np.float32)


def copied_16m(n: int) -> Any:
    return np.full(4_194_304, n, np.float32)


def in_place(n: int, length: int) -> Any:
    array = empty(length, np.float32)
    array.fill(n)
    return array


def in_place_64k(n: int) -> Any:
    return in_place(n, 16_384)


def in_place_1m(n: int) -> Any:
    return in_place(n, 262_144)


def in_place_16m(n: int) -> Any:
    return in_place(n, 4_194_304)


COPIED: Final = {16_384: copied_64k, 262_144: copied_1m, 4_194_304: copied_16m}
IN_PLACE: Final = {16_384: in_place_64k, 262_144: in_place_1m, 4_194_304: in_place_16m}


@contextmanager
def data_pool() -> Iterator[Mapped]:
    with WorkerPool(WORKERS, arena=ARENA, preload=["numpy"]) as pool:
        yield pool.map


@contextmanager
def standard_pool() -> Iterator[Mapped]:
    with get_context("forkserver").Pool(WORKERS) as pool:
        yield pool.imap


@contextmanager
def executor() -> Iterator[Mapped]:
    with ProcessPoolExecutor(WORKERS, get_context("forkserver")) as pool:
        yield pool.map


SYSTEMS: Final = {
    "data pool, in place": (data_pool, IN_PLACE),
    "data pool": (data_pool, COPIED),
    "multiprocessing.Pool.imap": (standard_pool, COPIED),
    "ProcessPoolExecutor.map": (executor, COPIED),
}


class Figure(NamedTuple):
    gb_per_s: float
    cpu_s_per_gb: float  # of the parent


def measure(mapped: Mapped, function: Callable[[int], Any], count: int) -> Figure:
    for _ in mapped(function, range(20)):
        pass
    begin, cpu, received = time.perf_counter(), time.process_time(), 0
    for n, array in enumerate(mapped(function, range(count))):
        assert array[0] == n == array[-1]
        received += array.nbytes
    seconds, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    return Figure(received / seconds / 1e9, cpu_s / received * 1e9)


def main(rounds: int) -> None:
    logger.remove()
    figures: dict[tuple[str, int], list[Figure]] = {}
    for _ in range(rounds):
        for name, (system, functions) in SYSTEMS.items():
            with system() as mapped:
                for length, count in COUNTS.items():
                    few = count if "data" in name else count // 3
                    figures.setdefault((name, length), []).append(measure(mapped, functions[length], few))
    print(f"GB/s received (and CPU seconds of the parent per GB), {WORKERS} workers, median of {rounds}")
    for name in SYSTEMS:
        cells = []
        for length in COUNTS:
            found = figures[name, length]
            gb = statistics.median(one.gb_per_s for one in found)
            cpu = statistics.median(one.cpu_s_per_gb for one in found)
            cells.append(f"{length * 4 // 1024:6} KiB {gb:6.2f} ({cpu:.3f})")
        print(f"{name:28}", *cells, sep="  ")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
