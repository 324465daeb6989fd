"""Seed 001, design of the async worker pool: one test or more for each of its requirements."""

from __future__ import annotations

import ast
import asyncio
import functools
import gc
import inspect
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import omniq
import omniq.worker
from omniq import AsyncWorkerPool, Task, TaskStatus, WorkerPool
from omniq.exchanges import Exchanges
from omniq.logic.retry import RetryPolicy
from omniq.storage import MemoryStorage
from tests.requirements import bodies as shared
from tests.requirements.backoff import delays_of_first_retries
from tests.worker.fixtures import Timed
from tests.worker.scene import (
    QUICK,
    Bodies,
    Logs,
    ended,
    enqueue,
    omniq_threads,
    running,
    turns,
    until,
    until_blocking,
)
from tests.worker.stores import AnyStore, Five, Memory, Six, SQLite, result_of, task_of

SOURCE = Path(omniq.__file__).parent


# --- structure -----------------------------------------------------------------------------------


@pytest.mark.requirement("S001-1")
def test_s001_1_one_module_holds_both() -> None:
    """S001-1: `src/omniq/worker.py` holds `AsyncWorkerPool` and `WorkerPool`."""
    assert inspect.getsourcefile(AsyncWorkerPool) == inspect.getsourcefile(WorkerPool)
    assert Path(str(omniq.worker.__file__)) == SOURCE / "worker.py"


