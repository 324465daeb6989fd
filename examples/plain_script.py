"""Everything in one file: define tasks, enqueue them, run a worker in this very process, read the results.

    python examples/plain_script.py

The tasks lie in a SQLite file until a worker has run them. In a larger program the worker is a process of
its own (`omniq worker plain_script:q`), and the rest stays as it is here.
"""

import asyncio
import tempfile
from pathlib import Path

from loguru import logger

from omniq import OmniQ, TaskFailed

logger.disable("omniq")  # leave this out to watch the worker

folder = tempfile.TemporaryDirectory()
q = OmniQ(f"sqlite:///{Path(folder.name) / 'jobs.db'}")


@q.task
def add(a: int, b: int) -> int:
    """An ordinary function. A worker runs it in a thread."""
    return a + b


@q.task(queue="mail", timeout=5)
async def send(to: str, body: str) -> str:
    """A coroutine. A worker awaits it on its event loop."""
    await asyncio.sleep(0.05)
    return f"sent {len(body)} characters to {to}"


@q.task(max_retries=0)
def divide(a: int, b: int) -> float:
    return a / b


def main() -> None:
    total = add.enqueue(2, 3)  # when this returns, the task is on disk
    mail = send.options(priority=5).enqueue("ann@example.org", body="hello")
    many = q.enqueue_many([add.call(n, n) for n in range(5)])  # all of them, or none
    wrong = divide.enqueue(1, 0)
    print("before a worker runs:", total.status())

    with q.worker(concurrency=10):
        print("2 + 3 =", total.result(timeout=10))
        print(mail.result(timeout=10))
        print("doubled:", [handle.result(timeout=10) for handle in many])
        try:
            wrong.result(timeout=10)
        except TaskFailed as failed:
            print("failed:", failed.error)

    print("an ordinary call still works: 4 + 4 =", add(4, 4))


if __name__ == "__main__":
    with folder, q:
        main()
