"""Bodies that never wait share a task of asyncio; none of them can tell, except that there is one."""

import asyncio
import sys
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from omniq import Context, Task, TaskStatus, context
from omniq.coroutines import Coroutines
from omniq.executors import Flight, Reason
from omniq.registry import runnable_of
from omniq.storage import MemoryStorage
from omniq.task import Failed, Interrupted, Outcome, StoredTask, Succeeded
from tests.worker.scene import Bodies, ended, running, turns, until

mine: ContextVar[str] = ContextVar("mine", default="nobody")


async def enqueue_all(store: MemoryStorage, *tasks: Task) -> list[str]:
    return [str(one) for one in await store.enqueue_many(tasks)]


async def test_each_body_has_its_own_context_variables(bodies: Bodies) -> None:
    seen: list[tuple[str, str]] = []

    async def sets(name: str, waits: bool) -> None:
        before = mine.get()
        mine.set(name)
        if waits:
            await asyncio.sleep(0)
        seen.append((before, mine.get()))
        assert context().task_id == name

    async with MemoryStorage() as store:
        path = bodies(sets)
        calls = [Task(path, (f"t{n}", n % 3 == 1), id=f"t{n}") for n in range(9)]
        ids = await enqueue_all(store, *calls)
        async with running(store, 9):
            results = [await ended(store, one) for one in ids]
    assert {result.status for result in results} == {TaskStatus.SUCCESS}
    assert sorted(seen) == [("nobody", f"t{n}") for n in range(9)]
    assert mine.get() == "nobody"


async def test_who_waits_keeps_nobody_waiting(bodies: Bodies) -> None:
    """Each waits for the one that was started last: none may have to end before the next begins."""
    started: list[int] = []
    last = asyncio.Event()

    async def body(n: int) -> int:
        started.append(n)
        if n == 9:
            last.set()
        await last.wait()
        return n

    async with MemoryStorage() as store:
        path = bodies(body)
        ids = await enqueue_all(store, *(Task(path, (n,)) for n in range(10)))
        async with running(store, 10):
            results = [await ended(store, one) for one in ids]
    assert [result.result for result in results] == list(range(10))
    assert started == list(range(10))  # in the order of the claim


async def test_bodies_that_wait_have_tasks_of_their_own(bodies: Bodies) -> None:
    tasks: list[Any] = []
    go = asyncio.Event()

    async def body() -> None:
        before = asyncio.current_task()
        await go.wait()
        assert asyncio.current_task() is before
        tasks.append(before)

    async with MemoryStorage() as store:
        ids = await enqueue_all(store, *(Task(bodies(body)) for _ in range(5)))
        async with running(store, 5) as pool:
            await until(lambda: pool.info().in_flight == 5)
            await turns()
            go.set()
            results = [await ended(store, one) for one in ids]
    assert {result.status for result in results} == {TaskStatus.SUCCESS}
    assert len(set(map(id, tasks))) == 5


async def test_a_body_that_cancels_its_own_task_cancels_no_other(bodies: Bodies) -> None:
    async def cancels_itself() -> None:
        me = asyncio.current_task()
        assert me is not None
        me.cancel()

    async def innocent() -> str:
        await asyncio.sleep(0)
        return "done"

    async with MemoryStorage() as store:
        guilty, path = bodies(cancels_itself), bodies(innocent)
        calls = [Task(one, max_retries=0) for one in (guilty, path, guilty, path)]
        ids = await enqueue_all(store, *calls)
        async with running(store, 4):
            results = [await ended(store, one) for one in ids]
    assert [result.status for result in results] == [TaskStatus.SUCCESS] * 4
    assert [result.result for result in results] == [None, "done", None, "done"]


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def cancel_and_take_back(task: asyncio.Task[Any]) -> None:
    task.cancel()
    task.uncancel()


kept: dict[Any, str] = {}
kept_weakly: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
MARKS: dict[str, Callable[[asyncio.Task[Any]], object]] = {
    "a cancellation taken back": cancel_and_take_back,
    "a timer that cancels it": lambda task: asyncio.get_running_loop().call_later(0.001, task.cancel),
    "a name": lambda task: task.set_name("somebody's"),
    "a key": lambda task: kept.setdefault(task, "somebody's"),
    "a weak key": lambda task: kept_weakly.setdefault(task, "somebody's"),
}


@pytest.mark.parametrize("mark", MARKS)
async def test_what_a_body_does_to_its_task_is_nothing_to_the_next(bodies: Bodies, mark: str) -> None:
    """Such as a session that is kept by task: the next body would get somebody else's."""

    async def leaves_a_mark() -> None:
        MARKS[mark](this_task())

    async def innocent() -> list[Any]:
        me = this_task()
        found = [me.get_name() == "somebody's", kept.get(me), kept_weakly.get(me)]
        await asyncio.sleep(0.02)
        return found

    async with MemoryStorage() as store:
        guilty, path = bodies(leaves_a_mark), bodies(innocent)
        ids = await enqueue_all(store, *(Task(one, max_retries=0) for one in (guilty, path, guilty, path)))
        async with running(store, 4):
            results = [await ended(store, one) for one in ids]
    kept.clear()
    assert [(result.status, result.result) for result in results[1::2]] == [
        (TaskStatus.SUCCESS, [False, None, None])
    ] * 2


