"""One writer thread: it commits together what has queued up, and outlives what goes wrong in it."""

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import force_setattr

from omniq import Task
from omniq.errors import IdConflict, OmniqError, PayloadTooLarge, StoreUnavailable, UnserializableArgument
from omniq.storage import SQLiteStorage
from omniq.storage.rows import Rows
from omniq.storage.sqlite.jobs import AwaitedJob, BlockingJob
from omniq.storage.sqlite.records import Retention
from omniq.task import Claim, Settlement, TaskStatus
from tests.faults.statements import contents


@contextmanager
def counted(storage: SQLiteStorage) -> Iterator[Counter[str]]:
    """How often the writer said each word, from SQLite's own trace."""
    words: Counter[str] = Counter()
    assert storage._engine is not None
    conn = storage._engine._writer

    def on_statement(sql: str) -> None:
        words[sql.split(maxsplit=1)[0].upper()] += 1

    conn.set_trace_callback(on_statement)
    yield words
    conn.set_trace_callback(None)


async def test_many_at_once_share_a_commit(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        with counted(storage) as words:
            ids = await asyncio.gather(*(storage.enqueue(Task("a.b", (n,))) for n in range(500)))
        assert len(set(ids)) == 500
        assert 1 <= words["COMMIT"] <= 25
        assert (await storage.counts())["default"][TaskStatus.PENDING] == 500


async def test_one_after_the_other_is_durable_each_time(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        with counted(storage) as words:
            for n in range(10):
                task_id = await storage.enqueue(Task("a.b", (n,)))
                with closing(sqlite3.connect(database)) as conn:
                    assert conn.execute("SELECT 1 FROM omniq_task WHERE id = ?", (task_id,)).fetchone()
        assert words["COMMIT"] == 10


async def test_settlements_and_a_claim_are_one_commit(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        await storage.enqueue_many([Task("a.b") for _ in range(200)])
        claims = await storage.claim("ann", limit=100)
        done = storage.serializer.dumps(None)
        with counted(storage) as words:
            answers, more = await storage.exchange(
                [Settlement.success(claim, done) for claim in claims], Claim("ann", None, 100, 30.0, "next")
            )
        assert (len(answers), len(more), words["COMMIT"]) == (100, 100, 1)


async def test_looking_writes_nothing(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        task_id = await storage.enqueue(Task("a.b"))
        with counted(storage) as words:
            await storage.get_task(task_id)
            await storage.list_tasks()
            await storage.counts()
            await storage.held("ann")
            await storage.history(task_id)
            await storage.workers()
            assert await storage.lapse() == 0  # asked twice a second by everybody: only a look
        assert words == {}


async def test_one_bad_call_among_many_fails_alone(database: Path) -> None:
    """What cannot be stored is refused to its own caller; the rest of the commit and the thread go on."""
    async with SQLiteStorage(database, durability="relaxed") as storage:
        await storage.enqueue(Task("a.b", id="known"))
        bad: list[tuple[type[OmniqError], Task]] = [
            (IdConflict, Task("a.other", id="known")),
            (OmniqError, unwritable()),
            (UnserializableArgument, Task("a.b", (object(),))),
            (PayloadTooLarge, Task("a.b", ("x" * (2 << 20),))),
        ]
        for kind, wrong in bad:
            before = contents(database)
            async with asyncio.timeout(10):
                answers = await asyncio.gather(
                    *(outcome(storage, wrong if n == 3 else Task("a.b", (n,))) for n in range(8))
                )
            assert isinstance(answers[3], kind), (kind, answers)
            assert [isinstance(answer, str) for answer in answers].count(True) == 7
            assert len(contents(database)["omniq_task"]) == len(before["omniq_task"]) + 7
            async with asyncio.timeout(10):
                with pytest.raises(kind):
                    await storage.enqueue(wrong)  # and alone
        assert await storage.verify() == []


async def test_a_half_done_call_that_raises_leaves_nothing(database: Path) -> None:
    """Alone, and among others that share its commit."""

    def half_done(rows: Rows) -> None:
        rows.set_paused("mail", True)
        raise ValueError("half done")

    async with SQLiteStorage(database) as storage:
        with pytest.raises(ValueError, match="half done"):
            await storage._write(half_done)
        assert await storage.paused() == set()
        answers = await asyncio.gather(
            *(storage._write(half_done) for _ in range(3)),
            storage.pause("other"),
            storage._write(half_done),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers].count(ValueError) == 4
        assert await storage.paused() == {"other"}


def unwritable() -> Task:
    """A task that passed every check and still cannot be written."""
    task = Task("a.b")
    force_setattr(task, "headers", {"k": "\ud800"})
    return task


async def outcome(storage: SQLiteStorage, task: Task) -> str | BaseException:
    try:
        return await storage.enqueue(task)
    except Exception as exc:
        return exc


async def test_a_caller_that_goes_away_takes_nothing_along(database: Path) -> None:
    """Cancelled callers: their write is done or not, and nobody else's is harmed."""
    async with SQLiteStorage(database) as storage:
        gone = [asyncio.create_task(storage.enqueue(Task("a.b", id=f"gone-{n}"))) for n in range(20)]
        kept = [asyncio.create_task(storage.enqueue(Task("a.b", id=f"kept-{n}"))) for n in range(20)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        assert sorted(await asyncio.gather(*kept)) == sorted(f"kept-{n}" for n in range(20))
        ids = {row[1] for row in contents(database)["omniq_task"]}
        assert {f"kept-{n}" for n in range(20)} <= ids


async def test_closing_finishes_what_was_asked_for(database: Path) -> None:
    storage = SQLiteStorage(database)
    await storage.open()
    calls = [asyncio.create_task(storage.enqueue(Task("a.b"))) for _ in range(100)]
    await asyncio.sleep(0)
    await storage.close()
    assert len(set(await asyncio.gather(*calls))) == 100
    async with SQLiteStorage(database) as again:
        assert sum((await again.counts())["default"].values()) == 100


# --- in the caller's own thread --------------------------------------------------------------------


async def test_a_thread_that_never_pauses_lets_the_writer_have_its_turn(database: Path) -> None:
    async with SQLiteStorage(database, durability="relaxed") as storage:
        enough = threading.Event()

        def write_without_a_pause() -> None:
            while not enough.is_set():
                storage.enqueue_here([Task("a.b")])

        busy = asyncio.create_task(asyncio.to_thread(write_without_a_pause))
        try:
            for n in range(50):
                async with asyncio.timeout(10):
                    await storage.enqueue(Task("a.b", (n,)))
        finally:
            enough.set()
            await busy


async def test_a_caller_gives_way_to_a_writer_that_waits(database: Path) -> None:
    """Its job goes along with the writer's next commit."""
    async with SQLiteStorage(database) as storage:
        engine = storage._engine
        assert engine is not None
        where = BlockingJob(lambda rows: threading.get_ident(), Retention(0.0, 0.0))
        assert engine.write_here(where) == threading.get_ident()
        engine._writer_waits = True
        where = BlockingJob(lambda rows: threading.get_ident(), Retention(0.0, 0.0))
        assert engine.write_here(where) != threading.get_ident()


async def test_who_enqueues_after_the_close_is_told(database: Path) -> None:
    storage = SQLiteStorage(database)
    await storage.open()
    engine = storage._engine
    assert engine is not None
    await storage.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        storage.enqueue_here([Task("a.b")])
    late = AwaitedJob(lambda rows: rows.now(), Retention(0.0, 0.0))
    engine.write(late)
    with pytest.raises(StoreUnavailable, match="closed"):
        await late.future
    with pytest.raises(StoreUnavailable, match="closed"):
        engine.write_here(BlockingJob(lambda rows: rows.now(), Retention(0.0, 0.0)))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):  # and nothing was opened for it
        engine._writer.execute("SELECT 1")
    engine._writer_waits = True
    with pytest.raises(StoreUnavailable, match="closed"):
        engine.write_here(BlockingJob(lambda rows: rows.now(), Retention(0.0, 0.0)))


async def test_a_refusal_in_the_callers_thread_takes_back_its_own_part_only(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        storage.enqueue_here([Task("a.b", id="one")])
        with pytest.raises(IdConflict):
            storage.enqueue_here([Task("a.b", id="two"), Task("c.d", id="one")])
        assert [task.id for task in await storage.list_tasks()] == ["one"]
        await storage.enqueue(Task("a.b", id="three"))
        assert await storage.verify() == []
