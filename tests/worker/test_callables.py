"""What a body may be, and the ways in which it can fail: never more than its own task."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from typing import Any

import pytest

from omniq import Task, TaskStatus
from omniq.task import TaskError
from tests.worker.scene import QUICK, Bodies, ended, running, turns
from tests.worker.stores import AnyStore, Five, Memory


async def takes_one(x: int) -> int:
    return x


def takes_one_too(x: int) -> int:
    return x


def generator() -> Any:
    yield 1


async def fails_before_it_awaits() -> None:
    raise LookupError("at once")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class NeedsTwo(Exception):
    """An exception that cannot be built from its text, as some libraries have."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)


def raiser(exc: BaseException, *, asynchronous: bool) -> Any:
    def body() -> None:
        raise exc

    async def abody() -> None:
        raise exc

    return abody if asynchronous else body


async def failure_of(bodies: Bodies, func: Any, *args: Any, **kwargs: Any) -> TaskError:
    """How a task with this body fails; afterwards the same pool must run another."""
    async with Memory() as store, running(store, 2, **QUICK) as pool:
        path = bodies(func, "body")
        task_id = await store.enqueue(Task(path, args, kwargs, max_retries=0))
        result = await ended(store, task_id)
        bodies(takes_one, "other")
        other = await store.enqueue(Task(f"{bodies.name}.other", (1,)))
        assert (await ended(store, other)).result == 1
        assert pool.running
    assert result.status is TaskStatus.FAILED
    assert result.error is not None
    return result.error


@pytest.mark.parametrize("func", [takes_one, takes_one_too, lambda x: x])
@pytest.mark.parametrize(("args", "kwargs"), [((1, 2), {}), ((), {}), ((1,), {"y": 2})])
async def test_arguments_that_do_not_fit(bodies: Bodies, func: Any, args: Any, kwargs: Any) -> None:
    error = await failure_of(bodies, func, *args, **kwargs)
    assert (error.type, error.kind) == ("TypeError", "error")
    assert "argument" in error.message


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize(
    "exc",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        StopIteration(7),
        StopAsyncIteration(),
        MemoryError(),
        NeedsTwo(1, 2),
        ExceptionGroup("several", [ValueError(1), TypeError(2)]),
    ],
    ids=lambda exc: type(exc).__name__,
)
async def test_whatever_a_body_raises_is_its_failure(
    bodies: Bodies, exc: BaseException, asynchronous: bool
) -> None:
    error = await failure_of(bodies, raiser(exc, asynchronous=asynchronous))
    # An async function cannot raise StopIteration; Python makes a RuntimeError of it.
    assert error.type in (type(exc).__name__, "RuntimeError")
    assert error.kind == "error"


async def test_an_exception_that_cannot_be_printed(bodies: Bodies) -> None:
    error = await failure_of(bodies, raiser(Unprintable(), asynchronous=False))
    assert error.type == "Unprintable"
    assert "could not be made" in error.message


async def test_error_texts_are_bounded_and_storable(bodies: Bodies) -> None:
    hostile = "x" * 10_000_000 + "\x00\ud800"
    error = await failure_of(bodies, raiser(ValueError(hostile), asynchronous=False))
    assert len(error.message) < 5000
    assert len(error.traceback) < 20_000
    short = await failure_of(bodies, raiser(ValueError("\x00 \ud800"), asynchronous=True))
    assert "\x00" not in short.message
    short.message.encode()


async def test_a_result_that_is_a_generator_is_refused(bodies: Bodies) -> None:
    assert (await failure_of(bodies, generator)).kind == "unserializable"


async def test_fails_before_it_awaits(bodies: Bodies) -> None:
    assert (await failure_of(bodies, fails_before_it_awaits)).message == "at once"


# --- paths that lead nowhere ---------------------------------------------------------------------


