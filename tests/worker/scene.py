"""What the tests of workers share: bodies that a worker can import, bounded waits, logs, pools that end."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from loguru import logger

from omniq import AsyncWorkerPool, Task, TaskStatus
from omniq.storage import BaseStorage
from omniq.task import TaskResult
from tests.worker.stores import Five, result_of, task_of

if TYPE_CHECKING:
    from loguru import Message

BOUND_S = 10.0
# For tests in real time: a storage that cannot wake is looked at often, and a retry comes soon.
QUICK: dict[str, Any] = {"poll_interval": 0.02, "base_retry_delay": 0.001}


class Bodies:
    """A module that one test fills with functions of its own, so that workers find them by their path."""

    def __init__(self) -> None:
        self.name = f"bodies_{secrets.token_hex(4)}"
        self.module = ModuleType(self.name)

    def __call__(self, func: Any, name: str | None = None) -> str:
        """Put `func` into the module; its path."""
        name = name or func.__name__
        setattr(self.module, name, func)
        return f"{self.name}.{name}"


class Logs:
    """Every record that was logged, at any level."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def lines(self, *levels: str) -> list[str]:
        wanted = [m for m in self.messages if not levels or m.record["level"].name in levels]
        return [message.record["message"] for message in wanted]

    def levels_of(self, text: str) -> set[str]:
        """The levels of the records that have `text` in their message."""
        return {m.record["level"].name for m in self.messages if text in m.record["message"]}

    def everything(self) -> str:
        """All that any handler could write: text, extra fields, tracebacks with values."""
        return "\n".join(f"{message} {message.record}" for message in self.messages)


async def until(condition: Callable[..., Any], *args: Any, within_s: float = BOUND_S) -> Any:
    """Wait until `condition(*args)` holds (it may be a coroutine function); fail if it never does."""
    end = time.monotonic() + within_s
    while True:
        value = condition(*args)
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < end, f"not within {within_s:g} s"
        await asyncio.sleep(0.002)


def until_blocking(condition: Callable[..., Any], *args: Any, within_s: float = BOUND_S) -> None:
    end = time.monotonic() + within_s
    while not condition(*args):
        assert time.monotonic() < end, f"not within {within_s:g} s"
        time.sleep(0.002)


async def ended(store: BaseStorage, task_id: str, within_s: float = BOUND_S) -> TaskResult:
    """How the task ended, once it has."""
    result: TaskResult = await until(result_of, store, task_id, within_s=within_s)
    return result


async def turns(n: int = 50) -> None:
    """Let everything that is ready on this loop run."""
    for _ in range(n):
        await asyncio.sleep(0)


@asynccontextmanager
async def running(storage: BaseStorage, *args: Any, **options: Any) -> AsyncIterator[AsyncWorkerPool]:
    """A started pool; after a failed test it is stopped by force, so that the failure is what one sees."""
    pool = AsyncWorkerPool(storage, *args, **options)
    await pool.start()
    try:
        yield pool
    except BaseException:
        with suppress(Exception):
            async with asyncio.timeout(BOUND_S):
                await pool.stop(timeout=0)
        raise
    await pool.stop()


async def enqueue(store: BaseStorage, task: Task) -> None:
    """From a loop of its own, as another part of the application would."""
    if isinstance(store, Five):
        await store.enqueue(task)
        return
    async with store.clone() as twin:
        await twin.enqueue(task)


def await_final(store: BaseStorage, task_id: str) -> TaskStatus:
    """The status after everything was closed, as another program would read it."""

    async def look() -> TaskStatus:
        if isinstance(store, Five):
            return (await task_of(store, task_id)).status
        async with store.clone() as twin:
            return (await task_of(twin, task_id)).status

    box: list[TaskStatus] = []
    thread = threading.Thread(target=lambda: box.append(asyncio.run(look())))
    thread.start()
    thread.join()
    return box[0]


def omniq_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("omniq")}


def import_module(bodies: Bodies) -> None:
    sys.modules[bodies.name] = bodies.module


def forget_module(bodies: Bodies) -> None:
    sys.modules.pop(bodies.name, None)


def capture(logs: Logs) -> int:
    """Let `logs` see every record, with the values that loguru can show beside a traceback."""
    return logger.add(
        logs.messages.append, level=0, format="{message} {extra}", diagnose=True, backtrace=True
    )
