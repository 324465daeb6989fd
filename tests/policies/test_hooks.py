"""`@q.around`: hooks around runs on the loop, in threads and in processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omniq import Context, GiveUp, InvalidOption, OmniQ, Retry, TaskFailed, TaskStatus
from omniq.storage import MemoryStorage
from tests.policies import jobs
from tests.worker.scene import until

WITHIN_S = 30.0
KINDS = [jobs.whereabouts_async, jobs.whereabouts_thread, jobs.whereabouts_process]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> OmniQ:
    """The application of jobs.py on a fresh store, without hooks."""
    monkeypatch.setattr(jobs.q, "_where", MemoryStorage())
    monkeypatch.setattr(jobs.q, "_storage", None)
    monkeypatch.setattr(jobs.q, "_hooks", [])
    return jobs.q


@pytest.fixture
def seen(app: OmniQ) -> Iterator[list[Any]]:
    """What a hook around every run saw, in order."""
    seen: list[Any] = []

    @app.around
    async def outer(ctx: Context, call: Any) -> Any:
        seen.append(("outer", call.name, call.queue, call.headers, ctx.task_id))
        try:
            value = await call()
        except BaseException as exc:
            seen.append(("raised", exc))
            raise
        seen.append(("value", value))
        return value

    yield seen


@pytest.mark.parametrize("task", KINDS)
async def test_a_hook_sees_the_run_and_its_value(app: OmniQ, seen: list[Any], task: Any) -> None:
    async with app, app.async_worker():
        handle = await task.options(headers={"trace": "1"}, queue="q1").aenqueue()
        pid, _, task_id = await handle.aresult(timeout=WITHIN_S)
    [begun, ended] = seen
    assert begun == ("outer", task.name, "q1", {"trace": "1"}, handle.id)
    assert ended[0] == "value"
    assert tuple(ended[1]) == (pid, *ended[1][1:])
    assert task_id == handle.id
    assert (pid == os.getpid()) is (task is not jobs.whereabouts_process)


@pytest.mark.parametrize("task", KINDS)
async def test_the_first_hook_is_outermost(app: OmniQ, task: Any) -> None:
    order: list[str] = []

    def hook(name: str) -> Callable[[Context, Any], Any]:
        async def around(_: Context, call: Any) -> Any:
            order.append(f"{name} in")
            value = await call()
            order.append(f"{name} out")
            return value

        return around

    async with app, app.async_worker():
        app.around(hook("first"))  # a worker that runs already knows them too
        app.around(hook("second"))
        await (await task.aenqueue()).aresult(timeout=WITHIN_S)
    assert order == ["first in", "second in", "second out", "first out"]


@pytest.mark.parametrize("task", KINDS[:2])
async def test_what_a_hook_sets_is_there_in_the_body(app: OmniQ, task: Any) -> None:
    """Context variables reach bodies on the loop and in threads; a process has its own."""

    @app.around
    async def with_tenant(_: Context, call: Any) -> Any:
        token = jobs.tenant.set("ann")
        try:
            return await call()
        finally:
            jobs.tenant.reset(token)

    async with app, app.async_worker():
        _, tenant, _ = await (await task.aenqueue()).aresult(timeout=WITHIN_S)
    assert tenant == "ann"


@pytest.mark.parametrize("task", KINDS)
async def test_what_a_hook_returns_is_the_result(app: OmniQ, task: Any) -> None:
    @app.around
    async def marked(_: Context, call: Any) -> Any:
        return {"value": await call()}

    async with app, app.async_worker():
        assert "value" in await (await task.aenqueue()).aresult(timeout=WITHIN_S)


@pytest.mark.parametrize("task", KINDS)
async def test_a_hook_may_do_without_the_body(app: OmniQ, task: Any) -> None:
    @app.around
    async def cached(_: Context, call: Any) -> Any:
        return "from the cache"

    async with app, app.async_worker():
        assert await (await task.aenqueue()).aresult(timeout=WITHIN_S) == "from the cache"


@pytest.mark.parametrize("task", KINDS)
async def test_a_failure_passes_through_as_it_was(app: OmniQ, seen: list[Any], task: Any) -> None:
    async with app, app.async_worker(base_retry_delay=0.01):
        handle = await task.aenqueue("fail")
        with pytest.raises(TaskFailed) as caught:
            await handle.aresult(timeout=WITHIN_S)
    assert caught.value.error is not None
    assert caught.value.error.type == "Hopeless"
    assert "no way" in caught.value.error.traceback
    assert "in body" in caught.value.error.traceback, "the frames of the body itself"
    raised = [one for kind, one, *_ in seen if kind == "raised"]
    assert len(raised) == 2
    expected = TaskFailed if task is jobs.whereabouts_process else jobs.Hopeless
    assert all(type(one) is expected for one in raised)


@pytest.mark.parametrize("wish", ["snooze", "retry"])
@pytest.mark.parametrize("task", KINDS)
async def test_wishes_of_the_body_pass_through(app: OmniQ, seen: list[Any], task: Any, wish: str) -> None:
    async with app, app.async_worker(base_retry_delay=60):
        handle = await task.aenqueue(wish)
        await handle.aresult(timeout=WITHIN_S)
        task_now = await (await app.astorage()).get_task(handle.id)
    assert task_now is not None
    assert (task_now.epoch, task_now.attempts) == (2, 0 if wish == "snooze" else 1)


async def test_a_hook_has_wishes_of_its_own(app: OmniQ) -> None:
    @app.around
    async def fussy(ctx: Context, call: Any) -> Any:
        if ctx.attempt == 1:
            raise Retry(0.01)
        if call.name.endswith("thread"):
            raise GiveUp("not here")
        return await call()

    async with app, app.async_worker(base_retry_delay=60):
        assert await (await jobs.whereabouts_async.aenqueue()).aresult(timeout=WITHIN_S)
        with pytest.raises(TaskFailed, match="not here"):
            await (await jobs.whereabouts_thread.aenqueue()).aresult(timeout=WITHIN_S)


async def test_a_body_runs_once(app: OmniQ) -> None:
    @app.around
    async def twice(_: Context, call: Any) -> Any:
        await call()
        return await call()

    async with app, app.async_worker(base_retry_delay=0.01):
        with pytest.raises(TaskFailed, match="calls the run once"):
            await (await jobs.whereabouts_async.aenqueue()).aresult(timeout=WITHIN_S)


async def test_a_timeout_ends_the_hook_and_keeps_the_slot_of_the_thread(
    app: OmniQ, seen: list[Any], tmp_path: Path
) -> None:
    """A thread cannot be stopped: the task ends as a timeout, and the slot is only free when it returns."""
    file = tmp_path / "go"
    async with app, app.async_worker(concurrency=1) as pool:
        handle = await jobs.waits_in_thread.aenqueue(str(file))
        with pytest.raises(TaskFailed, match="timeout"):
            await handle.aresult(timeout=WITHIN_S)
        assert isinstance(seen[-1][1], asyncio.CancelledError)
        assert pool._crew.free_slots == 0
        file.touch()
        await until(lambda: pool._crew.free_slots == 1)
        assert await (await jobs.whereabouts_async.aenqueue()).aresult(timeout=WITHIN_S)


async def test_a_cancelled_thread_is_told_and_may_finish(app: OmniQ, seen: list[Any], tmp_path: Path) -> None:
    """As without hooks: a thread body cannot be forced, and what it finishes was done (T4)."""
    started, file = tmp_path / "started", tmp_path / "go"
    async with app, app.async_worker():
        handle = await jobs.waits_for_file.aenqueue(str(started), str(file))
        await until(started.exists)
        assert await handle.acancel() is TaskStatus.RUNNING
        await asyncio.sleep(0.7)  # the worker looks twice a second for whom to tell
        assert await handle.astatus() is TaskStatus.RUNNING
        file.touch()
        assert await handle.aresult(timeout=WITHIN_S) == "seen"


async def test_a_stop_gives_back_what_a_hook_is_around(app: OmniQ, seen: list[Any], tmp_path: Path) -> None:
    started, file = tmp_path / "started", tmp_path / "go"
    async with app:
        pool = app.async_worker()
        await pool.start()
        handle = await jobs.waits_for_file.aenqueue(str(started), str(file))
        await until(started.exists)
        await pool.stop(timeout=0)
        assert await handle.astatus() is TaskStatus.PENDING
        file.touch()


def test_a_hook_is_async(app: OmniQ) -> None:
    with pytest.raises(InvalidOption, match="async def hook"):

        @app.around  # type: ignore[type-var]
        def hook(_: Context, call: Any) -> Any:
            return call()
