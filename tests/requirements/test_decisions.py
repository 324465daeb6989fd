"""The decisions where the seeds disagree or stay silent, as far as they are about the core."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from loguru import logger

from omniq import (
    AsyncWorkerPool,
    CorruptRecord,
    OmniQ,
    Task,
    TaskStatus,
    Worker,
)
from omniq.serializer import CloudpickleSerializer, MsgpackSerializer
from omniq.task import Answer, RunOutcome, StoredTask, new_id
from omniq.testing import VirtualClock
from tests.requirements import bodies as shared
from tests.requirements.backends import ListBackend
from tests.requirements.backoff import delays_of_first_retries
from tests.worker.fixtures import Timed
from tests.worker.scene import QUICK, Bodies, Logs, ended, omniq_threads, running, turns, until
from tests.worker.stores import AnyStore, Five, Memory, RemoteMemory, Six, result_of, task_of


@pytest.mark.requirement("C1")
def test_c1_the_top_level_exports_the_first_worker_pool() -> None:
    """C1: `omniq.WorkerPool` is the one of `omniq.worker`."""
    import omniq.worker

    assert omniq.WorkerPool is omniq.worker.WorkerPool
    assert omniq.WorkerPool.__module__ == "omniq.worker"


@pytest.mark.requirement("C2")
async def test_c2_one_core_two_vocabularies(builtin: AnyStore) -> None:
    """C2: what one vocabulary enqueues and reserves, the other sees, both ways."""
    async with builtin as store:
        backend = store.as_backend()
        task_id = await store.enqueue(Task(shared.path(shared.echo), (1,)))
        [reserved] = await backend.reserve(5)
        func, args, kwargs = MsgpackSerializer().load_call(reserved.payload)
        assert (reserved.id, func, args, kwargs) == (task_id, shared.echo, [1], {})
        await backend.mark_success(task_id, MsgpackSerializer().dumps("done"))
        result = await result_of(store, task_id)
        assert result is not None
        assert result.result == "done"
    own = ListBackend()
    other = own.put(shared.path(shared.echo), 2)
    async with running(own.as_storage(), **QUICK):  # somebody's Backend under the pool of seed 001
        await until(lambda: other in own.successes)


@pytest.mark.requirement("C3")
async def test_c3_a_callable_travels_only_where_it_was_asked_for() -> None:
    """C3: a serializer may carry the callable itself, only where the worker was started with it."""
    bonus = 40
    code = CloudpickleSerializer().dump_call(lambda x: x + bonus, (2,), {})
    async with Memory() as store:
        by_value = StoredTask("", code, id=new_id())
        await store.enqueue(by_value)
        async with running(store):
            refused = await ended(store, by_value.id)
        assert refused.error is not None
        assert refused.error.kind == "undecodable"
        assert "CloudpickleSerializer" in refused.error.message
        again = StoredTask("", code, id=new_id())
        await store.enqueue(again)
        async with running(store, serializer=CloudpickleSerializer()):
            assert (await ended(store, again.id)).result == 42


@pytest.mark.requirement("C4")
async def test_c4_values_keep_their_types(builtin: AnyStore) -> None:
    """C4: by default standard types round-trip as data, never as code."""
    values = [
        datetime(2030, 1, 1, tzinfo=UTC),
        date(2030, 1, 1),
        timedelta(seconds=1),
        UUID(int=7),
        Decimal("1.10"),
        {1, 2},
        (1, (2,)),
        b"\x00",
        PurePosixPath("a/b"),
    ]
    async with builtin as store, running(store, **QUICK):
        task_id = await store.enqueue(Task(shared.path(shared.echo), tuple(values)))
        [args, _] = (await ended(store, task_id)).result
    assert args == values
    assert [type(value) for value in args] == [type(value) for value in values]
    with pytest.raises(CorruptRecord):
        MsgpackSerializer().loads(CloudpickleSerializer().dumps(1))


@pytest.mark.requirement("C5")
async def test_c5_not_before_the_interval_unless_woken() -> None:
    """C5: `wake=False` is the seeds' literal timing; by default a task that came up wakes the pool."""
    clock = VirtualClock()
    for wake, delay in ((False, 10), (True, 0)):
        store = Memory(clock=clock)
        async with store, running(store, poll_interval=10, wake=wake, clock=clock):
            await turns()
            begun = clock.monotonic()
            task_id = await store.enqueue(Task(shared.path(shared.aecho)))
            while await result_of(store, task_id) is None:
                await clock.advance(0.1)
            assert delay <= clock.monotonic() - begun <= delay + 0.11


