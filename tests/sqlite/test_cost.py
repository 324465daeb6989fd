"""What a claim costs does not grow with what cannot run. Counted in SQLite's own steps, without a clock."""

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from omniq import Task
from omniq.storage import SQLiteStorage
from omniq.storage.sqlite.looking import LOOK, SORTED
from omniq.storage.sqlite.records import micros
from omniq.task import Claim, Settlement, TaskError, TaskFilter, TaskStatus
from omniq.testing import VirtualClock
from omniq.testing.clock import START

MANY = 50_000
DAY_MICROS = 86_400_000_000


class Steps:
    count = 0


@contextmanager
def stepped(storage: SQLiteStorage, *, reading: bool = False) -> Iterator[Steps]:
    """Count the instructions of SQLite's virtual machine in the writer's connection, or the reader's."""
    steps = Steps()
    assert storage._engine is not None
    conn = storage._engine._reader if reading else storage._engine._writer

    def on_step() -> int:
        steps.count += 1
        return 0

    conn.set_progress_handler(on_step, 1)
    yield steps
    conn.set_progress_handler(None, 1)


class Heap(NamedTuple):
    """Rows that cannot run: a queue, a status, a priority, and when they are due in days from now."""

    queue: str
    status: int
    priority: int
    due_days: float


def pile_up(database: Path, heap: Heap, how_many: int) -> None:
    """Many rows at once, made from a real one by SQL: enqueueing them would take most of the test."""
    due = micros(START) + round(heap.due_days * DAY_MICROS)
    finished = heap.status >= 2
    with closing(sqlite3.connect(database)) as conn:
        columns = [name for _, name, *_ in conn.execute("PRAGMA table_info(omniq_task)")]
        values = {
            "seq": "seq + n.value",
            "id": f"'heap-{heap.queue}-{heap.priority}-' || n.value",
            "queue": f"'{heap.queue}'",
            "status": str(heap.status),
            "priority": str(heap.priority),
            "eta": str(due),
            "due": f"{due} + n.value",
            "finished_at": f"{due}" if finished else "NULL",
            "prune_at": f"{due + 30 * DAY_MICROS}" if finished else "NULL",
        }
        selected = ", ".join(values.get(name, name) for name in columns)
        conn.execute(
            "WITH RECURSIVE n(value) AS (VALUES (1) UNION ALL SELECT value + 1 FROM n WHERE value < ?) "
            f"INSERT INTO omniq_task SELECT {selected} FROM omniq_task t, n WHERE t.id = 'pattern'",
            (how_many,),
        )
        conn.execute("DELETE FROM omniq_task WHERE id = 'pattern'")
        conn.execute("ANALYZE")
        conn.commit()


async def cost_of_claims(
    database: Path, heaps: list[Heap], how_many: int, queues: tuple[str, ...] | None
) -> list[int]:
    """The steps of claims: of nothing, of one task, and of a hundred with the reports of the last ones."""
    async with SQLiteStorage(database, clock=VirtualClock(), durability="relaxed") as storage:
        for heap in heaps:
            await storage.enqueue(Task("a.b", id="pattern"))
            pile_up(database, heap, how_many)
        await storage.pause("paused")
        costs: list[int] = []
        for ready, limit in ((0, 10), (1, 1), (1, 10), (300, 100), (0, 100)):
            await storage.enqueue_many([Task("a.b", queue="mine") for _ in range(ready)])
            with stepped(storage) as steps:
                claims = await storage.claim("ann", queues, limit)
            costs.append(steps.count)
            assert len(claims) == min(ready, limit) or ready == 0
            assert all(not claim.id.startswith("heap") for claim in claims)
            done = storage.serializer.dumps(None)
            with stepped(storage) as steps:
                reports = [Settlement.success(claim, done) for claim in claims]
                await storage.exchange(reports, Claim("ann", queues, 1, 30.0, f"{ready} {limit}"))
            costs.append(steps.count)
        return costs


