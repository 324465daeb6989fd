"""F1, F7, F10, F13: worker processes that are killed, and what becomes of the tasks they had."""

import os
import random
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest

from omniq import AsyncWorkerPool, StoreUnavailable
from omniq.storage import SQLiteStorage
from omniq.task import RunOutcome, Task, TaskStatus
from tests.faults.judge import judge, nothing_left_behind
from tests.faults.processes import Child, Field, drained, eventually
from tests.faults.worker import POINTS

WORKERS = 4
MANY_LOSSES = 1000


class Fleet:
    """Workers that die at one point after the other and are replaced, until everybody may live."""

    def __init__(self, field: Field, points: list[str]) -> None:
        self.field = field
        self.points = points
        self.started: list[tuple[str | None, Child]] = []
        self.crew = [self._next() for _ in range(WORKERS)]

    def _next(self) -> tuple[str | None, Child]:
        point = self.points.pop() if self.points else None
        child = self.field.worker(point=point, nth=random.randint(1, 3), concurrency=2)
        self.started.append((point, child))
        return point, child

    def replace_the_dead(self) -> None:
        for slot, (point, child) in enumerate(self.crew):
            if child.process.poll() is not None:
                assert point is not None, f"a worker that should live died\n{child.log.read_text()}"
                assert child.process.returncode == -signal.SIGKILL, child.log.read_text()
                self.crew[slot] = self._next()

    @property
    def all_may_live(self) -> bool:
        return all(point is None for point, _ in self.crew)

    def stop(self) -> None:
        for _, child in self.crew:
            child.line("READY")  # a signal before that would meet a program without a handler
            child.signal(signal.SIGTERM)
        assert [child.wait() for _, child in self.crew] == [0] * WORKERS


async def kill_at_every_point(field: Field, tasks: int, kills: int) -> None:
    points = [*POINTS] * kills
    random.shuffle(points)
    with nothing_left_behind(field.database):
        async with SQLiteStorage(field.database) as storage:
            ids = [await field.enqueue(storage, "nap", 0.05, max_losses=MANY_LOSSES) for _ in range(tasks)]
            fleet = Fleet(field, points)

            async def enough() -> bool:
                fleet.replace_the_dead()
                counts = (await storage.counts())["default"]
                # There must be something to die of, as long as somebody is to die.
                if not fleet.all_may_live and counts[TaskStatus.PENDING] < WORKERS:
                    ids.append(await field.enqueue(storage, "nap", 0.05, max_losses=MANY_LOSSES))
                return fleet.all_may_live and not counts[TaskStatus.PENDING] + counts[TaskStatus.RUNNING]

            await eventually(enough, within_s=60 + kills * 10, what="all points are passed")
            fleet.stop()
            field.__exit__(None, None, None)
            judged = await judge(storage, field.ledger)
        assert [task.status for task in judged.values()] == [TaskStatus.SUCCESS] * len(ids)
        killed = Counter(entry.fields[0] for entry in field.ledger.entries("KILL"))
        assert killed == dict.fromkeys(POINTS, kills)


@pytest.mark.bound(120)
async def test_f1_no_task_is_lost_wherever_its_worker_dies(field: Field) -> None:
    await kill_at_every_point(field, tasks=40, kills=2)


@pytest.mark.soak
@pytest.mark.bound(600)
async def test_f1_no_task_is_lost_in_a_hundred_deaths(field: Field) -> None:
    await kill_at_every_point(field, tasks=200, kills=20)


# --- how soon -------------------------------------------------------------------------------------


async def first_run(field: Field, task_id: str, pid: int) -> float:
    async def begun() -> list[float]:
        return [run.at for run in field.ledger.runs(task_id) if run.pid == pid]

    return (await eventually(begun, within_s=15))[0]


@pytest.mark.quiet
@pytest.mark.parametrize("point", ["claimed", "running"])
async def test_a_killed_workers_task_runs_again_within_a_second(field: Field, point: str) -> None:
    """By its lock file, however young the worker was: the lease would take half a minute."""
    async with SQLiteStorage(field.database) as storage:
        task_id = await field.enqueue(storage, "nap", 0.0)
        doomed = field.worker(lease=30.0, point=point, late_upkeep=True)
        assert doomed.wait() == -signal.SIGKILL
        heir = field.worker(lease=30.0)
        ready_at = float(heir.line("READY").split()[-1])
        again_at = await first_run(field, task_id, heir.pid)
        await drained(storage, [task_id])
        [lost] = await storage.history(task_id)
        assert lost.outcome is RunOutcome.LOST
        assert again_at - ready_at < 1.0


@pytest.mark.quiet
async def test_a_living_worker_takes_over_within_a_second(field: Field) -> None:
    async with SQLiteStorage(field.database) as storage:
        task_id = await field.enqueue(storage, "until_file", str(field.folder / "go"))
        doomed = field.worker(lease=30.0)
        await first_run(field, task_id, doomed.pid)
        heir = field.worker(lease=30.0)
        heir.line("READY")
        died_at = time.monotonic()
        doomed.kill()
        again_at = await first_run(field, task_id, heir.pid)
        assert again_at - died_at < 1.0
        (field.folder / "go").touch()
        await drained(storage, [task_id])
        result = await storage.get_result(task_id)
        assert result is not None
        assert result.result == heir.pid


# --- who rescues ----------------------------------------------------------------------------------


