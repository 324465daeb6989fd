"""F8, F11, F18: taking back what is over, beside bad rows, beside other reapers, beside its own worker."""

import asyncio
import itertools
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from loguru import logger

from omniq.storage import SQLiteStorage
from omniq.storage.rows import Rows
from omniq.task import Answer, RunOutcome, Settlement, StoredTask, Task, TaskStatus
from omniq.testing import VirtualClock
from tests.faults.processes import Field

T = TypeVar("T")
NO_SUCH_STATUS = 9


async def claimed(
    storage: SQLiteStorage, how_many: int, lease: float, worker: str = "ann"
) -> list[StoredTask]:
    """Tasks that `worker` holds, enqueued now."""
    await storage.enqueue_many([Task("a.b") for _ in range(how_many)])
    claims = await storage.claim(worker, limit=how_many, lease=lease)
    assert len(claims) == how_many
    return [claim for claim in claims if isinstance(claim, StoredTask)]


@pytest.fixture
def reported() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logger.add(lambda message: lines.append(str(message)), level="ERROR", format="{message}")
    yield lines
    logger.remove(handler)


# --- F8 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [5, 50, 100])
async def test_f8_rows_that_cannot_be_taken_back_hold_up_nobody(
    tmp_path: Path, page: int, reported: list[str]
) -> None:
    clock = VirtualClock()
    async with SQLiteStorage(tmp_path / "jobs.db", clock=clock) as storage:
        corrupt = await claimed(storage, 60, 1.0)
        with closing(sqlite3.connect(storage.path)) as conn:
            conn.execute("UPDATE omniq_task SET result_status = ?", (NO_SUCH_STATUS,))
            conn.commit()
            kept = conn.execute(
                "SELECT id, func_path, payload, epoch FROM omniq_task ORDER BY seq"
            ).fetchall()
        living = await claimed(storage, 60, 1000.0, "bob")
        over = await claimed(storage, 10, 1.0, "cid")
        await clock.advance(2)
        rescued = 0
        for _ in range(2 + 60 // page):  # however small the page: it goes on behind the bad rows
            rescued += await storage.lapse(page)
        assert rescued == 10
        assert [(await storage.history(task.id))[-1].outcome for task in over] == [RunOutcome.LOST] * 10
        assert len(await storage.held("bob")) == len(living)
        with closing(sqlite3.connect(storage.path)) as conn:
            columns = "id, func_path, payload, epoch, status, owner"
            rows = conn.execute(f"SELECT {columns} FROM omniq_task ORDER BY seq LIMIT 60").fetchall()
        # Nobody can run them, so they are put aside as FAILED; what they hold is kept.
        assert rows == [(*row, 3, None) for row in kept]
        for task in corrupt:
            assert sum(task.id in line for line in reported) == 1, "reported once each"


# --- F11 ------------------------------------------------------------------------------------------


class Stepped(SQLiteStorage):
    """Waits for its turn before each look and each write, so that a test decides the order."""

    def __init__(self, path: Path, clock: VirtualClock, turn: Callable[[], Awaitable[None]]) -> None:
        super().__init__(path, clock=clock)
        self._my_turn = turn

    async def _look(self, job: Callable[[Rows], T]) -> T:
        await self._my_turn()
        return await super()._look(job)

    async def _do(self, job: Callable[[Rows], T]) -> T:
        await self._my_turn()
        return await super()._do(job)


class Conductor:
    """Lets actors take one step each in a given order; a step that nobody takes is passed over."""

    def __init__(self, order: tuple[str, ...]) -> None:
        self._order = order
        self._gates: dict[str, asyncio.Queue[asyncio.Event]] = {name: asyncio.Queue() for name in set(order)}
        self._done: dict[str, asyncio.Event] = {name: asyncio.Event() for name in set(order)}

    def turn(self, name: str) -> Callable[[], Awaitable[None]]:
        async def wait() -> None:
            gate = asyncio.Event()
            await self._gates[name].put(gate)
            await gate.wait()

        return wait

    async def run(self, actors: dict[str, Awaitable[Any]]) -> dict[str, Any]:
        tasks = {name: asyncio.ensure_future(actor) for name, actor in actors.items()}
        for name in self._order:
            gate = asyncio.ensure_future(self._gates[name].get())
            await asyncio.wait((gate, tasks[name]), return_when=asyncio.FIRST_COMPLETED)
            if not gate.done():
                gate.cancel()  # it has ended with fewer steps
                continue
            gate.result().set()
            at_next_gate = asyncio.ensure_future(self._reached(name))
            await asyncio.wait((at_next_gate, tasks[name]), return_when=asyncio.FIRST_COMPLETED)
            at_next_gate.cancel()
        return {name: await task for name, task in tasks.items()}

    async def _reached(self, name: str) -> None:
        while self._gates[name].empty():  # noqa: ASYNC110 - a step may end without reaching a gate
            await asyncio.sleep(0)


ORDERS = sorted(set(itertools.permutations(("a", "a", "b", "b", "worker"))))


@pytest.mark.parametrize("worker_does", ["settle", "renew"])
async def test_f11_two_reapers_in_every_order_close_a_lease_once(tmp_path: Path, worker_does: str) -> None:
    """Each reaper looks and then acts; the worker speaks up at any point between."""
    clock = VirtualClock()
    async with SQLiteStorage(tmp_path / "jobs.db", clock=clock, durability="relaxed") as storage:
        for order in ORDERS:
            [task] = await claimed(storage, 1, 1.0)
            await clock.advance(1)
            conductor = Conductor(order)
            a, b, w = (Stepped(storage.path, clock, conductor.turn(name)) for name in ("a", "b", "worker"))
            success = Settlement.success(task, storage.serializer.dumps("done"))

            async def speak(w: Stepped = w, success: Settlement = success) -> Any:
                if worker_does == "renew":
                    return await w.renew("ann", 1000.0)
                await w._my_turn()
                return await w.settle([success])

            async with a, b, w:
                answers = await conductor.run({"a": a.lapse(), "b": b.lapse(), "worker": speak()})
            found = await storage.get_task(task.id)
            assert found is not None
            rescued = answers["a"] + answers["b"]
            assert rescued <= 1, order
            if worker_does == "settle":
                assert answers["worker"] == [Answer.STALE if rescued else Answer.HELD], order
                assert found.status is (TaskStatus.PENDING if rescued else TaskStatus.SUCCESS), order
            else:
                assert (task.id in answers["worker"].held) == (not rescued), order
                assert found.status is (TaskStatus.PENDING if rescued else TaskStatus.RUNNING), order
            assert len(await storage.history(task.id)) == rescued, order
            await settle_down(storage, task.id)


async def settle_down(storage: SQLiteStorage, task_id: str) -> None:
    """Nothing of one order is left for the next."""
    for held in await storage.held("ann"):
        await storage.settle([Settlement.give_back(held)])
    await storage.cancel(task_id)
    assert (await storage.counts())["default"][TaskStatus.RUNNING] == 0


# --- F18 ------------------------------------------------------------------------------------------

REAPER = """
import asyncio, sys, time
from omniq.storage import SQLiteStorage

async def main():
    async with SQLiteStorage(sys.argv[1], durability="relaxed") as storage:
        print("READY", flush=True)
        for line in sys.stdin:
            at = float(line)
            while time.monotonic() < at:
                pass
            print("ENDED", await storage.lapse(10), flush=True)

asyncio.run(main())
"""


async def complete_racing_lapse(field: Field, rounds: int) -> None:
    """Worker and reaper, in two processes, reach for one row at the moment when its lease ends."""
    won = {"worker": 0, "reaper": 0}
    async with SQLiteStorage(field.database, durability="relaxed") as storage:
        reaper = field.script(REAPER, field.database)
        reaper.line("READY")
        for number in range(rounds):
            [task] = await claimed(storage, 1, 0.004)
            at = time.monotonic() + 0.004
            reaper.tell(repr(at + random.uniform(0, 0.001)))
            worker_at = at + random.uniform(0, 0.002)
            while time.monotonic() < worker_at:
                pass
            [answer] = await storage.settle([Settlement.success(task, storage.serializer.dumps(number))])
            rescued = int(reaper.line("ENDED"))
            found = await storage.get_task(task.id)
            assert found is not None
            history = [run.outcome for run in await storage.history(task.id)]
            if answer is Answer.HELD:
                assert (found.status, rescued, history) == (TaskStatus.SUCCESS, 0, [])
                won["worker"] += 1
            else:
                assert answer is Answer.STALE
                assert (found.status, rescued, history) == (TaskStatus.PENDING, 1, [RunOutcome.LOST])
                won["reaper"] += 1
                await storage.cancel(task.id)
    assert min(won.values()) > rounds // 50, f"it was no race: {won}"


@pytest.mark.bound(120)
async def test_f18_success_and_lapse_have_exactly_one_winner(field: Field) -> None:
    await complete_racing_lapse(field, 500)


@pytest.mark.soak
@pytest.mark.bound(900)
async def test_f18_success_and_lapse_have_exactly_one_winner_in_ten_thousand_rounds(field: Field) -> None:
    await complete_racing_lapse(field, 10_000)
