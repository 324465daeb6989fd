"""S1: whoever can write to the store must not thereby run code in those who read it."""

import pickle
import subprocess
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from omniq import AsyncWorkerPool, OmniQ, Task, TaskStatus
from omniq.errors import CorruptRecord
from omniq.serializer import CloudpickleSerializer
from omniq.storage import SQLiteStorage
from omniq.task import Settlement
from tests.security.planting import plant, tamper


class Trap:
    """Reading it makes a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return subprocess.call, (["touch", str(self.canary)],)


def pickled(canary: Path) -> list[bytes]:
    """The same trap in every wrapping in which it might be opened."""
    call = (Trap(canary), [], {})
    raw = [dumps(value) for dumps in (pickle.dumps, cloudpickle.dumps) for value in (Trap(canary), call)]
    return [head + body for body in raw for head in (b"\x01c\x00", b"\x01m\x00", b"\x01j\x00", b"")]


async def look_at_everything(storage: SQLiteStorage, task_id: str) -> None:
    """Every way to read a task and what became of it; an error of ours is an answer."""
    for read in (storage.get_task, storage.get_result, storage.history):
        try:
            await read(task_id)
        except CorruptRecord:
            continue
    await storage.list_tasks()
    await storage.workers()
    await storage.verify()


async def test_s1_a_pickle_in_the_arguments_is_never_opened(database: Path, canary: Path) -> None:
    async with SQLiteStorage(database) as storage:
        ids = [await plant(storage, payload=payload) for payload in pickled(canary)]
        ids += [await plant(storage, payload=payload, func_path="") for payload in pickled(canary)]
        for task_id in ids:
            await look_at_everything(storage, task_id)
        async with AsyncWorkerPool(storage, concurrency=8):
            for task_id in ids:
                result = await storage.wait_result(task_id, 20)
                assert result is not None
                assert result.error is not None
                assert (result.status, result.error.kind) == (TaskStatus.FAILED, "undecodable")
        for task_id in ids:
            await look_at_everything(storage, task_id)
    assert not canary.exists()


@pytest.mark.parametrize(
    "column", ["result", "error", "headers", "progress", "func_path", "unique_key", "owner"]
)
async def test_s1_a_pickle_in_any_other_column_is_never_opened(
    database: Path, canary: Path, column: str
) -> None:
    async with SQLiteStorage(database) as storage:
        for payload in pickled(canary)[:4]:
            task_id = await storage.enqueue(Task("a.b"))
            [claim] = await storage.claim("ann")
            await storage.settle([Settlement.success(claim, storage.serializer.dumps(1))])
            tamper(database, task_id, **{column: payload})
            await look_at_everything(storage, task_id)
    assert not canary.exists()


async def test_s1_a_result_that_waits_is_not_opened_either(database: Path, canary: Path) -> None:
    q = OmniQ(SQLiteStorage(database))

    @q.task(name="app.job")
    async def job() -> int:
        return 1

    async with q.async_worker():
        handle = await job.aenqueue()
        assert await handle.aresult(timeout=20) == 1
    async with SQLiteStorage(database):
        for payload in pickled(canary)[:4]:
            tamper(database, handle.id, result=payload)
            with pytest.raises(CorruptRecord):
                await handle.aresult(timeout=20)
    await q.aclose()
    assert not canary.exists()


def test_s1_the_trap_works(canary: Path) -> None:
    """Opened by somebody who chose to trust the store, it does what it says."""
    CloudpickleSerializer().loads(b"\x01c\x00" + pickle.dumps(Trap(canary)))
    assert canary.exists()
