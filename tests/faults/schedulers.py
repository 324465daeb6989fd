"""A program of several schedulers on one store: killed and started at random, their clocks apart.

    python -m tests.faults.schedulers FILE SECONDS EVERY SEED

Each is a process of its own that only fires. It prints how many were killed.
"""

import asyncio
import os
import random
import signal
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

from omniq.clock import RealClock
from omniq.storage import SQLiteStorage

SCHEDULERS = 5
SKEWS_S = (-3.0, -1.0, 0.0, 0.5, 3.0)


class Skewed(RealClock):
    """A wall clock that is wrong."""

    def __init__(self, by_s: float) -> None:
        self._by = timedelta(seconds=by_s)

    def now(self) -> datetime:
        return super().now() + self._by


async def fire(path: Path, skew_s: float, busy_s: float) -> None:
    async with SQLiteStorage(path, clock=Skewed(skew_s), durability="relaxed") as storage:
        while True:
            await storage.fire_due()
            await asyncio.sleep(busy_s)


def start(path: Path, skew_s: float, busy_s: float) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(fire(path, skew_s, busy_s))
        finally:
            os._exit(1)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main(path: str, seconds: str, every: str, seed: str) -> None:
    chance, killed = random.Random(seed), 0
    busy_s = float(every) / 5
    living = [start(Path(path), skew_s, busy_s) for skew_s in SKEWS_S]
    try:
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            time.sleep(chance.uniform(0.02, 0.3))
            which = chance.randrange(SCHEDULERS)
            kill(living[which])
            killed += 1
            living[which] = start(Path(path), SKEWS_S[which], busy_s)
    finally:
        for pid in living:
            kill(pid)
    print(killed)


if __name__ == "__main__":
    main(*sys.argv[1:])
