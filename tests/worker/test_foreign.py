"""Storages and backends that somebody else wrote: what they see, what they may leave out (C2)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from omniq import OmniQ, Snooze, StoreUnavailable, Task, TaskStatus, Worker
from omniq.serializer import CloudpickleSerializer, JsonSerializer, MsgpackSerializer
from omniq.storage import BaseStorage
from tests.requirements.backends import ListBackend
from tests.worker.scene import QUICK, Bodies, Logs, ended, running, until
from tests.worker.stores import AnyStore, Five, task_of


async def test_dequeue_is_given_the_time(foreign: Five) -> None:
    before = datetime.now(UTC)
    async with running(foreign, **QUICK):
        await until(lambda: foreign.log.ids("dequeue"))
    now = datetime.fromisoformat(foreign.log.ids("dequeue")[0])
    assert now.utcoffset() is not None
    assert before <= now <= datetime.now(UTC)


async def test_init_of_the_base_is_not_needed() -> None:
    class Bare(BaseStorage):
        def __init__(self) -> None:
            self.waiting = [Task("json.dumps", (1,))]
            self.done: list[Any] = []

        async def enqueue(self, task: Task, *, conn: Any = None) -> str:
            self.waiting.append(task)
            return task.id

        async def dequeue(self, now: datetime | None = None) -> Task | None:
            return self.waiting.pop(0) if self.waiting else None

        async def mark_running(self, task_id: str) -> None: ...

        async def mark_done(self, task_id: str, result: Any) -> None:
            self.done.append(result.result)

        async def mark_failed(self, task_id: str, error: Any, will_retry: bool = False) -> None:
            self.done.append(error)

    store = Bare()
    async with running(store, **QUICK):
        await until(lambda: store.done)
    assert store.done == ["1"]


async def test_tasks_that_dequeue_gave_as_pending(foreign: Five) -> None:
    """Many a storage hands out the task as it was stored; that is no reason to stumble."""

    class Plain(type(foreign)):  # type: ignore[misc]
        async def dequeue(self, now: datetime | None = None) -> Task | None:
            task = await super().dequeue(now)
            from omniq.task import replace

            return None if task is None else replace(task, status=TaskStatus.PENDING)

    store = Plain()
    async with running(store, **QUICK):
        assert (await ended(store, await store.enqueue(Task("json.dumps", (1,))))).result == "1"
        failed = await ended(store, await store.enqueue(Task("json.loads", ("{",), max_retries=1)))
        assert failed.status is TaskStatus.FAILED


@pytest.mark.parametrize("serializer", [MsgpackSerializer(), JsonSerializer(), CloudpickleSerializer()])
async def test_results_reach_any_store_with_any_serializer(
    store: AnyStore, bodies: Bodies, serializer: Any
) -> None:
    """Written with the pool's serializer, read with the same."""
    value = {"a": (1, 2.5, None)}

    async def body() -> Any:
        return value

    async with store, running(store, serializer=serializer, **QUICK):
        assert (await ended(store, await store.enqueue(Task(bodies(body))))).result == value


async def test_a_value_that_only_cloudpickle_carries(store: AnyStore, bodies: Bodies) -> None:
    async def body() -> Any:
        return {1, "mixed", frozenset({2})}

    async with store, running(store, serializer=CloudpickleSerializer(), **QUICK):
        result = await ended(store, await store.enqueue(Task(bodies(body), max_retries=0)))
    assert result.result == {1, "mixed", frozenset({2})}


async def test_an_application_on_somebodys_storage(foreign: Five) -> None:
    q = OmniQ(foreign)

    @q.task(name="app.add")
    async def add(a: int, b: int) -> int:
        return a + b

    async with q.async_worker(concurrency=2, **QUICK):
        handle = await add.aenqueue(2, b=3)
        assert (await ended(foreign, handle.id)).result == 5


async def test_snooze_without_reschedule_is_a_new_task(bodies: Bodies) -> None:
    signals = [Snooze(0.001), Snooze(0.001)]

    async def body() -> str:
        if signals:
            raise signals.pop()
        return "done"

    store = Five()
    async with running(store, **QUICK):
        first = await store.enqueue(Task(bodies(body), max_retries=0))
        assert (await ended(store, first)).result == "done"
    assert [task.headers.get("retry_of") for task in store.runs_of(first)] == [None, first, first]
    assert store.runs_of(first)[-1].attempts == 0


# --- backends ------------------------------------------------------------------------------------


async def test_a_mark_that_did_not_get_through_is_sent_again() -> None:
    """`StoreUnavailable` means: repeat it as it is. Nothing is lost for good."""
    backend = ListBackend()
    backend.fails = {"mark_success": StoreUnavailable("away"), "mark_failure": StoreUnavailable("away")}
    good, bad = backend.put("json.dumps", 1), backend.put("json.loads", "{")
    async with Worker(backend, max_concurrency=2, poll_interval=0.01):
        await until(lambda: {good, bad} == backend.ended)
    assert list(backend.successes) == [good]
    assert list(backend.failures) == [bad]


async def test_a_reserve_that_failed_does_not_repeat_the_marks(bodies: Bodies) -> None:
    backend = ListBackend()

    async def body() -> None:
        backend.fails["reserve"] = StoreUnavailable("away")

    task_id = backend.put(bodies(body))
    async with Worker(backend, max_concurrency=1, poll_interval=0.01):
        await until(lambda: backend.successes and not backend.fails)
        looks = len(backend.reserves)
        await until(lambda: len(backend.reserves) > looks + 2)
    assert backend.made("mark_success") == [task_id]


async def test_a_refused_mark_is_logged(logs: Logs) -> None:
    backend = ListBackend()
    backend.fails["mark_success"] = KeyError("unknown id")
    task_id = backend.put("json.dumps", 1)
    async with Worker(backend, poll_interval=0.01):
        await until(lambda: backend.made("mark_success"))
        other = backend.put("json.dumps", 2)
        await until(lambda: other in backend.successes)
    assert task_id not in backend.successes
    assert any(task_id in line for line in logs.lines("ERROR"))


async def test_a_storage_in_the_words_of_a_backend(builtin: AnyStore) -> None:
    """What `as_backend()` reserved is fenced: a late mark after a lapse changes nothing."""
    async with builtin as store:
        assert not isinstance(store, Five)
        task_id = await store.enqueue(Task("json.dumps", (1,)))
        backend = store.as_backend()
        [reserved] = await backend.reserve(3)
        await store.release(backend.worker)  # type: ignore[attr-defined]
        await backend.mark_failure(reserved.id, "too late", "")
        task = await task_of(store, task_id)
        assert (task.status, task.losses) == (TaskStatus.PENDING, 1)


async def test_worker_over_a_storage_uses_its_paths(builtin: AnyStore) -> None:
    async with builtin as store, Worker(store, max_concurrency=3, poll_interval=0.02):
        ids = [await store.enqueue(Task("json.dumps", (n,))) for n in range(5)]
        assert [(await ended(store, i)).result for i in ids] == ["0", "1", "2", "3", "4"]


async def test_worker_can_be_started_and_stopped_again() -> None:
    backend = ListBackend()
    worker = Worker(backend, poll_interval=0.01)
    await worker.stop()
    for n in range(3):
        await worker.start()
        await worker.start()
        assert worker.running
        task_id = backend.put("json.dumps", n)
        await until(backend.successes.get, task_id)
        await asyncio.gather(worker.stop(), worker.stop())
        assert not worker.running
    assert len(backend.made("connect")) == 3
