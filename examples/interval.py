"""A task that comes back: `interval` seconds after each success, under the same id.

    python examples/interval.py

The next run is stored in the same write as the result, so it survives the worker. Missed runs are not made
up for. A run that fails is retried first; if it fails for good, `on_failure="continue"` lets the task come
back all the same, and the default, "stop", ends it as FAILED.
"""

import tempfile
import threading
from pathlib import Path

from loguru import logger

from omniq import OmniQ, context

logger.disable("omniq")

folder = tempfile.TemporaryDirectory()
q = OmniQ(f"sqlite:///{Path(folder.name) / 'jobs.db'}")
third_run = threading.Event()


@q.task(interval=0.2, on_failure="continue", unique_key="heartbeat")
def heartbeat() -> int:
    """`epoch` counts the runs of this task; `attempt` is 1 again after each success."""
    run = context()
    print(f"beat {run.epoch}, attempt {run.attempt}")
    if run.epoch == 3:
        third_run.set()
    return run.epoch


def main() -> None:
    handle = heartbeat.enqueue()
    again = heartbeat.enqueue()  # every process may do this at its start: the unique key keeps it one task
    print("one task:", handle.id == again.id)

    with q.worker(concurrency=2):
        assert third_run.wait(timeout=10)
        print("latest result is a number:", isinstance(handle.result(timeout=10), int))
    print("between two runs it is", handle.status())
    print("after cancel it is", handle.cancel())


if __name__ == "__main__":
    with folder, q:
        main()
