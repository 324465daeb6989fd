"""F17: whichever statement of a verb fails, the store is as before it or as after it, never between.

And the call can be repeated as it is: the state of one success follows, also where only the answer was lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from omniq.errors import Conflict, NotFound, StoreUnavailable
from omniq.parcel import Moved, Parcel
from omniq.schedule import Schedule
from omniq.storage import SQLiteStorage, moving
from omniq.task import (
    Action,
    Claim,
    Held,
    Run,
    RunOutcome,
    Settlement,
    StoredTask,
    Task,
    TaskError,
    TaskResult,
    TaskStatus,
    WorkerInfo,
)
from omniq.testing import VirtualClock
from omniq.testing.clock import START
from tests.faults.statements import Beside, Way, failing

LARGE = "x" * 5000
ERROR = TaskError("ValueError", "on purpose", "its traceback")
INFO = WorkerInfo("ann", "ann", "host", 1)
MOST_STATEMENTS = 200
CLAIMED = StoredTask("a.b", b"", id="t1", epoch=1, seq=1)
NONE = SQLiteStorage.serializer.dumps(None)
DONE = TaskResult("t1", TaskStatus.SUCCESS, LARGE)

Verb = Callable[[SQLiteStorage], Awaitable[Any]]


class Scene:
    """Tasks t1, t2 ... wait, `ann` holds what she claimed; nothing in it depends on chance or on the hour."""

    def __init__(self, storage: SQLiteStorage, clock: VirtualClock) -> None:
        self.storage, self.clock = storage, clock

    async def put(self, *ids: str, **options: Any) -> None:
        await self.storage.enqueue_many([Task("a.b", (LARGE,), id=task_id, **options) for task_id in ids])

    async def start(self, *ids: str, **options: Any) -> None:
        await self.put(*ids, **options)
        await self.storage.exchange((), Claim("ann", None, len(ids), 30.0, f"claim of {ids}"))

    async def end(self, *ids: str, **options: Any) -> None:
        await self.start(*ids, **options)
        await self.storage.settle([Settlement.failed(Held(task_id, 1), ERROR) for task_id in ids])


def reports(storage: SQLiteStorage, *actions: Action) -> list[Settlement]:
    """One report of each kind: of t1, t2 and so on."""
    result = storage.serializer.dumps(LARGE)
    return [Settlement(Held(f"t{n}", 1), action, result, 5.0, ERROR) for n, action in enumerate(actions, 1)]


# Name of the verb, the scene that it needs, and the call.
async def nothing(scene: Scene) -> None: ...


async def two_wait(scene: Scene) -> None:
    await scene.put("t1", "t2")


async def all_run(scene: Scene) -> None:
    """One for each kind of report, and two that wait."""
    await scene.start(*(f"t{n}" for n, _ in enumerate(Action, 1)), interval=60, unique_key=None)
    await scene.put("waiting", "waiting too")


async def one_runs(scene: Scene) -> None:
    await scene.start("t1", unique_key="key")


async def over(scene: Scene) -> None:
    await scene.start("t1", "t2")
    await scene.put("t3", expires_at=START + timedelta(seconds=10))
    await scene.clock.advance(60)


async def one_failed(scene: Scene) -> None:
    await scene.end("t1", unique_key="key")


async def old_ones(scene: Scene) -> None:
    scene.storage.keep_results(1.0, 1.0)
    await scene.end("t1", "t2")
    await scene.clock.advance(5)


async def one_waits_for_its_key(scene: Scene) -> None:
    await scene.put("t1", unique_key="key")


async def paused(scene: Scene) -> None:
    await scene.storage.pause("mail")


async def known_worker(scene: Scene) -> None:
    await scene.storage.beat(INFO)


TIDY = Schedule(name="tidy", call=Task("a.b", (LARGE,)), every=10.0, catch_up="all")


async def ticking(scene: Scene) -> None:
    """Three ticks have come."""
    await scene.storage.save_schedule(TIDY)
    await scene.clock.advance(30)


async def something_to_move(scene: Scene) -> None:
    await scene.end("t1", "t2")
    await scene.put("t3", "t4", unique_key=None)
    await scene.storage.save_schedule(TIDY)
    await scene.storage.pause("mail")
    await scene.storage.limit_queue("mail", 5)


async def on_its_way(scene: Scene) -> None:
    await something_to_move(scene)
    await scene.storage._do(partial(moving.take_out, 9, "parcel 1"))


RUN = Run(1, "ann", START, START, RunOutcome.RETRIED, ERROR)
FIELDS: dict[str, Any] = {"epoch": 1, "attempts": 1, "error": ERROR, "enqueued_at": START, "eta": START}
ARRIVING = Parcel(
    id="parcel 2",
    tasks=[Moved(StoredTask("a.b", LARGE.encode(), id=f"n{n}", **FIELDS), [RUN]) for n in range(3)],
    paused=["mail"],
    limits={"mail": 5},
)

VERBS: dict[str, tuple[Callable[[Scene], Awaitable[None]], Verb]] = {
    "enqueue": (nothing, lambda s: s.enqueue(Task("a.b", (LARGE,), id="n1", unique_key="key"))),
    "enqueue, key held": (
        one_waits_for_its_key,
        lambda s: s.enqueue(Task("a.b", (1,), id="n1", unique_key="key"), on_conflict="replace"),
    ),
    "enqueue_many": (
        two_wait,
        lambda s: s.enqueue_many([Task("a.b", (LARGE,), id=f"n{n}", unique_key=f"k{n}") for n in range(3)]),
    ),
    "enqueue_many, one there": (
        two_wait,
        lambda s: s.enqueue_many([Task("a.b", (LARGE,), id=task_id) for task_id in ("t2", "n1", "n2")]),
    ),
    "claim": (two_wait, lambda s: s.claim("bob", None, 2, 30.0, "claim 1")),
    "settle": (all_run, lambda s: s.settle(reports(s, *Action))),
    "exchange": (
        all_run,
        lambda s: s.exchange(reports(s, *reversed(Action)), Claim("bob", None, 5, 30.0, "claim 1")),
    ),
    "success in one statement": (
        one_runs,
        lambda s: s.settle([Settlement.success(CLAIMED, NONE)]),
    ),
    "renew": (all_run, lambda s: s.renew("ann", 60.0)),
    "release": (all_run, lambda s: s.release("ann")),
    "lapse": (over, lambda s: s.lapse()),
    "progress": (one_runs, lambda s: s.progress("t1", 1, 5, 10)),
    "cancel, waiting": (two_wait, lambda s: s.cancel("t1")),
    "cancel, running": (one_runs, lambda s: s.cancel("t1")),
    "retry": (one_failed, lambda s: s.retry("t1")),
    "reschedule": (two_wait, lambda s: s.reschedule("t1", START + timedelta(days=1))),
    "delete": (one_failed, lambda s: s.delete("t1")),
    "prune": (old_ones, lambda s: s.prune()),
    "pause": (nothing, lambda s: s.pause("mail")),
    "resume": (paused, lambda s: s.resume("mail")),
    "beat": (nothing, lambda s: s.beat(INFO)),
    "leave": (known_worker, lambda s: s.leave("ann")),
    "save_schedule": (nothing, lambda s: s.save_schedule(TIDY)),
    "fire_due": (ticking, lambda s: s.fire_due()),
    "pause_schedule": (ticking, lambda s: s.pause_schedule("tidy")),
    "run_schedule": (ticking, lambda s: s.run_schedule("tidy", "n1")),
    "delete_schedule": (ticking, lambda s: s.delete_schedule("tidy")),
    "limit_queue": (nothing, lambda s: s.limit_queue("mail", 5)),
    "take_out": (something_to_move, lambda s: s._do(partial(moving.take_out, 9, "parcel 1"))),
    "take_in": (two_wait, lambda s: s.take_in(ARRIVING)),
    "drop_parcel": (on_its_way, lambda s: s.drop_parcel("parcel 1")),
    "mark_done": (
        one_runs,
        lambda s: s.mark_done("t1", DONE, epoch=1),
    ),
    "mark_failed": (one_runs, lambda s: s.mark_failed("t1", ERROR, will_retry=True, epoch=1)),
}


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("way", get_args(Way))
async def test_f17_a_failing_statement_leaves_before_or_after(tmp_path: Path, name: str, way: Way) -> None:
    setting, verb = VERBS[name]
    clock = VirtualClock()
    async with SQLiteStorage(tmp_path / "jobs.db", clock=clock, durability="relaxed") as storage:
        await setting(Scene(storage, clock))
        with Beside(storage.path) as beside:
            before = beside.contents()
            await verb(storage)
            after = beside.contents()
            assert before != after, "the verb writes nothing here"
            for nth in range(1, MOST_STATEMENTS):
                beside.restore(before)
                with failing(storage) as connection:
                    connection.arm(nth, way)
                    await call(storage, verb, may_be_away=True)
                    connection.mend()
                if not connection.failed:
                    break
                now = beside.contents()
                assert now in (before, after), f"between, after statement {nth} was {way}"
                await call(storage, verb, done=now == after)
                assert beside.contents() == after, f"statement {nth} was {way}: did not converge"
        assert await storage.verify() == []
        assert 3 < nth < MOST_STATEMENTS - 1, "it failed nowhere, or never ran through"


async def call(storage: SQLiteStorage, verb: Verb, *, may_be_away: bool = False, done: bool = False) -> None:
    """One call; only what is done already may be refused, and a call always ends."""
    try:
        async with asyncio.timeout(5):
            await verb(storage)
    except StoreUnavailable:
        assert may_be_away
    except (Conflict, NotFound):
        assert done