@pytest.mark.requirement("C5")
async def test_c5_an_eta_that_comes_up_wakes_too() -> None:
    """C5: the store wakes the pool when an eta comes up, too."""
    clock = VirtualClock()
    async with Memory(clock=clock) as store, running(store, poll_interval=1000, clock=clock):
        await turns()
        task_id = await store.enqueue(
            Task(shared.path(shared.aecho), eta=clock.now() + timedelta(seconds=20))
        )
        await clock.advance(19.9)
        assert await result_of(store, task_id) is None
        await clock.advance(0.1)
        assert await result_of(store, task_id) is not None


@pytest.mark.requirement("C6")
async def test_c6_a_free_slot_is_polled_while_something_runs(timed: Timed, bodies: Bodies) -> None:
    """C6: it waits for the first completion or the end of the interval, whichever is first."""
    store, clock = timed
    gate = asyncio.Event()

    async def slow() -> None:
        await gate.wait()

    async with store, running(store, 2, poll_interval=5, wake=False, clock=clock):
        await store.enqueue(Task(bodies(slow)))
        await clock.advance(6)
        quick = await store.enqueue(Task(shared.path(shared.aecho)))
        await clock.advance(5)
        assert await result_of(store, quick) is not None
        gate.set()
        await turns()


@pytest.mark.requirement("C7")
async def test_c7_attempts_are_failures_so_far(timed: Timed, bodies: Bodies) -> None:
    """C7: attempts is 0 on the first run, the first delay is the base, and three retries are the default."""
    store, clock = timed
    seen: list[int] = []

    async def body() -> None:
        seen.append((await task_of(store, task_id)).attempts)
        raise ValueError

    async with store, running(store, poll_interval=0.25, base_retry_delay=1, clock=clock):
        task_id = await store.enqueue(Task(bodies(body)))
        await clock.advance(12)
        assert (await task_of(store, task_id)).status is TaskStatus.FAILED
    assert seen == [0, 1, 2, 3]
    assert Task("a.b").max_retries == 3


@pytest.mark.requirement("C8")
async def test_c8_jitter_is_added_and_the_delay_is_capped(bodies: Bodies) -> None:
    """C8: up to 10 % are added; `max_retry_delay` caps the delay."""
    delays = await delays_of_first_retries(bodies, base=10)
    assert 10 <= min(delays) < max(delays) <= 11
    capped = await delays_of_first_retries(bodies, base=10, max_retry_delay=4)
    assert set(capped) == {4}
    hours = await delays_of_first_retries(bodies, base=86400)
    assert set(hours) == {3600}


@pytest.mark.requirement("C9")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_c9_stop_with_a_timeout_gives_back(store: AnyStore, bodies: Bodies, kind: str) -> None:
    """C9: when time is up, bodies are cancelled and their tasks go back, with no attempt spent."""
    inside, released = threading.Event(), threading.Event()

    async def abody() -> None:
        inside.set()
        await asyncio.Event().wait()

    def body() -> None:
        inside.set()
        released.wait(10)

    async with store:
        task_id = await store.enqueue(Task(bodies(abody if kind == "async" else body)))
        pool = AsyncWorkerPool(store, 2, **QUICK)
        await pool.start()
        await until(inside.is_set)
        begun = time.monotonic()
        await pool.stop(timeout=0.05)
        assert time.monotonic() - begun < 5
        released.set()
        task = await task_of(store, task_id)
    assert (task.status, task.attempts, task.losses) == (TaskStatus.PENDING, 0, 0)


