"""`@q.task`: stays a function, can be enqueued, refuses what cannot work (API, "The application")."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omniq import (
    Context,
    DuplicateTask,
    IdConflict,
    InvalidOption,
    OmniQ,
    PayloadTooLarge,
    Task,
    TaskStatus,
    UnserializableArgument,
)
from omniq.storage import MemoryStorage
from tests.app.tasks import Made


async def stored(app: Made, task_id: str) -> Any:
    task = await (await app.q.astorage()).get_task(task_id)
    assert task is not None
    return task


def test_stays_an_ordinary_function() -> None:
    app = Made("memory://")
    assert app.add(1, b=2) == 3
    assert asyncio.run(app.aadd(1, 2)) == 3
    assert (app.add.__name__, app.add.__doc__) == ("add", "Add two numbers.")
    assert "app.add" in repr(app.add)
    with pytest.raises(TypeError):
        app.add()  # type: ignore[call-arg]


def test_is_called_where_it_can_be_imported() -> None:
    q = OmniQ("memory://")
    assert q.task(module_level).name == f"{__name__}.module_level"
    with pytest.raises(InvalidOption, match="name="):

        @q.task
        def local() -> None: ...


def module_level(x: int) -> int:
    return x


def test_names_and_aliases() -> None:
    q = OmniQ("memory://")
    task = q.task(name="new.name", aliases=["old.name", "older.name"])(module_level)
    assert task.name == "new.name"
    for bad in ("", "two words", "a\nb", "x" * 600, "a..b"):
        with pytest.raises(InvalidOption):
            q.task(name=bad or " ")(module_level)
        with pytest.raises(InvalidOption):
            q.task(name="fine", aliases=[bad])(module_level)
    with pytest.raises(InvalidOption, match="aliases"):
        q.task(name="fine", aliases="old.name")(module_level)


def test_two_tasks_of_one_name() -> None:
    q = OmniQ("memory://")
    q.task(name="same")(module_level)
    q.task(name="same")(module_level)  # a module that is imported twice
    with pytest.raises(InvalidOption, match="same"):
        q.task(name="same")(functools.partial(module_level, 1))


@pytest.mark.parametrize("value", [None, 7, "text"])
def test_decorates_functions_only(value: Any) -> None:
    with pytest.raises(InvalidOption, match="function"):
        OmniQ("memory://").task(name="a")(value)


# --- enqueueing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"c": 2}), ((1,), {"a": 2}), ((), {"b": 2})]
)
async def test_arguments_that_do_not_fit_are_refused(args: Any, kwargs: Any) -> None:
    """Where the function is known, at enqueue; nothing is stored."""
    app = Made(MemoryStorage())
    for attempt in (app.add.call, app.add.enqueue):
        with pytest.raises(InvalidOption, match=r"app\.add"):
            attempt(*args, **kwargs)
    with pytest.raises(InvalidOption, match=r"app\.add"):
        await app.add.aenqueue(*args, **kwargs)
    assert await (await app.q.astorage()).list_tasks() == []
    await app.q.aclose()


async def test_a_context_is_not_part_of_what_callers_pass() -> None:
    async with Made(MemoryStorage()).q as q:

        @q.task(name="ctx.first")
        def first(ctx: Context, x: int) -> int:
            return x

        await first.aenqueue(1)
        with pytest.raises(InvalidOption, match=r"ctx\.first"):
            await first.aenqueue(1, 2)  # type: ignore[call-arg]


async def test_headers_are_those_that_were_checked() -> None:
    """Nobody looks at them again, so what the caller does to the dict later does not matter."""
    app, headers = Made(MemoryStorage()), {"by": "ann"}
    add = app.add.options(headers=headers)
    headers["by"] = object()  # type: ignore[assignment]
    handle = await add.aenqueue(1)
    assert (await stored(app, handle.id)).headers == {"by": "ann"}
    await app.q.aclose()


async def test_what_cannot_be_stored_is_refused() -> None:
    app = Made(MemoryStorage(), max_payload=1000)
    with pytest.raises(UnserializableArgument, match=r"args\[0\].*object"):
        await app.add.aenqueue(object())  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLarge, match="max_payload"):
        await app.fail.aenqueue("x" * 1000)
    assert await (await app.q.astorage()).list_tasks() == []
    await app.q.aclose()


async def test_options_reach_the_task() -> None:
    app = Made(MemoryStorage())
    eta = datetime(2040, 1, 1, tzinfo=UTC)
    handle = await app.add.options(
        queue="mail",
        priority=7,
        eta=eta,
        timeout=timedelta(seconds=5),
        max_retries=9,
        unique_key="k",
        headers={"trace": "x"},
        interval=60,
    ).aenqueue(1)
    task = await stored(app, handle.id)
    assert (task.queue, task.priority, task.eta, task.timeout) == ("mail", 7, eta, 5)
    assert (task.max_retries, task.unique_key, task.headers) == (9, "k", {"trace": "x"})
    assert task.interval == 60
    untouched = await stored(app, (await app.add.aenqueue(1)).id)
    assert (untouched.queue, untouched.priority, untouched.max_retries) == ("default", 0, 0)
    await app.q.aclose()


async def test_delay_and_expires_count_from_the_enqueue() -> None:
    app = Made(MemoryStorage())
    later = app.add.options(delay=60, expires=timedelta(minutes=5))
    before = datetime.now(UTC)
    task = await stored(app, (await later.aenqueue(1)).id)
    assert before + timedelta(seconds=60) <= task.eta <= datetime.now(UTC) + timedelta(seconds=60)
    assert task.expires_at - task.eta == timedelta(minutes=4)
    await app.q.aclose()


async def test_options_add_up() -> None:
    app = Made(MemoryStorage())
    task = app.add.options(priority=3).options(queue="a").options(priority=4)
    kept = await stored(app, (await task.aenqueue(1)).id)
    assert (kept.priority, kept.queue) == (4, "a")
    await app.q.aclose()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dely": 5}, "delay"),
        ({"retries": 5}, "max_retries"),
        ({"whatever": 5}, "known are"),
        ({"eta": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 - that is the point
        ({"delay": "soon"}, "delay"),
        ({"delay": 5, "eta": datetime(2030, 1, 1, tzinfo=UTC)}, "not both"),
        ({"queue": "no spaces"}, "queue"),
        ({"priority": 10}, "priority"),
        ({"timeout": 0}, "timeout"),
        ({"max_retries": -1}, "max_retries"),
        ({"on_conflict": "explode"}, "on_conflict"),
        ({"expires": "never"}, "expires"),
        ({"unique_key": "\n"}, "unique_key"),
        ({"unique": 5}, "unique"),
        ({"headers": None}, "headers"),
        ({"id": ""}, "id"),
        ({"id": 0}, "id"),
    ],
)
def test_bad_options_are_refused_where_they_are_written(options: dict[str, Any], says: str) -> None:
    """In the decorator and in `.options(...)`, before anything is enqueued."""
    app = Made("memory://")
    with pytest.raises(InvalidOption, match=says):
        app.add.options(**options)
    with pytest.raises(InvalidOption, match=says):
        app.q.task(name="x.y", **options)
    with pytest.raises(InvalidOption, match="executor"):
        app.q.task(name="x.y", executor="gpu")(module_level)  # type: ignore[call-overload]


async def test_unique_keys() -> None:
    app = Made(MemoryStorage())
    task = app.add.options(unique_key="one")
    first = await task.aenqueue(1)
    second = await task.aenqueue(2)
    assert (first.created, second.created, second.id) == (True, False, first.id)
    with pytest.raises(DuplicateTask) as clash:
        await task.options(on_conflict="raise").aenqueue(3)
    assert clash.value.task_id == first.id
    replaced = await task.options(on_conflict="replace").aenqueue(4)
    assert (replaced.id, (await stored(app, first.id)).args) == (first.id, (4,))
    await app.q.aclose()


async def test_ids_chosen_by_the_caller() -> None:
    app = Made(MemoryStorage())
    once = app.add.options(id="order-17")
    assert (await once.aenqueue(1)).created
    again = await once.aenqueue(1)
    assert (again.id, again.created) == ("order-17", False)
    with pytest.raises(IdConflict):
        await once.aenqueue(2)
    await app.q.aclose()


async def test_many_or_none() -> None:
    app = Made(MemoryStorage())
    calls = [app.add.call(n) for n in range(5)] + [app.aadd.options(priority=9).call(1, 2)]
    handles = await app.q.aenqueue_many(calls)
    assert len({handle.id for handle in handles}) == 6
    clash = [app.add.call(1), app.add.options(id=handles[0].id).call(99)]
    with pytest.raises(IdConflict):
        await app.q.aenqueue_many(clash)
    assert len(await (await app.q.astorage()).list_tasks()) == 6
    with pytest.raises(InvalidOption, match="call"):
        await app.q.aenqueue_many([app.add(1)])  # type: ignore[list-item]
    await app.q.aclose()


async def test_delay_is_another_name_for_enqueue() -> None:
    app = Made(MemoryStorage())
    handle = await asyncio.to_thread(app.add.delay, 1, b=2)
    assert (await stored(app, handle.id)).kwargs == {"b": 2}
    await app.q.aclose()
    await asyncio.to_thread(app.q.close)


# --- running -------------------------------------------------------------------------------------


async def test_an_old_name_still_runs() -> None:
    """`aliases`: what was enqueued under an old name is reachable after the function moved."""
    q = OmniQ(MemoryStorage())
    old = q.task(name="old.name")(module_level)
    handle = await old.aenqueue(5)
    moved = OmniQ(q.storage())
    moved.task(name="new.name", aliases=["old.name"])(module_level)
    async with moved.async_worker():
        assert await handle.aresult(timeout=10) == 5
    await q.aclose()


async def test_executor_thread_keeps_an_async_function_off_the_loop() -> None:
    import threading

    q = OmniQ(MemoryStorage())

    @q.task(name="where", executor="thread")
    def where() -> int:
        return threading.get_ident()

    async with q.async_worker():
        assert await (await where.aenqueue()).aresult(timeout=10) != threading.get_ident()
    await q.aclose()


async def test_worker_options() -> None:
    q = OmniQ(MemoryStorage())
    assert q.worker().concurrency == 100
    assert q.worker(concurrency=3).concurrency == 3
    wrong: list[dict[str, Any]] = [{"concurrency": 0}, {"no_such_option": 1}, {"queues": []}, {"lease": 0}]
    for bad in wrong:
        with pytest.raises(InvalidOption):
            q.worker(**bad)
        with pytest.raises(InvalidOption):
            q.async_worker(**bad)


async def test_runs_only_its_own() -> None:
    """A worker of one application leaves another's tasks alone."""
    store = MemoryStorage()
    mine, other = OmniQ(store), OmniQ(store)
    a = mine.task(name="mine.a")(module_level)
    b = other.task(name="other.b")(module_level)
    async with mine.async_worker():
        theirs, ours = await b.aenqueue(1), await a.aenqueue(2)
        assert await ours.aresult(timeout=10) == 2
        assert await theirs.astatus() is not TaskStatus.SUCCESS
    assert await theirs.astatus() is TaskStatus.PENDING
    await mine.aclose()
    await other.aclose()


