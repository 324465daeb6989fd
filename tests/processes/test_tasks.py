"""`executor="process"`: what a task may expect of a process, and what its end means."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from omniq import (
    AsyncWorkerPool,
    Context,
    InvalidOption,
    OmniQ,
    StartFailed,
    TaskCancelled,
    TaskFailed,
    TaskStatus,
    UnserializableArgument,
    context,
    inchild,
)
from omniq import processes as processes_module
from omniq.hooks import Call
from omniq.inchild import Body
from omniq.pool import WorkerPool as ProcessPool
from omniq.pool.process import Child, Template
from omniq.registry import Resolver
from omniq.serializer import MsgpackSerializer
from omniq.storage import MemoryStorage, SQLiteStorage
from omniq.task import Claim, Succeeded, TaskFilter
from tests.pool.leftovers import family
from tests.pool.listening import within_a_second
from tests.processes import jobs
from tests.worker.scene import until

WITHIN_S = 30.0


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = family()
    yield
    assert family() <= before


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OmniQ:
    """The application of jobs.py on a fresh file."""
    monkeypatch.setattr(jobs.q, "_where", SQLiteStorage(tmp_path / "jobs.db"))
    monkeypatch.setattr(jobs.q, "_storage", None)
    monkeypatch.setattr(jobs.q, "_hooks", [])
    return jobs.q


@asynccontextmanager
async def working(app: OmniQ, **options: Any) -> AsyncIterator[AsyncWorkerPool]:
    async with app, app.async_worker(**{"poll_interval": 0.05, "base_retry_delay": 0.01} | options) as pool:
        yield pool


async def test_it_runs_in_another_process_with_its_context(app: OmniQ) -> None:
    async with working(app):
        handle = await jobs.pid_of.aenqueue(7)
        pid, value, attempt, task_id = await handle.aresult(timeout=WITHIN_S)
    assert pid != os.getpid()
    assert (value, attempt, task_id) == (7, 1, handle.id)


async def test_an_async_function_is_awaited_there(app: OmniQ) -> None:
    async with working(app):
        handle = await jobs.awaits.aenqueue(21)
        assert await handle.aresult(timeout=WITHIN_S) == 42


async def test_progress_reaches_the_store(app: OmniQ, tmp_path: Path) -> None:
    async with working(app):
        handle = await jobs.tells_progress.aenqueue(str(tmp_path / "go"))

        async def told() -> bool:
            return await handle.aprogress() == (3, 10)

        await until(told, within_s=WITHIN_S)
        (tmp_path / "go").touch()
        assert await handle.aresult(timeout=WITHIN_S) == "seen"


async def test_a_thread_that_outlives_its_task_does_not_speak_for_the_next(
    app: OmniQ, tmp_path: Path
) -> None:
    file = tmp_path / "speak"
    async with ProcessPool(1, 1) as processes, working(app, process_pool=processes):
        await (await jobs.leaves_a_thread.aenqueue(str(file))).aresult(timeout=WITHIN_S)
        handle = await jobs.lets_it_speak.aenqueue(str(file))
        await until((tmp_path / "speak.spoken").exists, within_s=WITHIN_S)

        async def told() -> bool:
            return await handle.aprogress() is not None

        await until(told, within_s=WITHIN_S)
        assert await handle.aprogress() == (1, 2)
        (tmp_path / "speak.end").touch()
        await handle.aresult(timeout=WITHIN_S)


@pytest.mark.parametrize(
    ("how", "says", "runs"),
    [("error", "ValueError: boom", 2), ("exit", "SystemExit: 3", 2), ("retry", "Retry: ", 2)],
)
async def test_what_a_body_raises_follows_the_usual_rules(app: OmniQ, how: str, says: str, runs: int) -> None:
    async with working(app):
        handle = await jobs.fails.aenqueue(how)
        with pytest.raises(TaskFailed, match=says) as failed:
            await handle.aresult(timeout=WITHIN_S)
        storage = await app.astorage()
        task = await storage.get_task(handle.id)
    assert failed.value.error is not None
    assert task is not None
    assert (task.epoch, task.losses) == (runs, 0)


async def test_a_snooze_costs_nothing(app: OmniQ) -> None:
    async with working(app):
        handle = await jobs.fails.aenqueue("snooze")
        assert await handle.aresult(timeout=WITHIN_S) is None
        task = await (await app.astorage()).get_task(handle.id)
    assert task is not None
    assert (task.epoch, task.attempts) == (2, 0)


async def test_a_result_that_cannot_be_stored_says_so(app: OmniQ) -> None:
    async with working(app):
        handle = await jobs.returns_a_lock.aenqueue()
        with pytest.raises(TaskFailed) as failed:
            await handle.aresult(timeout=WITHIN_S)
    assert failed.value.error is not None
    assert failed.value.error.kind == "unserializable"


async def test_a_killed_process_costs_one_loss_and_the_task_runs_again_soon(
    app: OmniQ, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    async with working(app):
        storage = await app.astorage()

        async def death() -> float:
            notes.unlink(missing_ok=True)
            handle = await jobs.dies.aenqueue(str(notes), 1)
            assert await handle.aresult(timeout=WITHIN_S) == "survived"
            task, history = await storage.get_task(handle.id), await storage.history(handle.id)
            assert task is not None
            assert (task.epoch, task.losses, task.attempts) == (2, 1, 0)
            assert [(run.outcome, str(run.error)) for run in history] == [
                ("died", "WorkerDied: its process died: killed by SIGKILL")
            ]
            first, second = (float(line.split()[2]) for line in notes.read_text().splitlines())
            return second - first

        await within_a_second(death)


async def test_who_always_kills_its_process_ends_as_poison(app: OmniQ, tmp_path: Path) -> None:
    async with working(app):
        handle = await jobs.dies.aenqueue(str(tmp_path / "notes"), 99)
        with pytest.raises(TaskFailed, match="3 times") as failed:
            await handle.aresult(timeout=WITHIN_S)
    assert failed.value.error is not None
    assert failed.value.error.kind == "poison"
    assert len((tmp_path / "notes").read_text().splitlines()) == 3


async def test_a_timeout_really_stops_it(app: OmniQ) -> None:
    async with working(app, process_pool=None) as pool:
        handle = await jobs.spins.aenqueue()
        with pytest.raises(TaskFailed, match=r"timeout of 0\.3 s"):
            await handle.aresult(timeout=WITHIN_S)
        await until(lambda: pool._crew.free_processes == pool._crew._in_processes().capacity)
        handle = await jobs.pid_of.aenqueue(1)
        assert (await handle.aresult(timeout=WITHIN_S))[1] == 1


async def test_a_cancel_interrupts_it_within_a_second(app: OmniQ, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with ProcessPool(1, 1) as processes, working(app, process_pool=processes):

        async def cancelled() -> float:
            notes.unlink(missing_ok=True)
            handle = await jobs.sleeps_unless_told.aenqueue(str(notes))
            await until(notes.exists, within_s=WITHIN_S)
            cancelled_at = time.monotonic()
            await handle.acancel()
            with pytest.raises(TaskCancelled):
                await handle.aresult(timeout=WITHIN_S)
            assert await processes.workers.all_idle()
            (begun, _, _), (cleaned, _, cleaned_at) = map(str.split, notes.read_text().splitlines())
            assert (begun, cleaned) == ("BEGUN", "CLEANED")
            return float(cleaned_at) - cancelled_at

        await within_a_second(cancelled)


async def test_a_stop_with_a_limit_gives_it_back_with_nothing_spent(app: OmniQ, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with app:
        pool = app.async_worker()
        await pool.start()
        handle = await jobs.sleeps_unless_told.aenqueue(str(notes))
        await until(notes.exists, within_s=WITHIN_S)
        await pool.stop(timeout=0.1)
        task = await (await app.astorage()).get_task(handle.id)
    assert task is not None
    assert (task.status, task.attempts, task.losses) == (TaskStatus.PENDING, 0, 0)


async def test_no_more_is_claimed_than_processes_can_start(app: OmniQ) -> None:
    options = {"concurrency": 50, "poll_interval": 60}  # looking now and then must not be what finds the next
    async with ProcessPool(1, 2) as processes, working(app, process_pool=processes, **options):
        handles = await app.aenqueue_many([jobs.naps.call(0.05) for _ in range(12)])
        here = await app.aenqueue_many([jobs.stays_here.call(n) for n in range(40)])
        storage = await app.astorage()
        seen: set[int] = set()
        while not all([await one.astatus() is TaskStatus.SUCCESS for one in handles]):
            running = await storage.list_tasks(TaskFilter(status=TaskStatus.RUNNING, queue="cpu"))
            seen.add(len(running))
        assert seen - {0} and seen <= {0, 1, 2}
        for n, one in enumerate(here):  # those who need no process did not wait for one
            assert await one.aresult(timeout=WITHIN_S) == (os.getpid(), n)
        assert processes.status().state == "running"


async def test_nobody_asks_for_what_no_process_is_free_for(
    app: OmniQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in a scarce queue is asked for with the settlement that frees a process, and not before."""
    exchanges: list[tuple[int, int]] = []  # how many were told, and how many could be taken for processes
    exchange = SQLiteStorage.exchange

    async def recorded(self: SQLiteStorage, settlements: Any, claim: Claim | None = None) -> Any:
        exchanges.append((len(settlements), 0 if claim is None else claim.scarce_limit))
        return await exchange(self, settlements, claim)

    monkeypatch.setattr(SQLiteStorage, "exchange", recorded)
    async with app:
        handles = await app.aenqueue_many([jobs.pid_of.call(n) for n in range(20)])
        async with app.async_worker(concurrency=50, poll_interval=60, process_pool=ProcessPool(1, 1)):
            await app.agather(handles, timeout=WITHIN_S)
    assert exchanges.count((0, 0)) == 0
    assert 20 <= len(exchanges) <= 22


