"""Seed 000, worker-pool-core: one test or more for each of its requirements."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import omniq.worker
from omniq import AsyncWorkerPool, InvalidOption, Task, TaskStatus, Worker, WorkerPool
from omniq.storage import MemoryStorage
from omniq.storage.base import BaseStorage
from tests.requirements import bodies as shared
from tests.worker.fixtures import Timed
from tests.worker.scene import (
    QUICK,
    Bodies,
    await_final,
    ended,
    enqueue,
    omniq_threads,
    running,
    turns,
    until,
    until_blocking,
)
from tests.worker.stores import AnyStore, Five, Memory, Six, SQLite, result_of, task_of

# --- polling and concurrency ---------------------------------------------------------------------


@pytest.mark.requirement("S000-1")
async def test_s000_1_polls_and_runs_concurrently(store: AnyStore, bodies: Bodies) -> None:
    """S000-1: `AsyncWorkerPool` polls a storage for due tasks and runs them concurrently."""
    meeting = asyncio.Barrier(2)

    async def meet(name: str) -> str:
        await meeting.wait()  # one alone would wait for ever
        return name

    async with store, running(store, 2, **QUICK):
        ids = [await store.enqueue(Task(bodies(meet), (name,))) for name in ("ann", "bob")]
        assert [(await ended(store, task_id)).result for task_id in ids] == ["ann", "bob"]


@pytest.mark.requirement("S000-2")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_s000_2_never_more_bodies_than_concurrency(store: AnyStore, bodies: Bodies, kind: str) -> None:
    """S000-2: with more than N due tasks, never more than N bodies run at the same instant."""
    lock, now, most = threading.Lock(), 0, 0

    def enter(step: int) -> None:
        nonlocal now, most
        with lock:
            now += step
            most = max(most, now)

    async def body() -> None:
        enter(+1)
        await turns(3)
        enter(-1)

    def blocking_body() -> None:
        enter(+1)
        enter(-1)

    path = bodies(body if kind == "async" else blocking_body)
    async with store:
        ids = [await store.enqueue(Task(path)) for _ in range(20)]
        async with running(store, 3, **QUICK):
            for task_id in ids:
                await ended(store, task_id)
    assert 1 <= most <= 3
    assert kind == "thread" or most == 3


@pytest.mark.requirement("S000-3")
async def test_s000_3_claims_only_what_it_can_start(store: AnyStore, bodies: Bodies) -> None:
    """S000-3: claimed-but-unfinished tasks never exceed N; the next claim waits for a completion."""
    gates = [asyncio.Event() for _ in range(6)]

    async def body(number: int) -> None:
        await gates[number].wait()

    async with store:
        ids = [await store.enqueue(Task(bodies(body), (number,))) for number in range(6)]
        async with running(store, 2, **QUICK):
            for done in range(5):
                expected = min(2 + done, 6)
                await until(lambda n: len(store.log.ids("claimed")) == n, expected)
                await turns()
                assert store.log.ids("claimed") == ids[:expected]
                gates[done].set()
            gates[5].set()
            await ended(store, ids[5])
    assert store.log.most_held == 2
    third = store.log.events.index(("claimed", ids[2]))
    assert ("settled", ids[0]) in store.log.events[:third]


@pytest.mark.requirement("S000-4")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_s000_4_reaches_concurrency(store: AnyStore, bodies: Bodies, kind: str) -> None:
    """S000-4: with enough work, N bodies do run at once: N barrier tasks all meet."""
    n = 8
    threads, coroutines = threading.Barrier(n, timeout=10), asyncio.Barrier(n)

    def meet() -> None:
        threads.wait()

    async def ameet() -> None:
        await coroutines.wait()

    async with store, running(store, n, **QUICK):
        path = bodies(meet if kind == "thread" else ameet)
        ids = [await store.enqueue(Task(path, max_retries=0)) for _ in range(n)]
        assert {(await ended(store, task_id)).status for task_id in ids} == {TaskStatus.SUCCESS}


@pytest.mark.requirement("S000-5")
async def test_s000_5_runs_nothing_early(timed: Timed, bodies: Bodies) -> None:
    """S000-5: only tasks with `eta <= now`, or none, are run."""
    store, clock = timed
    ran: list[str] = []

    async def body(name: str) -> None:
        ran.append(name)

    async with store, running(store, 4, poll_interval=0.5, clock=clock):
        path, now = bodies(body), clock.now()
        await store.enqueue(Task(path, ("later",), eta=now + timedelta(seconds=30)))
        await store.enqueue(Task(path, ("past",), eta=now - timedelta(seconds=100)))
        await store.enqueue(Task(path, ("none",)))
        await clock.advance(29.9)
        assert sorted(ran) == ["none", "past"]
        await clock.advance(0.6)
        assert sorted(ran) == ["later", "none", "past"]


@pytest.mark.requirement("S000-6")
async def test_s000_6_next_poll_one_interval_after_an_empty_one(timed: Timed, bodies: Bodies) -> None:
    """S000-6: an empty poll is followed by the next one about `poll_interval` later, busy or idle."""
    store, clock = timed
    gate = asyncio.Event()

    async def body() -> None:
        await gate.wait()

    start = clock.monotonic()
    async with store, running(store, 2, poll_interval=5, wake=False, clock=clock):
        await clock.advance(12)
        assert store.log.look_times() == [start, start + 5, start + 10]
        await store.enqueue(Task(bodies(body)))
        await clock.advance(18)  # found at 15; from then on one is in flight and one slot is free
        assert store.log.look_times() == [start + 5 * n for n in range(7)]
        gate.set()
        await clock.advance(4)
        assert await result_of(store, (await only_task(store)).id) is not None


async def only_task(store: AnyStore) -> Task:
    [task] = store.tasks.values() if isinstance(store, Five) else await store.list_tasks()
    return task


@pytest.mark.requirement("S000-7")
async def test_s000_7_polls_until_stopped(timed: Timed) -> None:
    """S000-7: a task added after many empty polls is run within about one interval."""
    store, clock = timed
    async with store:
        async with running(store, 1, poll_interval=0.5, wake=False, clock=clock):
            await clock.advance(50.25)
            assert len(store.log.look_times()) == 101
            task_id = await store.enqueue(Task(shared.path(shared.aecho)))
            await clock.advance(0.5)
            assert (await result_of(store, task_id)) is not None
        looks = len(store.log.looks)
        await clock.advance(10)
        assert len(store.log.looks) == looks


@pytest.mark.requirement("S000-8")
@pytest.mark.parametrize("bad", [0, -1, -0.5, float("nan"), "1", None, True])
@pytest.mark.parametrize("option", ["concurrency", "poll_interval"])
@pytest.mark.parametrize("kind", [AsyncWorkerPool, WorkerPool, Worker])
def test_s000_8_refuses_zero_and_less(kind: type[Any], option: str, bad: object) -> None:
    """S000-8: a concurrency or poll interval of zero or less is refused, not clamped."""
    name = "max_concurrency" if kind is Worker and option == "concurrency" else option
    with pytest.raises(InvalidOption, match=name):
        kind(MemoryStorage(), **{name: bad})


# --- running -------------------------------------------------------------------------------------


@pytest.mark.requirement("S000-9")
@pytest.mark.parametrize("body", [shared.echo, shared.aecho])
async def test_s000_9_passes_arguments_on(store: AnyStore, body: Any) -> None:
    """S000-9: `func_path` names the callable; `args` and `kwargs` are passed on unchanged."""
    args, kwargs = ("a.png", 2, None, [1, {"x": (1, 2)}], b"\x00"), {"fit": True, "sizes": [1, 2]}
    async with store, running(store, **QUICK):
        task_id = await store.enqueue(Task(shared.path(body), args, kwargs))
        assert (await ended(store, task_id)).result == [list(args), kwargs]


@pytest.mark.requirement("S000-10")
async def test_s000_10_awaits_async_functions(store: AnyStore, bodies: Bodies) -> None:
    """S000-10: an async function is awaited on the pool's loop; its value is in the result."""

    async def body() -> list[Any]:
        return [id(asyncio.get_running_loop()), threading.get_ident()]

    async with store, running(store, **QUICK):
        task_id = await store.enqueue(Task(bodies(body)))
        result = await ended(store, task_id)
    assert result.status is TaskStatus.SUCCESS
    assert result.result == [id(asyncio.get_running_loop()), threading.get_ident()]


