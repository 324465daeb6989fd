"""A store that goes away and comes back: nothing lost, nothing twice, no loss (SEMANTICS 3, 4; C20)."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest

from omniq import AsyncWorkerPool, StoreUnavailable, Task, TaskStatus
from omniq.task import RunOutcome
from omniq.testing import VirtualClock
from tests.worker.scene import QUICK, Bodies, Logs, ended, running, turns, until
from tests.worker.stores import Five, Memory, Remote, RemoteMemory, Six, result_of, running_rows, task_of


async def test_a_lost_answer_of_a_claim_is_asked_for_again(remote: Remote, bodies: Bodies) -> None:
    """The claim is repeated with its own id and gives the same tasks: each runs once, under one epoch."""
    runs: list[int] = []

    async def body(n: int) -> None:
        runs.append(n)

    async with remote as store:
        ids = [await store.enqueue(Task(bodies(body), (n,))) for n in range(5)]
        store.line.lost_answers = 3
        async with running(store, 5, **QUICK) as pool:
            for task_id in ids:
                await ended(store, task_id)
            assert pool.stale_reports == 0
        assert sorted(runs) == [0, 1, 2, 3, 4]
        assert {(await task_of(store, i)).epoch for i in ids} == {1}
    assert store.line.lost_answers == 0


async def test_a_repeated_claim_is_the_same_claim(bodies: Bodies) -> None:
    """In virtual time nobody else writes: the three lost answers are those of one claim."""
    clock = VirtualClock()
    store = RemoteMemory(clock=clock)
    async with store:
        task_id = await store.enqueue(Task("json.dumps", (1,)))
        pool = AsyncWorkerPool(store, 3, poll_interval=5, clock=clock)
        store.line.lost_answers = 3
        await pool.start()
        await clock.advance(2)
        await until(lambda: result_of(store, task_id))
        assert len(store.log.claim_ids) >= 4
        assert len(set(store.log.claim_ids[:4])) == 1, "a lost answer was asked for under another id"
        await pool.stop()


async def test_a_lost_answer_of_a_report_is_sent_again(remote: Remote, bodies: Bodies) -> None:
    """The store has it already and says so; it is no stale report."""
    gate = asyncio.Event()

    async def body() -> str:
        await gate.wait()
        return "once"

    async with remote as store:
        task_id = await store.enqueue(Task(bodies(body)))
        async with running(store, 1, poll_interval=600) as pool:
            await until(lambda: store.log.ids("claimed"))
            store.line.lost_answers = 1
            gate.set()
            assert (await ended(store, task_id)).result == "once"
            await until(lambda: store.log.ids("settled").count(task_id))
            assert pool.stale_reports == 0
        task = await task_of(store, task_id)
    assert (task.status, task.epoch) == (TaskStatus.SUCCESS, 1)


async def test_retries_are_counted_once_although_answers_are_lost(remote: Remote, bodies: Bodies) -> None:
    runs: list[int] = []

    async def body() -> None:
        runs.append(1)
        remote.line.lost_answers = 1
        raise ValueError

    async with remote as store:
        task_id = await store.enqueue(Task(bodies(body), max_retries=2))
        async with running(store, 1, **QUICK):
            assert (await ended(store, task_id)).status is TaskStatus.FAILED
        store.line.lost_answers = 0
        task = await task_of(store, task_id)
        outcomes = [run.outcome for run in await store.history(task_id)]
    assert (len(runs), task.attempts) == (3, 3)
    assert outcomes == [RunOutcome.RETRIED, RunOutcome.RETRIED, RunOutcome.FAILED]


async def test_works_on_after_an_outage(remote: Remote, bodies: Bodies, logs: Logs) -> None:
    """Bodies go on meanwhile; what they came to is told when the store is back."""
    gates = [asyncio.Event() for _ in range(4)]

    async def body(n: int) -> int:
        await gates[n].wait()
        return n

    async with remote as store, running(store, 2, **QUICK) as pool:
        ids = [await store.enqueue(Task(bodies(body), (n,))) for n in range(4)]
        await until(lambda: len(store.log.ids("claimed")) == 2)
        store.line.away = True
        gates[0].set()
        gates[1].set()
        refused = store.line.refused
        await until(lambda: store.line.refused >= refused + 3)
        assert pool.running
        store.line.away = False
        gates[2].set()
        gates[3].set()
        assert [(await ended(store, task_id)).result for task_id in ids] == [0, 1, 2, 3]
        assert store.log.most_held <= 2
        assert await running_rows(store) == []
    assert logs.levels_of("store is away") == {"WARNING"}


async def test_a_store_that_is_away_at_the_start(remote: Remote) -> None:
    """A worker waits for it and tries again."""
    async with remote as store:
        task_id = await store.enqueue(Task("json.dumps", (1,)))
        store.line.away = True
        async with running(store, **QUICK) as pool:
            await until(lambda: store.line.refused > 2)
            assert pool.running
            store.line.away = False
            assert (await ended(store, task_id)).result == "1"


class ComesLate(Memory):
    """Cannot even be opened at first."""

    tries = 0

    async def open(self) -> None:
        ComesLate.tries += 1
        if ComesLate.tries <= 3:
            raise StoreUnavailable("no route to host")
        await super().open()


async def test_a_store_that_cannot_be_opened_at_the_start() -> None:
    ComesLate.tries = 0
    store = ComesLate()
    async with running(store, **QUICK) as pool:
        assert pool.running
        await until(lambda: store.is_open)
        assert (await ended(store, await store.enqueue(Task("json.dumps", (1,))))).result == "1"
    assert not store.is_open, "the pool opened it, in the end, and so closes it"


# --- leases --------------------------------------------------------------------------------------


async def test_an_outage_shorter_than_the_lease_costs_nothing(bodies: Bodies) -> None:
    clock, gate = VirtualClock(), asyncio.Event()

    async def body() -> str:
        await gate.wait()
        return "held on"

    store = RemoteMemory(clock=clock)
    async with store, running(store, lease=30, poll_interval=5, clock=clock):
        task_id = await store.enqueue(Task(bodies(body)))
        await clock.advance(11)
        store.line.away = True
        await clock.advance(15)
        store.line.away = False
        await clock.advance(20)
        gate.set()
        await clock.advance(6)
        task = await task_of(store, task_id)
    assert (task.status, task.epoch, task.losses) == (TaskStatus.SUCCESS, 1, 0)


async def test_a_worker_that_cannot_renew_takes_its_tasks_for_lost(bodies: Bodies, logs: Logs) -> None:
    """At the end of its lease it cancels the bodies and reports nothing, before anybody else begins."""
    clock = VirtualClock()
    ends: list[float] = []

    async def body() -> None:
        if ends:
            return
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(clock.monotonic())

    store = RemoteMemory(clock=clock)
    async with store, running(store, lease=30, poll_interval=5, clock=clock):
        task_id = await store.enqueue(Task(bodies(body), max_losses=5))
        await clock.advance(1)
        store.line.away = True
        cut = clock.monotonic()
        await clock.advance(40)
        assert len(ends) == 1
        assert 19 <= ends[0] - cut <= 31
        settled = len(store.log.ids("settled"))
        store.line.away = False
        await clock.advance(4)
        assert len(store.log.ids("settled")) == settled
        # After an outage the living renew first: nobody lapses anything for a whole lease.
        task = await task_of(store, task_id)
        assert (task.status, task.losses) == (TaskStatus.RUNNING, 0)
        await clock.advance(40)
        assert (await task_of(store, task_id)).epoch >= 2
    assert logs.levels_of("runs count as lost") == {"ERROR"}


# --- storages with the seed's verbs --------------------------------------------------------------


class Flaky(Five):
    """Goes away at chosen calls of chosen verbs."""

    def __init__(self) -> None:
        super().__init__()
        self.away_at: dict[str, list[int]] = {}
        self.asked: dict[str, int] = {}

    def note(self, event: str, detail: str) -> None:
        verb = event.split(",", maxsplit=1)[0]
        self.asked[verb] = self.asked.get(verb, 0) + 1
        if self.asked[verb] in self.away_at.get(verb, ()):
            self.log.events.append((f"{verb} failed", detail))
            raise StoreUnavailable(f"{verb} did not get through")
        super().note(event, detail)


class FlakySix(Flaky, Six):
    pass


@pytest.mark.parametrize("kind", [Flaky, FlakySix])
@pytest.mark.parametrize("verb", ["dequeue", "mark_running", "mark_done", "mark_failed", "reschedule"])
async def test_a_foreign_storage_that_goes_away(kind: type[Flaky], verb: str, bodies: Bodies) -> None:
    """Whatever verb does not get through is sent again: nothing is lost, no call is doubled."""
    runs: list[int] = []

    async def body(n: int) -> int:
        runs.append(n)
        if n == 2 and runs.count(2) == 1:
            raise ValueError("the first time")
        return n

    store = kind()
    store.away_at[verb] = [1, 3] if verb in ("dequeue", "mark_done") else [1]
    async with running(store, 2, **QUICK) as pool:
        ids = [await store.enqueue(Task(bodies(body), (n,))) for n in range(4)]
        assert [(await ended(store, task_id)).result for task_id in ids] == [0, 1, 2, 3]
        assert pool.running
    assert sorted(runs) == [0, 1, 2, 2, 3]
    assert {t.status for t in store.tasks.values()} <= {TaskStatus.SUCCESS, TaskStatus.FAILED}
    assert len(store.tasks) == (4 if isinstance(store, Six) else 5)


@pytest.mark.parametrize("failure", [StoreUnavailable("gone"), RuntimeError("a bug of theirs")])
async def test_what_was_settled_is_not_settled_twice(bodies: Bodies, failure: Exception) -> None:
    """A dequeue that fails after the reports got through: they are not sent again, no retry is doubled."""

    async def body() -> None:
        store.fails["dequeue"] = failure  # from now on, until the reports are through
        raise ValueError

    class Heals(Five):
        async def dequeue(self, now: datetime | None = None) -> Task | None:
            if self.fails.pop("dequeue", None) is not None:
                self.log.events.append(("dequeue failed", ""))
                raise failure
            return await super().dequeue(now)

    store = Heals()
    async with running(store, 1, poll_interval=0.02, base_retry_delay=100):
        first = await store.enqueue(Task(bodies(body), max_retries=3))
        await until(lambda: store.log.ids("dequeue failed"))
        looks = len(store.log.looks)
        await until(lambda: len(store.log.looks) > looks + 2)
    assert len(store.log.ids("mark_failed, retry")) == 1
    assert len(store.runs_of(first)) == 2, "the retry was enqueued more than once"


async def test_a_verb_that_raises_something_else_is_not_repeated_for_ever(foreign: Five) -> None:
    """A refusal is logged and counted; the other tasks go on."""
    foreign.fails["mark_done"] = ValueError("this storage does not like it")
    async with running(foreign, 1, **QUICK) as pool:
        await foreign.enqueue(Task("json.dumps", (1,)))
        await until(lambda: pool.stale_reports == 1)
        del foreign.fails["mark_done"]
        second = await foreign.enqueue(Task("json.dumps", (2,)))
        assert (await ended(foreign, second)).result == "2"
    assert len(foreign.log.ids("mark_done")) == 2


# --- waking --------------------------------------------------------------------------------------


class CannotWait(Memory):
    async def wait(self, timeout: float) -> bool:
        raise RuntimeError("no ears")


async def test_a_store_that_cannot_wake_is_polled(logs: Logs) -> None:
    """A notification only shortens a wait: without it, the pool looks at its interval."""
    async with CannotWait() as store, running(store, poll_interval=0.05):
        for n in range(3):
            task_id = await store.enqueue(Task("json.dumps", (n,)))
            assert (await ended(store, task_id)).result == str(n)
    assert "no ears" in "".join(logs.lines("WARNING", "ERROR"))


async def test_stale_is_counted_and_said_once(builtin: Memory, bodies: Bodies, logs: Logs) -> None:
    """A report about a run that somebody else closed changes nothing."""
    gate = asyncio.Event()

    async def body() -> str:
        await gate.wait()
        return "too late"

    async with builtin as store, running(store, 1, poll_interval=0.02, lease=600) as pool:
        task_id = await store.enqueue(Task(bodies(body), max_losses=1))
        await until(lambda: store.log.ids("claimed"))
        gate.set()
        await store.release(pool.id)  # somebody is sure that this worker is dead
        await until(lambda: pool.stale_reports == 1)
        task = await task_of(store, task_id)
        await turns()
    assert task.status is TaskStatus.FAILED
    assert task.error is not None
    assert task.error.kind == "poison"
    assert len([line for line in logs.lines("WARNING") if line.startswith("stale")]) == 1