@pytest.mark.requirement("S001-2")
def test_s001_2_depends_on_the_contract_only() -> None:
    """S001-2: the worker depends on `BaseStorage`; which store it is, and which codec, it does not know."""
    imported = {
        node.module
        for file in ("worker.py", "exchanges.py", "workeroptions.py", "crew.py", "upkeep.py")
        for node in ast.walk(tree(file))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    stores = {name for name in imported if name.startswith("omniq.storage")}
    assert stores == {"omniq.storage.base", "omniq.storage.backend"}
    assert not {name for name in imported if name.startswith("omniq.serializer.")}


def tree(file: str) -> ast.Module:
    return ast.parse((SOURCE / file).read_text(encoding="utf-8"))


@pytest.mark.requirement("S001-3")
def test_s001_3_the_backoff_is_in_one_place() -> None:
    """S001-3: a small loop, and the backoff formula in one place that is not a store."""
    sources = {file.relative_to(SOURCE): file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py")}
    raises_to_power = [
        str(file)
        for file, text in sources.items()
        for node in (ast.walk(ast.parse(text)) if " ** " in text else ())
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Pow)
        and not isinstance(node.right, ast.Constant)
    ]
    assert set(raises_to_power) == {"logic/retry.py"}
    loop = inspect.getsource(Exchanges.run)
    assert len(loop.splitlines()) <= 40


@pytest.mark.requirement("S001-4")
def test_s001_4_constructor() -> None:
    """S001-4: `storage, concurrency=1, poll_interval=1.0, base_retry_delay=1.0`, and a `running` flag."""
    parameters = list(inspect.signature(AsyncWorkerPool).parameters.values())[:4]
    assert [(p.name, p.default) for p in parameters] == [
        ("storage", inspect.Parameter.empty),
        ("concurrency", 1),
        ("poll_interval", 1.0),
        ("base_retry_delay", 1.0),
    ]
    assert AsyncWorkerPool(MemoryStorage(), 3, 0.5, 2.0).running is False


# --- the loop ------------------------------------------------------------------------------------


@pytest.mark.requirement("S001-5")
async def test_s001_5_start_returns_promptly(store: AnyStore, bodies: Bodies) -> None:
    """S001-5: `start()` sets `running` and returns while the loop goes on in the background."""
    gate = asyncio.Event()

    async def body() -> None:
        await gate.wait()

    async with store:
        task_id = await store.enqueue(Task(bodies(body)))
        pool = AsyncWorkerPool(store, **QUICK)
        assert not pool.running
        await asyncio.wait_for(pool.start(), 5)  # the task has not ended, and nobody waits for it
        assert pool.running
        gate.set()
        assert (await ended(store, task_id)).status is TaskStatus.SUCCESS
        await pool.stop()
        assert not pool.running


@pytest.mark.requirement("S001-6")
async def test_s001_6_fills_free_slots_until_nothing_is_due(timed: Timed) -> None:
    """S001-6: each look takes tasks while slots are free and stops at the first `None`."""
    store, clock = timed
    async with store:
        ids = [await store.enqueue(Task(shared.path(shared.aecho), (n,))) for n in range(3)]
        async with running(store, 5, poll_interval=5, wake=False, clock=clock):
            await turns()
            assert store.log.ids("claimed") == ids
            first = [now for now in store.log.ids("dequeue") if now == str(clock.now())]
            # Three tasks and one None; then the look that goes with the three results.
            assert isinstance(store, Memory) or first[:4] == [str(clock.now())] * 4
            assert len(store.log.looks) <= 5
    assert isinstance(store, Five) or store.log.limits[0] == 5


@pytest.mark.requirement("S001-7")
async def test_s001_7_sleeps_when_idle(timed: Timed) -> None:
    """S001-7: with nothing in flight it sleeps `poll_interval`."""
    store, clock = timed
    async with store, running(store, poll_interval=7, wake=False, clock=clock):
        await turns()
        assert len(store.log.look_times()) == 1
        await clock.advance(6.999)
        assert len(store.log.look_times()) == 1
        await clock.advance(0.002)
        assert len(store.log.look_times()) == 2


@pytest.mark.requirement("S001-8")
async def test_s001_8_a_completion_ends_the_wait(timed: Timed, bodies: Bodies) -> None:
    """S001-8: with something in flight it waits for the first completion, and goes on at once then."""
    store, clock = timed
    gate = asyncio.Event()

    async def slow() -> None:
        await gate.wait()

    async with store:
        first = await store.enqueue(Task(bodies(slow)))
        second = await store.enqueue(Task(shared.path(shared.aecho)))
        async with running(store, 1, poll_interval=3600, wake=False, clock=clock):
            await turns()
            assert await result_of(store, second) is None
            gate.set()
            await turns()  # no time passes
            assert await result_of(store, first) is not None
            assert await result_of(store, second) is not None


@pytest.mark.requirement("S001-9")
async def test_s001_9_bookkeeping_that_fails_does_not_end_the_loop(foreign: Five, bodies: Bodies) -> None:
    """S001-9: exceptions are retrieved, and one in bookkeeping does not kill the loop."""
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))

    async def body(n: int) -> int:
        if n == 1:
            raise ValueError
        return n

    foreign.fails["mark_done"] = RuntimeError("the disk is full")
    async with running(foreign, 2, **QUICK):
        await foreign.enqueue(Task(bodies(body), (0,)))
        await foreign.enqueue(Task(bodies(body), (1,), max_retries=0))
        await until(lambda: foreign.log.ids("mark_done") and foreign.log.ids("mark_failed, final"))
        del foreign.fails["mark_done"]
        last = await foreign.enqueue(Task(bodies(body), (2,)))
        assert (await ended(foreign, last)).result == 2
    gc.collect()
    await turns()
    assert unhandled == []


@pytest.mark.requirement("S001-10")
async def test_s001_10_stop_lets_bodies_finish(store: AnyStore, bodies: Bodies) -> None:
    """S001-10: `stop()` clears `running`, nothing more is claimed, and bodies in flight finish."""
    gate = asyncio.Event()

    async def body() -> str:
        await gate.wait()
        return "finished"

    async with store:
        ids = [await store.enqueue(Task(bodies(body))) for _ in range(3)]
        pool = AsyncWorkerPool(store, 2, **QUICK)
        await pool.start()
        await until(lambda: len(store.log.ids("claimed")) == 2)
        stopping = asyncio.create_task(pool.stop())
        await turns()
        assert not pool.running
        assert not stopping.done()
        gate.set()
        await stopping
        results = [await result_of(store, task_id) for task_id in ids]
    assert [result and result.result for result in results] == ["finished", "finished", None]
    assert len(store.log.ids("claimed")) == 2


