"""Any sequence of calls, made on a store and on the model; after every step both must show the same.

Every grant that was ever handed out is kept and used again, so that zombies arise by themselves.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from omniq.errors import Conflict, DuplicateTask, IdConflict, NotFound
from omniq.storage.batched import BatchedStorage
from omniq.task import (
    Action,
    Claim,
    Enqueued,
    Held,
    Settlement,
    StoredTask,
    Task,
    TaskError,
    TaskStatus,
)
from omniq.testing import VirtualClock
from tests.model.model import Error, Model, Report, Row
from tests.model.steps import BATCHES, STEPS

T = TypeVar("T")
OpenStore = Callable[[VirtualClock], contextlib.AbstractContextManager[BatchedStorage]]


class StoreMachine(RuleBasedStateMachine):
    """One store, one model, one clock, one loop."""

    def __init__(self, open_store: OpenStore) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = VirtualClock()
        self.model = Model(self.clock)
        self.opened = contextlib.ExitStack()
        self.store = self.opened.enter_context(open_store(self.clock))
        self.numbers = 0
        self.tasks: list[Task] = []
        self.grants: list[StoredTask] = []
        self.claims: list[tuple[str, str]] = []

    def teardown(self) -> None:
        self.do(self.store.close())
        self.opened.close()
        self.do(self.loop.shutdown_default_executor())
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def both(self, expected: Callable[[], object], actual: Callable[[], Awaitable[object]]) -> None:
        """Make one call on both sides: the same answer, or the same error."""
        self_says = _outcome(expected)
        store_says = _outcome(lambda: self.do(_awaited(actual())))
        assert store_says == self_says

    # --- steps -----------------------------------------------------------------------------------
    # One rule for all: of several rules Hypothesis leaves some out in each example, and without claims
    # and reports an example tells little.

    @initialize(calls=BATCHES)
    def begin(self, calls: list[dict[str, Any]]) -> None:
        self.enqueue(calls, "skip", None, False)
        self.work([], 2, "ann", None, 30.0)

    @rule(step=STEPS)
    def step(self, step: tuple[Any, ...]) -> None:
        name, *arguments = step
        getattr(self, name)(*arguments)

    def enqueue(
        self, calls: list[dict[str, Any]], on_conflict: Any, again: int | None, altered: bool
    ) -> None:
        batch = [self._task(call) for call in calls]
        if again is not None and (known := self._known(again)) is not None:
            batch.insert(again % (len(batch) + 1), _altered(known) if altered else known)
        self.tasks += batch
        self.both(
            lambda: self.model.enqueue(batch, on_conflict),
            lambda: self.store.enqueue_many(batch, on_conflict=on_conflict),
        )

    def _task(self, call: dict[str, Any]) -> Task:
        self.numbers += 1
        now = self.clock.now()
        moments = {
            name: now + timedelta(seconds=call[name]) for name in ("eta", "expires_at") if name in call
        }
        args = (call.get("arg", 0),)
        options = {name: value for name, value in call.items() if name not in ("func_path", "arg")}
        return Task(call.get("func_path", "jobs.a"), args, **{**options, **moments}, id=f"t{self.numbers}")

    def _known(self, which: int) -> Task | None:
        """A task that was enqueued before and is certainly not forgotten."""
        known = [t for t in self.tasks if t.id in self.model.rows or self.model.remembers(t.id)]
        return known[-1 - which % len(known)] if known else None

    def work(
        self,
        reports: list[tuple[int, str, str, int]],
        limit: int,
        worker: str,
        queues: list[str] | None,
        lease_s: float,
    ) -> None:
        """Reports of current and of old grants, and a claim with them."""
        told = [self._report(*report) for report in reports if self.grants]
        self._exchange(told, (worker, queues, limit, lease_s))

    def _exchange(
        self, reports: list[tuple[Report, Settlement]], wish: tuple[str, list[str] | None, int, float]
    ) -> None:
        worker, queues, limit, lease_s = wish
        claim_id = f"c{len(self.claims)}"
        self.claims.append((worker, claim_id))
        told = [self.model.settle(report) for report, _ in reports]
        scarce, scarce_limit = (("mail",), 1) if worker == "bob" else ((), 0)
        isolates = worker == "eve"
        taken = self.model.claim(
            worker,
            queues,
            limit,
            lease_s,
            claim_id,
            isolates=isolates,
            scarce=scarce,
            scarce_limit=scarce_limit,
        )
        wanted = None if queues is None else tuple(queues)
        claim = Claim(worker, wanted, limit, lease_s, claim_id, scarce, scarce_limit, isolates)
        answers, claims = self.do(self.store.exchange([settlement for _, settlement in reports], claim))
        assert (answers, [(task.id, task.epoch) for task in claims]) == (told, taken)
        self.grants += [task for task in claims if isinstance(task, StoredTask)]

    def _report(self, which: int, whose: str, how: str, delay_s: float) -> tuple[Report, Settlement]:
        grants = [grant for grant in self.grants if whose in ("any", self._standing(grant))] or self.grants
        grant = grants[-1 - which % len(grants)]
        repeats = grant.interval is not None
        action = {
            "done": Action.REPEAT if repeats else Action.SUCCEED,
            "retry": Action.RETRY,
            "fail": Action.FAIL,
            "continue": Action.CONTINUE if repeats else Action.FAIL,
            "give back": Action.GIVE_BACK,
            "die": Action.LOSE,
        }[how]
        value = f"{grant.id} run {grant.epoch}" if how == "done" else None
        error = TaskError("ValueError", value or how) if how in ("retry", "fail", "continue", "die") else None
        report = Report(grant.id, grant.epoch, action, value, delay_s, error)
        result = self.store.serializer.dumps(value) if how == "done" else None
        # Sometimes by the row that was handed out, sometimes by its number alone, as after a renewal.
        task = grant if which % 2 else Held(grant.id, grant.epoch)
        return report, Settlement(task, action, result, delay_s, error)

    def _standing(self, grant: StoredTask) -> str:
        row = self.model.rows.get(grant.id)
        if row is None or row.status != "RUNNING":
            return "over"
        return "current" if row.epoch == grant.epoch else "zombie"

    def renew(self, worker: str, lease_s: float, which: int) -> None:
        """With everything that this worker ever had; and a claim whose answer was lost is asked again."""
        had = [(grant.id, grant.epoch) for grant in self.grants if grant.owner == worker]
        runs, lost, cancel = self.model.renew(worker, lease_s, had)
        holding = [Held(task_id, epoch) for task_id, epoch in had]
        renewal = self.do(self.store.renew(worker, lease_s, holding))
        assert {(one.id, one.epoch) for one in renewal.held.values()} == runs
        assert (renewal.lost, renewal.cancel) == (lost, cancel)
        self._claim_again(*self.claims[-1 - which % len(self.claims)])

    def _claim_again(self, worker: str, claim_id: str) -> None:
        # With nothing of it left running it would be a claim like any other.
        if expected := self.model.claimed_again(worker, claim_id):
            claims = self.do(self.store.claim(worker, None, 9, 30.0, claim_id))
            assert sorted((task.id, task.epoch) for task in claims) == sorted(expected)

    def time_passes(self, seconds: int, page: int | None) -> None:
        self.do(self.clock.advance(seconds))
        if page is not None:
            # However small the pages are, in the end all of them were found.
            assert self.do(self._lapse_all(page)) == self.model.lapse()

    def days_pass(self, days: int, page: int | None) -> None:
        self.time_passes(days * 86400, page)
        self.prune()

    def prune(self) -> None:
        self.both(self.model.prune, lambda: self.store.prune(1000))

    async def _lapse_all(self, page: int) -> int:
        total = 0
        while ended := await self.store.lapse(page):
            total += ended
        return total

    def by_hand(self, which: int, verb: str) -> None:
        task_id = self._any_id(which)
        self.both(lambda: getattr(self.model, verb)(task_id), lambda: getattr(self.store, verb)(task_id))

    def _any_id(self, which: int) -> str:
        """Half the time of a task that somebody has, or had: there is more to go wrong."""
        ids = [one.id for one in (self.grants if which % 2 and self.grants else self.tasks)]
        return ids[-1 - which // 2 % len(ids)]

    def touch(self, which: int, seconds: int, done: int) -> None:
        """Move a task, and say how far a run is, whether or not they still can."""
        task_id, eta = self._any_id(which), self.clock.now() + timedelta(seconds=seconds)
        self.both(lambda: self.model.reschedule(task_id, eta), lambda: self.store.reschedule(task_id, eta))
        if self.grants:
            grant = self.grants[-1 - which % len(self.grants)]
            self.both(
                lambda: self.model.progress(grant.id, grant.epoch, done, None),
                lambda: self.store.progress(grant.id, grant.epoch, done),
            )

    def set_paused(self, queue: str, paused: bool) -> None:
        (self.model.paused.add if paused else self.model.paused.discard)(queue)
        self.do(self.store.pause(queue) if paused else self.store.resume(queue))

    def release(self, worker: str) -> None:
        self.both(lambda: self.model.release(worker), lambda: self.store.release(worker))

    def set_wall(self, seconds: int) -> None:
        self.clock.set_wall(self.clock.now() + timedelta(seconds=seconds))
        self.model.jumps += 1

    # --- what must hold after every step ---------------------------------------------------------

    @invariant()
    def both_show_the_same(self) -> None:
        self.do(self._compare())

    async def _compare(self) -> None:
        tasks = await self.store.list_tasks(limit=1000)
        self._adopt_expired(tasks)
        rows = sorted(self.model.rows.values(), key=lambda row: -row.order)
        place = {row.task.id: n for n, row in enumerate(rows)}
        tasks.sort(key=lambda task: place.get(task.id, -1))  # ids chosen by the caller: any order will do
        assert [task.id for task in tasks] == [row.task.id for row in rows]
        for task, row in zip(tasks, rows, strict=True):
            _compare_task(task, row)
        await asyncio.gather(*(self._compare_end(row) for row in rows))
        await self._compare_the_whole()
        assert await self.store.verify() == []

    def _adopt_expired(self, tasks: list[Task]) -> None:
        """Who ends an expired task, a claim that met it or a lapse, is the store's business (T14)."""
        for task in tasks:
            row = self.model.rows.get(task.id)
            if row is None or row.status != "PENDING" or not self.model.expired(row):
                continue
            if task.status is TaskStatus.FAILED:
                self.model.expire(row)

    async def _compare_end(self, row: Row) -> None:
        result, runs = await asyncio.gather(
            self.store.get_result(row.task.id), self.store.history(row.task.id)
        )
        assert (result is None) == (row.result is None)
        if result is not None and row.result is not None:
            status, value, error, at = row.result
            assert (result.status, result.result, result.finished_at) == (status, value, at)
            # A task has one place for its error: a newer failure of an interval task may show here already.
            shown = error if status == "SUCCESS" else row.error
            assert _same_error(result.error, error) or _same_error(result.error, shown)
        told = [(r.epoch, r.owner, r.started_at, r.finished_at, r.outcome) for r in runs]
        assert told == [run[:5] for run in row.runs[-20:]]
        assert all(_same_error(r.error, run[5]) for r, run in zip(runs, row.runs[-20:], strict=True))

    async def _compare_the_whole(self) -> None:
        counted: dict[str, dict[str, int]] = {}
        for row in self.model.rows.values():
            per_status = counted.setdefault(row.task.queue, dict.fromkeys(TaskStatus, 0))
            per_status[row.status] += 1
        assert await self.store.counts() == counted
        assert await self.store.paused() == self.model.paused
        for worker in ("ann", "bob", "eve"):
            held = {(one.id, one.epoch) for one in await self.store.held(worker)}
            assert held == {(row.task.id, row.epoch) for row in self.model.held(worker)}