@pytest.mark.requirement("S000-11")
async def test_s000_11_runs_sync_functions_in_threads(store: AnyStore, bodies: Bodies) -> None:
    """S000-11: a sync function runs off the loop's thread, and the loop goes on meanwhile."""
    inside, released = threading.Event(), threading.Event()

    def body() -> int:
        inside.set()
        assert released.wait(10), "the loop that should have released us did not move"
        return threading.get_ident()

    async with store, running(store, **QUICK):
        task_id = await store.enqueue(Task(bodies(body)))
        await until(inside.is_set)
        released.set()
        result = await ended(store, task_id)
    assert result.status is TaskStatus.SUCCESS
    assert result.result != threading.get_ident()


@pytest.mark.requirement("S000-12")
async def test_s000_12_none_is_a_result(store: AnyStore) -> None:
    """S000-12: returning `None` is a success with a stored `None`, not "no result yet"."""
    async with store:
        task_id = await store.enqueue(Task(shared.path(shared.nothing)))
        assert await result_of(store, task_id) is None
        async with running(store, **QUICK):
            result = await ended(store, task_id)
    assert (result.status, result.result) == (TaskStatus.SUCCESS, None)


# --- retries -------------------------------------------------------------------------------------


@pytest.mark.requirement("S000-13")
async def test_s000_13_backs_off_exponentially(timed: Timed, bodies: Bodies) -> None:
    """S000-13: the next attempt waits `base * 2**attempts` seconds and a small jitter."""
    store, clock = timed
    failures: list[datetime] = []

    async def body() -> None:
        failures.append(clock.now())
        raise ValueError

    async with store, running(store, poll_interval=0.5, base_retry_delay=2, clock=clock):
        task_id = await store.enqueue(Task(bodies(body), max_retries=4))
        for attempts in range(4):
            task = await after_next_run(timed, task_id, failures)
            assert (task.attempts, task.status) == (attempts + 1, TaskStatus.PENDING)
            assert task.eta is not None
            delay_s = (task.eta - failures[-1]).total_seconds()
            assert 2 * 2**attempts <= delay_s <= 2.2 * 2**attempts