@pytest.mark.requirement("S001-11")
async def test_s001_11_cancel_in_flight(store: AnyStore, bodies: Bodies) -> None:
    """S001-11: `stop(cancel_in_flight=True)` cancels bodies; their tasks go back with nothing spent."""
    inside, cancelled = asyncio.Event(), asyncio.Event()

    async def body() -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with store:
        task_id = await store.enqueue(Task(bodies(body)))
        pool = AsyncWorkerPool(store, **QUICK)
        await pool.start()
        await inside.wait()
        await pool.stop(cancel_in_flight=True)
        assert cancelled.is_set()
        task = await task_of(store, task_id)
    assert (task.status, task.attempts) == (TaskStatus.PENDING, 0)


@pytest.mark.requirement("S001-12")
async def test_s001_12_stopping_wakes_a_sleeping_loop(timed: Timed) -> None:
    """S001-12: stopping is not delayed by a sleeping idle loop: no time passes."""
    store, clock = timed
    async with store:
        pool = AsyncWorkerPool(store, poll_interval=3600, clock=clock)
        await pool.start()
        await turns()
        await asyncio.wait_for(pool.stop(), 5)
    assert clock.monotonic() == 3600  # virtual time stood still


# --- execution -----------------------------------------------------------------------------------


@pytest.mark.requirement("S001-13")
async def test_s001_13_resolves_and_remembers(store: AnyStore, bodies: Bodies) -> None:
    """S001-13: `func_path` is imported, attribute by attribute, and what was found is cached."""

    class Nested:
        @staticmethod
        def inner() -> str:
            return "first"

    def replaced() -> str:
        return "second"

    bodies(Nested, "Nested")
    path = f"{bodies.name}.Nested.inner"
    async with store, running(store, **QUICK):
        assert (await ended(store, await store.enqueue(Task(path)))).result == "first"
        Nested.inner = staticmethod(replaced)  # type: ignore[method-assign]
        assert (await ended(store, await store.enqueue(Task(path)))).result == "first"


@pytest.mark.requirement("S001-14")
async def test_s001_14_a_miss_is_a_failure_and_not_remembered(store: AnyStore, bodies: Bodies) -> None:
    """S001-14: an unresolvable path is a failure of that task, and is looked for again."""
    async with store, running(store, **QUICK):
        path = f"{bodies.name}.later"
        gone = await ended(store, await store.enqueue(Task(path, max_retries=0)))
        assert gone.status is TaskStatus.FAILED
        assert gone.error is not None
        assert gone.error.kind == "unresolvable"
        assert path in gone.error.message
        bodies(shared.echo, "later")
        found = await ended(store, await store.enqueue(Task(path, (1,), max_retries=0)))
        assert found.result == [[1], {}]


class Callables:
    """Everything that can be called and has to be awaited."""

    async def method(self, x: int) -> int:
        return x + 1

    async def __call__(self, x: int) -> int:
        return x + 1


async def plus_one(x: int) -> int:
    await asyncio.sleep(0)
    return x + 1


def returns_coroutine(x: int) -> Any:
    return plus_one(x)


class ReturnsAwaitable:
    def __call__(self, x: int) -> Any:
        return plus_one(x)


AWAITED = {
    "function": plus_one,
    "partial": functools.partial(plus_one, 1),
    "nested_partial": functools.partial(functools.partial(plus_one), x=1),
    "bound_method": Callables().method,
    "object": Callables(),
    "returns_coroutine": returns_coroutine,
    "partial_of_returns_coroutine": functools.partial(returns_coroutine, 1),
    "object_that_returns_one": ReturnsAwaitable(),
    "lambda_": lambda x: plus_one(x=x),
}


@pytest.mark.requirement("S001-15")
@pytest.mark.parametrize("kind", AWAITED)
async def test_s001_15_what_returns_an_awaitable_is_awaited(bodies: Bodies, kind: str) -> None:
    """S001-15: `async def`, or anything that returns an awaitable: it is awaited."""
    args = () if "partial" in kind else (1,)
    async with Memory() as store, running(store, **QUICK):
        task_id = await store.enqueue(Task(bodies(AWAITED[kind], kind), args, max_retries=0))
        result = await ended(store, task_id)
    assert (result.status, result.result) == (TaskStatus.SUCCESS, 2)