def _compare_task(task: Task, row: Row) -> None:
    given = row.task
    assert (task.func_path, task.args, task.queue) == (row.func_path, row.args, given.queue)
    assert (task.priority, task.unique_key, task.interval) == (
        given.priority,
        given.unique_key,
        given.interval,
    )
    assert (task.max_losses, task.result_ttl) == (given.max_losses, given.result_ttl)
    assert (task.status, task.epoch, task.attempts) == (row.status, row.epoch, row.attempts)
    assert (task.losses, task.owner, task.cancel_requested) == (row.losses, row.owner, row.cancel_requested)
    assert task.suspicions == row.suspicions
    assert (task.eta, task.expires_at, task.progress) == (row.eta, row.expires_at, row.progress)
    assert (task.enqueued_at, task.started_at) == (row.enqueued_at, row.started_at)
    assert task.finished_at == row.finished_at
    assert _same_error(task.error, row.error)


def _same_error(actual: TaskError | None, expected: Error) -> bool:
    if isinstance(expected, str):
        return actual is not None and actual.kind == expected
    return actual == expected


def _altered(task: Task) -> Task:
    return Task("jobs.c", task.args, id=task.id, queue=task.queue)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _outcome(call: Callable[[], object]) -> object:
    """An answer in a form that can be compared: also an error, and whom it names."""
    try:
        answer = call()
    except (NotFound, IdConflict, DuplicateTask, Conflict) as error:
        return type(error), getattr(error, "task_id", None)
    if isinstance(answer, list):
        return [(str(one), one.created) if isinstance(one, Enqueued) else one for one in answer]
    return answer
