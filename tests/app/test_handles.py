"""Handles, in both faces: status, result, cancel, retry, progress, and what they raise."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from omniq import (
    BlockingCallInLoop,
    Conflict,
    InvalidOption,
    NotFound,
    OmniQ,
    ResultTimeout,
    TaskCancelled,
    TaskFailed,
    TaskStatus,
)
from omniq.serializer import CloudpickleSerializer
from omniq.storage import MemoryStorage, SQLiteStorage
from omniq.storage.embedded import EmbeddedStorage
from tests.app.tasks import Made
from tests.worker.scene import omniq_threads, until, until_blocking


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    return Made(MemoryStorage() if request.param == "memory" else SQLiteStorage(tmp_path / "jobs.db"))


# --- the blocking face ---------------------------------------------------------------------------


def test_plain_code(app: Made) -> None:
    before = omniq_threads()
    with app.q, app.q.worker(concurrency=4, poll_interval=0.05):
        handle = app.add.enqueue(2, b=3)
        assert handle.created
        assert handle.result(timeout=10) == 5
        assert handle.status() is TaskStatus.SUCCESS
        assert app.aadd.enqueue(20, 22).result(timeout=10) == 42
        many = app.q.enqueue_many([app.add.call(n) for n in range(3)])
        assert [one.result(timeout=10) for one in many] == [10, 11, 12]
        again = app.q.handle(handle.id)
        assert again.result(timeout=10) == 5
        with pytest.raises(TaskFailed, match="no stock") as failure:
            app.fail.enqueue("no stock").result(timeout=10)
        assert failure.value.error is not None
        assert failure.value.error.type == "GiveUp"
    until_blocking(lambda: omniq_threads() <= before)


def test_waiting_and_steering(app: Made) -> None:
    with app.q:
        handle = app.add.enqueue(1)
        assert handle.status() is TaskStatus.PENDING
        begun = time.monotonic()
        with pytest.raises(ResultTimeout, match=f"`omniq why {handle.id}`") as late:
            handle.result(timeout=0.1)
        assert isinstance(late.value, TimeoutError)
        assert 0.09 <= time.monotonic() - begun < 5  # a loop's timer may be a hair early
        with pytest.raises(ResultTimeout):
            handle.result(timeout=0)
        assert handle.cancel() is TaskStatus.CANCELLED
        with pytest.raises(TaskCancelled):
            handle.result(timeout=1)
        handle.retry()
        assert handle.status() is TaskStatus.PENDING
        with app.q.worker(poll_interval=0.05):
            assert handle.result(timeout=10) == 11
        with pytest.raises(Conflict):
            handle.retry()


def test_unknown_ids(app: Made) -> None:
    with app.q:
        ghost = app.q.handle("no-such-task")
        for ask in (ghost.status, ghost.cancel, ghost.retry, lambda: ghost.result(timeout=1)):
            with pytest.raises(NotFound, match="no-such-task"):
                ask()


@pytest.mark.parametrize("timeout", ["soon", float("nan"), True])
def test_a_bad_timeout(app: Made, timeout: Any) -> None:
    with app.q:
        handle = app.add.enqueue(1)
        with pytest.raises(InvalidOption, match="timeout"):
            handle.result(timeout=timeout)


def test_from_many_threads_at_once(app: Made) -> None:
    results: list[int] = []
    with app.q, app.q.worker(concurrency=8, poll_interval=0.05):
        threads = [
            threading.Thread(target=lambda n=n: results.append(app.add.enqueue(n).result(timeout=20)))
            for n in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == [n + 10 for n in range(12)]


def test_can_be_used_again_after_close(app: Made) -> None:
    for n in range(3):
        handle = app.add.enqueue(n)
        assert handle.status() is TaskStatus.PENDING
        app.q.close()
    app.q.close()


def test_inside_a_loop_it_raises_and_names_the_twin(app: Made) -> None:
    """Every blocking face, and nothing was done."""
    before = omniq_threads()
    handle = app.add.enqueue(1)
    faces = {
        "add.aenqueue": lambda: app.add.enqueue(1),
        "q.aenqueue_many": lambda: app.q.enqueue_many([app.add.call(1)]),
        "handle.aresult": lambda: handle.result(timeout=1),
        "handle.astatus": handle.status,
        "handle.acancel": handle.cancel,
        "handle.aretry": handle.retry,
        "handle.aprogress": handle.progress,
        "q.aclose": app.q.close,
    }

    async def main() -> None:
        for twin, face in faces.items():
            with pytest.raises(BlockingCallInLoop, match=twin):
                face()

    asyncio.run(main())
    assert handle.status() is TaskStatus.PENDING
    app.q.close()
    until_blocking(lambda: omniq_threads() <= before)


# --- the async face ------------------------------------------------------------------------------


async def test_async_code(app: Made) -> None:
    async with app.q as q, q.async_worker(concurrency=4, poll_interval=0.05):
        handle = await app.add.aenqueue(2, b=3)
        assert await handle.aresult(timeout=10) == 5
        assert await handle.astatus() is TaskStatus.SUCCESS
        assert await (await app.aadd.aenqueue(20, 22)).aresult() == 42
        many = await q.aenqueue_many([app.add.call(n) for n in range(3)])
        assert await asyncio.gather(*(one.aresult(timeout=10) for one in many)) == [10, 11, 12]
        with pytest.raises(TaskFailed, match="no stock"):
            await (await app.fail.aenqueue("no stock")).aresult(timeout=10)
        with pytest.raises(NotFound):
            await q.handle("no-such-task").aresult(timeout=1)


async def test_a_task_that_is_retried_as_soon_as_it_fails_is_waited_for(
    app: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end and the look of whoever waits, somebody retried it: it has not ended."""
    async with app.q as q:
        handle = await app.fail.aenqueue("once")
        storage = await q.astorage()
        assert isinstance(storage, EmbeddedStorage)
        results = storage._results
        assert results is not None
        tell, told = results._tell_ended, asyncio.Event()

        def tell_late(ids: set[str]) -> None:
            tell(ids)
            if ids and not told.is_set():
                storage._write_here(lambda rows: rows.retry(handle.id), [])
                told.set()

        monkeypatch.setattr(results, "_tell_ended", tell_late)
        waiting = asyncio.create_task(handle.aresult(timeout=20))
        async with q.async_worker(poll_interval=0.05):
            await told.wait()
            with pytest.raises(TaskFailed, match="once"):
                await waiting
        assert [run.epoch for run in await storage.history(handle.id)] == [1, 2]


