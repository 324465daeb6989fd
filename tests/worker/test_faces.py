"""The blocking face `WorkerPool`, from plain code and from the wrong place."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omniq import (
    AsyncWorkerPool,
    BlockingCallInLoop,
    InvalidOption,
    PoolNotRunning,
    Task,
    TaskStatus,
    Worker,
    WorkerPool,
    crew,
    loopthread,
    worker,
)
from omniq.storage import SQLiteStorage
from tests.worker.scene import Bodies, await_final, enqueue, omniq_threads, until_blocking
from tests.worker.stores import AnyStore, Memory


def test_takes_the_same_arguments() -> None:
    """`WorkerPool(storage, ...same...)`: whatever `AsyncWorkerPool` takes."""
    options = dict.fromkeys(inspect.signature(AsyncWorkerPool).parameters)
    given: dict[str, Any] = {"concurrency": 3, "poll_interval": 2, "queues": ["a"], "lease": 5, "wake": False}
    assert set(given) <= set(options)
    pool = WorkerPool(Memory(), **given)
    assert (pool.concurrency, pool.running) == (3, False)
    assert WorkerPool(Memory(), 7, 0.5, 2.0).concurrency == 7
    with pytest.raises((InvalidOption, TypeError)):
        WorkerPool(Memory(), no_such_option=1)


def test_with_statement(store: AnyStore) -> None:
    with WorkerPool(store, 2, poll_interval=0.02) as pool:
        assert pool.running
        asyncio.run(enqueue(store, Task("json.dumps", (1,), id="t")))
        until_blocking(lambda: await_final(store, "t") is TaskStatus.SUCCESS)
    assert not pool.running


def test_inside_a_running_loop_it_raises_and_names_the_twin() -> None:
    """A blocking face inside a running loop raises, and nothing is left running."""
    before = omniq_threads()
    pool = WorkerPool(Memory())

    async def main() -> None:
        with pytest.raises(BlockingCallInLoop, match="AsyncWorkerPool"):
            pool.start()
        with pytest.raises(BlockingCallInLoop, match="AsyncWorkerPool"):
            pool.run()

    asyncio.run(main())
    assert not pool.running
    until_blocking(lambda: omniq_threads() <= before)
    pool.start()

    async def also() -> None:
        with pytest.raises(BlockingCallInLoop, match="AsyncWorkerPool"):
            pool.wait()
        with pytest.raises(BlockingCallInLoop, match="AsyncWorkerPool"):
            pool.stop()

    asyncio.run(also())
    assert pool.running, "a stop that was refused must not have stopped anything"
    pool.stop()
    assert not pool.running
    until_blocking(lambda: omniq_threads() <= before)


def test_wait_returns_when_somebody_stops_it(store: AnyStore) -> None:
    pool = WorkerPool(store, poll_interval=0.02)
    with pytest.raises(PoolNotRunning, match="start"):
        pool.wait()
    pool.start()
    waiting = threading.Thread(target=pool.wait)
    waiting.start()
    pool.stop()
    waiting.join(10)
    assert not waiting.is_alive()


def test_the_storage_stays_its_owners(tmp_path: Path) -> None:
    """A storage that is open on one loop is used through a clone, and stays open there."""

    async def main() -> None:
        async with SQLiteStorage(tmp_path / "jobs.db") as storage:
            pool = WorkerPool(storage, poll_interval=0.02)
            await asyncio.to_thread(pool.start)
            try:
                task_id = await storage.enqueue(Task("json.dumps", (1,)))
                result = await storage.wait_result(task_id, 10)
            finally:
                await asyncio.to_thread(pool.stop)
            assert result is not None
            assert result.result == "1"
            assert storage.is_open

    asyncio.run(main())


def test_several_pools_in_one_process(tmp_path: Path, bodies: Bodies) -> None:
    """Each in a thread and loop of its own, on one file: every task runs once."""
    runs: list[int] = []
    storage = SQLiteStorage(tmp_path / "jobs.db", durability="relaxed")

    async def put() -> list[str]:
        async with storage.clone() as twin:
            tasks = [Task(path, (n,)) for n in range(60)]
            return [str(i) for i in await twin.enqueue_many(tasks)]

    async def all_ended() -> bool:
        async with storage.clone() as twin:
            return {t.status for t in await twin.list_tasks()} == {TaskStatus.SUCCESS}

    path = bodies(runs.append, "body")
    pools = [WorkerPool(storage, 4, poll_interval=0.05) for _ in range(3)]
    for pool in pools:
        pool.start()
    try:
        ids = asyncio.run(put())
        until_blocking(lambda: asyncio.run(all_ended()))
    finally:
        for pool in pools:
            pool.stop()
    assert len(ids) == 60
    assert sorted(runs) == list(range(60))


SCRIPT = """
import os, signal, sys, threading, traceback
from omniq import WorkerPool
from omniq.storage import MemoryStorage

