"""What `BaseStorage` makes of five verbs: the order of the calls, and what happens when one of them fails."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from omniq.errors import StoreUnavailable, Unsupported
from omniq.serializer import MsgpackSerializer
from omniq.storage import BaseStorage
from omniq.task import Answer, Claim, Settlement, Task, TaskError, TaskFilter, TaskResult, TaskStatus
from omniq.testing import VirtualClock
from tests.conformance.minimal import FiveVerbs, WithReschedule

BOOM = TaskError("ValueError", "boom")
DONE = MsgpackSerializer().dumps("done")


class Noted(FiveVerbs):
    """Writes down what it is asked for, and is away when told to be."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.calls: list[str] = []
        self.away: set[str] = set()

    def note(self, verb: str, detail: object = "") -> None:
        if verb in self.away:
            raise StoreUnavailable(f"{verb} is away")
        self.calls.append(f"{verb} {detail}".strip())

    async def enqueue(self, task: Task, *, conn: Any = None) -> str:
        self.note("enqueue", task.headers.get("retry_of", ""))
        return await super().enqueue(task)

    async def dequeue(self, now: datetime | None = None) -> Task | None:
        assert now == self.clock.now()
        self.note("dequeue")
        return await super().dequeue(now)

    async def mark_running(self, task_id: str) -> None:
        self.note("mark_running")

    async def mark_done(self, task_id: str, result: TaskResult) -> None:
        self.note("mark_done", result.result)
        await super().mark_done(task_id, result)

    async def mark_failed(self, task_id: str, error: TaskError, will_retry: bool = False) -> None:
        self.note("mark_failed", will_retry)
        await super().mark_failed(task_id, error, will_retry)


class NotedWithReschedule(Noted, WithReschedule):
    async def reschedule(self, task_id: str, eta: datetime) -> None:
        self.note("reschedule", (eta - self.clock.now()).total_seconds())
        await super().reschedule(task_id, eta)


async def claimed(store: Noted, count: int = 1) -> list[Task]:
    for number in range(count):
        await store.enqueue(Task("jobs.resize", (number,), id=f"t{number}", interval=5))
    tasks = [task for task in await store.claim("ann", None, count) if isinstance(task, Task)]
    assert len(tasks) == count
    store.calls.clear()
    return tasks


# What a settlement becomes, with reschedule and without.
TOLD = [
    (lambda t: Settlement.success(t, DONE), "mark_done done", "mark_done done"),
    (
        lambda t: Settlement.repeat(t, DONE, 5.0),
        "mark_done done, reschedule 5.0",
        "mark_done done, enqueue t0",
    ),
    (
        lambda t: Settlement.retry(t, 2.0, BOOM),
        "mark_failed True, reschedule 2.0",
        "mark_failed True, enqueue t0",
    ),
    (
        lambda t: Settlement.carry_on(t, 5.0, BOOM),
        "mark_failed True, reschedule 5.0",
        "mark_failed True, enqueue t0",
    ),
    (lambda t: Settlement.failed(t, BOOM), "mark_failed False", "mark_failed False"),
    (lambda t: Settlement.give_back(t, 3.0), "reschedule 3.0", "mark_failed True, enqueue t0"),
]


@pytest.mark.requirement("S001-18")
@pytest.mark.requirement("S001-23")
@pytest.mark.requirement("S001-24")
@pytest.mark.requirement("S001-25")
@pytest.mark.parametrize(("settlement", "with_reschedule", "without"), TOLD)
async def test_a_settlement_is_told_in_the_seeds_words(
    settlement: Any, with_reschedule: str, without: str
) -> None:
    for kind, expected in ((NotedWithReschedule, with_reschedule), (Noted, without)):
        store = kind(VirtualClock())
        [task] = await claimed(store)
        assert await store.settle([settlement(task)]) == [Answer.HELD]
        assert ", ".join(store.calls) == expected


@pytest.mark.requirement("S001-6")
@pytest.mark.requirement("S001-17")
async def test_a_claim_asks_until_its_limit_or_the_first_none() -> None:
    store = Noted(VirtualClock())
    for _ in range(3):
        await store.enqueue(Task("jobs.resize"))
    store.calls.clear()
    assert len(await store.claim("ann", None, 2)) == 2
    assert store.calls == ["dequeue", "mark_running"] * 2
    store.calls.clear()
    assert len(await store.claim("ann", None, 2)) == 1
    assert store.calls == ["dequeue", "mark_running", "dequeue"]


