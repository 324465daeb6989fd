"""What becomes of a task that fails, hangs, or knows better.

    python examples/retries_and_timeouts.py

Retries wait twice as long each time (here from 50 ms, so that the example is over soon; the default is one
second). A body can also decide for itself: `Retry`, `Snooze`, `GiveUp`.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from loguru import logger

from omniq import GiveUp, OmniQ, Retry, Snooze, TaskFailed, TaskHandle, context

logger.disable("omniq")

folder = tempfile.TemporaryDirectory()
q = OmniQ(f"sqlite:///{Path(folder.name) / 'jobs.db'}")


@q.task(max_retries=3)
def flaky() -> str:
    """Fails twice. `attempt` is 1 on the first run and is stored with the task, not in the worker."""
    attempt = context().attempt
    if attempt < 3:
        raise ConnectionError("nobody answers")
    return f"worked at attempt {attempt}"


@q.task(timeout=0.2, max_retries=1)
async def slow() -> None:
    """Hangs. Both runs are cut off, and the error's kind says why."""
    await asyncio.sleep(60)


@q.task
def rate_limited() -> str:
    """Asks for a retry at a moment of its own choice; it costs one attempt."""
    if context().attempt == 1:
        raise Retry(delay=0.1, reason="429 Too Many Requests")
    return "accepted after a pause"


@q.task(max_retries=0)
def not_yet(marker: str) -> str:
    """Is not ready. A snooze costs nothing: not even `max_retries=0` is used up by it."""
    if context().epoch <= 2:
        raise Snooze(0.1)
    return f"ready at claim {context().epoch}"


@q.task(max_retries=1000)
def hopeless(address: str) -> None:
    """Knows that no retry will help."""
    raise GiveUp(f"{address} has no mailbox")


def main() -> None:
    handles: dict[str, TaskHandle[Any]] = {
        "flaky": flaky.enqueue(),
        "slow": slow.enqueue(),
        "rate_limited": rate_limited.enqueue(),
        "not_yet": not_yet.enqueue("report"),
        "hopeless": hopeless.enqueue("nobody@example.org"),
    }
    with q.worker(concurrency=10, base_retry_delay=0.05):
        for name, handle in handles.items():
            try:
                print(f"{name}: {handle.result(timeout=20)}")
            except TaskFailed as failed:
                assert failed.error is not None
                print(f"{name}: FAILED, kind {failed.error.kind}: {failed.error}")


if __name__ == "__main__":
    with folder, q:
        main()