async def test_f7_a_worker_for_other_queues_and_tasks_rescues(field: Field) -> None:
    """The whole set of workers is gone; one that may run nothing of theirs brings their tasks back."""
    async with SQLiteStorage(field.database) as storage:
        ids = [await field.enqueue(storage, "until_file", str(field.folder / "go")) for _ in range(6)]
        dead = [field.worker(concurrency=2) for _ in range(3)]
        await eventually(lambda: all_run(field, ids))
        for child in dead:
            child.kill()
        stranger = field.worker(queues=["another"], allow=["nothing.of.theirs"])

        async def all_wait() -> bool:
            return (await storage.counts())["default"][TaskStatus.PENDING] == len(ids)

        await eventually(all_wait, within_s=5)
        assert stranger.process.poll() is None
        assert len(field.ledger.runs()) == len(ids), "the stranger ran what is not its own"
        (field.folder / "go").touch()
        for run in field.ledger.runs():
            field.ledger.write("KILL", "host", run.pid)  # they died by our hand, not by their own
        field.worker(concurrency=6)
        await drained(storage, ids)
        assert {task.losses for task in (await judge(storage, field.ledger)).values()} == {1}


async def all_run(field: Field, ids: list[str]) -> bool:
    return {run.task_id for run in field.ledger.runs()} >= set(ids)


DYING_REAPER = """
import asyncio, os, signal, sys
from omniq.storage import SQLiteStorage
from omniq.storage.sqlite.rows import SQLiteRows

put = SQLiteRows.put

def put_and_die(self, task):
    put(self, task)
    os.kill(os.getpid(), signal.SIGKILL)

SQLiteRows.put = put_and_die  # in the middle of the transaction, the write lock in its hands

async def main():
    async with SQLiteStorage(sys.argv[1]) as storage:
        await storage.lapse(10)

asyncio.run(main())
"""


@pytest.mark.quiet
async def test_f10_a_reaper_killed_with_the_lock_in_its_hands_stops_nobody(field: Field) -> None:
    async with SQLiteStorage(field.database) as storage:
        ids = [str(await storage.enqueue(Task("tests.faults.bodies.fail"))) for _ in range(3)]
        assert len(await storage.claim("gone", limit=3, lease=0.001)) == 3
        reaper = field.script(DYING_REAPER, field.database)
        assert reaper.wait() == -signal.SIGKILL
        begin = time.monotonic()
        assert await storage.lapse(10) == 3
        assert time.monotonic() - begin < 1.0
        for task_id in ids:
            assert [run.outcome for run in await storage.history(task_id)] == [RunOutcome.LOST]


# --- poison ---------------------------------------------------------------------------------------


@pytest.mark.bound(60)
async def test_f13_a_task_that_kills_its_worker_ends_as_poison(field: Field) -> None:
    """One worker after the other takes the pill; the third death is the last, and the rest is done."""
    async with SQLiteStorage(field.database) as storage:
        pill = await field.enqueue(storage, "die", priority=9)
        healthy = [await field.enqueue(storage, "nap", 0.0) for _ in range(100)]
        deaths = 0
        for _ in range(10):
            worker = field.worker(lease=30.0)
            ended = await eventually(lambda worker=worker: died_or_drained(storage, worker, [pill, *healthy]))
            if ended == "drained":
                break
            deaths += 1
        tasks = await judge(storage, field.ledger)
        assert deaths == 3
        assert tasks[pill].status is TaskStatus.FAILED
        assert tasks[pill].error is not None
        assert tasks[pill].error.kind == "poison"
        assert {tasks[task_id].status for task_id in healthy} == {TaskStatus.SUCCESS}
        assert {tasks[task_id].losses for task_id in healthy} == {0}


async def died_or_drained(storage: SQLiteStorage, worker: Child, ids: list[str]) -> str:
    if worker.process.poll() is not None:
        return "died"
    counts = (await storage.counts())["default"]
    ended = counts[TaskStatus.SUCCESS] + counts[TaskStatus.FAILED]
    return "drained" if ended == len(ids) else ""


# --- leaks ----------------------------------------------------------------------------------------


async def test_killed_idle_workers_leave_nothing_for_ever(tmp_path: Path) -> None:
    """J6: neither a row nor a lock file nor a socket of the dead stays where somebody works."""
    with Field(tmp_path) as field:
        async with SQLiteStorage(field.database) as storage:
            doomed = [field.worker(lease=1.0) for _ in range(2)]
            await eventually(lambda: known(storage, {child.pid for child in doomed}))
            for child in doomed:
                child.kill()
            async with AsyncWorkerPool(storage.clone(), lease=1.0):
                await eventually(lambda: known(storage, {os.getpid()}), within_s=5, what="the dead are gone")
                await storage.enqueue(Task("tests.faults.bodies.unknown"))  # rings every socket there is

                async def tidy() -> bool:
                    names = [path.name for path in (tmp_path / "jobs.db-omniq").iterdir()]
                    return sum(name.endswith(".alive") for name in names) == 1 and not any(
                        name.startswith(f"{child.pid}-") for child in field.children for name in names
                    )

                await eventually(tidy, within_s=5, what="the folder is tidy")


async def test_the_dead_are_found_again_by_whoever_comes_after_a_lapse_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock file that shows who is dead goes only when the row has gone for good."""
    with Field(tmp_path) as field:
        async with SQLiteStorage(field.database) as storage:
            doomed = field.worker(lease=30.0)
            await eventually(lambda: known(storage, {doomed.pid}))
            doomed.kill()
            assert storage._engine is not None

            def fail() -> None:
                raise sqlite3.OperationalError("database or disk is full")

            with monkeypatch.context() as full:
                full.setattr(storage._engine._write_rows, "write_tallies", fail)
                with pytest.raises(StoreUnavailable):
                    await storage.lapse()
            assert await known(storage, {doomed.pid})
            await storage.lapse()
            assert await storage.workers() == []
            assert not list((tmp_path / "jobs.db-omniq").glob("*.alive"))


async def known(storage: SQLiteStorage, pids: set[int]) -> bool:
    return {worker.pid for worker in await storage.workers()} == pids
