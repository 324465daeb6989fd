"""Tasks in processes: work for a CPU, a body that never ends, and one that takes its process along.

    python examples/processes.py

The functions travel to the processes by value, because this file is the program itself. In a module of an
application they travel by name.
"""

import os
import tempfile
import time
from pathlib import Path

from loguru import logger

from omniq import OmniQ, TaskFailed

logger.disable("omniq")  # leave this out to watch the worker

folder = tempfile.TemporaryDirectory()
q = OmniQ(f"sqlite:///{Path(folder.name) / 'jobs.db'}")


@q.task(executor="process", queue="cpu")
def count_primes(below: int) -> int:
    return sum(all(n % d for d in range(2, int(n**0.5) + 1)) for n in range(2, below))


@q.task(executor="process", queue="cpu")
def where_am_i() -> int:
    return os.getpid()


@q.task(executor="process", queue="cpu", timeout=0.5, max_retries=0)
def spin() -> None:
    """A thread could not be stopped here; a process can."""
    while True:
        time.sleep(0)


@q.task(executor="process", queue="cpu", max_losses=2)
def crash() -> None:
    os._exit(3)


def main() -> None:
    with q.worker():
        primes = q.enqueue_many([count_primes.call(below) for below in (10, 100, 1000)])
        print("primes:", [handle.result(timeout=30) for handle in primes])
        print("in another process:", where_am_i.enqueue().result(timeout=30) != os.getpid())
        for task in (spin, crash):
            try:
                task.enqueue().result(timeout=30)
            except TaskFailed as failed:
                assert failed.error is not None
                print(f"{task.__name__}: FAILED, kind {failed.error.kind}: {failed.error.message}")


if __name__ == "__main__":
    with folder, q:
        main()