@pytest.mark.parametrize("value", [7, "text", None, [], object()])
async def test_something_that_is_not_callable(store: AnyStore, bodies: Bodies, value: Any) -> None:
    async with store, running(store, **QUICK) as pool:
        task_id = await store.enqueue(Task(bodies(value, "value"), max_retries=0))
        error = (await ended(store, task_id)).error
        assert pool.running
    assert error is not None
    assert error.kind == "unresolvable"
    assert "value" in error.message


MODULES = {
    "raises": "raise RuntimeError('no licence')",
    "exits": "import sys; sys.exit(9)",
    "imports_nothing": "import no_such_module_anywhere",
    "is_no_python": "def (:",
}


@pytest.mark.parametrize("kind", MODULES)
async def test_a_module_that_cannot_be_imported(
    builtin: AnyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / f"bad_{kind}.py").write_text(MODULES[kind])
    monkeypatch.syspath_prepend(tmp_path)
    async with builtin as store, running(store, **QUICK) as pool:
        task_id = await store.enqueue(Task(f"bad_{kind}.body", max_retries=1))
        result = await ended(store, task_id)
        assert pool.running
    assert result.error is not None
    assert result.error.kind == "unresolvable"
    assert f"bad_{kind}" not in sys.modules


@pytest.mark.parametrize("path", ["json.no_such", "json.dumps.no.such", "no_such.module", "json:no.such"])
async def test_an_unresolvable_path_follows_the_retry_rule(store: AnyStore, path: str) -> None:
    async with store, running(store, **QUICK):
        task_id = await store.enqueue(Task(path, max_retries=2))
        result = await ended(store, task_id)
    assert result.error is not None
    assert result.error.kind == "unresolvable"
    if not isinstance(store, Five):
        assert store.log.ids("claimed") == [task_id] * 3


async def test_a_colon_path_and_a_class(store: AnyStore) -> None:
    """`package.module:Class.method` works, and a class is as callable as a function."""
    async with store, running(store, **QUICK):
        first = await store.enqueue(Task("datetime:date.fromisoformat", ("2030-01-02",)))
        second = await store.enqueue(Task("decimal.Decimal", ("1.5",)))
        assert str((await ended(store, first)).result) == "2030-01-02"
        assert str((await ended(store, second)).result) == "1.5"


# --- awaitables ----------------------------------------------------------------------------------


async def test_an_awaitable_from_a_thread_is_awaited_on_the_loop(bodies: Bodies) -> None:
    loops: list[Any] = []

    async def inner() -> str:
        loops.append(asyncio.get_running_loop())
        return "awaited"

    def outer() -> Any:
        return inner()

    async with Memory() as store, running(store):
        assert (await ended(store, await store.enqueue(Task(bodies(outer))))).result == "awaited"
    assert loops == [asyncio.get_running_loop()]


async def test_a_failing_awaitable_from_a_thread_is_a_failure(bodies: Bodies) -> None:
    async def inner() -> None:
        raise ValueError("inside")

    assert (await failure_of(bodies, lambda: inner())).message == "inside"  # noqa: PLW0108


async def test_nothing_is_left_unretrieved(bodies: Bodies) -> None:
    """No "exception was never retrieved", whatever happened to a body."""
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))

    async def forever() -> None:
        await asyncio.Event().wait()

    async with Memory() as store, running(store, 8, **QUICK) as pool:
        for exc in (ValueError(), SystemExit(1), asyncio.CancelledError()):
            path = bodies(raiser(exc, asynchronous=True), type(exc).__name__)
            await ended(store, await store.enqueue(Task(path, max_retries=0)))
        await ended(store, await store.enqueue(Task(bodies(forever), timeout=0.05, max_retries=0)))
        await ended(store, await store.enqueue(Task(bodies(takes_one), max_retries=0)))
        await store.enqueue(Task(bodies(forever)))
        await turns()
        await pool.stop(cancel_in_flight=True)
    gc.collect()
    await turns()
    assert unhandled == []