async def test_a_new_task_for_a_retry_makes_the_same_call() -> None:
    clock = VirtualClock()
    store = FiveVerbs(clock)
    await store.enqueue(Task("jobs.resize", ("a.png",), {"fit": True}, id="first", headers={"trace": "1"}))
    for attempts in (1, 2):
        [task] = await store.claim("ann", None, 1)
        await store.settle([Settlement.retry(task, 7.0, BOOM)])
        [again] = [one for one in store.tasks.values() if one.status is TaskStatus.PENDING]
        assert (again.func_path, again.args, again.kwargs) == ("jobs.resize", ("a.png",), {"fit": True})
        assert again.headers == {"trace": "1", "retry_of": "first"}
        assert (again.attempts, again.eta) == (attempts, clock.now() + timedelta(seconds=7))
        await clock.advance(7)
    assert len(store.tasks) == 3


async def test_when_the_storage_goes_away_what_was_not_sent_is_named() -> None:
    store = NotedWithReschedule(VirtualClock())
    tasks = await claimed(store, 3)
    store.away = {"mark_failed", "dequeue"}
    settlements: Sequence[Settlement] = [
        Settlement.success(tasks[0], DONE),
        Settlement.failed(tasks[1], BOOM),
        Settlement.success(tasks[2], DONE),
    ]
    answers, claims = await store.exchange(settlements, Claim("ann"))
    assert answers == [Answer.HELD, Answer.UNSENT, Answer.UNSENT]
    assert (claims, store.calls) == ([], ["mark_done done"])


async def test_answers_are_not_lost_when_the_claim_after_them_fails() -> None:
    """Otherwise they would be sent again, and an attempt counted twice."""
    store = NotedWithReschedule(VirtualClock())
    [task] = await claimed(store)
    store.away = {"dequeue"}
    answers, claims = await store.exchange([Settlement.retry(task, 1.0, BOOM)], Claim("ann"))
    assert (answers, claims) == ([Answer.HELD], [])
    with pytest.raises(StoreUnavailable):
        await store.exchange([], Claim("ann"))


async def test_what_was_claimed_is_kept_when_the_next_claim_or_its_confirmation_fails() -> None:
    store = Noted(VirtualClock())
    await store.enqueue(Task("jobs.resize"))
    store.away = {"mark_running"}
    assert len(await store.claim("ann", None, 2)) == 1


@pytest.mark.parametrize("result", [b"", b"\xff garbage"])
async def test_a_report_that_the_storage_refuses_is_stale_and_stops_nobody(result: bytes) -> None:
    store = Noted(VirtualClock())
    tasks = await claimed(store, 2)
    answers = await store.settle([Settlement.success(tasks[0], result), Settlement.success(tasks[1], DONE)])
    assert answers == [Answer.STALE, Answer.HELD]


LACKING = {
    "get_task": lambda s: s.get_task("t"),
    "get_result": lambda s: s.get_result("t"),
    "reschedule": lambda s: s.reschedule("t", s.clock.now()),
    "renew": lambda s: s.renew("ann", 30.0),
    "release": lambda s: s.release("ann"),
    "cancel": lambda s: s.cancel("t"),
    "retry": lambda s: s.retry("t"),
    "delete": lambda s: s.delete("t"),
    "pause": lambda s: s.pause("default"),
    "resume": lambda s: s.resume("default"),
    "list_tasks": lambda s: s.list_tasks(TaskFilter()),
    "history": lambda s: s.history("t"),
    "counts": lambda s: s.counts(),
    "rates": lambda s: s.rates(s.clock.now()),
    "verify": lambda s: s.verify(),
    "wait": lambda s: s.wait(1.0),
    "wait_result": lambda s: s.wait_result("t"),
}


@pytest.mark.parametrize("verb", LACKING)
async def test_what_a_storage_does_not_bring_is_named(verb: str) -> None:
    store = FiveVerbs(VirtualClock())
    assert not store.overrides(verb)
    with pytest.raises(Unsupported, match=rf"FiveVerbs has no {verb}\(\)"):
        await LACKING[verb](store)


async def test_what_may_be_left_out_without_harm_answers_with_nothing() -> None:
    store = FiveVerbs(VirtualClock())
    assert await store.lapse() == 0
    assert await store.prune() == 0
    assert await store.held("ann") == []
    assert await store.workers() == []
    assert await store.paused() == set()
    assert not await store.progress("t", 1, 1.0)
    assert store.is_open
    assert not store.capabilities.batched


def test_a_storage_must_bring_the_five_verbs() -> None:
    class Four(BaseStorage):
        pass

    with pytest.raises(TypeError, match="enqueue"):
        Four()  # type: ignore[abstract]


async def test_a_minimal_storage_is_a_backend_too() -> None:
    store = WithReschedule(VirtualClock())
    await store.enqueue(Task("operator.add", (1, 2), id="t"))
    backend = store.as_backend()
    [reserved] = await backend.reserve(3)
    func, args, kwargs = store.serializer.load_call(reserved.payload)
    assert func(*args, **kwargs) == 3
    await backend.mark_success(reserved.id, store.serializer.dumps(3))
    result = await store.get_result("t")
    assert result is not None
    assert (result.status, result.result) == (TaskStatus.SUCCESS, 3)