@pytest.mark.requirement("S001-16")
async def test_s001_16_sync_calls_run_in_threads_of_the_pool(store: AnyStore) -> None:
    """S001-16: a sync call runs in a thread. (C18: of the pool's own, because the default has few.)"""
    async with store, running(store, **QUICK):
        result = await ended(store, await store.enqueue(Task(shared.path(shared.thread_name))))
    assert result.result != threading.current_thread().name
    assert result.result.startswith("omniq-")


@pytest.mark.requirement("S001-17")
async def test_s001_17_marked_running_before_it_runs(store: AnyStore, bodies: Bodies) -> None:
    """S001-17: the store knows that the task is running before its body does."""
    seen: list[Any] = []

    async def body(task_id: str) -> None:
        seen.append(("mark_running", task_id) in store.log.events)
        seen.append((await task_of(store, task_id)).status)

    async with store, running(store, **QUICK):
        await store.enqueue(Task(bodies(body), ("t",), id="t"))
        await ended(store, "t")
    assert seen == [isinstance(store, Five), TaskStatus.RUNNING]


@pytest.mark.requirement("S001-18")
async def test_s001_18_success_is_a_result_with_the_value(store: AnyStore) -> None:
    """S001-18: success stores a `TaskResult` with SUCCESS and the value, through `mark_done`."""
    before = datetime.now(UTC)
    async with store, running(store, **QUICK):
        task_id = await store.enqueue(Task(shared.path(shared.echo), ((1, 2),), {"a": {3}}))
        result = await ended(store, task_id)
    assert (result.task_id, result.status, result.error) == (task_id, TaskStatus.SUCCESS, None)
    assert result.result == [[(1, 2)], {"a": {3}}]
    assert result.finished_at is not None
    assert before <= result.finished_at <= datetime.now(UTC)
    assert not isinstance(store, Five) or store.log.ids("mark_done") == [task_id]


@pytest.mark.requirement("S001-19")
@pytest.mark.parametrize("body", [shared.boom, shared.aboom])
async def test_s001_19_failure_keeps_text_and_traceback(store: AnyStore, body: Any) -> None:
    """S001-19: a failure keeps the exception as text and its traceback."""
    async with store, running(store, **QUICK):
        task_id = await store.enqueue(Task(shared.path(body), ("no such file",), max_retries=0))
        error = (await ended(store, task_id)).error
    assert error is not None
    assert (error.type, error.message, error.kind) == ("ValueError", "no such file", "error")
    assert f"in {body.__name__}" in error.traceback
    assert "bodies.py" in error.traceback
    assert "ValueError: no such file" in error.traceback
    assert "executors.py" not in error.traceback


@pytest.mark.requirement("S001-20")
@pytest.mark.parametrize("value", [object(), {1: object()}, threading.Lock(), (n for n in "ab")])
async def test_s001_20_an_unserializable_result_is_a_failure(
    store: AnyStore, bodies: Bodies, value: Any
) -> None:
    """S001-20: a result that cannot be serialized is a clear failure of the task; the pool lives."""

    async def body() -> Any:
        return value

    async with store, running(store, **QUICK):
        result = await ended(store, await store.enqueue(Task(bodies(body), max_retries=0)))
        assert result.status is TaskStatus.FAILED
        assert result.error is not None
        assert result.error.kind == "unserializable"
        assert type(value).__name__ in result.error.message or "object" in result.error.message
        after = await store.enqueue(Task(shared.path(shared.echo)))
        assert (await ended(store, after)).status is TaskStatus.SUCCESS


# --- retry ---------------------------------------------------------------------------------------


@pytest.mark.requirement("S001-21")
async def test_s001_21_attempts_are_kept_with_the_task(timed: Timed, bodies: Bodies) -> None:
    """S001-21: the worker reads the count from the task, and it is one more after each failure."""
    store, clock = timed
    seen: list[int] = []

    async def body() -> None:
        seen.append(omniq.context().attempt)
        raise ValueError

    async with store, running(store, poll_interval=0.5, base_retry_delay=0.5, clock=clock):
        task_id = await store.enqueue(Task(bodies(body), max_retries=3))
        await clock.advance(8)
        assert (await task_of(store, task_id)).attempts == 4
    assert seen == [1, 2, 3, 4]


