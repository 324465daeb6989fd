"""Somebody who kills workers of a data pool while it works."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator, Sized
from contextlib import contextmanager, suppress

from omniq.data import WorkerPool

GROWN = 3  # results between two kills


@contextmanager
def killing(pool: WorkerPool, every_s: float, seed: int = 1, got: Sized | None = None) -> Iterator[list[int]]:
    """Meanwhile a worker is killed now and then; gives those that were.

    With `got`, what the reader has, nobody is killed before it has grown: on a slow machine the same item
    would be killed again and again, until it counts as deadly.
    """
    killed: list[int] = []
    is_over = threading.Event()
    chance = random.Random(seed)

    def kill() -> None:
        had = 0
        while not is_over.wait(every_s):
            if got is not None and len(got) < had + GROWN:
                continue
            had = 0 if got is None else len(got)
            # One that is dead and not missed yet does not count twice.
            if found := [pid for pid in pool.pids if pid not in killed]:
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
