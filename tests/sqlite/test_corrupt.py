"""Rows that make no sense: the good ones go on, nothing is thrown away, and somebody is told."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from omniq import AsyncWorkerPool, Task, TaskStatus
from omniq.errors import CorruptRecord
from omniq.storage import SQLiteStorage
from omniq.task import Answer, Settlement, TaskError, WorkerInfo
from omniq.testing import VirtualClock
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
    ("due", "tomorrow"),
    ("due", b"\x00\xff"),
    ("due", 2**62),
    ("due", -(2**62)),
    ("due", float("inf")),
    ("expires_at", "soon"),
    ("enqueued_at", "once"),
    ("result_status", 17),
    ("func_path", "5"),
    ("func_path", b"a.b"),
    ("payload", "text"),
    ("payload", 5),
    ("priority", "urgent"),
    ("priority", 99),
    ("priority", -1),
    ("epoch", "first"),
    ("epoch", 2**63 - 1),
    ("epoch", -1),
    ("attempts", "many"),
    ("attempts", 2**62),
    ("losses", b"\x00"),
    ("max_retries", "three"),
    ("max_losses", "three"),
    ("interval", "daily"),
    ("interval", float("inf")),
    ("interval", 1e300),
    ("timeout", "long"),
    ("timeout", float("inf")),
    ("timeout", -5.0),
    ("result_ttl", float("inf")),
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


async def test_what_becomes_a_head_by_the_claim_of_others_breaks_nothing(
    database: Path, reported: list[str]
) -> None:
    """It is first only once those before it are claimed, and then it is asked when it comes up."""
    async with SQLiteStorage(database) as storage:
        ids = [await storage.enqueue(Task("a.b")) for _ in range(3)]
        spoil(database, ids[2], "due", "tomorrow")
        assert [claim.id for claim in await storage.claim("ann", limit=10)] == ids[:2]
        assert await storage.claim("ann", limit=10) == []
        assert column_of(database, ids[2], "status") == 3
        assert len(reported) == 1


async def test_a_delay_beyond_the_last_moment_touches_only_its_own_row(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        ids = [await storage.enqueue(Task("a.b")) for _ in range(3)]
        first, second, third = await storage.claim("ann", limit=3)
        answers = await storage.settle(
            [
                Settlement.failed(first, BOOM),
                Settlement.retry(second, 1e300, BOOM),
                Settlement.failed(third, BOOM),
            ]
        )
        assert answers == [Answer.HELD, Answer.STALE, Answer.HELD]
        assert [column_of(database, task_id, "status") for task_id in ids] == [3, 1, 3]


async def test_an_expired_row_of_nonsense_is_found_once(database: Path, reported: list[str]) -> None:
    async with SQLiteStorage(database) as storage:
        bad = await storage.enqueue(
            Task("a.b", queue="unserved", expires_at=datetime(2020, 1, 1, tzinfo=UTC))
        )
        spoil(database, bad, "headers", "{")
        await storage.lapse()
        assert column_of(database, bad, "status") == 3
        await storage.lapse()
        assert len(reported) == 1


BROKEN = b"\xc3\x28"  # not UTF-8


def spoil_text(database: Path, task_id: str, column: str) -> None:
    with closing(sqlite3.connect(database)) as conn:
        conn.execute(f"UPDATE omniq_task SET {column} = CAST(? AS TEXT) WHERE id = ?", (BROKEN, task_id))
        assert conn.total_changes == 1
        conn.commit()


async def look_at_everything(storage: SQLiteStorage) -> None:
    await storage.list_tasks()
    await storage.counts()
    await storage.paused()
    await storage.workers()
    await storage.held("ann")
    await storage.verify()
    await storage.lapse()
    await storage.prune()


@pytest.mark.parametrize(
    "column", ["id", "func_path", "queue", "unique_key", "headers", "on_failure", "error", "progress"]
)
async def test_text_that_is_none_stops_nobody(database: Path, column: str, reported: list[str]) -> None:
    async with SQLiteStorage(database) as storage:
        bad, good = [await storage.enqueue(Task("a.b", priority=9 - n)) for n in range(2)]
        spoil_text(database, bad, column)
        await look_at_everything(storage)
        assert good in [claim.id for claim in await storage.claim("ann", limit=10)]
        await look_at_everything(storage)
        assert await storage.enqueue(Task("a.b"))
        if column not in ("error", "progress"):  # not read by a claim, and harmless until it is
            assert any("seq 1" in line for line in reported)
            # Whose queue cannot be read is still counted where it was enqueued.
            counted_elsewhere = ["queue default counts 2 PENDING, but has 1"] if column == "queue" else []
            assert [line for line in await storage.verify() if "PENDING" in line] == counted_elsewhere


async def test_a_running_row_with_an_owner_of_nonsense_is_put_aside(
    database: Path, reported: list[str]
) -> None:
    """Also where its lease counts in another boot's clock, and only its owner could tell."""
    async with SQLiteStorage(database) as storage:
        ids = [await storage.enqueue(Task("a.b")) for _ in range(3)]
        await storage.claim("ann", limit=3, lease=1000.0)
        spoil(database, ids[0], "lease", 0)
        spoil(database, ids[1], "boot", 77)
        for task_id in ids[:2]:
            spoil_text(database, task_id, "owner")
        spoil(database, ids[2], "lease", "for ever")
        await look_at_everything(storage)
        assert [column_of(database, task_id, "status") for task_id in ids] == [3, 3, 0]