@pytest.mark.requirement("S001-22")
async def test_s001_22_delay_is_never_below_the_formula(bodies: Bodies) -> None:
    """S001-22: `base * 2**attempts`, and up to a tenth of it more."""
    for attempts in range(8):
        for jitter in (0.0, 0.5, 0.999):
            delay_s = RetryPolicy(base_s=3).delay_s(attempts, jitter)
            assert 3 * 2**attempts <= delay_s <= 3.3 * 2**attempts
    delays = await delays_of_first_retries(bodies, base=100.0)
    assert min(delays) >= 100
    assert max(delays) <= 110
    assert len(set(delays)) > 1, "without jitter everything comes back at once"


@pytest.mark.requirement("S001-23")
async def test_s001_23_marked_failed_then_rescheduled(bodies: Bodies) -> None:
    """S001-23: below `max_retries`: `mark_failed(will_retry=True)`, then `reschedule(id, new_eta)`."""
    store = Six()
    async with running(store, poll_interval=0.02, base_retry_delay=100):
        before = datetime.now(UTC)
        task_id = await store.enqueue(Task(shared.path(shared.aboom), max_retries=1))
        await until(lambda: store.log.ids("reschedule"))
    verbs = [verb for verb, detail in store.log.events if detail == task_id]
    assert verbs[verbs.index("mark_running") + 1 :] == ["mark_failed, retry", "settled", "reschedule"]
    eta = store.tasks[task_id].eta
    assert eta is not None
    assert before + timedelta(seconds=100) <= eta <= datetime.now(UTC) + timedelta(seconds=110)


@pytest.mark.requirement("S001-24")
async def test_s001_24_without_reschedule_a_retry_is_a_new_task() -> None:
    """S001-24: a storage without `reschedule` gets the retry as a new task that makes the same call."""
    store = Five()
    async with running(store, poll_interval=0.02, base_retry_delay=0.001):
        first = await store.enqueue(
            Task(shared.path(shared.boom), ("again",), max_retries=2, timeout=9, headers={"trace": "x"})
        )
        await ended(store, first)
    runs = store.runs_of(first)
    assert [task.attempts for task in runs] == [1, 2, 3]
    assert len({task.id for task in runs}) == 3
    assert {(task.func_path, task.args, task.timeout) for task in runs} == {
        (shared.path(shared.boom), ("again",), 9)
    }
    assert [task.headers for task in runs[1:]] == [{"trace": "x", "retry_of": first}] * 2


@pytest.mark.requirement("S001-25")
async def test_s001_25_no_reschedule_at_the_end(foreign: Five) -> None:
    """S001-25: at `max_retries`: `mark_failed(will_retry=False)` and nothing more."""
    async with running(foreign, **QUICK):
        first = await foreign.enqueue(Task(shared.path(shared.boom), max_retries=1))
        await ended(foreign, first)
    marks = [verb for verb, _ in foreign.log.events if verb.startswith("mark_failed")]
    assert marks == ["mark_failed, retry", "mark_failed, final"]
    after = foreign.log.events[[verb for verb, _ in foreign.log.events].index("mark_failed, final") :]
    assert not {"reschedule", "enqueue"} & {verb for verb, _ in after}


@pytest.mark.requirement("S001-26")
async def test_s001_26_a_retry_outlives_the_process(tmp_path: Path) -> None:
    """S001-26: the state of a retry is in the store, not in a sleeping coroutine."""
    async with SQLite(tmp_path / "jobs.db") as store:
        task_id = await store.enqueue(Task(shared.path(shared.boom), max_retries=1))
        async with running(store, base_retry_delay=50):
            await until(lambda: attempts_of(store, task_id))
    async with SQLite(tmp_path / "jobs.db") as store:
        task = await task_of(store, task_id)
        assert (task.status, task.attempts) == (TaskStatus.PENDING, 1)
        assert task.eta is not None
        assert task.error is not None
        await store.reschedule(task_id, datetime.now(UTC))
        async with running(store):
            assert (await ended(store, task_id)).status is TaskStatus.FAILED


