"""Rows that make no sense: the good ones go on, nothing is thrown away, and somebody is told."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from omniq import AsyncWorkerPool, Task, TaskStatus
from omniq.errors import CorruptRecord
from omniq.storage import SQLiteStorage
from omniq.task import Answer, Settlement, TaskError
from tests.faults.processes import eventually

BOOM = TaskError("ValueError", "boom")

# A column, and something in it that nobody wrote there.
NONSENSE: list[tuple[str, Any]] = [
    ("headers", "{"),
    ("headers", "[1, 2]"),
    ("headers", b"\xff\xfe"),
    ("error", '{"type": 5}'),
    ("progress", "half"),
    ("eta", 2**62),
    ("eta", "tomorrow"),
    ("expires_at", "soon"),
    ("enqueued_at", "once"),
    ("result_status", 17),
    ("func_path", "5"),
    ("func_path", b"a.b"),
    ("payload", "text"),
    ("payload", 5),
    ("priority", "urgent"),
    ("epoch", "first"),
    ("attempts", "many"),
    ("losses", b"\x00"),
    ("max_retries", "three"),
    ("max_losses", "three"),
    ("interval", "daily"),
    ("timeout", "long"),
    ("on_failure", "panic"),
]


@pytest.fixture
def reported() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logger.add(lambda message: lines.append(str(message)), level="ERROR", format="{message}")
    yield lines
    logger.remove(handler)


def spoil(database: Path, task_id: str, column: str, value: Any) -> None:
    with closing(sqlite3.connect(database)) as conn:
        conn.execute(f"UPDATE omniq_task SET {column} = ? WHERE id = ?", (value, task_id))
        assert conn.total_changes == 1
        conn.commit()


def column_of(database: Path, task_id: str, column: str) -> Any:
    with closing(sqlite3.connect(database)) as conn:
        return conn.execute(f"SELECT {column} FROM omniq_task WHERE id = ?", (task_id,)).fetchone()[0]


@pytest.mark.parametrize(("column", "value"), NONSENSE, ids=lambda part: str(part)[:20])
async def test_a_waiting_row_of_nonsense_stops_nobody(
    database: Path, column: str, value: Any, reported: list[str]
) -> None:
    """Its neighbours run at once; it is put aside or runs, and what was found in it is kept."""
    async with SQLiteStorage(database) as storage:
        bad = await storage.enqueue(Task("builtins.len", ("bad",), priority=9, max_retries=0))
        good = [await storage.enqueue(Task("builtins.len", ("good",))) for _ in range(3)]
        spoil(database, bad, column, value)
        async with AsyncWorkerPool(storage.clone(), poll_interval=0.05) as pool:
            for task_id in good:
                found = await storage.wait_result(task_id, 10)
                assert found is not None
                assert found.result == 4
            assert pool.running
            await storage.lapse()
            await storage.list_tasks()
            await storage.counts()
            assert pool.running
        status = column_of(database, bad, "status")
        if status == 3:  # put aside
            assert any(bad in line for line in reported) or await has_error(storage, bad)
        else:
            # SQLite may have made sense of it (an index on a text, a number in a text column).
            assert status in (0, 2)
        if column not in ("error", "progress", "epoch", "attempts", "result_status", "eta"):
            assert column_of(database, bad, column) == value, "the evidence is gone"


async def has_error(storage: SQLiteStorage, task_id: str) -> bool:
    task = await storage.get_task(task_id)
    return task is not None and task.error is not None


async def test_a_claim_goes_on_behind_many_rows_of_nonsense(database: Path, reported: list[str]) -> None:
    async with SQLiteStorage(database) as storage:
        bad = [await storage.enqueue(Task("a.b", priority=9)) for _ in range(50)]
        good = await storage.enqueue(Task("a.b"))
        for task_id in bad:
            spoil(database, task_id, "headers", "{")
        [claim] = await storage.claim("ann", limit=1)
        assert claim.id == good
        assert len(reported) == len(bad), "one line each"
        assert [column_of(database, task_id, "headers") for task_id in bad] == ["{"] * len(bad)


async def test_a_row_that_breaks_while_it_runs_takes_no_neighbour_along(database: Path) -> None:
    """Its report cannot be written; those that came with it are, and the worker goes on."""
    async with SQLiteStorage(database) as storage:
        ids = [await storage.enqueue(Task("a.b")) for _ in range(3)]
        claims = await storage.claim("ann", limit=3)
        spoil(database, ids[1], "headers", "{")
        done = storage.serializer.dumps("done")
        answers = await storage.settle(
            [
                Settlement.success(claims[0], done),
                Settlement.retry(claims[1], 0.0, BOOM),
                Settlement.failed(claims[2], BOOM),
            ]
        )
        assert answers == [Answer.HELD, Answer.STALE, Answer.HELD]
        assert [column_of(database, task_id, "status") for task_id in ids] == [2, 1, 3]


async def test_a_worker_outlives_a_row_that_breaks_while_it_runs(database: Path, tmp_path: Path) -> None:
    async with SQLiteStorage(database) as storage:
        path = str(tmp_path / "go")
        bad = await storage.enqueue(Task("tests.sqlite.bodies.fail_when_told", (path,)))
        async with AsyncWorkerPool(storage.clone()) as pool:

            async def runs() -> bool:
                return column_of(database, bad, "status") == 1

            await eventually(runs)
            spoil(database, bad, "headers", "{")
            Path(path).touch()
            good = await storage.enqueue(Task("builtins.len", ("good",)))
            found = await storage.wait_result(good, 10)
            assert found is not None
            assert pool.running


async def test_a_history_of_nonsense_is_an_error_of_ours(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        task_id = await storage.enqueue(Task("a.b"))
        [claim] = await storage.claim("ann")
        await storage.settle([Settlement.failed(claim, BOOM)])
        with closing(sqlite3.connect(database)) as conn:
            conn.execute("UPDATE omniq_run SET outcome = 'exploded'")
            conn.commit()
        with pytest.raises(CorruptRecord):
            await storage.history(task_id)


async def test_what_was_put_aside_can_be_looked_at_and_leaves_in_the_end(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        storage.keep_results(0.0, 0.0)
        bad = await storage.enqueue(Task("a.b"))
        spoil(database, bad, "headers", "{")
        assert await storage.claim("ann") == []
        assert (await storage.counts())["default"][TaskStatus.FAILED] == 1
        await storage.prune()
        assert (await storage.counts()).get("default", {}).get(TaskStatus.FAILED, 0) == 0


async def test_a_running_row_of_nonsense_ends_when_its_lease_does(
    database: Path, reported: list[str]
) -> None:
    """It cannot be read, so it cannot run again; but it must not stay RUNNING for ever either."""
    async with SQLiteStorage(database) as storage:
        bad = await storage.enqueue(Task("a.b"))
        good = await storage.enqueue(Task("a.b"))
        await storage.claim("ann", limit=2, lease=0.001)
        spoil(database, bad, "headers", "{")
        await storage.lapse()
        assert column_of(database, bad, "status") == 3
        assert column_of(database, bad, "headers") == "{"
        assert column_of(database, good, "status") == 0
        assert any(bad in line for line in reported)
        assert await storage.lapse() == 0


async def test_a_key_held_by_a_row_of_nonsense_is_an_error_of_ours(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        bad = await storage.enqueue(Task("a.b", unique_key="key"))
        spoil(database, bad, "headers", "{")
        with pytest.raises(CorruptRecord, match="key"):
            await storage.enqueue(Task("a.b", id="other", unique_key="key"))
        assert await storage.get_task("other") is None