async def test_names_of_nonsense_beside_the_tasks_are_passed_over(
    database: Path, reported: list[str]
) -> None:
    async with SQLiteStorage(database) as storage:
        await storage.pause("mail")
        await storage.beat(WorkerInfo("ann", "ann", "here", 1, None, 1, 0))
        with closing(sqlite3.connect(database)) as conn:
            conn.execute("INSERT INTO omniq_paused VALUES (CAST(? AS TEXT))", (BROKEN,))
            conn.execute("INSERT INTO omniq_worker VALUES (CAST(? AS TEXT), '{', 0)", (BROKEN,))
            conn.execute("INSERT INTO omniq_worker VALUES ('bob', '{', 'never')")
            conn.commit()
        assert await storage.paused() == {"mail"}
        assert [worker.id for worker in await storage.workers()] == ["ann"]
        await storage.enqueue(Task("a.b"))
        assert await storage.claim("ann")
        assert {line.split("makes")[0].strip() for line in reported} >= {
            "passed over: the record of worker 'bob'"
        }


async def test_workers_that_cannot_be_read_are_forgotten_like_others(database: Path) -> None:
    """One of them must not end all pruning."""
    async with SQLiteStorage(database) as storage:
        storage.keep_results(0.0, 0.0)
        await storage.beat(WorkerInfo("ann", "ann", "here", 1, None, 1, 0))
        await storage.enqueue(Task("a.b"))
        [claim] = await storage.claim("ann")
        await storage.settle([Settlement.failed(claim, BOOM)])
        with closing(sqlite3.connect(database)) as conn:
            conn.execute("INSERT INTO omniq_worker VALUES (CAST(? AS TEXT), '{', 0)", (BROKEN,))
            conn.execute("INSERT INTO omniq_worker VALUES ('bob', '{', 'never')")
            conn.execute("INSERT INTO omniq_worker VALUES ('cid', '{', 0)")
            conn.commit()
        assert await storage.prune() == 1
        with closing(sqlite3.connect(database)) as conn:
            assert conn.execute("SELECT id FROM omniq_worker").fetchall() == [("ann",)]


async def test_an_enqueue_on_a_connection_of_ones_own_passes_over_text_that_is_none(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        bad = await storage.enqueue(Task("a.b", unique_key="key"))
        spoil_text(database, bad, "headers")
        with closing(sqlite3.connect(database)) as conn, pytest.raises(CorruptRecord, match="key"):
            await storage.enqueue(Task("a.b", id="other", unique_key="key"), conn=conn)


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
    clock = VirtualClock()
    async with SQLiteStorage(database, clock=clock) as storage:
        bad = await storage.enqueue(Task("a.b"))
        good = await storage.enqueue(Task("a.b"))
        await storage.claim("ann", limit=2, lease=10)
        spoil(database, bad, "headers", "{")
        await clock.advance(11)
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