@pytest.mark.requirement("C9")
async def test_c9_stop_waits_without_limit_by_default(timed: Timed, bodies: Bodies) -> None:
    """C9: without a timeout, a stop waits for its bodies, however long they take."""
    store, clock = timed
    gate = asyncio.Event()

    async def body() -> None:
        await gate.wait()

    async with store:
        task_id = await store.enqueue(Task(bodies(body)))
        pool = AsyncWorkerPool(store, clock=clock)
        await pool.start()
        await turns()
        stopping = asyncio.create_task(pool.stop())
        await clock.advance(minutes=1)
        assert not stopping.done()
        gate.set()
        await stopping
        assert await result_of(store, task_id) is not None


@pytest.mark.requirement("C12")
async def test_c12_start_twice_does_nothing(store: AnyStore, logs: Logs) -> None:
    """C12: `start` twice does nothing but one DEBUG line."""
    async with store, running(store, **QUICK) as pool:
        before, threads = pool.id, omniq_threads()
        await pool.start()
        assert pool.id == before
        # The upkeep of the first start may still be about to open the file, in a thread of its own.
        assert {thread.name for thread in omniq_threads() - threads} <= {"omniq-upkeep-blocking_0"}
        assert logs.levels_of("already running") == {"DEBUG"}
    assert len([line for line in logs.lines() if "already running" in line]) == 1
    assert len([line for line in logs.lines() if line.startswith("worker started")]) == 1


@pytest.mark.requirement("C13")
async def test_c13_start_returns_and_run_blocks(store: AnyStore) -> None:
    """C13: `start` returns when running; `run` returns when the pool has stopped."""
    async with store:
        pool = AsyncWorkerPool(store, **QUICK)
        whole_life = asyncio.create_task(pool.run())
        await until(lambda: pool.running)
        task_id = await store.enqueue(Task(shared.path(shared.echo)))
        await ended(store, task_id)
        assert not whole_life.done()
        await pool.stop()
        await whole_life
        assert not pool.running


@pytest.mark.requirement("C14")
async def test_c14_never_touches_the_applications_handlers() -> None:
    """C14: the library adds, removes and configures no handlers, and is not disabled at import."""
    handlers = logger._core.handlers  # type: ignore[attr-defined]
    before = dict(handlers)
    lines: list[str] = []
    async with Memory() as store, running(store):
        await ended(store, await store.enqueue(Task(shared.path(shared.echo))))
    assert dict(handlers) == before
    own = logger.add(lines.append, level="DEBUG")
    try:
        async with Memory() as store, running(store):
            pass
        assert lines
        lines.clear()
        logger.disable("omniq")
        async with Memory() as store, running(store):
            pass
        assert not lines
    finally:
        logger.enable("omniq")
        logger.remove(own)


@pytest.mark.requirement("C15")
async def test_c15_dequeue_claims(builtin: AnyStore) -> None:
    """C15: `dequeue` claims with a lease and sets RUNNING; `mark_running` confirms; neither counts."""
    async with builtin as store:
        assert not isinstance(store, Five)
        task_id = await store.enqueue(Task(shared.path(shared.echo)))
        assert await store.dequeue() is not None
        for _ in range(2):
            assert await store.mark_running(task_id) is Answer.HELD
        task = await task_of(store, task_id)
        assert (task.status, task.epoch, task.attempts) == (TaskStatus.RUNNING, 1, 0)
        assert task.owner is not None