async def test_a_callback_on_its_task_is_called_when_the_body_has_ended(bodies: Bodies) -> None:
    called = asyncio.Event()

    async def cleans_up() -> None:
        this_task().add_done_callback(lambda _: called.set())

    async def waits_for_that() -> None:
        await called.wait()

    async with MemoryStorage() as store:
        ids = await enqueue_all(store, Task(bodies(cleans_up)), Task(bodies(waits_for_that)))
        async with running(store, 2):
            results = [await ended(store, one) for one in ids]
    assert {result.status for result in results} == {TaskStatus.SUCCESS}


async def test_bodies_that_leave_no_mark_share_a_task() -> None:
    names: list[str] = []

    async def body(name: str) -> None:
        names.append(this_task().get_name())
        if name == "b":
            raise ValueError(name)

    ends = Ends(body)
    coroutines = Coroutines(lambda _: DONE)
    for name in "abcd":
        coroutines.start(ends.flight(name))
    await turns()
    assert len(names) == 4
    assert len(set(names)) == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 has no eager tasks")
async def test_a_loop_that_starts_tasks_at_once_starts_bodies_all_the_same(bodies: Bodies) -> None:
    async def body(n: int) -> int:
        if n % 2:
            await asyncio.sleep(0)
        return n

    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined,unused-ignore]
    try:
        async with MemoryStorage() as store:
            ids = await enqueue_all(store, *(Task(bodies(body), (n,)) for n in range(6)))
            async with running(store, 3):
                results = [await ended(store, one) for one in ids]
    finally:
        loop.set_task_factory(None)
    assert [result.result for result in results] == list(range(6))


class Ends:
    """Flights by name, and how each has ended."""

    def __init__(self, body: Any) -> None:
        self.runnable = runnable_of(body)
        self.of: dict[str, Outcome] = {}

    def flight(self, name: str) -> Flight:
        claim = StoredTask("m.f", b"", id=name, epoch=1, status=TaskStatus.RUNNING)
        flight = Flight(claim, Context(name, 1, 1, lambda *_: None), self._ended, lambda _: None)
        flight.runnable, flight.args = self.runnable, (name,)
        return flight

    def _ended(self, flight: Flight, outcome: Outcome) -> None:
        self.of[flight.claim.id] = outcome


DONE = Succeeded(b"")


@pytest.mark.parametrize("reason", ["cancel", "stop"])
async def test_one_that_is_interrupted_before_its_first_step_takes_no_other_along(reason: Reason) -> None:
    ran: list[str] = []

    async def body(name: str) -> None:
        ran.append(name)

    ends = Ends(body)
    coroutines = Coroutines(lambda _: DONE)
    a, b, c = (ends.flight(name) for name in "abc")
    for flight in (a, b, c):
        coroutines.start(flight)
    b.interrupt(reason)
    assert ends.of == {"b": Interrupted()}
    await turns()
    assert ran == ["a", "c"]
    assert ends.of == {"a": DONE, "b": Interrupted(), "c": DONE}


async def test_a_runner_that_is_cancelled_before_its_first_step_ends_all_its_flights() -> None:
    """Whoever cancels every task of a loop: what had not begun goes back, with nothing spent."""
    ran: list[str] = []

    async def body(name: str) -> None:
        ran.append(name)

    ends = Ends(body)
    coroutines = Coroutines(lambda _: DONE)
    for name in "abc":
        coroutines.start(ends.flight(name))
    [runner] = asyncio.all_tasks() - {asyncio.current_task()}
    runner.cancel()
    await turns()
    assert ends.of == dict.fromkeys("abc", Interrupted())
    coroutines.start(ends.flight("d"))  # and the next ones run
    await turns()
    assert ran == ["d"]
    assert ends.of["d"] == DONE


async def test_cancelling_one_that_waits_leaves_those_that_came_with_it_alone() -> None:
    go = asyncio.Event()

    async def body(name: str) -> None:
        await go.wait()

    ends = Ends(body)
    coroutines = Coroutines(lambda _: DONE)
    flights = [ends.flight(name) for name in "abc"]
    for flight in flights:
        coroutines.start(flight)
    await turns()
    flights[0].interrupt("cancel")
    await turns()
    assert ends.of == {"a": Interrupted()}
    go.set()
    await turns()
    assert ends.of == {"a": Interrupted(), "b": DONE, "c": DONE}


async def test_a_body_that_catches_its_cancellation_sees_it_where_it_waits() -> None:
    seen: list[str] = []

    async def body(name: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(mine.get())
            await asyncio.sleep(0)
            seen.append(name)

    ends = Ends(body)
    coroutines = Coroutines(lambda _: DONE)
    flight = ends.flight("a")
    coroutines.start(flight)
    await turns()
    flight.interrupt("cancel")
    await turns()
    assert seen == ["nobody", "a"]
    assert ends.of == {"a": DONE}


class Opaque(Exception):
    """Has no attributes that anybody could look into."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("not even those")


async def test_what_breaks_the_engine_ends_one_body_only() -> None:
    async def body(name: str) -> None:
        if name == "b":
            raise Opaque

    ends = Ends(body)
    coroutines = Coroutines(lambda _: DONE)
    for name in "abc":
        coroutines.start(ends.flight(name))
    await turns()
    assert ends.of["a"] == ends.of["c"] == DONE
    failed = ends.of["b"]
    assert isinstance(failed, Failed)
    assert failed.error.type == "RuntimeError"