pool = WorkerPool(MemoryStorage())


def waits():
    stack = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident])
    return any(frame.name == "wait" and "worker" in frame.filename for frame in stack)


def interrupt():
    while not waits():
        threading.Event().wait(0.01)
    os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=interrupt, daemon=True).start()
pool.run()
print("stopped in good order", pool.running)
"""

LEFT_RUNNING = """
from omniq import WorkerPool
from omniq.storage import SQLiteStorage

pool = WorkerPool(SQLiteStorage("jobs.db"), 2)
pool.start()
print("leaving")
"""

STUCK_GENERATOR = """
import asyncio
from omniq.loopthread import LoopThread

async def endless():
    try:
        yield 1
    finally:
        await asyncio.Event().wait()

async def begin():
    global stuck
    stuck = endless()
    await anext(stuck)

with LoopThread("stuck") as thread:
    thread.run(begin())
print("leaving")
"""

STUCK_THREAD = """
import asyncio, sys, threading
from omniq import AsyncWorkerPool, Task
from omniq.storage import MemoryStorage

inside = threading.Event()

def body():
    inside.set()
    threading.Event().wait()

sys.modules["stuck"] = sys.modules["__main__"]

async def main():
    async with MemoryStorage() as store:
        await store.enqueue(Task("stuck.body"))
        pool = AsyncWorkerPool(store, 2)
        await pool.start()
        while not inside.is_set():
            await asyncio.sleep(0.01)
        await pool.stop(timeout=0)

asyncio.run(main())
print("leaving")
"""


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (SCRIPT, "stopped in good order False"),  # Ctrl-C during run()
        (LEFT_RUNNING, "leaving"),  # a pool that nobody stops does not keep the interpreter
        (STUCK_THREAD, "leaving"),  # nor does the thread of a body that never returns
        (STUCK_GENERATOR, "leaving"),  # nor an async generator that does not want to end
    ],
    ids=["interrupted", "left running", "stuck thread", "stuck generator"],
)
def test_a_program_with_a_pool_ends(script: str, says: str, tmp_path: Path) -> None:
    begun = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert run.returncode == 0, run.stderr
    assert says in run.stdout
    assert "Traceback" not in run.stderr
    assert time.monotonic() - begun < 20


INTERRUPTED_TWICE = """
import asyncio, os, signal, sys, threading, traceback
from omniq import Task, WorkerPool
from omniq.storage import SQLiteStorage

inside = threading.Event()

async def waits():
    inside.set()
    await asyncio.Event().wait()

def blocks():
    inside.set()
    threading.Event().wait()

async def put():
    async with SQLiteStorage("jobs.db") as store:
        await store.enqueue(Task("twice." + sys.argv[1], id="t"))

def main_thread_is_in(function):
    stack = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident])
    return any(frame.name == function and "omniq/worker" in frame.filename for frame in stack)

def interrupt():
    inside.wait()
    for function in ("wait", "stop"):
        while not main_thread_is_in(function):
            threading.Event().wait(0.01)
        threading.Event().wait(0.1)
        os.kill(os.getpid(), signal.SIGINT)

