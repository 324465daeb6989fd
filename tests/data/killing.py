"""Somebody who kills workers of a data pool while it works."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from omniq.data import WorkerPool


@contextmanager
def killing(pool: WorkerPool, every_s: float, seed: int = 1) -> Iterator[list[int]]:
    """Meanwhile a worker is killed now and then; gives those that were."""
    killed: list[int] = []
    is_over = threading.Event()
    chance = random.Random(seed)

    def kill() -> None:
        while not is_over.wait(every_s):
            if found := pool.pids:
                with suppress(ProcessLookupError):
                    os.kill(victim := chance.choice(found), signal.SIGKILL)
                    killed.append(victim)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        is_over.set()
        thread.join()