@pytest.mark.requirement("C16")
async def test_c16_two_writes_or_one(builtin: AnyStore, bodies: Bodies) -> None:
    """C16: `mark_failed` then `reschedule` works; a worker on a built-in store does it in one write."""
    async with builtin as store:
        assert not isinstance(store, Five)
        by_hand = await store.enqueue(Task(shared.path(shared.echo)))
        await store.dequeue()
        eta = datetime(2040, 1, 1, tzinfo=UTC)
        await store.mark_failed(by_hand, ValueError("boom"), will_retry=True)
        await store.reschedule(by_hand, eta)
        task = await task_of(store, by_hand)
        assert (task.status, task.attempts, task.eta) == (TaskStatus.PENDING, 1, eta)
        task_id = await store.enqueue(Task(shared.path(shared.boom)))
        async with running(store, base_retry_delay=100):
            await until(lambda: store.log.ids("settled").count(task_id) == 1)
        again = await task_of(store, task_id)
        assert again.eta is not None
        assert (again.status, again.attempts) == (TaskStatus.PENDING, 1)
        assert again.eta > datetime.now(UTC) + timedelta(seconds=90)


@pytest.mark.requirement("C17")
def test_c17_statuses() -> None:
    """C17: five statuses are stored; "scheduled" and "retrying" are readings of PENDING."""
    assert list(TaskStatus) == ["PENDING", "RUNNING", "SUCCESS", "FAILED", "CANCELLED"]


@pytest.mark.requirement("C18")
async def test_c18_the_pool_owns_as_many_threads_as_slots(bodies: Bodies) -> None:
    """C18: sync bodies get `concurrency` threads of the pool's own, more than the default executor has."""
    n = 48
    meeting = threading.Barrier(n, timeout=15)

    def body() -> str:
        meeting.wait()
        return threading.current_thread().name

    async with Memory() as store, running(store, n):
        ids = [await store.enqueue(Task(bodies(body), max_retries=0)) for _ in range(n)]
        names = {(await ended(store, task_id)).result for task_id in ids}
    assert len(names) == n


@pytest.mark.requirement("C19")
async def test_c19_a_dead_worker_spends_losses(builtin: AnyStore) -> None:
    """C19: a dead worker spends `max_losses`, then FAILED as poison; a clean stop spends nothing."""
    async with builtin as store:
        assert not isinstance(store, Five)
        task_id = await store.enqueue(Task(shared.path(shared.echo), max_retries=0, max_losses=2))
        for losses, status in ((1, TaskStatus.PENDING), (2, TaskStatus.FAILED)):
            [claimed] = await store.claim("doomed")
            await store.release("doomed")
            task = await task_of(store, claimed.id)
            assert (task.losses, task.attempts, task.status) == (losses, 0, status)
        assert task.error is not None
        assert task.error.kind == "poison"
        assert [run.outcome for run in await store.history(task_id)] == [RunOutcome.LOST] * 2


class Broken(Memory):
    """A store with a bug of its own."""

    async def exchange(self, settlements: Any, claim: Any = None) -> Any:
        raise ZeroDivisionError("a bug in the engine")


@pytest.mark.requirement("C20")
async def test_c20_a_bug_in_the_engine_surfaces() -> None:
    """C20: a bug in the engine surfaces from `stop()` and `wait()`."""
    async with Broken() as store:
        pool = AsyncWorkerPool(store)
        await pool.start()
        with pytest.raises(ZeroDivisionError):
            await pool.wait()
        assert not pool.running
        with pytest.raises(ZeroDivisionError):
            await pool.stop()
        await pool.stop()


@pytest.mark.requirement("C20")
async def test_c20_a_store_that_is_away_is_tried_again(logs: Logs) -> None:
    """C20: a store that is away is logged and tried again with growing pauses; no task stops a pool."""
    clock = VirtualClock()
    store = RemoteMemory(clock=clock)
    async with store, running(store, poll_interval=1, clock=clock) as pool:
        task_id = await store.enqueue(Task(shared.path(shared.aecho)))
        store.line.away = True
        tries: list[float] = []
        while len(tries) < 8:
            looks = len(store.log.looks)
            await clock.advance(0.05)
            if len(store.log.looks) > looks:
                tries.append(clock.monotonic())
        pauses = [later - sooner for sooner, later in itertools.pairwise(tries)]
        assert pauses[0] < pauses[2] < pauses[4]
        assert max(pauses) <= 5.1
        assert pool.running
        store.line.away = False
        await clock.advance(6)
        assert await result_of(store, task_id) is not None
    assert logs.levels_of("store is away") == {"WARNING"}


