"""What a body knows and says of its run: `Context`, `omniq.context()`, progress (API, SEMANTICS 1)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Optional

import pytest

import omniq
import omniq as oq
from omniq import Context, InvalidOption, Task
from omniq import Context as Mine
from omniq.registry import runnable_of
from omniq.testing import VirtualClock
from tests.worker.scene import Bodies, Logs, ended, running, turns, until
from tests.worker.stores import AnyStore, Five, Memory, task_of


def facts(ctx: Context) -> list[Any]:
    return [ctx.task_id, ctx.attempt, ctx.epoch, ctx.cancelled]


async def by_call() -> list[Any]:
    await asyncio.sleep(0)
    return facts(omniq.context())


def by_call_in_thread() -> list[Any]:
    return facts(omniq.context())


async def last(x: int, ctx: Context) -> list[Any]:
    return [x, *facts(ctx)]


def first(ctx: Context, x: int) -> list[Any]:
    return [x, *facts(ctx)]


async def middle(x: int, ctx: Context, y: int) -> list[Any]:
    return [x + y, *facts(ctx)]


def keyword(x: int, *, ctx: Context) -> list[Any]:
    return [x, *facts(ctx)]


def with_default(x: int, ctx: Context | None = None, *, own: omniq.Context) -> list[Any]:
    return [x, *facts(own), ctx]


async def quoted(ctx: omniq.Context, *numbers: int) -> list[Any]:
    return [sum(numbers), *facts(ctx)]


@pytest.mark.parametrize("func", [by_call, by_call_in_thread])
async def test_by_calling_context(store: AnyStore, bodies: Bodies, func: Any) -> None:
    async with store, running(store, poll_interval=0.02):
        task_id = await store.enqueue(Task(bodies(func)))
        result = (await ended(store, task_id)).result
    assert result[:2] == [task_id, 1]
    assert result[3] is False
    assert isinstance(store, Five) or result[2] == 1


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "value"),
    [
        (last, (7,), {}, 7),
        (last, (), {"x": 7}, 7),
        (first, (7,), {}, 7),
        (first, (), {"x": 7}, 7),
        (middle, (3, 4), {}, 7),
        (middle, (3,), {"y": 4}, 7),
        (keyword, (7,), {}, 7),
        (quoted, (3, 4), {}, 7),
    ],
)
async def test_by_annotation(bodies: Bodies, func: Any, args: Any, kwargs: Any, value: int) -> None:
    """A parameter annotated `Context` is filled in, wherever it stands; callers do not pass it."""
    async with Memory() as store, running(store):
        task_id = await store.enqueue(Task(bodies(func), args, kwargs, max_retries=0))
        result = await ended(store, task_id)
    assert result.error is None
    assert result.result == [value, task_id, 1, 1, False]


def renamed(ctx: Mine, x: int) -> list[Any]:
    return [x, *facts(ctx)]


def within(x: int, ctx: oq.Context) -> list[Any]:
    return [x, *facts(ctx)]


def optional(x: int, ctx: Context | None = None) -> list[Any]:
    return [x, *(() if ctx is None else facts(ctx))]


def older_optional(x: int, ctx: Optional[Context] = None) -> list[Any]:  # noqa: UP045 - people write it
    return [x, *(() if ctx is None else facts(ctx))]


def evaluated(x: int, ctx: Any = None) -> list[Any]:
    return [x, *(() if ctx is None else facts(ctx))]


evaluated.__annotations__["ctx"] = Context | None


@pytest.mark.parametrize("func", [renamed, within, optional, older_optional, evaluated])
async def test_by_annotation_however_it_is_written(bodies: Bodies, func: Any) -> None:
    """Under another name, within a module, or optional so that the function can be called without it."""
    async with Memory() as store, running(store):
        task_id = await store.enqueue(Task(bodies(func), (7,), max_retries=0))
        result = await ended(store, task_id)
    assert result.error is None
    assert result.result == [7, task_id, 1, 1, False]


class Elsewhere:
    class Context:
        """Another library's, under the same name."""


def test_another_context_is_an_argument_like_any_other() -> None:
    namespace: dict[str, Any] = {"Context": Elsewhere.Context}
    source = "from __future__ import annotations\ndef body(ctx: Context, x: int): return x"
    exec(source, namespace)
    assert runnable_of(namespace["body"]).context_parameter is None
    assert runnable_of(renamed).context_parameter == "ctx"