HEAPS: dict[str, list[Heap]] = {
    "due tomorrow, most urgent": [Heap("mine", 0, 9, 1.0)],
    "due tomorrow, of every urgency": [Heap("mine", 0, 4, 1.0), Heap("mine", 0, 0, 2.0)],
    "in a paused queue": [Heap("paused", 0, 9, -1.0)],
    "finished": [Heap("mine", 2, 9, -1.0)],
    "failed": [Heap("mine", 3, 9, -1.0)],
    "in another queue": [Heap("other", 0, 9, -1.0)],
}


@pytest.mark.parametrize("name", HEAPS)
async def test_a_claim_costs_the_same_beside_what_cannot_run(tmp_path: Path, name: str) -> None:
    # Where another queue is ready it must not be asked for; elsewhere all queues are.
    queues = ("mine",) if name == "in another queue" else None
    one = await cost_of_claims(tmp_path / "one.db", HEAPS[name], 1, queues)
    many = await cost_of_claims(tmp_path / "many.db", HEAPS[name], MANY, queues)
    assert_same(one, many)


# Instructions for one more queue, or priority, that has nothing due: the seek to its head, once per claim.
STEPS_PER_QUEUE = 80


async def cost_of_idle_claims(database: Path, queues: int) -> tuple[list[int], int]:
    """Claims that find nothing, beside queues with a task due tomorrow each: their steps, and their looks."""
    async with SQLiteStorage(database, clock=VirtualClock(), durability="relaxed") as storage:
        later = [Task("a.b", queue=f"tenant-{n}", eta=START + timedelta(days=1)) for n in range(queues)]
        await storage.enqueue_many(later)
        assert storage._engine is not None
        looks: list[str] = []
        storage._engine._writer.set_trace_callback(
            lambda sql: looks.append(sql) if sql.startswith("WITH RECURSIVE") else None
        )
        costs: list[int] = []
        for scarce, scarce_limit in (((), 0), (("tenant-0",), 0), (("tenant-0",), 5)):
            claim = Claim("ann", None, 10, 30.0, f"{scarce}{scarce_limit}", scarce, scarce_limit)
            with stepped(storage) as steps:
                _, claims = await storage.exchange((), claim)
            assert claims == []
            assert storage._next_due == START + timedelta(days=1)
            costs.append(steps.count)
        storage._engine._writer.set_trace_callback(None)
        return costs, len(looks)


async def test_an_idle_claim_looks_at_each_queue_once(tmp_path: Path) -> None:
    """What is asked all the time where nothing is due: whether something is, and when something will be."""
    few, looks = await cost_of_idle_claims(tmp_path / "few.db", 100)
    many, _ = await cost_of_idle_claims(tmp_path / "many.db", 1100)
    assert looks == 4, "one for each, and one more for the scarce queue"
    per_queue = [(more - less) / 1000 for less, more in zip(few, many, strict=True)]
    assert max(per_queue) < STEPS_PER_QUEUE, per_queue


