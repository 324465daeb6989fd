"""What runs in the processes that are measured: `python -m benchmarks.harness.child SYSTEM VERB ARGUMENTS`.

The arguments are JSON, the answer is the last line of stdout, JSON as well. The process ends with whoever
started it: its stdin is a pipe that nobody writes to, and that closes when the other end is gone.
Knows the standard library and the one system that it was asked for.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import marks
from benchmarks.pools import child as pool_child
from benchmarks.pools.base import PoolSystem
from benchmarks.systems import load
from benchmarks.systems.base import Body, Face, Limit, Reached, System


def fill(system: System, *, tasks: int, body: Body) -> None:
    system.fill(tasks, body)


def work(system: System, *, tasks: int, body: Body) -> None:
    """Run tasks until told to stop; first let some wait, where no other process could."""
    if tasks:
        system.fill(tasks, body)
    system.work()


class Load:
    """So many tasks, or so many seconds, from the moment it begins."""

    def __init__(self, tasks: int, limit_s: float, payload_bytes: int = 0) -> None:
        self.done = 0
        self._tasks, self._limit_s, self._payload_bytes = tasks, limit_s, payload_bytes

    def stamp(self) -> marks.Stamp:
        return marks.stamp(self._payload_bytes)

    def begin(self) -> None:
        self._start, self._cpu_start = time.perf_counter(), time.process_time()

    def goes_on(self) -> bool:
        return self.done < self._tasks and time.perf_counter() - self._start < self._limit_s

    def reached(self) -> Reached:
        return Reached(self.done, time.perf_counter() - self._start, time.process_time() - self._cpu_start)


def produce(
    system: System, *, face: Face, tasks: int, limit_s: float, width: int, bulk: int, payload_bytes: int = 0
) -> dict[str, Any]:
    """Enqueue until there are `tasks` or the time is over, after a first one that opens what it needs."""
    load = Load(tasks, limit_s, payload_bytes)
    match face:
        case "blocking":
            reached = _one_by_one(system, load)
        case "bulk":
            reached = _in_bulk(system, load, bulk)
        case "async":
            reached = asyncio.run(_side_by_side(system, load, 1))
        case "in-flight":
            reached = asyncio.run(_side_by_side(system, load, width))
    return reached._asdict()


def _one_by_one(system: System, load: Load) -> Reached:
    system.put(load.stamp())
    load.begin()
    while load.goes_on():
        system.put(load.stamp())
        load.done += 1
    return load.reached()


def _in_bulk(system: System, load: Load, bulk: int) -> Reached:
    system.put_many([load.stamp()])
    load.begin()
    while load.goes_on():
        system.put_many([load.stamp()] * bulk)
        load.done += bulk
    return load.reached()


async def _side_by_side(system: System, load: Load, width: int) -> Reached:
    async def one_after_another() -> None:
        while load.goes_on():
            load.done += 1
            await system.aput(load.stamp())

    try:
        await system.aput(load.stamp())
        load.begin()
        await asyncio.gather(*(one_after_another() for _ in range(width)))
        return load.reached()
    finally:
        await system.aclose()


def call_by_call(system: System, *, face: Face, limit_s: float) -> list[float]:
    """Enqueue one after the other for so long; how long each call took, in milliseconds."""
    return asyncio.run(_acall_by_call(system, limit_s)) if face == "async" else _call_by_call(system, limit_s)


def _call_by_call(system: System, limit_s: float) -> list[float]:
    system.put(time.time())
    took_ms: list[float] = []
    end_at = time.perf_counter() + limit_s
    while (start := time.perf_counter()) < end_at:
        system.put(time.time())
        took_ms.append(1e3 * (time.perf_counter() - start))
    return took_ms


async def _acall_by_call(system: System, limit_s: float) -> list[float]:
    try:
        await system.aput(time.time())
        took_ms: list[float] = []
        end_at = time.perf_counter() + limit_s
        while (start := time.perf_counter()) < end_at:
            await system.aput(time.time())
            took_ms.append(1e3 * (time.perf_counter() - start))
        return took_ms
    finally:
        await system.aclose()


def pace(system: System, *, tasks: int, gap_s: float) -> None:
    """Enqueue one task after another, `gap_s` apart."""
    next_at = time.perf_counter()
    for _ in range(tasks):
        system.put(time.time())
        next_at += gap_s
        time.sleep(max(0.0, next_at - time.perf_counter()))


def drain(
    system: System, *, folder: str, tasks: int, batch: int, limit_s: float, payload_bytes: int = 0
) -> dict[str, Any]:
    assert isinstance(system, Limit)
    return system.drain(Path(folder), tasks, batch, limit_s, payload_bytes)._asdict()


def insert(
    system: System, *, folder: str, tasks: int, batch: int, limit_s: float, payload_bytes: int = 0
) -> dict[str, Any]:
    assert isinstance(system, Limit)
    return system.insert(Path(folder), tasks, batch, limit_s, payload_bytes)._asdict()


QUEUE_VERBS: dict[str, Callable[..., Any]] = {
    "fill": fill,
    "work": work,
    "produce": produce,
    "call_by_call": call_by_call,
    "pace": pace,
}
LIMIT_VERBS: dict[str, Callable[..., Any]] = {"drain": drain, "insert": insert}


def main(name: str, verb: str, arguments: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    system, options = load(name), json.loads(arguments)
    if isinstance(system, PoolSystem):
        del options["folder"]
        answer = pool_child.VERBS[verb](system, **options)
    elif verb in LIMIT_VERBS:
        answer = LIMIT_VERBS[verb](system, **options)
    else:
        system.open(Path(options.pop("folder")), options.pop("concurrency"))
        try:
            answer = QUEUE_VERBS[verb](system, **options)
        finally:
            system.close()
    print(json.dumps(answer), flush=True)


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