async def attempts_of(store: AnyStore, task_id: str) -> int:
    return (await task_of(store, task_id)).attempts


# --- intervals -----------------------------------------------------------------------------------


@pytest.mark.requirement("S001-27")
async def test_s001_27_the_same_task_or_a_fresh_one(foreign: Five) -> None:
    """S001-27: on success the same task is rescheduled if storage can, else a fresh one is enqueued."""
    async with running(foreign, **QUICK):
        before = datetime.now(UTC)
        first = await foreign.enqueue(Task(shared.path(shared.echo), ("x",), interval=100))
        again = "reschedule" if isinstance(foreign, Six) else "enqueue"
        await until(lambda: len(foreign.log.ids(again)) == (1 if again == "reschedule" else 2))
    newest = foreign.runs_of(first)[-1]
    assert (newest.id == first) == isinstance(foreign, Six)
    assert (newest.status, newest.args, newest.interval) == (TaskStatus.PENDING, ("x",), 100)
    assert newest.eta is not None
    assert before + timedelta(seconds=100) <= newest.eta <= datetime.now(UTC) + timedelta(seconds=100)
    assert foreign.results[first].result == [["x"], {}]


@pytest.mark.requirement("S001-28")
async def test_s001_28_missed_intervals_are_not_caught_up(timed: Timed, bodies: Bodies) -> None:
    """S001-28: after a long pause an interval task runs once, and then at its interval."""
    store, clock = timed
    runs: list[datetime] = []

    async def body() -> None:
        runs.append(clock.now())

    async with store:
        await store.enqueue(Task(bodies(body), interval=10))
        async with running(store, poll_interval=1, clock=clock):
            await clock.advance(1)
        await clock.advance(1000)  # nobody runs anything
        async with running(store, poll_interval=1, clock=clock):
            await clock.advance(5)
            assert len(runs) == 2
            await clock.advance(6.5)
            assert len(runs) == 3
    assert runs[2] - runs[1] >= timedelta(seconds=10)


# --- the blocking face ---------------------------------------------------------------------------


@pytest.mark.requirement("S001-29")
def test_s001_29_owns_a_loop_in_a_thread(store: AnyStore, bodies: Bodies) -> None:
    """S001-29: `WorkerPool` creates and owns an event loop in a dedicated thread."""
    where: list[str] = []

    async def body() -> None:
        asyncio.get_running_loop()
        where.append(threading.current_thread().name)

    with WorkerPool(store, **QUICK):
        asyncio.run(enqueue(store, Task(bodies(body))))
        until_blocking(lambda: where)
    assert where == ["omniq-worker"]
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


@pytest.mark.requirement("S001-30")
def test_s001_30_start_blocks_until_running(store: AnyStore) -> None:
    """S001-30: `start()` and `stop()` block for sync callers: running after one, not after the other."""
    pool = WorkerPool(store, **QUICK)
    for _ in range(3):
        pool.start()
        assert pool.running
        pool.stop()
        assert not pool.running


@pytest.mark.requirement("S001-31")
def test_s001_31_stop_joins_the_thread(store: AnyStore) -> None:
    """S001-31: `stop()` wakes the loop and joins its thread, with `poll_interval` far away."""
    pool = WorkerPool(store, poll_interval=600)
    before = omniq_threads()
    pool.start()
    [thread] = [t for t in omniq_threads() - before if t.name == "omniq-worker"]
    pool.stop()
    assert not thread.is_alive()


@pytest.mark.requirement("S001-32")
def test_s001_32_closes_its_loop_and_starts_again(store: AnyStore, bodies: Bodies) -> None:
    """S001-32: the loop, its async generators and its executor are shut down; the pool can start again."""
    loops: list[asyncio.AbstractEventLoop] = []
    generators: list[Any] = []
    ends: list[str] = []

    async def numbers() -> Any:
        try:
            yield 1
            yield 2
        finally:
            ends.append("closed")

    async def body() -> None:
        loops.append(asyncio.get_running_loop())
        generators.append(numbers())
        await anext(generators[-1])

    pool = WorkerPool(store, **QUICK)
    for count in (1, 2):
        with pool:
            asyncio.run(enqueue(store, Task(bodies(body))))
            until_blocking(lambda n: len(loops) == n, count)
        assert loops[-1].is_closed()
        assert len(ends) == count
    assert loops[0] is not loops[1]