async def after_next_run(timed: Timed, task_id: str, runs: list[datetime]) -> Task:
    """Let time pass until the body has run once more; the task afterwards."""
    known = len(runs)
    while len(runs) == known:
        await timed.clock.advance(0.25)
    return await task_of(timed.store, task_id)


@pytest.mark.requirement("S000-14")
async def test_s000_14_reschedules_with_that_eta(timed: Timed, bodies: Bodies) -> None:
    """S000-14: the computed eta is what the task is rescheduled with; it does not run before it."""
    store, clock = timed
    failures: list[datetime] = []

    async def body() -> None:
        failures.append(clock.now())
        raise ValueError

    async with store, running(store, poll_interval=0.5, base_retry_delay=2, clock=clock):
        task_id = await store.enqueue(Task(bodies(body), max_retries=3))
        for runs in (1, 2, 3):
            eta = (await after_next_run(timed, task_id, failures)).eta
            assert eta is not None
            await clock.advance((eta - clock.now()).total_seconds() - 0.01)
            assert len(failures) == runs
        await clock.advance(1)
    assert len(failures) == 4


@pytest.mark.requirement("S000-15")
async def test_s000_15_fails_when_retries_are_used_up(store: AnyStore) -> None:
    """S000-15: once attempts exceed `max_retries` there are no more, and the status is FAILED."""
    async with store, running(store, **QUICK):
        task_id = await store.enqueue(Task(shared.path(shared.boom), max_retries=2))
        result = await ended(store, task_id)
        task = await task_of(store, task_id)
    assert (result.status, task.status, task.attempts) == (TaskStatus.FAILED, TaskStatus.FAILED, 3)
    assert result.error is not None
    assert result.error.type == "ValueError"


@pytest.mark.requirement("S000-16")
@pytest.mark.parametrize("max_retries", [0, 1, 4])
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_s000_16_k_retries_are_k_plus_one_runs(
    store: AnyStore, bodies: Bodies, max_retries: int, kind: str
) -> None:
    """S000-16: `max_retries=0` is one execution; k retries of a failing task are k + 1."""
    runs: list[int] = []

    def body() -> None:
        runs.append(1)
        raise ValueError

    async def abody() -> None:
        body()

    options = {**QUICK, "poll_interval": 0.003}
    async with store, running(store, **options):
        path = bodies(abody if kind == "async" else body)
        task_id = await store.enqueue(Task(path, max_retries=max_retries))
        assert (await ended(store, task_id)).status is TaskStatus.FAILED
    assert len(runs) == max_retries + 1


@pytest.mark.requirement("S000-17")
async def test_s000_17_a_new_pool_goes_on_counting(store: AnyStore, bodies: Bodies) -> None:
    """S000-17: the attempt count is stored with the task, so a new pool on the same storage goes on."""
    runs: list[int] = []
    failed = asyncio.Event()

    async def body() -> None:
        runs.append(1)
        failed.set()
        raise ValueError

    async with store:
        task_id = await store.enqueue(Task(bodies(body), max_retries=2))
        for attempt in (1, 2, 3):
            # One pool for each attempt: the retry is further away than the pool lives, and is then moved.
            async with running(store, poll_interval=0.02, base_retry_delay=100):
                await failed.wait()
            failed.clear()
            assert (await task_of(store, task_id)).attempts == attempt
            if attempt < 3:
                await make_due(store, task_id)
    assert (await_final(store, task_id), len(runs)) == (TaskStatus.FAILED, 3)


