"""Who ends together is settled together; nobody's end and nobody's start waits for another body."""

import asyncio
import threading
from typing import Any

import pytest

from omniq import Context, Task, TaskStatus
from omniq.executors import Flight, Threads, run_around
from omniq.registry import runnable_of
from omniq.storage import MemoryStorage
from omniq.task import Interrupted, Outcome, StoredTask, Succeeded
from tests.worker.scene import Bodies, ended, running, turns, until

WAITS = 30.0


@pytest.mark.parametrize("slow_ones", [{0}, {1}, {19}, set(range(5, 20))])
async def test_what_ended_in_a_thread_is_told_while_others_go_on(bodies: Bodies, slow_ones: set[int]) -> None:
    """Short bodies may share a thread with one that goes on: theirs end all the same."""
    go = threading.Event()
    meeting = threading.Barrier(20)

    def meet() -> int:
        return meeting.wait(WAITS)

    def quick() -> str:
        return "quick"

    def slow() -> bool:
        return go.wait(WAITS)

    async with MemoryStorage() as store, running(store, 20):
        # All have to run at once, so that there are twenty threads, and none has to be started later.
        first = await store.enqueue_many([Task(bodies(meet)) for _ in range(20)])
        assert {(await ended(store, one)).status for one in first} == {TaskStatus.SUCCESS}
        paths = [bodies(slow if n in slow_ones else quick) for n in range(20)]
        ids = await store.enqueue_many([Task(path) for path in paths])
        results = [await ended(store, one) for n, one in enumerate(ids) if n not in slow_ones]
        assert {result.result for result in results} == {"quick"}
        assert not go.is_set()
        go.set()
        assert {(await ended(store, ids[n])).result for n in slow_ones} == {True}


@pytest.mark.parametrize("quick_before", [0, 1, 19])
async def test_a_function_that_was_quick_and_blocks_keeps_nobody_waiting(
    bodies: Bodies, quick_before: int
) -> None:
    """Quick bodies share a thread until one blocks: the rest begins beside it, what ended is told."""
    go = threading.Event()
    inside: list[int] = []

    def body(n: int) -> bool:
        if n < 0:
            return True
        inside.append(n)
        return go.wait(WAITS)

    path = bodies(body)
    async with MemoryStorage() as store, running(store, 20):
        warm = await store.enqueue_many([Task(path, (-1,)) for _ in range(20)])
        assert {(await ended(store, one)).result for one in warm} == {True}
        quick = [Task(path, (-1,)) for _ in range(quick_before)]
        ids = await store.enqueue_many([*quick, *(Task(path, (n,)) for n in range(20 - quick_before))])
        assert {(await ended(store, one)).result for one in ids[:quick_before]} <= {True}
        await until(lambda: len(inside) == 20 - quick_before)
        assert not go.is_set()
        go.set()
        assert {(await ended(store, one)).result for one in ids} == {True}


async def test_who_comes_tells_the_loop_before_it_begins_a_body_of_its_own() -> None:
    """One thread has ended bodies and begun another; the next may begin one too: somebody must tell."""
    told: list[bool] = []
    ends: list[str] = []

    def body() -> None:
        told.append(threads._armed)

    def flight(name: str) -> Flight:
        claim = StoredTask("m.f", b"", id=name, epoch=1, status=TaskStatus.RUNNING)
        context = Context(name, 1, 1, lambda *_: None)
        made = Flight(claim, context, lambda one, _: ends.append(one.claim.id), lambda _: None)
        made.runnable = runnable_of(body)
        return made

    threads = Threads(0, lambda _: Succeeded(b""))  # none: this one does it, step by step
    threads._ended.append((flight("ended before"), Succeeded(b"")))
    threads.submit(flight("begun now"))
    threads._calls.put(False)
    threads._serve()
    assert told == [True]
    await until(lambda: ends == ["ended before", "begun now"])


