"""What a worker tells of its processes: who does what, why there are so many, and what waits for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from omniq import OmniQ
from omniq.logic.why import Because, why
from omniq.pool import WorkerPool as ProcessPool
from omniq.reports import PoolInfo
from omniq.storage import BaseStorage, SQLiteStorage
from omniq.storage.facts import facts_about
from tests.processes import jobs
from tests.worker.scene import until


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OmniQ:
    monkeypatch.setattr(jobs.q, "_where", SQLiteStorage(tmp_path / "jobs.db"))
    monkeypatch.setattr(jobs.q, "_storage", None)
    monkeypatch.setattr(jobs.q, "_hooks", [])
    return jobs.q


async def pools(storage: BaseStorage) -> tuple[PoolInfo, ...]:
    workers = await storage.workers()
    return workers[0].pools if workers else ()


async def test_processes_and_their_scaling_are_told_and_why_says_that_they_are_full(
    app: OmniQ, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    began = datetime.now(UTC)
    async with app, app.async_worker(process_pool=ProcessPool(0, 1), poll_interval=0.05):
        storage = await app.astorage()
        first = await jobs.tells_progress.aenqueue(str(gate))

        async def busy() -> bool:
            return any(one.task_id == first.id for pool in await pools(storage) for one in pool.processes)

        await until(busy)
        [pool] = await pools(storage)
        [process] = pool.processes
        assert (pool.purpose, pool.least, pool.most, pool.free) == ("tasks", 0, 1, 0)
        assert (process.status, process.func_path) == ("busy", "tests.processes.jobs.tells_progress")
        assert process.pid is not None
        assert began - timedelta(seconds=1) <= process.since <= datetime.now(UTC)
        [grown] = pool.scalings
        assert (grown.before, grown.after) == (0, 1)
        assert grown.reason.startswith("1 waiting, 0 busy")
        assert began - timedelta(seconds=1) <= grown.at <= datetime.now(UTC)

        second = await jobs.pid_of.aenqueue(7)
        [reason, *_] = why(await facts_about(storage, second.id))
        assert (reason.because, reason.text) == (
            Because.FULL,
            "all 1 processes of the only worker that serves it are taken",
        )
        gate.touch()
        await first.aresult(timeout=30)
        await second.aresult(timeout=30)

        async def idle() -> bool:
            return all(one.task_id is None for pool in await pools(storage) for one in pool.processes)

        await until(idle)


async def test_a_worker_without_processes_tells_of_none(app: OmniQ) -> None:
    async with app, app.async_worker() as worker:
        assert worker._crew.free_processes > 0  # a claim asks for that before anything needs one
        assert worker._crew.pools(["cpu"]) == ()
        assert await pools(await app.astorage()) == ()
