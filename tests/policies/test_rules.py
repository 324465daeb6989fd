"""`retry_on`, `give_up_on` and `retry_delay` in a worker, wherever the body runs; `unique=`, `expires=`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from omniq import InvalidOption, OmniQ, TaskFailed, TaskStatus
from omniq.calls import unique_key_of
from omniq.storage import MemoryStorage
from tests.policies import jobs
from tests.worker.scene import Logs

WITHIN_S = 30.0


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> OmniQ:
    monkeypatch.setattr(jobs.q, "_where", MemoryStorage())
    monkeypatch.setattr(jobs.q, "_storage", None)
    return jobs.q


@pytest.mark.parametrize("task", [jobs.fails_async, jobs.fails_thread, jobs.fails_process])
async def test_only_what_is_named_is_retried(app: OmniQ, task: Any) -> None:
    """F: a rule is the same wherever the body runs; two retries are three runs."""
    # A worker's own first pause of a minute would not be over in time: the task's own counts.
    async with app, app.async_worker(base_retry_delay=60):
        busy, hopeless, value = [await task.aenqueue(which) for which in ("busy", "hopeless", "value")]
        for handle in (busy, hopeless, value):
            with pytest.raises(TaskFailed):
                await handle.aresult(timeout=WITHIN_S)
        storage = await app.astorage()
        attempts = [(await storage.get_task(one.id)).attempts for one in (busy, hopeless, value)]  # type: ignore[union-attr]
    assert attempts == [3, 1, 1]


async def test_a_timeout_is_a_timeout_error() -> None:
    q = OmniQ(MemoryStorage())

    @q.task(name="t.slow", timeout=0.05, max_retries=1, retry_delay=0, retry_on=TimeoutError)
    async def slow() -> None:
        await asyncio.sleep(WITHIN_S)

    @q.task(name="t.slower", timeout=0.05, max_retries=1, retry_delay=0, retry_on=ConnectionError)
    async def slower() -> None:
        await asyncio.sleep(WITHIN_S)

    async with q, q.async_worker():
        runs = []
        for task in (slow, slower):
            handle = await task.aenqueue()
            with pytest.raises(TaskFailed, match="timeout"):
                await handle.aresult(timeout=WITHIN_S)
            runs.append((await (await q.astorage()).get_task(handle.id)).epoch)  # type: ignore[union-attr]
    assert runs == [2, 1]


async def test_a_delay_function_that_fails_costs_no_retry(logs: Logs) -> None:
    q = OmniQ(MemoryStorage())
    asked: list[int] = []

    def delay(attempt: int) -> float:
        asked.append(attempt)
        raise RuntimeError("no idea")

    @q.task(name="t.fails", max_retries=1, retry_delay=delay)
    def fails() -> None:
        raise ValueError("no")

    async with q, q.async_worker(base_retry_delay=0.01):
        with pytest.raises(TaskFailed, match="no"):
            await (await fails.aenqueue()).aresult(timeout=WITHIN_S)
    assert asked == [1, 2]
    assert logs.levels_of("retry_delay of t.fails failed") == {"ERROR"}


def test_rules_belong_to_the_definition() -> None:
    q = OmniQ(MemoryStorage())

    @q.task(name="t.task")
    def task() -> None: ...

    with pytest.raises(InvalidOption, match=r"retry_on belongs to @q.task\(retry_on=...\)"):
        task.options(retry_on=ValueError)  # type: ignore[call-arg]


# --- unique= -------------------------------------------------------------------------------------


def test_calls_with_equal_arguments_are_one_task() -> None:
    q = OmniQ(MemoryStorage())

    @q.task(name="t.sync", unique=True)
    def sync(user: int, options: dict[str, int] | None = None, *, full: bool = False) -> None: ...

    first = sync.enqueue(1, {"a": 1, "b": 2})
    for again in (
        sync.enqueue(user=1, options={"b": 2, "a": 1}),
        sync.enqueue(1, {"a": 1, "b": 2}, full=False),
        *q.enqueue_many([sync.call(1, {"a": 1, "b": 2})]),
    ):
        assert (again.id, again.created) == (first.id, False)
    for other in (sync.enqueue(2, {"a": 1, "b": 2}), sync.enqueue(1), sync.enqueue(1, full=True)):
        assert other.created
    q.close()


def test_equal_sets_have_one_key_in_every_process() -> None:
    """Python orders a set by hashes of its own in each process: no such order may come into a key."""
    code = """
