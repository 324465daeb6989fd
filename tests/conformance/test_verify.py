"""`verify` ends every test of the suite, so it must be able to find something."""

import sqlite3
from pathlib import Path

import pytest

from omniq.storage import MemoryStorage, SQLiteStorage
from omniq.storage.batched import BatchedStorage
from omniq.task import Settlement, Task, TaskError, TaskStatus, replace
from omniq.testing import VirtualClock


async def fill(store: BatchedStorage) -> None:
    """One task of each status: `waiting`, `running`, `done`, `failed`."""
    for name in ("done", "failed", "running", "waiting"):
        await store.enqueue(Task("jobs.resize", ("x" * 3000,), id=name))
    done, failed, _ = await store.claim("ann", None, 3)
    await store.settle(
        [
            Settlement.success(done, store.serializer.dumps("y" * 3000)),
            Settlement.failed(failed, TaskError("ValueError", "boom")),
        ]
    )
    assert await store.verify() == []


@pytest.mark.parametrize(
    ("task_id", "change"),
    [
        ("running", {"owner": None}),
        ("waiting", {"owner": "ann"}),
        ("waiting", {"status": TaskStatus.RUNNING, "owner": "ann"}),
        ("done", {"finished_at": None}),
        ("running", {"status": TaskStatus.FAILED, "owner": None}),
    ],
)
async def test_memory_finds_a_row_that_contradicts_itself(task_id: str, change: dict[str, object]) -> None:
    store = MemoryStorage(clock=VirtualClock())
    await fill(store)
    rows = store._rows
    rows.tasks[task_id] = replace(rows.tasks[task_id], **change)
    assert {line.split()[0] for line in await store.verify()} - {"queue"} == {task_id}
    await store.close()


@pytest.mark.parametrize(
    ("task_id", "statement"),
    [
        ("running", "UPDATE omniq_task SET owner = NULL WHERE id = 'running'"),
        ("running", "UPDATE omniq_task SET lease = NULL WHERE id = 'running'"),
        ("waiting", "UPDATE omniq_task SET owner = 'ann' WHERE id = 'waiting'"),
        ("done", "UPDATE omniq_task SET finished_at = NULL WHERE id = 'done'"),
        ("waiting", "UPDATE omniq_task SET finished_at = 5 WHERE id = 'waiting'"),
        ("waiting", "UPDATE omniq_task SET eta = 5 WHERE id = 'waiting'"),
        ("failed", "UPDATE omniq_task SET prune_at = NULL WHERE id = 'failed'"),
        ("waiting", "DELETE FROM omniq_body WHERE seq = (SELECT seq FROM omniq_task WHERE id = 'waiting')"),
        ("done", "DELETE FROM omniq_result"),
        ("1", "DELETE FROM omniq_task WHERE id = 'failed'"),  # its history and arguments belong to nobody
    ],
)
async def test_sqlite_finds_a_row_that_contradicts_itself(
    tmp_path: Path, task_id: str, statement: str
) -> None:
    store = SQLiteStorage(tmp_path / "jobs.db", clock=VirtualClock())
    await fill(store)
    with sqlite3.connect(tmp_path / "jobs.db") as conn:
        conn.execute("PRAGMA ignore_check_constraints = ON")
        conn.execute(statement)
    conn.close()
    assert task_id in {line.split()[0] for line in await store.verify()}
    await store.close()