@pytest.mark.quiet
async def test_cancel_a_running_task(app: Made) -> None:
    async with app.q as q, q.async_worker(concurrency=2, poll_interval=0.05):
        handle = await app.forever.aenqueue()

        async def runs() -> bool:
            return await handle.astatus() is TaskStatus.RUNNING

        await until(runs)
        begun = time.monotonic()
        assert await handle.acancel() is TaskStatus.RUNNING
        with pytest.raises(TaskCancelled):
            await handle.aresult(timeout=10)
        assert time.monotonic() - begun < 2
        await handle.aretry()
        await until(runs)
        await handle.acancel()


async def test_progress(app: Made) -> None:
    async with app.q as q, q.async_worker(concurrency=2, poll_interval=0.05, lease=0.3):
        handle = await app.report.aenqueue(done=4)

        async def progress() -> Any:
            return await handle.aprogress()

        assert await until(progress) == (4, 10)
        assert await handle.aresult(timeout=10) == handle.id


async def test_a_result_that_comes_while_waiting_is_pushed(app: Made) -> None:
    async with app.q as q:
        handle = await app.add.aenqueue(1)
        waiting = asyncio.create_task(handle.aresult(timeout=20))
        await asyncio.sleep(0)
        async with q.async_worker(concurrency=1, poll_interval=0.05):
            assert await waiting == 11


async def test_every_loop_has_a_storage_of_its_own(app: Made) -> None:
    """The same application on two loops at once, and from plain threads beside them."""

    async def elsewhere(n: int) -> int:
        handle = await app.add.aenqueue(n)
        try:
            return await handle.aresult(timeout=20)
        finally:
            await app.q.aclose()

    async with app.q as q, q.async_worker(concurrency=4, poll_interval=0.05):
        here = await app.add.aenqueue(1)
        there = await asyncio.gather(*(asyncio.to_thread(asyncio.run, elsewhere(n)) for n in (2, 3)))
        plain = await asyncio.to_thread(lambda: app.add.enqueue(4).result(timeout=20))
        assert [await here.aresult(timeout=20), *there, plain] == [11, 12, 13, 14]
    await asyncio.to_thread(app.q.close)


def test_a_given_storage_that_is_open_elsewhere(tmp_path: Path) -> None:
    """It belongs to the loop that opened it; the application uses clones."""
    for storage in (MemoryStorage(), SQLiteStorage(tmp_path / "jobs.db")):
        app = Made(storage)

        async def main(storage: Any = storage, app: Made = app) -> None:
            async with storage:
                await app.add.aenqueue(1)
                await asyncio.to_thread(app.add.enqueue, 2)
                assert len(await storage.list_tasks()) == 2
                await app.q.aclose()
                assert storage.is_open

        asyncio.run(main())
        app.q.close()


def test_loops_that_have_ended_are_let_go(app: Made) -> None:
    """Many short `asyncio.run` in one program leave nothing behind, closed or not."""
    loops: list[weakref.ref[Any]] = []
    before = omniq_threads()

    async def once() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await app.add.aenqueue(1)

    for _ in range(5):
        asyncio.run(once())
    gc.collect()
    assert sum(loop() is not None for loop in loops) <= 1

    async def last() -> None:
        await app.add.aenqueue(1)
        await app.q.aclose()

    asyncio.run(last())
    until_blocking(lambda: omniq_threads() <= before)


# --- values --------------------------------------------------------------------------------------


async def test_none_is_a_result() -> None:
    q = OmniQ(MemoryStorage())

    @q.task(name="nothing")
    async def nothing() -> None: ...

    async with q, q.async_worker():
        assert await (await nothing.aenqueue()).aresult(timeout=10) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_an_application_with_cloudpickle(kind: str, tmp_path: Path) -> None:
    """Arguments and results that only it carries, in both directions."""
    storage = MemoryStorage() if kind == "memory" else SQLiteStorage(tmp_path / "jobs.db")
    q = OmniQ(storage, serializer=CloudpickleSerializer())

    @q.task(name="apply")
    def apply(func: Any, x: int) -> Any:
        value = func(x)
        return lambda: value

    async with q, q.async_worker(poll_interval=0.05):
        made = await (await apply.aenqueue(lambda x: x * 2, 21)).aresult(timeout=10)
        assert made() == 42


async def test_an_error_is_never_rebuilt() -> None:
    """S3: the type that a store names is text, whatever it says."""
    from omniq.task import Settlement, TaskError

    app = Made(MemoryStorage())
    handle = await app.add.aenqueue(1)
    storage = await app.q.astorage()
    [claimed] = await storage.claim("somebody")
    await storage.settle([Settlement.failed(claimed, TaskError("subprocess.Popen", "['touch', 'x']"))])
    with pytest.raises(TaskFailed) as failure:
        await handle.aresult(timeout=1)
    assert type(failure.value) is TaskFailed
    assert failure.value.error is not None
    assert failure.value.error.type == "subprocess.Popen"
    await app.q.aclose()