from omniq.calls import unique_key_of
groups = {frozenset({"ann", "bob", "cleo"}), frozenset({"dan", "eve"})}
print(unique_key_of("t.sync", [("groups", groups)]), unique_key_of("t.sync", [("team", {"ann", "bob"})]))
"""
    environs = [{**os.environ, "PYTHONHASHSEED": str(seed)} for seed in range(1, 5)]
    keys = {
        subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        ).stdout
        for env in environs
    }
    assert len(keys) == 1


@dataclass
class Filter:
    where: dict[Any, Any]


@pytest.mark.parametrize("wrap", [lambda d: d, Filter, lambda d: [(d,)], lambda d: {1: Filter(d), "x": [d]}])
def test_equal_dicts_have_one_key_wherever_they_are(wrap: Callable[[Any], Any]) -> None:
    """Python keeps the order in which a dict was filled: no such order may come into a key."""
    one: dict[Any, Any] = {"a": 1, "b": [2], 3: {"x": 1, "y": 2}, (4, 5): None}
    same: dict[Any, Any] = {(4, 5): None, 3: {"y": 2, "x": 1}, "b": [2], "a": 1}
    key = unique_key_of("t.sync", [("by", wrap(one))])
    assert unique_key_of("t.sync", [("by", wrap(same))]) == key
    assert unique_key_of("t.sync", [("by", wrap({**one, "a": 2}))]) != key
    with pytest.raises(InvalidOption, match="plain data"):
        unique_key_of("t.sync", [("by", wrap({"a": object()}))])


def test_a_tuple_has_the_key_of_a_list() -> None:
    """Who enqueues with JSON, as the command does, can say nothing else."""
    assert unique_key_of("t.sync", [("by", {"at": (1, 2)})]) == unique_key_of(
        "t.sync", [("by", {"at": [1, 2]})]
    )


def test_unique_by_some_arguments() -> None:
    q = OmniQ(MemoryStorage())

    @q.task(name="t.mail", unique=["user"])
    def mail(user: int, text: str) -> None: ...

    @q.task(name="t.page", unique="user")
    def page(user: int, text: str) -> None: ...

    first = mail.enqueue(1, "hello")
    assert mail.enqueue(1, "again").id == first.id
    assert mail.enqueue(2, "hello").created
    assert page.enqueue(1, "hello").created, "another task has keys of its own"
    assert mail.options(unique=False).enqueue(1, "once more").created
    assert mail.options(unique_key="by hand").enqueue(1, "hello").created, "a key of its own counts first"
    q.close()


async def test_a_key_is_free_once_the_task_has_ended() -> None:
    q = OmniQ(MemoryStorage())

    @q.task(name="t.once", unique=True)
    async def once(n: int) -> int:
        return n

    async with q, q.async_worker():
        first = await once.aenqueue(1)
        await first.aresult(timeout=WITHIN_S)
        assert (await once.aenqueue(1)).created


def test_unique_names_parameters_that_exist() -> None:
    q = OmniQ(MemoryStorage())
    for bad in ("usr", ["user", "usr"], []):
        with pytest.raises(InvalidOption, match="unique must be True or names of parameters"):

            @q.task(name="t.bad", unique=bad)
            def bad_task(user: int) -> None: ...


# --- expires -------------------------------------------------------------------------------------


async def test_what_waited_too_long_is_not_run() -> None:
    q = OmniQ(MemoryStorage())
    ran: list[int] = []

    @q.task(name="t.news", expires=0.05)
    async def news(n: int) -> None:
        ran.append(n)

    async with q:
        handle = await news.aenqueue(1)
        await asyncio.sleep(0.1)
        async with q.async_worker():
            fresh = await news.options(expires=60).aenqueue(2)
            with pytest.raises(TaskFailed, match="not started before"):
                await handle.aresult(timeout=WITHIN_S)
            await fresh.aresult(timeout=WITHIN_S)
        assert await handle.astatus() is TaskStatus.FAILED
    assert ran == [2]
