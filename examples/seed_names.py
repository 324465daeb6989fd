"""The plain names underneath: a storage, a `Task` with a path, and three ways to run it.

    python examples/seed_names.py

`OmniQ` and `@q.task` are made of these. Use them where tasks are described by data (a path and arguments)
rather than by functions that the program has at hand.
"""

import asyncio
import tempfile
from pathlib import Path

from loguru import logger

from omniq import AsyncWorkerPool, Task, TaskResult, TaskStatus, Worker, WorkerPool
from omniq.storage import SQLiteStorage

logger.disable("omniq")


def resize(name: str, width: int = 100) -> str:
    return f"{name} is {width} pixels wide"


async def fetch(name: str) -> str:
    await asyncio.sleep(0.05)
    return f"{name} was fetched"


async def result_of(storage: SQLiteStorage, task_id: str) -> str:
    result = await storage.wait_result(task_id, timeout=10)
    assert isinstance(result, TaskResult)
    assert result.status is TaskStatus.SUCCESS
    return str(result.result)


async def with_async_worker_pool(path: Path) -> None:
    """On a loop that runs anyway."""
    async with SQLiteStorage(path) as storage:
        task = Task(func_path=f"{__name__}.resize", args=("a.png",), kwargs={"width": 20}, max_retries=3)
        task_id = await storage.enqueue(task)
        pool = AsyncWorkerPool(storage, concurrency=10, poll_interval=1.0, base_retry_delay=1.0)
        await pool.start()
        print("AsyncWorkerPool:", await result_of(storage, task_id))
        await pool.stop()


def with_worker_pool(path: Path) -> None:
    """From a program without a loop: the pool brings its own, in a thread."""
    task = Task(func_path=f"{__name__}.fetch", args=("b.png",))

    async def enqueue_and_wait() -> str:
        async with SQLiteStorage(path) as storage:
            return await result_of(storage, await storage.enqueue(task))

    with WorkerPool(SQLiteStorage(path), concurrency=10):
        print("WorkerPool:", asyncio.run(enqueue_and_wait()))


async def with_worker(path: Path) -> None:
    """In the words reserve, mark_success, mark_failure. A failure is final here: nothing is retried."""
    async with SQLiteStorage(path) as storage:
        task_id = await storage.enqueue(Task(func_path=f"{__name__}.resize", args=("c.png",)))
        backend = storage.as_backend()
        worker = Worker(backend, max_concurrency=10, poll_interval=0.1)
        await worker.start()
        print("Worker:", await result_of(storage, task_id))
        await worker.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(with_async_worker_pool(Path(folder) / "jobs.db"))
        with_worker_pool(Path(folder) / "jobs.db")
        asyncio.run(with_worker(Path(folder) / "jobs.db"))