async def test_a_pool_that_was_given_stays_open(app: OmniQ) -> None:
    async with ProcessPool(1, 1) as processes:
        async with working(app, process_pool=processes):
            first = await (await jobs.pid_of.aenqueue(1)).aresult(timeout=WITHIN_S)
        assert processes.status().state == "running"
        async with working(app, process_pool=processes):
            second = await (await jobs.pid_of.aenqueue(2)).aresult(timeout=WITHIN_S)
    assert first[0] == second[0]


async def test_a_queue_that_turns_out_to_need_processes_is_learned(app: OmniQ) -> None:
    async with working(app, concurrency=50) as pool:
        assert pool._scarce.names == {"cpu"}
        handle = await jobs.beside_others.options(queue="surprise").aenqueue()
        assert await handle.aresult(timeout=WITHIN_S) != os.getpid()
        assert "surprise" in pool._scarce.names


async def test_the_time_counts_from_when_it_begins(app: OmniQ) -> None:
    """Four of 0.5 s each share one process: the last has waited as long as its timeout when it begins."""
    patient = jobs.naps.options(timeout=1.5, max_retries=0, queue="unknown")
    async with ProcessPool(1, 1) as processes, working(app, process_pool=processes):
        await (await jobs.pid_of.aenqueue(1)).aresult(timeout=WITHIN_S)  # it has imported what it needs
        handles = await app.aenqueue_many([patient.call(0.5) for _ in range(4)])
        for handle in handles:
            assert await handle.aresult(timeout=WITHIN_S) is None


