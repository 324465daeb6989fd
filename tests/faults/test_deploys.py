"""F24, F25: work for a newer version of the application, and payloads that cannot be read."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import omniq.crew
from omniq import AsyncWorkerPool, OmniQ, Task, TaskStatus
from omniq.storage import SQLiteStorage
from omniq.task import RunOutcome
from tests.faults.processes import eventually


async def test_f24_an_old_worker_neither_runs_nor_fails_what_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(omniq.crew, "unserved_delay_s", lambda epoch: 0.2)
    old, new = OmniQ(SQLiteStorage(tmp_path / "jobs.db")), OmniQ(SQLiteStorage(tmp_path / "jobs.db"))
    runs: list[str] = []

    @new.task(name="app.added")
    async def added(word: str) -> str:
        runs.append(word)
        return word.upper()

    @old.task(name="app.kept")
    async def kept() -> None: ...

    async with SQLiteStorage(tmp_path / "jobs.db") as storage:
        handle = await added.aenqueue("hello")
        async with old.async_worker(lease=0.5):

            async def given_back_often() -> bool:
                history = await storage.history(handle.id)
                assert {run.outcome for run in history} <= {RunOutcome.GIVEN_BACK}
                return len(history) >= 3

            await eventually(given_back_often)
        task = await storage.get_task(handle.id)
        assert task is not None
        assert (task.status, task.attempts, task.losses, runs) == (TaskStatus.PENDING, 0, 0, [])
        async with new.async_worker(lease=0.5):
            assert await handle.aresult(timeout=10) == "HELLO"
        assert runs == ["hello"]
    await new.aclose()


GOOD = SQLiteStorage.serializer.dump_call(None, ("s3cret",), {})
DAMAGED = {
    "flipped": GOOD[:-3] + bytes([GOOD[-3] ^ 0xFF]) + GOOD[-2:],
    "from a newer version": bytes([GOOD[0] + 1]) + GOOD[1:],
    "of an unknown codec": GOOD[:1] + b"z" + GOOD[2:],
    "cut off": GOOD[:-4],
    "empty": b"",
    "longer than it should be": GOOD + b"\x00",
    "large and damaged": b"\x07" * 5000,
}


@pytest.mark.parametrize("name", DAMAGED)
async def test_f25_a_payload_that_cannot_be_read_fails_at_once_and_is_kept(tmp_path: Path, name: str) -> None:
    damaged = DAMAGED[name]
    async with SQLiteStorage(tmp_path / "jobs.db") as storage:
        before = await storage.enqueue(Task("builtins.len", ("abc",)))
        bad = await storage.enqueue(Task("builtins.len", ("s3cret",)))
        after = await storage.enqueue(Task("builtins.len", ("abcd",)))
        with closing(sqlite3.connect(storage.path)) as conn:
            conn.execute("UPDATE omniq_task SET payload = ? WHERE id = ?", (damaged, bad))
            conn.commit()
        async with AsyncWorkerPool(storage, concurrency=2):
            results = [await storage.wait_result(str(task_id), 10) for task_id in (before, bad, after)]
        assert [values(result) for result in results] == [
            (TaskStatus.SUCCESS, 3, None),
            (TaskStatus.FAILED, None, "undecodable"),
            (TaskStatus.SUCCESS, 4, None),
        ]
        task = await storage.get_task(bad)
        assert task is not None
        assert (task.attempts, task.epoch) == (1, 1), "it was tried again"
        assert task.args[0].payload == damaged, "the bytes can be had"
        with closing(sqlite3.connect(storage.path)) as conn:
            [(kept,)] = conn.execute(
                "SELECT coalesce(payload, (SELECT payload FROM omniq_body b WHERE b.seq = t.seq)) "
                "FROM omniq_task t WHERE id = ?",
                (bad,),
            )
        assert kept == damaged


def values(result: Any) -> tuple[TaskStatus, Any, str | None]:
    return result.status, result.result, None if result.error is None else result.error.kind