async def test_quick_functions_are_trusted_until_one_holds_up_the_rest() -> None:
    """Who begins a body calls the next thread, unless it is trusted; and trust ends when nothing moves."""
    called: list[bool] = []

    def body() -> None:
        called.append(threads._called)

    def flight(name: str) -> Flight:
        claim = StoredTask("m.f", b"", id=name, epoch=1, status=TaskStatus.RUNNING)
        made = Flight(claim, Context(name, 1, 1, lambda *_: None), lambda *_: None, lambda _: None)
        made.runnable = runnable_of(body)
        return made

    def serve_one_of_two() -> bool:
        """As a thread does that was called: whether it called another before the body began."""
        threads.submit(flight("one"))
        threads.submit(flight("two"))
        threads._called = False
        threads._serve_next()
        threads._work.clear()
        return called.pop()

    threads = Threads(0, lambda _: Succeeded(b""))  # none: this one does it, step by step
    assert serve_one_of_two()
    threads._quick.add("m.f")  # whatever the first run took
    assert not serve_one_of_two()
    threads._quick.add("m.f")
    threads.submit(flight("behind one that blocks"))
    threads._begun_before = threads._begun
    threads._look()
    assert not threads._quick
    assert serve_one_of_two()


@pytest.mark.parametrize("hooked", [False, True])
async def test_what_was_stopped_before_a_thread_took_it_never_runs(hooked: bool) -> None:
    """Its task was given back already, and may run elsewhere by now."""
    ran: list[str] = []
    ends: list[Outcome] = []
    left: list[Flight] = []
    claim = StoredTask("m.f", b"", id="one", epoch=1, status=TaskStatus.RUNNING)
    context = Context("one", 1, 1, lambda *_: None)
    flight = Flight(claim, context, lambda _, outcome: ends.append(outcome), left.append)
    flight.runnable = runnable_of(lambda: ran.append("ran"))
    threads = Threads(0, lambda _: Succeeded(b""))  # none: this one does it, step by step
    if hooked:
        call = threads.call(flight)
        flight.fly(asyncio.get_running_loop(), run_around(flight, lambda run: run(), lambda: call, encode))
        await turns()
    else:
        threads.submit(flight)
    flight.interrupt("stop")
    await turns()
    assert ends == [Interrupted()]
    assert left == []
    threads._calls.put(False)
    threads._serve()
    await until(lambda: left == [flight])
    assert ran == []
    assert ends == [Interrupted()]


async def test_a_hook_that_calls_a_thread_after_its_run_has_ended_is_told() -> None:
    """It went on although it was cancelled, and would wait for ever for what must not run any more."""
    ran: list[str] = []
    claim = StoredTask("m.f", b"", id="one", epoch=1, status=TaskStatus.RUNNING)
    flight = Flight(claim, Context("one", 1, 1, lambda *_: None), lambda *_: None, lambda _: None)
    flight.runnable = runnable_of(lambda: ran.append("ran"))
    threads = Threads(0, encode)
    flight.outlived()
    call = asyncio.ensure_future(threads.call(flight))
    await turns()
    threads._calls.put(False)
    threads._serve()
    await until(call.done)
    assert call.cancelled()
    assert ran == []


def encode(_: object) -> Outcome:
    return Succeeded(b"")


class Watched(MemoryStorage):
    """Writes down how many each exchange settles, and how many it asks for; one can be kept waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int | None]] = []
        self.open_gate = asyncio.Event()
        self.open_gate.set()

    async def exchange(self, settlements: Any, claim: Any = None) -> Any:
        self.seen.append((len(settlements), None if claim is None else claim.limit))
        answer = await super().exchange(settlements, claim)
        await self.open_gate.wait()
        return answer


async def test_a_few_that_are_out_of_step_fall_in_again(bodies: Bodies) -> None:
    started: list[int] = []
    goes = [asyncio.Event() for _ in range(20)]

    async def body(n: int) -> None:
        started.append(n)
        await goes[n].wait()

    async with Watched() as store:
        await store.enqueue_many([Task(bodies(body), (n,)) for n in range(20)])
        async with running(store, 5):
            await until(lambda: len(started) == 5)
            store.open_gate.clear()
            for n in range(4):
                goes[n].set()
            await until(lambda: store.seen[-1] == (4, 4))
            goes[4].set()  # while the others are being settled, and their slots filled
            await asyncio.sleep(0.01)
            store.open_gate.set()
            # It is settled alone, and its slot is filled with the next exchange, whoever has ended by then.
            await until(lambda: len(started) == 10)
            assert store.seen == [(0, 5), (4, 4), (1, None), (0, 1)]
            for one in goes:
                one.set()
            await until(lambda: len(started) == 20)