async def test_a_queue_that_is_shared_is_scarce_only_while_it_has_to_be(app: OmniQ) -> None:
    async with working(app) as pool:
        await (await jobs.beside_others.options(queue="shared").aenqueue()).aresult(timeout=WITHIN_S)
        assert pool._scarce.names == {"cpu", "shared"}
        await (await jobs.stays_here.options(queue="shared").aenqueue(1)).aresult(timeout=WITHIN_S)
        assert pool._scarce.names == {"cpu"}


def test_a_queue_where_others_wait_is_not_scarce_from_the_start() -> None:
    q = OmniQ(MemoryStorage())
    q.task(executor="process", name="a.b")(jobs.note)
    q.task(executor="process", name="a.c", queue="cpu")(jobs.note)
    assert q.async_worker()._scarce.names == {"default", "cpu"}
    q.task(name="a.d")(jobs.note)
    assert q.async_worker()._scarce.names == {"cpu"}


async def test_a_pool_that_does_not_run_yet_is_started_and_ended(app: OmniQ) -> None:
    processes = ProcessPool(0, 1)
    async with working(app, process_pool=processes):
        assert (await (await jobs.pid_of.aenqueue(1)).aresult(timeout=WITHIN_S))[1] == 1
    assert processes.status().state == "closed"


async def test_a_pool_of_another_loop_is_refused(app: OmniQ) -> None:
    async with ProcessPool(0, 1) as processes:
        worker = app.worker(process_pool=processes)
        with pytest.raises(InvalidOption, match="another event loop"):
            await asyncio.to_thread(worker.start)
        assert not worker.running


async def test_a_fault_of_the_pool_spends_nothing(app: OmniQ) -> None:
    async with ProcessPool(0, 1) as processes, working(app, process_pool=processes):
        await processes.shutdown()
        # From a queue that is not known to need processes: from the others nothing is claimed now.
        handle = await jobs.pid_of.options(queue="unknown").aenqueue(1)
        storage = await app.astorage()

        async def came_back() -> bool:
            task = await storage.get_task(handle.id)
            return task is not None and task.epoch > 0 and task.status is TaskStatus.PENDING

        await until(came_back, within_s=WITHIN_S)
        task = await storage.get_task(handle.id)
    assert task is not None
    assert (task.attempts, task.losses, task.suspicions) == (0, 0, 0)