@pytest.mark.requirement("C22")
async def test_c22_worker_does_not_retry(builtin: AnyStore) -> None:
    """C22: through `Worker` a failure is final, whatever `max_retries` says."""
    async with builtin as store, Worker(store, poll_interval=0.01):
        task_id = await store.enqueue(Task(shared.path(shared.boom), max_retries=9))
        assert (await ended(store, task_id)).status is TaskStatus.FAILED


@pytest.mark.requirement("C23")
async def test_c23_a_thread_keeps_its_slot_after_a_timeout(builtin: AnyStore, bodies: Bodies) -> None:
    """C23: on timeout the task fails, and its slot stays taken until the thread is really free."""
    inside, released = threading.Event(), threading.Event()

    def stuck() -> None:
        inside.set()
        released.wait(20)

    async with builtin as store, running(store, 1, poll_interval=0.02):
        task_id = await store.enqueue(Task(bodies(stuck), timeout=0.1, max_retries=0))
        result = await ended(store, task_id)
        assert result.error is not None
        assert result.error.kind == "timeout"
        waiting = await store.enqueue(Task(shared.path(shared.echo)))
        claims = len(store.log.ids("claimed"))
        await until(inside.is_set)
        await turns(200)
        assert len(store.log.ids("claimed")) == claims, "the slot was given away"
        released.set()
        assert (await ended(store, waiting)).status is TaskStatus.SUCCESS


@pytest.mark.requirement("C24")
@pytest.mark.parametrize("on_failure", ["stop", "continue"])
async def test_c24_an_interval_task_that_fails_for_good(timed: Timed, on_failure: Any) -> None:
    """C24: it is FAILED and stops; `on_failure="continue"` keeps it going."""
    store, clock = timed
    async with store, running(store, poll_interval=0.5, base_retry_delay=1, clock=clock):
        task_id = await store.enqueue(
            Task(shared.path(shared.aboom), interval=10, max_retries=1, on_failure=on_failure)
        )
        await clock.advance(4)
        task = await task_of(store, task_id)
        if on_failure == "stop":
            assert task.status is TaskStatus.FAILED
        else:
            assert task.status is TaskStatus.PENDING
            # Of the seed's verbs only a new task, and no `reschedule`, can begin to count afresh.
            assert task.attempts == 0 or isinstance(store, Six)
            assert task.eta is not None
            assert timedelta(seconds=6) < task.eta - clock.now() <= timedelta(seconds=10)


@pytest.mark.requirement("C27")
async def test_c27_which_paths_a_worker_imports(bodies: Bodies, tmp_path: Path) -> None:
    """C27: a bare pool imports any path, `allow=` narrows it, `OmniQ` runs registered tasks only."""
    path = bodies(shared.echo, "anything")
    async with Memory() as store:
        async with running(store):
            assert (await ended(store, await store.enqueue(Task(path)))).status is TaskStatus.SUCCESS
        async with running(store, allow=["tests.requirements.*"]) as pool:
            refused = await store.enqueue(Task(path))
            allowed = await store.enqueue(Task(shared.path(shared.echo)))
            assert (await ended(store, allowed)).status is TaskStatus.SUCCESS
            await until(lambda: refused in store.log.ids("settled"))
            task = await task_of(store, refused)
            assert (task.status, task.attempts) == (TaskStatus.PENDING, 0)
            assert pool.running
        q = OmniQ(store)
        q.task(name="mine.echo")(shared.echo)
        async with q.async_worker():
            mine = await store.enqueue(Task("mine.echo"))
            other = await store.enqueue(Task(shared.path(shared.echo)))
            assert (await ended(store, mine)).status is TaskStatus.SUCCESS
            await until(lambda: unserved(store, other))


async def unserved(store: AnyStore, task_id: str) -> bool:
    task = await task_of(store, task_id)
    return task.status is TaskStatus.PENDING and task.epoch > 0