sys.modules["twice"] = sys.modules["__main__"]
asyncio.run(put())
threading.Thread(target=interrupt, daemon=True).start()
WorkerPool(SQLiteStorage("jobs.db"), 2).run()
"""


@pytest.mark.parametrize("body", ["waits", "blocks"])
def test_a_second_interrupt_gives_back_what_runs(body: str, tmp_path: Path) -> None:
    """SEMANTICS 7: whoever is that impatient leaves no row RUNNING, and nothing was spent."""
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_TWICE, body],
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert run.returncode == -signal.SIGINT, run.stderr

    async def look() -> Task:
        async with SQLiteStorage(tmp_path / "jobs.db") as store:
            task = await store.get_task("t")
            assert task is not None
            return task

    task = asyncio.run(look())
    assert (task.status, task.attempts, task.losses) == (TaskStatus.PENDING, 0, 0)


def test_worker_is_async_only() -> None:
    for verb in ("start", "stop"):
        assert inspect.iscoroutinefunction(getattr(Worker, verb))
        assert inspect.iscoroutinefunction(getattr(AsyncWorkerPool, verb))
        assert not inspect.iscoroutinefunction(getattr(WorkerPool, verb))


# --- several threads at once ---------------------------------------------------------------------


def in_threads(work: Callable[[], object], n: int = 4) -> list[BaseException]:
    """Do `work` in `n` threads at the same moment; what they raised."""
    barrier, raised = threading.Barrier(n), list[BaseException]()

    def one() -> None:
        barrier.wait()
        try:
            work()
        except BaseException as exc:
            raised.append(exc)

    threads = [threading.Thread(target=one) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_starts_from_several_threads_make_one_worker(tmp_path: Path) -> None:
    """S000-23: no thread is left over, whoever started."""
    before = omniq_threads()
    pool = WorkerPool(SQLiteStorage(tmp_path / "jobs.db"))
    for _ in range(10):
        assert in_threads(pool.start) == []
        assert pool.running
        assert len([t for t in omniq_threads() - before if t.name == "omniq-worker"]) == 1
        pool.stop()
        assert not pool.running
    until_blocking(lambda: omniq_threads() <= before)


def test_stops_from_several_threads_all_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)
    before = omniq_threads()
    pool = WorkerPool(SQLiteStorage(tmp_path / "jobs.db"))
    for _ in range(20):
        pool.start()
        assert in_threads(pool.stop) == []
        assert not pool.running
    until_blocking(lambda: omniq_threads() <= before)
    assert broken == []


@pytest.mark.parametrize("how", ["ignores cancellation", "waits for a thread"])
def test_a_stop_with_a_limit_returns_whatever_is_left_on_its_loop(
    bodies: Bodies, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A coroutine that swallows every cancellation, and a thread that nobody can end."""
    for module in (worker, crew):
        monkeypatch.setattr(module, "CANCEL_GRACE_S", 0.1)
    monkeypatch.setattr(loopthread, "LAST_WORDS_S", 0.1)
    released = threading.Event()

    async def deaf() -> None:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    async def waits() -> None:
        await asyncio.to_thread(released.wait)

    store = Memory()
    asyncio.run(enqueue(store, Task(bodies(deaf if how == "ignores cancellation" else waits), id="t")))
    pool = WorkerPool(store)
    pool.start()
    until_blocking(lambda: "t" in store.log.ids("claimed"))
    pool.stop(timeout=0)
    assert not pool.running
    assert await_final(store, "t") is TaskStatus.PENDING
    released.set()


def test_a_bad_timeout_of_stop_ends_nothing(bodies: Bodies) -> None:
    """Refused before anything has ended: bodies go on, and the worker claims the next task."""
    store, began, gate = Memory(), threading.Event(), threading.Event()

    def waits() -> str:
        began.set()
        gate.wait(5)
        return "done"

    pool = WorkerPool(store, poll_interval=0.02)
    pool.start()
    asyncio.run(enqueue(store, Task(bodies(waits), id="t", max_retries=0)))
    assert began.wait(5)
    with pytest.raises(InvalidOption, match="timeout"):
        pool.stop(timeout=-1)
    assert pool.running
    gate.set()
    until_blocking(lambda: await_final(store, "t") is TaskStatus.SUCCESS)
    pool.stop()


def test_a_thread_body_that_would_wait_for_itself_is_told(bodies: Bodies) -> None:
    store = Memory()
    pool = WorkerPool(store, poll_interval=0.02)
    said: list[str] = []

    def body() -> None:
        try:
            pool.stop()
        except InvalidOption as exc:
            said.append(str(exc))

    with pool:
        asyncio.run(enqueue(store, Task(bodies(body), id="t")))
        until_blocking(lambda: said or await_final(store, "t") is TaskStatus.SUCCESS)
    assert "stop(timeout=" in said[0]