async def test_a_task_that_got_no_process_has_lost_nothing(
    app: OmniQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has no further process for a while, which no task has had a part in."""
    spawn, is_short = Template.spawn, True

    async def spawn_if_possible(template: Template, events: Any) -> Child:
        if is_short:
            raise StartFailed("the system starts no further process")
        return await spawn(template, events)

    monkeypatch.setattr(Template, "spawn", spawn_if_possible)
    async with ProcessPool(0, 1) as processes, working(app, process_pool=processes):
        handle = await jobs.pid_of.aenqueue(1)
        storage = await app.astorage()

        async def came_back() -> bool:
            task = await storage.get_task(handle.id)
            return task is not None and task.epoch > 0 and task.status is not TaskStatus.RUNNING

        await until(came_back, within_s=WITHIN_S)
        task = await storage.get_task(handle.id)
        assert task is not None
        assert (task.status, task.losses) == (TaskStatus.PENDING, 0)
        is_short = False
        assert (await handle.aresult(timeout=WITHIN_S))[1] == 1


def test_only_modules_that_can_be_imported_are_imported_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = ModuleType("cell_1")
    exec("def made_by_exec(): ...", cell.__dict__)
    monkeypatch.setitem(sys.modules, "cell_1", cell)
    q = OmniQ(MemoryStorage())
    q.task(executor="process")(cell.made_by_exec)
    q.task(executor="process", name="some.note")(jobs.note)
    q.task(executor="process", name="some.lambda")(lambda: None)
    assert Resolver(q._tasks, ()).modules == (jobs.__name__,)


def test_an_application_travels_as_its_address(tmp_path: Path) -> None:
    q = OmniQ(SQLiteStorage(tmp_path / "jobs.db"), result_ttl=7)
    twin = pickle.loads(pickle.dumps(q))
    assert isinstance(twin, OmniQ)
    twin_storage, storage = twin.storage(), q.storage()
    assert isinstance(twin_storage, SQLiteStorage)
    assert isinstance(storage, SQLiteStorage)
    assert (twin_storage.path, twin_storage.result_ttl_s) == (storage.path, 7)
    with pytest.raises(UnserializableArgument, match="no address"):
        pickle.dumps(OmniQ(MemoryStorage()))


async def test_a_killed_template_costs_each_task_one_loss(app: OmniQ, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    begun = tmp_path / "gate.begun"

    def makers() -> list[int]:
        return [int(line.split()[0]) for line in begun.read_text().splitlines()] if begun.exists() else []

    async with ProcessPool(2, 2) as processes, working(app, process_pool=processes, concurrency=4):
        handles = [await jobs.holds.aenqueue(str(gate)) for _ in range(2)]
        await until(lambda: len(makers()) == 2, within_s=WITHIN_S)
        os.kill(makers()[0], signal.SIGKILL)
        await until(lambda: len(makers()) == 4, within_s=WITHIN_S)
        gate.touch()
        for handle in handles:
            assert await handle.aresult(timeout=WITHIN_S) != os.getpid()
            task = await (await app.astorage()).get_task(handle.id)
            assert task is not None
            assert (task.losses, task.attempts, task.epoch) == (1, 0, 2)
    assert len(set(makers())) == 2, "another template made the second ones"


async def test_a_body_over_the_memory_ceiling_is_killed_and_says_so(app: OmniQ, tmp_path: Path) -> None:
    limit = 256 << 20
    async with ProcessPool(1, 1, worker_memory=limit) as processes, working(app, process_pool=processes):
        handle = await jobs.grows.aenqueue(str(tmp_path / "grown"), 400)
        assert await handle.aresult(timeout=WITHIN_S) == "small"
        history = await (await app.astorage()).history(handle.id)
    [run] = history
    assert run.outcome == "died"
    assert "more than 256 MiB" in str(run.error)


async def test_a_stop_waits_for_bodies_in_processes(app: OmniQ, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with app:
        pool = app.async_worker(poll_interval=0.05)
        await pool.start()
        handle = await jobs.holds.aenqueue(str(gate))
        await until((tmp_path / "gate.begun").exists, within_s=WITHIN_S)
        stopping = asyncio.ensure_future(pool.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done()
        gate.touch()
        await stopping
        assert await handle.aresult(timeout=WITHIN_S) != os.getpid()
        task = await (await app.astorage()).get_task(handle.id)
    assert task is not None
    assert (task.status, task.epoch) == (TaskStatus.SUCCESS, 1)


# --- suspects --------------------------------------------------------------------------------------


async def lose_with_its_worker(app: OmniQ) -> None:
    storage = await app.astorage()
    await storage.exchange((), Claim("dead", None, 1, 30.0, isolates=True))
    assert await storage.release("dead") == 1


async def test_a_suspect_runs_in_a_process_of_its_own(app: OmniQ) -> None:
    async with app:
        suspect = await jobs.stays_here.aenqueue(1)
        await lose_with_its_worker(app)
        async with working(app):
            innocent = await jobs.stays_here.aenqueue(2)
            pid, value = await suspect.aresult(timeout=WITHIN_S)
            assert pid != os.getpid()
            assert value == 1
            assert await innocent.aresult(timeout=WITHIN_S) == (os.getpid(), 2)


async def test_hooks_are_around_a_suspect_once(app: OmniQ) -> None:
    seen: list[Any] = []

    @app.around
    async def watch(ctx: Context, call: Call) -> Any:
        seen.append(await call())
        return seen[-1]

    async with app:
        suspect = await jobs.stays_here.aenqueue(1)
        await lose_with_its_worker(app)
        async with working(app):
            pid, _ = await suspect.aresult(timeout=WITHIN_S)
    assert pid != os.getpid()
    assert seen == [(pid, 1)]


@pytest.mark.parametrize("hooked", [False, True])
async def test_a_suspect_that_needs_its_worker_runs_in_a_thread_of_it(app: OmniQ, hooked: bool) -> None:
    """It asks for what no process has; here it is told by its worker that this store has no such thing."""

    async def watch(ctx: Context, call: Call) -> Any:
        return await call()

    if hooked:
        app.around(watch)
    async with app:
        suspect = await jobs.wants_a_transaction.aenqueue()
        await lose_with_its_worker(app)
        async with working(app):
            with pytest.raises(TaskFailed, match="PostgreSQL") as failed:
                await suspect.aresult(timeout=WITHIN_S)
    assert failed.value.error.type == "Unsupported"


async def test_what_no_process_could_find_runs_here(tmp_path: Path) -> None:
    async with OmniQ(SQLiteStorage(tmp_path / "jobs.db")) as app:

        @app.task(name="made.here")
        async def made_here() -> int:
            return os.getpid()

        suspect = await made_here.aenqueue()
        await lose_with_its_worker(app)
        async with working(app):
            assert await suspect.aresult(timeout=WITHIN_S) == os.getpid()


async def test_the_time_of_a_suspect_counts_from_when_it_begins(
    app: OmniQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes_module, "SUSPECTS_AT_ONCE", 1)
    patient = jobs.dozes.options(timeout=1.5, max_retries=0)
    async with app:
        handles = await app.aenqueue_many([patient.call(0.5) for _ in range(4)])
        storage = await app.astorage()
        await storage.exchange((), Claim("dead", None, 4, 30.0, isolates=True))
        assert await storage.release("dead") == 4
        async with working(app):
            pids = {await handle.aresult(timeout=WITHIN_S) for handle in handles}
    assert len(pids) == 4  # each in a process of its own
    assert os.getpid() not in pids


def test_who_cannot_run_everything_alone_counts_every_death(tmp_path: Path) -> None:
    q = OmniQ(SQLiteStorage(tmp_path / "jobs.db"))
    q.task(name="some.note")(jobs.note)
    assert q.async_worker()._isolates
    q.task(name="some.lambda")(lambda: None)
    assert not q.async_worker()._isolates


@pytest.mark.parametrize("executor", ["fork", "", None, 3])
def test_an_executor_that_does_not_exist(executor: Any) -> None:
    with pytest.raises(InvalidOption, match="'auto', 'thread' or 'process'"):
        OmniQ(MemoryStorage()).task(executor=executor)(print)


@pytest.mark.parametrize("pool", [3, "pool", asyncio])
def test_something_that_is_no_process_pool(pool: Any) -> None:
    with pytest.raises(InvalidOption, match=r"omniq\.pool\.WorkerPool"):
        AsyncWorkerPool(MemoryStorage(), process_pool=pool)


def test_a_context_ends_with_its_task() -> None:
    body = Body("id", 1, 1, b"builtins:abs", ((-1,), {}), MsgpackSerializer(), None)
    assert inchild.run(body) == Succeeded(MsgpackSerializer().dumps(1))
    with pytest.raises(InvalidOption, match="while a task runs"):
        context()