@pytest.mark.parametrize("aliases", [5, [5], "old.name", b"old"])
def test_aliases_are_a_list_of_names(aliases: Any) -> None:
    app = Made("memory://")
    with pytest.raises(InvalidOption, match="aliases"):
        app.q.task(name="x.y", aliases=aliases)


@pytest.mark.parametrize("name", ["", 0])
def test_an_empty_name_is_no_name(name: Any) -> None:
    app = Made("memory://")
    with pytest.raises(InvalidOption, match="func_path"):
        app.q.task(name=name)(module_level)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"serializer": "json"}, "serializer"),
        ({"serializer": 0}, "serializer"),
        ({"allow": 5}, "allow"),
        ({"allow": None}, "allow"),
        ({"allow": [5]}, "allow"),
    ],
)
def test_bad_options_of_the_application(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        OmniQ("memory://", **options)


async def test_many_takes_a_list_of_calls() -> None:
    app = Made("memory://")
    for bad in (5, None, app.add.call(1, 2)):
        with pytest.raises(InvalidOption, match="enqueue_many takes"):
            await app.q.aenqueue_many(bad)  # type: ignore[arg-type]
    storage = await app.q.astorage()
    for bad in (5, None, Task("a.b")):
        with pytest.raises(InvalidOption, match="enqueue_many takes"):
            await storage.enqueue_many(bad)
    await app.q.aclose()


def yields_lines() -> Iterator[str]:
    yield "a"


async def yields_later() -> AsyncIterator[str]:
    yield "a"


@pytest.mark.parametrize("func", [yields_lines, yields_later])
def test_a_generator_is_refused_where_it_is_made_a_task(func: Any) -> None:
    """Nobody would iterate it: its body would never run, and only the worker would say so."""
    with pytest.raises(InvalidOption, match="generator"):
        Made("memory://").q.task(func)
