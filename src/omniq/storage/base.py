"""The storage contract: what a store promises, in prose that the conformance suite holds.

A storage that somebody else writes needs five verbs: `enqueue`, `dequeue`, `mark_running`, `mark_done`
and `mark_failed`. `BaseStorage` makes the batched verbs from those, so that every worker speaks one
language; it asks the storage only for what it overrides. The built-in stores go the other way round
(`omniq.storage.batched`): they implement the batched verbs, each in one atomic write.

Promises of every built-in store
- A transition is one atomic write. Either all of a call's effect is there after it, or none.
- What a call returned is durable, unless the store was opened with `durability="relaxed"`.
- A settlement changes something only where its epoch is the task's epoch and the task is RUNNING.
- Every mutating call may be repeated after `StoreUnavailable` and leaves the state of one success.
- Moments are the store's own clock; callers send durations.
- No exception of a driver crosses the border: what is raised is in `omniq.errors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from loguru import logger
from msgspec import Struct

from omniq.clock import REAL_CLOCK, Clock
from omniq.errors import CorruptRecord, InvalidOption, StoreUnavailable, Unsupported
from omniq.logic.lifecycle import arrive
from omniq.parcel import Parcel, TakenIn
from omniq.schedule import Fired, Schedule
from omniq.serializer import Encoded, MsgpackSerializer, Serializer
from omniq.task import (
    Action,
    Answer,
    Claim,
    Enqueued,
    Head,
    Held,
    OnConflict,
    Page,
    Rates,
    Renewal,
    Run,
    Settlement,
    StoredTask,
    Tally,
    Task,
    TaskError,
    TaskFields,
    TaskFilter,
    TaskResult,
    TaskStatus,
    Timing,
    WorkerInfo,
    new_id,
    replace,
)

if TYPE_CHECKING:
    from omniq.storage.backend import Backend

Claimed = StoredTask | Task


class Capabilities(Struct, frozen=True):
    """What a store can do beyond the five verbs."""

    batched: bool = False  # exchange, renew, cancel, history ... in one atomic write each
    leases: bool = False  # a dead worker's tasks come back
    wakes: bool = False  # `wait` returns early when something becomes due
    joins: bool = False  # `conn=` joins the caller's own transaction
    durable: bool = False  # tasks outlive the process
    here: bool = False  # `enqueue_here`: a blocking caller needs no event loop
    transacts: bool = False  # `begin`: what a body writes there and its success are one
    lanes: int = 1  # so many exchanges of one worker under way are faster than one


class Transaction(Protocol):
    """A body's own transaction in the store's database, which the success of its task joins at the end."""

    def block(self) -> AbstractAsyncContextManager[Any]:
        """A connection. What an exception that leaves the block has written there is undone."""
        ...

    async def settle(self, settlement: Settlement) -> Answer:
        """Settle and commit where the run is still held; otherwise undo everything.

        `StoreUnavailable`: nobody knows whether it was committed; settling anything else tells, because it
        is stale then. Any other exception is the database's about what the body wrote; nothing is kept.
        """
        ...

    async def undo(self) -> None:
        """Forget what was written. Never raises."""
        ...


class BaseStorage(ABC):
    """A queue of tasks. Derive from it and write five verbs; `super().__init__()` is not needed."""

    capabilities: ClassVar[Capabilities] = Capabilities()
    clock: Clock = REAL_CLOCK
    serializer: Serializer = MsgpackSerializer()
    # Nothing else is on its event loop: a short look may hold that up, and wakes no other thread then.
    alone_on_loop: bool = False
    # Pools that work on it since one of them opened it: the last of them closes it.
    borrowers: int = 0

    @property
    def url(self) -> str | None:
        """An address under which another process finds the same data, where there is one."""
        return None

    # --- life ------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """A storage with nothing to open counts as open."""
        return True

    async def open(self) -> None:
        """Connect, and make or check the schema. Opening an open storage does nothing."""

    async def close(self) -> None:
        """Give everything back. Closing a closed storage does nothing."""

    def abandon(self) -> None:
        """Give back what can be given back although its loop has closed."""

    def clone(self) -> Self:
        """An unopened twin on the same data, for another loop, thread or process."""
        return self

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    # --- the seed's verbs ------------------------------------------------------------------------

    @abstractmethod
    async def enqueue(self, task: Task, *, conn: Any = None) -> str:
        """Keep `task` and return its id. Once this returned, the task is not lost."""

    @abstractmethod
    async def dequeue(self, now: datetime | None = None) -> Task | None:
        """Claim the first due task, or return None. Nobody else gets it while it is claimed."""

    @abstractmethod
    async def mark_running(self, task_id: str) -> object:
        """Confirm that the claimed task is being run. May be repeated."""

    @abstractmethod
    async def mark_done(self, task_id: str, result: TaskResult) -> object:
        """The run succeeded; keep its result."""

    @abstractmethod
    async def mark_failed(self, task_id: str, error: TaskError, will_retry: bool = False) -> object:
        """The run failed. With `will_retry` the task waits for a `reschedule`."""

    async def reschedule(self, task_id: str, eta: datetime) -> None:
        """Let a waiting task run at `eta`. Without this, a retry becomes a new task."""
        raise self._lacks("reschedule")

    async def get_task(self, task_id: str) -> Task | None:
        """The task as it is now, or None when the id is unknown."""
        raise self._lacks("get_task")

    async def get_result(self, task_id: str) -> TaskResult | None:
        """How the task ended (for an interval task: its latest run), or None."""
        raise self._lacks("get_result")

    # --- the batched verbs: writing --------------------------------------------------------------

    async def enqueue_many(
        self,
        tasks: Iterable[Task | StoredTask],
        *,
        conn: Any = None,
        on_conflict: OnConflict = "skip",
    ) -> list[Enqueued]:
        """Keep all of `tasks`, or none of them (T1).

        Same id and same content is "already there"; same id and other content is `IdConflict`. A unique
        key that a living task holds is skipped, raises `DuplicateTask`, or replaces a waiting one's call.
        Where more tasks than `limit_queue` allows would wait in a queue, it is `QueueFull`.
        """
        ids: list[Enqueued] = []
        for task in tasks:
            plain = task if isinstance(task, Task) else self.decode(arrive(task, self.clock.now()))
            ids.append(Enqueued(await self.enqueue(plain, conn=conn), created=True))
        return ids

    def enqueue_here(
        self, tasks: Iterable[Task | StoredTask], *, on_conflict: OnConflict = "skip"
    ) -> list[Enqueued]:
        """`enqueue_many`, blocking, in the caller's own thread, whichever that is; the storage is open."""
        raise self._lacks("enqueue_here")

    async def announce(self, ids: Sequence[str]) -> None:
        """After an enqueue in the caller's own transaction: wake workers when it is committed."""

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Answer], list[Claimed]]:
        """Settle what has ended, then hand out at most `claim.limit` due tasks: one atomic write.

        Order: priority (9 first), then eta (a task without one counts from when it was enqueued), then
        order of enqueueing. Due means PENDING, eta not after the store's clock, not expired, its queue
        asked for and not paused. No task goes to two callers, `epoch` rises by one, and the lease is
        durable before return. Repeating a `claim_id` gives those of its tasks that still run again, also
        while the first call is under way, for as long as the claim's lease lasts.

        Fewer than `limit` does not say that nothing is due: a store may have met expired tasks, and whether
        what a call puts back is handed out by the same call is left open. Then the next `wait` returns at
        once. A row that cannot be read is reported and passed over. At most one settlement for an epoch.
        """
        answers = await self._settle_one_by_one(settlements)
        if claim is None or Answer.UNSENT in answers:
            return answers, []
        try:
            return answers, await self._dequeue_up_to(claim.limit)
        except Exception as exc:
            if not answers:
                raise
            # What is settled must not be settled twice, so the answers go back without claims.
            logger.warning("dequeue failed: {!r}", exc)
            return answers, []

    async def settle(self, settlements: Sequence[Settlement]) -> list[Answer]:
        """The first half of `exchange`. Answers `held`, `already` or `stale`, one for each."""
        answers, _ = await self.exchange(settlements)
        return answers

    async def claim(
        self,
        worker: str,
        queues: Sequence[str] | None = None,
        limit: int = 1,
        lease: float = 30.0,
        claim_id: str | None = None,
    ) -> list[Claimed]:
        """The second half of `exchange`."""
        if isinstance(queues, str):
            raise InvalidOption(f"queues must be a list of names, such as [{queues!r}], not a str")
        wish = Claim(worker, None if queues is None else tuple(queues), limit, lease, claim_id or new_id())
        _, claims = await self.exchange((), wish)
        return claims

    async def begin(self) -> Transaction:
        """A transaction for one run of a body, on a connection of its own."""
        raise self._lacks("begin")

    async def renew(self, worker: str, lease: float, holding: Iterable[Held] = ()) -> Renewal:
        """Extend every lease of `worker` (T3) and say what it holds, what it lost, what to cancel."""
        raise self._lacks("renew")

    async def held(self, worker: str) -> list[Held]:
        """What `worker` holds, without extending anything."""
        return []

    async def release(self, worker: str) -> int:
        """Take back everything from a worker known to be dead (T8, T9); how many tasks that were."""
        raise self._lacks("release")

    async def lapse(self, limit: int = 100) -> int:
        """Take back at most `limit` tasks whose lease is over or whose owner is dead (T8, T9, T12).

        Tasks that expired while they waited end here too (T14). A row that cannot be read is reported
        and passed over.
        """
        return 0

    async def progress(self, task_id: str, epoch: int, done: float, total: float | None = None) -> bool:
        """Note how far a run is; False when the epoch is no longer current."""
        return False

    async def cancel(self, task_id: str) -> TaskStatus:
        """End a waiting task (T10), ask a running one to stop (T11); the status afterwards."""
        raise self._lacks("cancel")

    async def retry(self, task_id: str) -> None:
        """Let a FAILED or CANCELLED task run again with all its chances (T13)."""
        raise self._lacks("retry")

    async def delete(self, task_id: str) -> None:
        """Forget a final task, its result and its history (T16)."""
        raise self._lacks("delete")

    async def pause(self, queue: str) -> None:
        """Hand out nothing more from `queue`; what runs goes on."""
        raise self._lacks("pause")

    async def resume(self, queue: str) -> None:
        raise self._lacks("resume")

    async def limit_queue(self, queue: str, max_depth: int | None) -> None:
        """From now on at most `max_depth` tasks may wait in `queue` for whoever enqueues; None: any number.

        Counted are the PENDING ones, due or not. Retries, give-backs and lapsed leases are never refused.
        """
        raise self._lacks("limit_queue")

    async def queue_limits(self) -> dict[str, int]:
        """The queues that have a limit."""
        return {}

    async def prune(self, limit: int = 1000) -> int:
        """Delete at most `limit` final tasks whose retention is over (T16)."""
        return 0

    # --- the batched verbs: schedules ------------------------------------------------------------

    async def save_schedule(self, schedule: Schedule) -> Schedule:
        """Keep a schedule under its name, and return it as it is kept.

        Saving again what is there changes nothing, so every process may do it when it starts. Other times
        (`every`, `cron`, `tz`) count from now; another call, `catch_up` or `overlap` changes no tick. One
        that is paused stays paused. A cron line that never fires is `InvalidOption`.
        """
        raise self._lacks("save_schedule")

    async def schedules(self) -> list[Schedule]:
        """All of them by name. One that cannot be read is reported and passed over."""
        return []

    async def fire_due(self, limit: int = 100) -> Fired:
        """Make the tasks of at most `limit` schedules whose next tick has come by the store's clock.

        Anybody may call this at any time, and many at once. A tick is one task, whose id is the schedule's
        name, "@" and the tick (`nightly@2030-01-01T02:00:00Z`): where that id is known, or its unique key
        held, or its queue full, no task is made. The tasks and the schedule's next tick are one atomic
        write, which happens only if nobody changed the schedule meanwhile. What becomes of the tasks never
        stops a schedule. Which ticks, after a downtime: `omniq.logic.schedule.advance`. One schedule that
        cannot be read, or whose time zone is unknown here, is reported and passed over, and stops no other.
        """
        return Fired()

    async def pause_schedule(self, name: str) -> None:
        """No ticks until `resume_schedule`, which goes on with the next one. Unknown names: `NotFound`."""
        raise self._lacks("pause_schedule")

    async def resume_schedule(self, name: str) -> None:
        raise self._lacks("resume_schedule")

    async def run_schedule(self, name: str, task_id: str | None = None) -> Enqueued:
        """Make a task of the schedule's call now, beside its ticks, also while it is paused."""
        raise self._lacks("run_schedule")

    async def delete_schedule(self, name: str) -> None:
        """Forget a schedule; the tasks that it made stay. Unknown names: `NotFound`."""
        raise self._lacks("delete_schedule")

    # --- the batched verbs: moving to another store ----------------------------------------------

    async def take_out(self, limit: int = 500) -> Parcel | None:
        """Take at most `limit` tasks that do not run out of this store, to be moved to another one.

        Waiting ones first, in claim order, then ended ones; with each its history. The first parcel also has
        the schedules, the paused queues and the queues' limits. Nobody can claim or find any longer what is
        in a parcel. It is kept here, in the same atomic write, until `drop_parcel`: until then this returns
        the same one again. None: there is nothing left that could be moved. What cannot be read is reported
        and stays.
        """
        raise self._lacks("take_out")

    async def take_in(self, parcel: Parcel) -> TakenIn:
        """Keep what is in a parcel of another store, all or nothing; only once, for thirty days.

        Tasks keep id, epoch, attempts, losses, status, moments, result and history. An id that is known here
        with the same call is left as it is; with another call it is `IdConflict`. A waiting task whose unique
        key is held here is kept as CANCELLED, for people to decide. A schedule that is here already stays as
        it is here. Limits do not apply. Where the parcel was taken out of this very store, it is back
        afterwards, and forgotten.
        """
        raise self._lacks("take_in")

    async def drop_parcel(self, parcel_id: str) -> None:
        """Forget a parcel that was taken out, once it is safe elsewhere. May be repeated."""
        raise self._lacks("drop_parcel")

    # --- the batched verbs: workers --------------------------------------------------------------

    async def beat(self, worker: WorkerInfo) -> None:
        """Say that a worker lives, and what it does."""

    async def leave(self, worker: str) -> None:
        """Say that a worker has ended; it holds nothing any more."""

    async def migrate(self) -> None:
        """Bring the schema to this version. May be repeated, killed, and run by two at once."""

    # --- the batched verbs: looking --------------------------------------------------------------

    async def list_tasks(
        self, filter: TaskFilter | None = None, after: str | None = None, limit: int = 100
    ) -> list[Task]:
        """Tasks that match, newest first, from the one behind `after` (an id of the page before).

        Newest by their ids, which are made in the order of time; a store that knows the order of
        enqueueing may go by that. The two differ only where callers choose ids of their own.
        """
        raise self._lacks("list_tasks")

    async def page(
        self, filter: TaskFilter | None = None, after: str | None = None, limit: int = 100
    ) -> Page:
        """`list_tasks` for those who must not wait: it looks at a bounded number of tasks and says how far.

        A page may be short, or empty, although there are more matches behind its `after`. What it costs
        depends neither on how many tasks there are nor on the filter.
        """
        raise self._lacks("page")

    async def longest_running(self, limit: int = 100) -> list[Task]:
        """What runs now, the run that began first in front; at most `limit`.

        What it costs grows with what runs, up to a bound, and with nothing else: neither a backlog nor what
        has ended is looked at.
        """
        raise self._lacks("longest_running")

    async def history(self, task_id: str) -> list[Run]:
        """The closed runs of a task that did not simply succeed, oldest first, at most the newest 20."""
        raise self._lacks("history")

    async def counts(self) -> dict[str, dict[TaskStatus, int]]:
        """How many tasks each queue has in each status; queues without any are left out."""
        raise self._lacks("counts")

    async def rates(self, since: datetime) -> Rates:
        """What was enqueued and what ended since the beginning of the minute that `since` is in."""
        raise self._lacks("rates")

    async def tallies(self) -> list[Tally]:
        """Everything that was ever written, by queue and minute: all of it added up is what is there now.

        The last two hours are told minute by minute; what is older is put together at 1970. Tallies are
        written with what they count, in one atomic write, and reading them counts no task.
        """
        raise self._lacks("tallies")

    async def heads(self) -> list[Head]:
        """The due task that comes first in each queue and priority, paused queues included.

        The oldest of a queue's heads is what has waited longest there. One seek each, whatever waits behind.
        """
        raise self._lacks("heads")

    async def timings(self, limit: int = 1000) -> list[Timing]:
        """How long the latest tasks that succeeded waited and ran; at most `limit` of them."""
        raise self._lacks("timings")

    async def ahead(self, task_id: str, most: int = 10_000) -> int:
        """How many due tasks of its queue a claim would hand out before this waiting one; at most `most`."""
        raise self._lacks("ahead")

    async def paused(self) -> set[str]:
        """The names of the paused queues."""
        return set()

    async def workers(self) -> list[WorkerInfo]:
        """The workers that beat, newest beat first."""
        return []

    async def verify(self) -> list[str]:
        """Everything about the stored data that should not be, one line each; empty when all is well."""
        raise self._lacks("verify")

    async def wait(self, timeout: float) -> bool:
        """Sleep until something may have become due since the latest claim began, at most `timeout`.

        It only shortens a wait: a caller that is never woken and looks every `timeout` is correct too.
        """
        raise self._lacks("wait")

    async def wait_result(self, task_id: str, timeout: float | None = None) -> TaskResult | None:
        """The result as soon as there is one, or None after `timeout`. Unknown ids raise `NotFound`."""
        raise self._lacks("wait_result")

    # --- other vocabularies ----------------------------------------------------------------------

    def as_backend(self, serializer: Serializer | None = None) -> Backend:
        """This storage in the words of seed 002: `reserve`, `mark_success`, `mark_failure`."""
        from omniq.storage.backend import StorageBackend

        return StorageBackend(self, serializer or self.serializer)

    def decode(self, stored: StoredTask) -> Task:
        """For people to look at. A payload that cannot be read is shown as what it is."""
        try:
            _, args, kwargs = self.serializer.decode_call(stored.payload)
        except CorruptRecord:
            args, kwargs = [Encoded.of(stored.payload)], {}
        common = {name: getattr(stored, name) for name in TaskFields.__struct_fields__}
        try:
            return Task(stored.func_path or "by_value", tuple(args), kwargs, **common)
        except InvalidOption as exc:
            raise CorruptRecord(f"the record of task {stored.id!a} makes no sense: {exc}") from exc

    # --- the batched verbs, made from the seed's -------------------------------------------------

    def overrides(self, verb: str) -> bool:
        """Whether this storage brings its own `verb`."""
        return getattr(type(self), verb) is not getattr(BaseStorage, verb)

    def _lacks(self, verb: str) -> Unsupported:
        return Unsupported(f"{type(self).__name__} has no {verb}(); override it to use this")

    async def _settle_one_by_one(self, settlements: Sequence[Settlement]) -> list[Answer]:
        """What was sent before the storage went away stays sent; the rest is to be sent again."""
        answers: list[Answer] = []
        for settlement in settlements:
            try:
                await self._settle_one(settlement)
                answers.append(Answer.HELD)
            except StoreUnavailable as gone:
                logger.warning("store away while settling: {}", gone)
                return answers + [Answer.UNSENT] * (len(settlements) - len(answers))
            except Exception as exc:
                logger.error("the storage refused to settle {}: {!r}", settlement.task.id, exc)
                answers.append(Answer.STALE)
        return answers

    async def _settle_one(self, settlement: Settlement) -> None:
        task = settlement.task
        assert isinstance(task, Task), "a storage with the seed's verbs hands out plain tasks"
        now = self.clock.now()
        error = settlement.error or TaskError("GivenBack", "the worker gave it back")
        match settlement.action:
            case Action.SUCCEED | Action.REPEAT:
                value = self.serializer.loads(settlement.result or b"")
                await self.mark_done(task.id, TaskResult(task.id, TaskStatus.SUCCESS, value, None, now))
            case Action.FAIL:
                await self.mark_failed(task.id, error, will_retry=False)
            case Action.CONTINUE | Action.RETRY | Action.LOSE:
                await self.mark_failed(task.id, error, will_retry=True)
            case Action.GIVE_BACK:
                if not self.overrides("reschedule"):
                    await self.mark_failed(task.id, error, will_retry=True)
        if settlement.status is TaskStatus.PENDING:
            await self._run_again(task, settlement, now + timedelta(seconds=settlement.delay_s))

    async def _run_again(self, task: Task, settlement: Settlement, eta: datetime) -> None:
        if self.overrides("reschedule"):
            await self.reschedule(task.id, eta)
            return
        attempts = {Action.RETRY: task.attempts + 1, Action.GIVE_BACK: task.attempts}
        again = replace(
            task,
            id=new_id(),
            eta=eta,
            status=TaskStatus.PENDING,
            attempts=attempts.get(settlement.action, 0),
            headers={**task.headers, "retry_of": task.headers.get("retry_of", task.id)},
        )
        await self.enqueue(again)

    async def _dequeue_up_to(self, limit: int) -> list[Claimed]:
        claims: list[Claimed] = []
        while len(claims) < limit:
            try:
                task = await self.dequeue(now=self.clock.now())
                if task is None:
                    break
            except Exception as exc:
                if not claims:
                    raise
                logger.warning("dequeue failed after {} tasks: {!r}", len(claims), exc)
                break
            claims.append(task)
            try:
                await self.mark_running(task.id)
            except Exception as exc:  # it is claimed: running it is right, losing it is not
                logger.warning("mark_running({}) failed: {!r}", task.id, exc)
        return claims