async def test_the_attempt_counts_and_the_epoch_fences(builtin: AnyStore, bodies: Bodies) -> None:
    seen: list[tuple[int, int]] = []

    def body(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.epoch))
        if len(seen) == 1:
            raise omniq.Snooze(0)
        raise ValueError

    async with builtin as store, running(store, poll_interval=0.02, base_retry_delay=0.001):
        await ended(store, await store.enqueue(Task(bodies(body), max_retries=2)))
    assert seen == [(1, 1), (1, 2), (2, 3), (3, 4)]


async def test_neighbours_do_not_see_each_other(bodies: Bodies) -> None:
    """Async and thread bodies at once, each with its own context."""
    meeting, gate = asyncio.Barrier(3), threading.Barrier(3, timeout=10)

    async def abody() -> str:
        await meeting.wait()
        return omniq.context().task_id

    def body() -> str:
        gate.wait()
        return omniq.context().task_id

    async with Memory() as store, running(store, 6):
        ids = [await store.enqueue(Task(bodies(f))) for f in (abody, body) for _ in range(3)]
        assert [(await ended(store, i)).result for i in ids] == ids


async def test_only_while_a_task_runs() -> None:
    with pytest.raises(InvalidOption, match="while a task runs"):
        omniq.context()


async def test_helpers_of_a_body_have_it_too(bodies: Bodies) -> None:
    """In the tasks that it starts and the threads that it asks for."""

    async def body() -> list[str]:
        async def helper() -> str:
            return omniq.context().task_id

        inner = await asyncio.create_task(helper())
        return [inner, await asyncio.to_thread(lambda: omniq.context().task_id)]

    async with Memory() as store, running(store):
        task_id = await store.enqueue(Task(bodies(body)))
        assert (await ended(store, task_id)).result == [task_id, task_id]


async def test_log_names_the_task(bodies: Bodies, logs: Logs) -> None:
    def body(ctx: Context) -> None:
        ctx.log.info("half-way there")

    async with Memory() as store, running(store):
        task_id = await store.enqueue(Task(bodies(body)))
        await ended(store, task_id)
    [said] = [m for m in logs.messages if m.record["message"] == "half-way there"]
    assert said.record["extra"]["task"] == task_id


# --- progress ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_progress_is_seen_while_it_runs(builtin: AnyStore, bodies: Bodies, kind: str) -> None:
    gate, released = asyncio.Event(), threading.Event()

    async def abody(ctx: Context) -> None:
        ctx.progress(1, 10)
        ctx.progress(3, 10)
        await gate.wait()

    def body(ctx: Context) -> None:
        ctx.progress(1, 10)
        ctx.progress(3, 10)
        released.wait(10)

    async with builtin as store, running(store, lease=0.3):
        task_id = await store.enqueue(Task(bodies(abody if kind == "async" else body)))
        await until(lambda: progress_of(store, task_id))
        assert (await task_of(store, task_id)).progress == (3, 10)
        gate.set()
        released.set()
        await ended(store, task_id)


async def progress_of(store: AnyStore, task_id: str) -> Any:
    return (await task_of(store, task_id)).progress


async def test_progress_is_stored_about_twice_a_second(bodies: Bodies) -> None:
    """However often a body says it."""
    clock, gate = VirtualClock(), asyncio.Event()
    writes: list[float] = []

    class Counting(Memory):
        async def progress(self, task_id: str, epoch: int, done: float, total: float | None = None) -> bool:
            writes.append(done)
            return await super().progress(task_id, epoch, done, total)

    async def body(ctx: Context) -> None:
        for n in range(1000):
            ctx.progress(n)
        await gate.wait()
        ctx.progress(5000)

    store = Counting(clock=clock)
    async with store, running(store, clock=clock):
        task_id = await store.enqueue(Task(bodies(body)))
        await clock.advance(3)
        assert writes == [999]
        assert (await task_of(store, task_id)).progress == (999, None)
        gate.set()
        await turns()


async def test_progress_on_a_storage_without_it_is_harmless(foreign: Five, bodies: Bodies) -> None:
    def body(ctx: Context) -> str:
        ctx.progress(1, 2)
        return "done"

    async with running(foreign, poll_interval=0.02):
        assert (await ended(foreign, await foreign.enqueue(Task(bodies(body))))).result == "done"