def assert_same(one: list[int], many: list[int]) -> None:
    """Beside many rows not more than beside one, but for a few steps."""
    assert all(more - less <= 20 + less // 20 for less, more in zip(one, many, strict=True)), (one, many)


async def test_this_counts_what_grows(tmp_path: Path) -> None:
    """A look at all rows does cost many steps."""
    async with SQLiteStorage(tmp_path / "jobs.db", durability="relaxed") as storage:
        await storage.enqueue(Task("a.b", id="pattern"))
        pile_up(tmp_path / "jobs.db", Heap("mine", 2, 0, -1.0), MANY)
        with stepped(storage) as steps:
            await storage._write(lambda rows: rows.verify())
        assert steps.count > MANY


async def test_upkeep_costs_the_same_beside_history(tmp_path: Path) -> None:
    """What everybody asks several times a second: renew, held, lapse."""

    async def costs(path: Path, how_many: int) -> list[int]:
        clock = VirtualClock()
        async with SQLiteStorage(path, clock=clock, durability="relaxed") as storage:
            for heap in (Heap("other", 2, 0, -1.0), Heap("later", 0, 9, 1.0)):
                await storage.enqueue(Task("a.b", id="pattern"))
                pile_up(path, heap, how_many)
            await storage.enqueue_many([Task("a.b", queue="mine") for _ in range(20)])
            await storage.claim("ann", ["mine"], 20, 10.0)
            found: list[int] = []
            calls: list[Callable[[], object]] = [
                lambda: storage.renew("ann", 10.0),
                lambda: storage._write(lambda rows: rows.held("ann")),
                lambda: storage._write(lambda rows: rows.lapse(10)),
                lambda: storage.prune(10),
            ]
            for call in calls:
                with stepped(storage) as steps:
                    await call()  # type: ignore[misc]
                found.append(steps.count)
            return found

    assert_same(await costs(tmp_path / "one.db", 1), await costs(tmp_path / "many.db", MANY))


LOOKS: dict[str, Callable[[SQLiteStorage], Awaitable[object]]] = {
    "counts": lambda storage: storage.counts(),
    "rates": lambda storage: storage.rates(START),
    "heads": lambda storage: storage.heads(),
    "timings": lambda storage: storage.timings(50),
    "longest running": lambda storage: storage.longest_running(50),
    "ahead": lambda storage: storage.ahead("mine", 50),
    "newest": lambda storage: storage.page(limit=50),
    "running": lambda storage: storage.page(TaskFilter(status=TaskStatus.RUNNING)),
    "failed, of which there is one": lambda storage: storage.page(TaskFilter(status=TaskStatus.FAILED)),
    "waiting in a small queue": lambda s: s.page(TaskFilter(status=TaskStatus.PENDING, queue="mine")),
}


async def cost_of_looks(database: Path, how_many: int) -> list[int]:
    async with SQLiteStorage(database, clock=VirtualClock(), durability="relaxed") as storage:
        for heap in (Heap("other", 2, 0, -1.0), Heap("other", 0, 9, -1.0), Heap("later", 0, 9, 1.0)):
            await storage.enqueue(Task("a.b", id="pattern"))
            pile_up(database, heap, how_many)
        for number in range(100):
            await storage.enqueue(Task("a.b", queue="full", id=f"full {number}", priority=1))
        await storage.enqueue(Task("a.b", queue="mine", id="mine"))
        for worker in ("ann", "bob"):
            await storage.enqueue(Task("a.b", queue="run"))
            [claimed] = await storage.claim(worker, ["run"])
        await storage.settle([Settlement.failed(claimed, TaskError("ValueError", "boom"))])
        costs: list[int] = []
        for look in LOOKS.values():
            with stepped(storage, reading=True) as steps:
                await look(storage)
            costs.append(steps.count)
        return costs


async def test_looking_costs_the_same_beside_a_million(tmp_path: Path) -> None:
    """S11: what the pages show is found without counting or scanning."""
    few = await cost_of_looks(tmp_path / "few.db", 100)
    many = await cost_of_looks(tmp_path / "many.db", MANY)
    assert {
        name: (less, more)
        for name, less, more in zip(LOOKS, few, many, strict=True)
        if more - less > 20 + less // 20
    } == {}


STEPS_PER_LOOK = 40
SPARSE = [
    TaskFilter(func_path="no.such"),
    TaskFilter(error="(a+)+$"),
    TaskFilter(status=TaskStatus.SUCCESS, queue="empty"),
    TaskFilter(unique_key="nobody"),
    TaskFilter(enqueued_after=START + timedelta(days=1)),
]


async def test_a_filter_that_no_index_serves_looks_at_a_bounded_number(tmp_path: Path) -> None:
    """S11: a page of nothing says where to look on; so do all of them until the end."""
    async with SQLiteStorage(tmp_path / "jobs.db", clock=VirtualClock(), durability="relaxed") as storage:
        await storage.enqueue(Task("a.b", id="pattern"))
        pile_up(tmp_path / "jobs.db", Heap("other", 2, 0, -1.0), 2 * LOOK + LOOK // 2)
        for wanted in SPARSE:
            after, pages = None, 0
            while pages == 0 or after is not None:
                with stepped(storage, reading=True) as steps:
                    page = await storage.page(wanted, after, 50)
                assert page.tasks == []
                assert steps.count < STEPS_PER_LOOK * (LOOK + SORTED)
                after, pages = page.after, pages + 1
            assert pages == 3
