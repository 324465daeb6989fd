"""A backend that somebody else wrote, as a worker sees it: `Backend.as_storage()`."""

import pytest

from omniq.errors import StoreUnavailable, Unsupported
from omniq.serializer import MsgpackSerializer
from omniq.storage.backend import Backend, Reserved
from omniq.task import Answer, Claim, Held, Settlement, StoredTask, Task, TaskError, TaskResult, TaskStatus

SERIALIZER = MsgpackSerializer()
BOOM = TaskError("ValueError", "boom", "Traceback ...")


class ListBackend(Backend):
    """The five verbs of the other seed over a list."""

    def __init__(self, *calls: bytes) -> None:
        self.waiting = [Reserved(f"t{number}", call) for number, call in enumerate(calls)]
        self.marks: dict[str, tuple[object, ...]] = {}
        self.asked: list[int] = []
        self.connections = 0
        self.away = False

    @property
    def is_connected(self) -> bool:
        return self.connections > 0

    async def connect(self) -> None:
        self.connections += 1

    async def close(self) -> None:
        self.connections -= 1

    async def reserve(self, limit: int) -> list[Reserved]:
        self.asked.append(limit)
        if self.away:
            raise StoreUnavailable("away")
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return taken

    async def mark_success(self, task_id: str, result: bytes) -> None:
        if self.away:
            raise StoreUnavailable("away")
        self.marks[task_id] = ("success", result)

    async def mark_failure(self, task_id: str, error: str, traceback: str) -> None:
        if error == "ValueError: refuse me":
            raise RuntimeError("no")
        self.marks[task_id] = ("failure", error, traceback)


def adding(number: int) -> bytes:
    return SERIALIZER.dump_call("operator.add", (number, 1), {})


@pytest.mark.requirement("S002-6")
@pytest.mark.requirement("S002-7")
async def test_a_claim_is_a_reserve_of_the_same_size() -> None:
    backend = ListBackend(adding(1), adding(2), adding(3))
    storage = backend.as_storage()
    claims = await storage.claim("ann", None, 2)
    assert backend.asked == [2]
    assert all(isinstance(one, StoredTask) and one.func_path == "" for one in claims)
    calls = [SERIALIZER.load_call(one.payload) for one in claims if isinstance(one, StoredTask)]
    assert [func(*args) for func, args, _ in calls] == [2, 3]
    assert {one.max_retries for one in claims} == {0}, "a backend's failures are final"


async def test_a_claim_of_nothing_asks_for_nothing() -> None:
    backend = ListBackend(adding(1))
    assert await backend.as_storage().claim("ann", None, 0) == []
    assert backend.asked == []


@pytest.mark.requirement("S002-8")
@pytest.mark.requirement("S002-10")
@pytest.mark.requirement("C22")
@pytest.mark.parametrize(
    ("settlement", "mark"),
    [
        (Settlement.success(Held("t0", 0), b"encoded"), ("success", b"encoded")),
        (Settlement.failed(Held("t0", 0), BOOM), ("failure", "ValueError: boom", "Traceback ...")),
        (
            Settlement.give_back(Held("t0", 0)),
            ("failure", "given back unfinished: snoozed, or the worker stopped", ""),
        ),
    ],
)
async def test_a_settlement_is_a_mark(settlement: Settlement, mark: tuple[object, ...]) -> None:
    backend = ListBackend(adding(1))
    storage = backend.as_storage()
    await storage.claim("ann")
    assert await storage.settle([settlement]) == [Answer.HELD]
    assert backend.marks == {"t0": mark}


@pytest.mark.requirement("S002-12")
async def test_a_mark_that_the_backend_refuses_stops_nobody() -> None:
    backend = ListBackend(adding(1), adding(2))
    storage = backend.as_storage()
    await storage.claim("ann", None, 2)
    refused = Settlement.failed(Held("t0", 0), TaskError("ValueError", "refuse me"))
    answers = await storage.settle([refused, Settlement.success(Held("t1", 0), b"x")])
    assert answers == [Answer.STALE, Answer.HELD]


async def test_a_backend_that_is_away_is_told_again() -> None:
    backend = ListBackend(adding(1), adding(2))
    storage = backend.as_storage()
    await storage.claim("ann")
    backend.away = True
    done = Settlement.success(Held("t0", 0), b"x")
    assert await storage.exchange([done], Claim("ann")) == ([Answer.UNSENT], [])
    with pytest.raises(StoreUnavailable):
        await storage.claim("ann")
    backend.away = False
    answers, claims = await storage.exchange([done], Claim("ann"))
    assert (answers, [one.id for one in claims]) == ([Answer.HELD], ["t1"])


@pytest.mark.requirement("S002-2")
@pytest.mark.parametrize("connected_before", [False, True])
async def test_a_backend_is_connected_if_needed_and_closed_by_who_connected_it(
    connected_before: bool,
) -> None:
    backend = ListBackend()
    if connected_before:
        await backend.connect()
    storage = backend.as_storage()
    assert storage.is_open is connected_before
    await storage.open()
    await storage.open()
    assert (storage.is_open, backend.connections) == (True, 1)
    await storage.close()
    await storage.close()
    assert backend.connections == int(connected_before)


async def test_what_a_backend_does_not_have_is_named() -> None:
    storage = ListBackend().as_storage()
    done = TaskResult("t", TaskStatus.SUCCESS)
    for verb, call in {
        "enqueue": storage.enqueue(Task("jobs.resize")),
        "dequeue": storage.dequeue(),
        "mark_running": storage.mark_running("t"),
        "mark_done": storage.mark_done("t", done),
        "mark_failed": storage.mark_failed("t", BOOM),
        "cancel": storage.cancel("t"),
    }.items():
        with pytest.raises(Unsupported, match=rf"no {verb}\(\)"):
            await call
