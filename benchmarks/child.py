"""What runs in the processes that are measured: `python -m benchmarks.child SYSTEM VERB ARGUMENTS`.

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

from benchmarks import pool_child
from benchmarks.pool_base import PoolSystem
from benchmarks.systems import load
from benchmarks.systems.base import Body, Face, Limit, Reached, System


def fill(system: System, *, tasks: int, body: Body) -> None:
    system.fill(tasks, body)


def work(system: System, *, tasks: int, body: Body) -> None:
    """Run tasks until told to stop; first let some wait, where no other process could."""
    if tasks:
        system.fill(tasks, body)
    system.work()


def produce(
    system: System, *, face: Face, tasks: int, limit_s: float, width: int, bulk: int
) -> dict[str, Any]:
    """Enqueue until there are `tasks`, or until the time is over."""
    start, cpu_start = time.perf_counter(), time.process_time()
    end_at = start + limit_s
    match face:
        case "blocking":
            done = _one_by_one(system, tasks, end_at)
        case "bulk":
            done = _in_bulk(system, tasks, end_at, bulk)
        case "async":
            done = asyncio.run(_side_by_side(system, tasks, end_at, 1))
        case "in-flight":
            done = asyncio.run(_side_by_side(system, tasks, end_at, width))
    return Reached(done, time.perf_counter() - start, time.process_time() - cpu_start)._asdict()


def _one_by_one(system: System, tasks: int, end_at: float) -> int:
    done = 0
    while done < tasks and time.perf_counter() < end_at:
        system.put(time.time())
        done += 1
    return done


def _in_bulk(system: System, tasks: int, end_at: float, bulk: int) -> int:
    done = 0
    while done < tasks and time.perf_counter() < end_at:
        system.put_many([time.time()] * bulk)
        done += bulk
    return done


async def _side_by_side(system: System, tasks: int, end_at: float, width: int) -> int:
    done = 0

    async def one_after_another() -> None:
        nonlocal done
        while done < tasks and time.perf_counter() < end_at:
            done += 1
            await system.aput(time.time())

    try:
        await asyncio.gather(*(one_after_another() for _ in range(width)))
    finally:
        await system.aclose()
    return done


def pace(system: System, *, tasks: int, gap_s: float) -> None:
    """Enqueue one task after another, `gap_s` apart."""
    next_at = time.perf_counter()
    for _ in range(tasks):
        system.put(time.time())
        next_at += gap_s
        time.sleep(max(0.0, next_at - time.perf_counter()))


def drain(system: System, *, folder: str, tasks: int, batch: int, limit_s: float) -> dict[str, Any]:
    assert isinstance(system, Limit)
    return system.drain(Path(folder), tasks, batch, limit_s)._asdict()


def insert(system: System, *, folder: str, tasks: int, batch: int, limit_s: float) -> dict[str, Any]:
    assert isinstance(system, Limit)
    return system.insert(Path(folder), tasks, batch, limit_s)._asdict()


QUEUE_VERBS: dict[str, Callable[..., Any]] = {"fill": fill, "work": work, "produce": produce, "pace": pace}
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
