"""F17: whichever statement of a verb fails, the store is as before it or as after it, never between.

And the call can be repeated as it is: the state of one success follows, also where only the answer was lost.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from omniq.errors import Conflict, NotFound, StoreUnavailable
from omniq.storage import SQLiteStorage
from omniq.task import Action, Claim, Held, Settlement, StoredTask, Task, TaskError, TaskResult, TaskStatus, WorkerInfo
from omniq.testing import VirtualClock
from omniq.testing.clock import START
from tests.faults.statements import Failing, Way, contents, failing

LARGE = "x" * 5000
ERROR = TaskError("ValueError", "on purpose", "its traceback")
INFO = WorkerInfo("ann", "ann", "host", 1)
MOST_STATEMENTS = 200

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


async def six_run(scene: Scene) -> None:
    await scene.start("t1", "t2", "t3", "t4", "t5", "t6", interval=60, unique_key=None)
    await scene.put("t7", "t8")


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
    "settle": (six_run, lambda s: s.settle(reports(s, *Action))),
    "exchange": (
        six_run,
        lambda s: s.exchange(reports(s, *reversed(Action)), Claim("bob", None, 5, 30.0, "claim 1")),
    ),
    "success in one statement": (
        one_runs,
        lambda s: s.settle([Settlement.success(StoredTask("a.b", b"", id="t1", epoch=1, seq=1), b"\x01m\x00\xc0")]),
    ),
    "renew": (six_run, lambda s: s.renew("ann", 60.0)),
    "release": (six_run, lambda s: s.release("ann")),
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
    "mark_done": (one_runs, lambda s: s.mark_done("t1", TaskResult("t1", TaskStatus.SUCCESS, LARGE), epoch=1)),
    "mark_failed": (one_runs, lambda s: s.mark_failed("t1", ERROR, will_retry=True, epoch=1)),
}


@contextmanager
def numbered(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    count = itertools.count()
    yield lambda: tmp_path / f"{next(count)}.db"


async def in_scene(
    path: Path, setting: Callable[[Scene], Awaitable[None]], do: Callable[[SQLiteStorage, Failing], Awaitable[Any]]
) -> Any:
    clock = VirtualClock()
    async with SQLiteStorage(path, clock=clock, durability="relaxed") as storage:
        await setting(Scene(storage, clock))
        with failing(storage) as connection:
            return await do(storage, connection)


@pytest.mark.parametrize("name", VERBS)
async def test_f17_a_failing_statement_leaves_before_or_after(tmp_path: Path, name: str) -> None:
    setting, verb = VERBS[name]
    with numbered(tmp_path) as fresh:
        before, after = await expected(fresh(), setting, verb)
        assert before != after, "the verb writes nothing here"
        for way in get_args(Way):
            for nth in range(1, MOST_STATEMENTS):
                path = fresh()
                failed = await in_scene(path, setting, lambda s, c: failed_once(s, c, verb, nth, way, before, after))  # noqa: B023
                if not failed:
                    break
            else:
                pytest.fail("it never ran through")
            assert nth > 2, "nothing of it failed"


async def expected(
    path: Path, setting: Callable[[Scene], Awaitable[None]], verb: Verb
) -> tuple[dict[str, Any], dict[str, Any]]:
    async def run(storage: SQLiteStorage, _: Failing) -> tuple[dict[str, Any], dict[str, Any]]:
        before = contents(path)
        await verb(storage)
        return before, contents(path)

    found: tuple[dict[str, Any], dict[str, Any]] = await in_scene(path, setting, run)
    return found


async def failed_once(
    storage: SQLiteStorage,
    connection: Failing,
    verb: Verb,
    nth: int,
    way: Way,
    before: dict[str, Any],
    after: dict[str, Any],
) -> bool:
    """Fail the nth statement, look, repeat, look again; False when the verb has fewer statements."""
    connection.arm(nth, way)
    try:
        async with asyncio.timeout(10):
            await verb(storage)
    except StoreUnavailable:
        assert connection.failed
    connection.mend()
    now = contents(storage.path)
    assert now in (before, after), f"between, after statement {nth} was {way}"
    try:
        async with asyncio.timeout(10):
            await verb(storage)
    except (Conflict, NotFound):
        assert now == after, "only what is done already may be refused"
    assert contents(storage.path) == after, f"repeating after statement {nth} was {way} did not converge"
    assert await storage.verify() == []
    return connection.failed
