"""Bodies that do what no body should: each ends as something that people can read, and the worker lives."""

import asyncio
import threading
from pathlib import Path

import pytest

from omniq import AsyncWorkerPool, Context, InvalidOption, Retry, Task, TaskStatus, WorkerPool
from omniq.executors import CANCEL_GRACE_S
from omniq.storage import MemoryStorage, SQLiteStorage
from omniq.task import MAX_TYPE_CHARS
from tests.worker.scene import Logs, await_final, ended, running, until_blocking
from tests.worker.stores import AnyStore

HERE = __name__


class Forgetful(Retry):
    """A signal whose own constructor forgets to call its parent's."""

    def __init__(self) -> None:
        pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Obliging(Exception):
    """Such as a wrapper of an answer: has something to say to every name that it is asked for."""

    def __getattr__(self, name: str) -> str:
        return name


class Rude(Exception):
    def __getattr__(self, name: str) -> str:
        raise RuntimeError("do not ask")


class Untouchable:
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("not even its class can be asked for")


def forgetful() -> None:
    raise Forgetful


async def forgetful_too() -> None:
    raise Forgetful


async def obliging() -> None:
    raise Obliging


async def rude() -> None:
    await asyncio.sleep(0)
    raise Rude


def unprintable() -> None:
    raise Unprintable


def untouchable() -> object:
    return Untouchable()


@pytest.mark.parametrize(
    "body", ["forgetful", "forgetful_too", "unprintable", "untouchable", "obliging", "rude"]
)
async def test_an_outcome_that_cannot_be_made_is_a_failure(body: str) -> None:
    async with MemoryStorage() as storage:
        task_id = await storage.enqueue(Task(f"{HERE}.{body}", max_retries=0))
        async with AsyncWorkerPool(storage) as pool:
            result = await storage.wait_result(task_id, 10)
            assert pool.running
        assert result is not None
        assert result.status is TaskStatus.FAILED


@pytest.mark.parametrize("done", [float("nan"), float("inf"), "half", None, True])
def test_progress_takes_finite_numbers_only(done: float) -> None:
    context = Context("id", 1, 1, lambda *_: None)
    with pytest.raises(InvalidOption, match="finite"):
        context.progress(done)
    with pytest.raises(InvalidOption, match="finite"):
        context.progress(1, done if done is not None else "all")  # type: ignore[arg-type]


async def cancels_everything() -> str:
    for task in asyncio.all_tasks():
        task.cancel()
    return "done"


def test_a_body_that_cancels_all_tasks_ends_its_worker_but_not_for_nothing(
    tmp_path: Path, logs: Logs
) -> None:
    """Its own end is told when the worker stops: given back, it would do the same to the next worker."""
    storage = SQLiteStorage(tmp_path / "jobs.db")

    async def enqueue() -> str:
        async with storage.clone() as twin:
            return str(await twin.enqueue(Task(f"{HERE}.cancels_everything")))

    task_id = asyncio.run(enqueue())
    with WorkerPool(storage) as pool:
        until_blocking(lambda: not pool.running)
    assert await_final(storage, task_id) is TaskStatus.SUCCESS
    assert logs.levels_of("own asyncio task was cancelled") == {"WARNING"}


ignoring = threading.Event()


async def ignores_cancellation() -> None:
    ignoring.clear()
    while not ignoring.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


async def test_a_coroutine_that_ignores_its_timeout_fails_and_keeps_its_slot() -> None:
    async with MemoryStorage() as storage:
        task_id = await storage.enqueue(Task(f"{HERE}.ignores_cancellation", timeout=0.1, max_retries=0))
        pool = AsyncWorkerPool(storage, concurrency=1)
        await pool.start()
        result = await storage.wait_result(task_id, CANCEL_GRACE_S + 10)
        assert result is not None
        assert result.error is not None
        assert result.error.kind == "timeout"
        waiting = await storage.enqueue(Task("builtins.len", ("abc",)))
        assert await storage.wait_result(waiting, 0.3) is None, "its slot was given away"
        ignoring.set()
        done = await storage.wait_result(waiting, 10)
        assert done is not None
        assert done.result == 3
        await pool.stop()


async def waits_for_ever() -> None:
    await asyncio.Event().wait()


def test_a_loop_that_ends_without_a_stop_leaves_nothing_running(tmp_path: Path) -> None:
    """Nothing is renewed for nobody: the upkeep gives back what the dead loop held, and ends."""
    path = tmp_path / "jobs.db"

    storage = SQLiteStorage(path)

    async def begin() -> str:
        task_id = await storage.enqueue(Task(f"{HERE}.waits_for_ever"))
        await AsyncWorkerPool(storage, lease=1.0).start()
        for _ in range(1000):
            if (await storage.counts())["default"][TaskStatus.RUNNING]:
                break
            await asyncio.sleep(0.01)
        return task_id

    async def look(task_id: str) -> TaskStatus:
        async with SQLiteStorage(path) as other:
            for _ in range(1000):
                task = await other.get_task(task_id)
                assert task is not None
                if task.status is TaskStatus.PENDING:
                    assert task.losses == 0
                    break
                await asyncio.sleep(0.01)
            return task.status

    assert asyncio.run(look(asyncio.run(begin()))) is TaskStatus.PENDING
    storage.abandon()


class Unspeakable(Exception):
    """Its name can be stored nowhere as it is."""


Unspeakable.__qualname__ = "lone \ud800 surrogate, \x00"


class Endless(Exception):
    pass


Endless.__qualname__ = "E" * 1_000_000


def unspeakable() -> None:
    raise Unspeakable("x")


def endless() -> None:
    raise Endless("x")


@pytest.mark.parametrize("body", ["unspeakable", "endless"])
async def test_the_name_of_an_error_is_bounded_text(body: str, builtin: AnyStore) -> None:
    """S002-12: one task's failure never ends the worker, whatever the error is called."""
    async with builtin, running(builtin, poll_interval=0.02) as pool:
        task_id = await builtin.enqueue(Task(f"{HERE}.{body}", max_retries=0))
        error = (await ended(builtin, task_id)).error
        assert error is not None
        assert error.message == "x"
        assert len(error.type) <= MAX_TYPE_CHARS + 4
        assert error.type.encode().decode() == error.type
        assert "\x00" not in error.type
        assert pool.running


@pytest.mark.parametrize("done", [10**400, -(10**400)])
def test_progress_beyond_any_float_is_refused(done: int) -> None:
    context = Context("t", 1, 1, lambda *_: None)
    with pytest.raises(InvalidOption, match="finite"):
        context.progress(done)
    with pytest.raises(InvalidOption, match="finite"):
        context.progress(1, done)