async def make_due(store: AnyStore, task_id: str) -> None:
    task = await task_of(store, task_id)
    due = store.clock.now() - timedelta(seconds=1)
    if isinstance(store, Five):
        store._set(task.id, eta=due)
    else:
        await store.reschedule(task.id, due)


# --- intervals -----------------------------------------------------------------------------------


@pytest.mark.requirement("S000-18")
async def test_s000_18_repeats_after_success(timed: Timed, bodies: Bodies) -> None:
    """S000-18: success sets a new eta = completion + interval, stored, and the task runs again then."""
    store, clock = timed
    runs: list[datetime] = []

    async def body() -> int:
        runs.append(clock.now())
        return len(runs)

    async with store, running(store, poll_interval=1, clock=clock):
        task_id = await store.enqueue(Task(bodies(body), interval=20))
        for count in (1, 2, 3):
            task = await after_next_run(timed, task_id, runs)
            assert (len(runs), task.status) == (count, TaskStatus.PENDING)
            assert task.eta == runs[-1] + timedelta(seconds=20)
            await clock.advance((task.eta - clock.now()).total_seconds() - 0.01)
            assert len(runs) == count


@pytest.mark.requirement("S000-18")
async def test_s000_18_the_next_run_is_in_the_file(tmp_path: Path) -> None:
    """S000-18: the new eta is durable: it is there after everything was closed."""
    async with SQLite(tmp_path / "jobs.db") as store:
        task_id = await store.enqueue(Task(shared.path(shared.echo), interval=3600))
        async with running(store):
            await ended(store, task_id)
    async with SQLite(tmp_path / "jobs.db") as store:
        task = await task_of(store, task_id)
        result = await result_of(store, task_id)
    assert result is not None
    assert result.finished_at is not None
    assert task.status is TaskStatus.PENDING
    assert task.eta == result.finished_at + timedelta(hours=1)


@pytest.mark.requirement("S000-19")
async def test_s000_19_counts_from_completion(timed: Timed, bodies: Bodies) -> None:
    """S000-19: the base is completion, not the start nor the eta before."""
    store, clock = timed
    gate = asyncio.Event()

    async def body() -> None:
        await gate.wait()

    async with store, running(store, poll_interval=1, clock=clock):
        task_id = await store.enqueue(Task(bodies(body), interval=60, eta=clock.now() - timedelta(hours=1)))
        await clock.advance(25)
        gate.set()
        await clock.advance(0)
        completed = clock.now()
        await clock.advance(1)
        assert (await task_of(store, task_id)).eta == completed + timedelta(seconds=60)


@pytest.mark.requirement("S000-19")
@pytest.mark.parametrize("interval", [None, 0, -5])
async def test_s000_19_no_interval_no_repetition(store: AnyStore, interval: float | None) -> None:
    """S000-19: a missing, zero or negative interval means no repetition."""
    async with store, running(store, **QUICK):
        task_id = await store.enqueue(Task(shared.path(shared.echo), interval=interval))
        await ended(store, task_id)
        assert (await task_of(store, task_id)).status is TaskStatus.SUCCESS


@pytest.mark.requirement("S000-19")
async def test_s000_19_a_failed_run_goes_the_retry_way(timed: Timed) -> None:
    """S000-19: a failed run of an interval task is retried after the backoff, not after the interval."""
    store, clock = timed
    async with store, running(store, poll_interval=1, base_retry_delay=10, clock=clock):
        task_id = await store.enqueue(Task(shared.path(shared.aboom), interval=3600, max_retries=1))
        await clock.advance(1)
        task = await task_of(store, task_id)
        assert task.eta is not None
        assert (task.eta - clock.now()).total_seconds() <= 11
        await clock.advance(12)
        assert (await task_of(store, task_id)).status is TaskStatus.FAILED


@pytest.mark.requirement("S000-20")
async def test_s000_20_success_renews_the_retry_budget(timed: Timed, bodies: Bodies) -> None:
    """S000-20: repeated success gets a fresh retry budget per run."""
    store, clock = timed
    runs: list[int] = []

    async def body() -> None:
        runs.append(1)
        if len(runs) % 2:
            raise ValueError  # every first try fails, every second one works

    async with store, running(store, poll_interval=1, base_retry_delay=1, clock=clock):
        task_id = await store.enqueue(Task(bodies(body), interval=5, max_retries=1))
        await clock.advance(45)
        task = await task_of(store, task_id)
    assert len(runs) >= 10
    assert task.status in (TaskStatus.PENDING, TaskStatus.RUNNING)