@pytest.mark.requirement("S001-33")
@pytest.mark.quiet
def test_s001_33_stop_of_an_idle_pool_is_immediate(store: AnyStore) -> None:
    """S001-33: `stop()` on an idle pool with `poll_interval=60` returns in well under a second."""
    pool = WorkerPool(store, poll_interval=60)
    pool.start()
    until_blocking(lambda: store.log.looks)
    begun = time.monotonic()
    pool.stop()
    assert time.monotonic() - begun < 0.9


# --- logging -------------------------------------------------------------------------------------


@pytest.mark.requirement("S001-34")
async def test_s001_34_lifecycle_at_info(store: AnyStore, logs: Logs) -> None:
    """S001-34: INFO has worker start and stop, task start, success and final failure."""
    async with store, running(store, **QUICK):
        good = await store.enqueue(Task(shared.path(shared.echo)))
        bad = await store.enqueue(Task(shared.path(shared.boom), max_retries=0))
        await ended(store, good)
        await ended(store, bad)
    info = logs.lines("INFO")
    assert len([line for line in info if line.startswith("worker started")]) == 1
    assert len([line for line in info if line.startswith("worker stopped")]) == 1
    for task_id in (good, bad):
        assert len([line for line in info if line.startswith(f"started {task_id}")]) == 1
    assert len([line for line in info if line.startswith(f"succeeded {good}")]) == 1
    assert len([line for line in info if line.startswith(f"failed {bad} for good")]) == 1
    assert len(info) == 6


@pytest.mark.requirement("S001-35")
async def test_s001_35_polls_and_retries_at_debug(timed: Timed, logs: Logs) -> None:
    """S001-35: DEBUG has empty polls, and every retry with its attempt count and next eta."""
    store, clock = timed
    async with store, running(store, poll_interval=1, base_retry_delay=30, wake=False, clock=clock):
        await clock.advance(1.5)
        assert logs.lines("DEBUG").count("nothing due") == 2
        task_id = await store.enqueue(Task(shared.path(shared.aboom)))
        await clock.advance(1)
        eta = (await task_of(store, task_id)).eta
    assert eta is not None
    [retry] = [line for line in logs.lines("DEBUG") if line.startswith("failed")]
    assert task_id in retry
    assert "attempt 1" in retry
    assert eta.isoformat(timespec="seconds")[:-6] in retry
    assert logs.levels_of("nothing due") == {"DEBUG"}


@pytest.mark.requirement("S001-36")
async def test_s001_36_arguments_are_never_logged(store: AnyStore, bodies: Bodies, logs: Logs) -> None:
    """S001-36: a secret in `args` or `kwargs` is in no record at any level, whatever becomes of the task."""
    secret = "tr0ub4dor-and-3"

    def good(*args: Any, **kwargs: Any) -> None: ...

    async def bad(*args: Any, **kwargs: Any) -> None:
        raise ValueError("no")

    def leaky(text: str) -> int:
        return int(text)  # the exception's own text has the argument in it

    async def forever(*args: Any, **kwargs: Any) -> None:
        await asyncio.Event().wait()

    async with store, running(store, 5, **QUICK):
        paths = [bodies(good), bodies(bad), f"{bodies.name}.absent", bodies(forever)]
        tasks = [Task(p, (secret,), {"k": secret}, max_retries=1, timeout=0.05) for p in paths]
        tasks.append(Task(bodies(leaky), (secret,), max_retries=1))
        tasks.append(Task(bodies(good), ({"deep": [secret]},)))
        for task in tasks:
            await store.enqueue(task)
        for task in tasks:
            await ended(store, task.id)
    assert logs.messages
    assert secret not in logs.everything()