# --- the blocking face ---------------------------------------------------------------------------


@pytest.mark.requirement("S000-21")
def test_s000_21_start_returns_when_running(store: AnyStore, bodies: Bodies) -> None:
    """S000-21: `WorkerPool.start()` runs the pool in a thread and returns once it runs, not when it ends."""
    released = threading.Event()

    def body() -> str:
        assert released.wait(10)
        return threading.current_thread().name

    pool = WorkerPool(store, 2, **QUICK)
    pool.start()
    try:
        assert pool.running
        assert any(thread.name == "omniq-worker" for thread in omniq_threads())
        asyncio.run(enqueue(store, Task(bodies(body), id="t")))
        until_blocking(lambda: store.log.ids("claimed") or pool.running is False)
        released.set()
    finally:
        released.set()
        pool.stop()
    assert await_final(store, "t") is TaskStatus.SUCCESS


@pytest.mark.requirement("S000-22")
def test_s000_22_stop_waits_for_bodies(store: AnyStore, bodies: Bodies) -> None:
    """S000-22: `stop()` blocks until polling has ended and bodies in flight have ended and are settled."""
    inside, stopping, finished = threading.Event(), threading.Event(), threading.Event()

    def body() -> str:
        inside.set()
        assert stopping.wait(10)
        stopper.join(0.1)
        assert stopper.is_alive(), "stop() did not wait for us"
        finished.set()
        return "done"

    pool = WorkerPool(store, 1, **QUICK)
    pool.start()
    stopper = threading.Thread(target=pool.stop)
    asyncio.run(enqueue(store, Task(bodies(body), id="t")))
    assert inside.wait(10)
    stopper.start()
    stopping.set()
    stopper.join(10)
    assert not stopper.is_alive()
    assert finished.is_set()
    assert not pool.running
    assert await_final(store, "t") is TaskStatus.SUCCESS


@pytest.mark.requirement("S000-23")
def test_s000_23_after_stop_nothing_is_left(store: AnyStore) -> None:
    """S000-23: after `stop()` there is no more look for work and no thread; stopping twice is harmless."""
    before = omniq_threads()
    pool = WorkerPool(store, 2, poll_interval=0.005)
    pool.stop()  # before start
    pool.start()
    asyncio.run(enqueue(store, Task(shared.path(shared.echo), id="t")))
    until_blocking(lambda: await_final(store, "t") is TaskStatus.SUCCESS)
    pool.stop()
    pool.stop()
    looks = len(store.log.looks)
    until_blocking(lambda: omniq_threads() <= before)
    assert len(store.log.looks) == looks
    assert not pool.running


class Unopenable(Six):
    async def open(self) -> None:
        raise RuntimeError("no such server")


@pytest.mark.requirement("S000-23")
@pytest.mark.parametrize("storage", [Unopenable(), SQLite("/no/such/folder/jobs.db")], ids=["own", "sqlite"])
def test_s000_23_a_failed_start_raises(storage: BaseStorage) -> None:
    """S000-23: an error during startup is raised in the caller of `start()` instead of hanging it."""
    before = omniq_threads()
    pool = WorkerPool(storage)
    with pytest.raises((RuntimeError, InvalidOption), match=r"no such|no folder"):
        pool.start()
    assert not pool.running
    until_blocking(lambda: omniq_threads() <= before)
    pool.stop()


@pytest.mark.requirement("S000-24")
def test_s000_24_says_what_the_pool_is_for() -> None:
    """S000-24: the purpose of the pool is written down, not left open."""
    for text in (omniq.worker.__doc__, AsyncWorkerPool.__doc__, WorkerPool.__doc__):
        assert text
        assert "TBD" not in text
    assert "runs" in str(AsyncWorkerPool.__doc__)
    assert "storage" in str(AsyncWorkerPool.__doc__)


def test_the_stores_of_these_tests_are_what_they_say() -> None:
    """`Five` brings the seed's five verbs and nothing else, `Six` one more."""
    verbs = [name for name in dir(BaseStorage) if not name.startswith("_") and callable(getattr(Five, name))]
    brought = {name for name in verbs if Five().overrides(name)}
    assert brought == {"enqueue", "dequeue", "mark_running", "mark_done", "mark_failed"}
    assert {name for name in verbs if Six().overrides(name)} == brought | {"reschedule"}
    assert not isinstance(Five(), Memory)
