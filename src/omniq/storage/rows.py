"""The verbs of a store that lives in this process, written once over a handful of row operations.

A store brings the rows (`MemoryRows`, `SQLiteRows`); the verbs here read a row, let `logic.lifecycle`
decide, and write it back. A call of a verb is one atomic write: the store sees to that around it.
Nothing here waits, and nothing here knows of threads or event loops.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from loguru import logger

from omniq.errors import Conflict, CorruptRecord, DuplicateTask, IdConflict, QueueFull
from omniq.logic import lifecycle
from omniq.logic.lifecycle import Change
from omniq.schedule import Schedule
from omniq.storage.batched import unknown
from omniq.storage.tallying import Changes, oldest_minute
from omniq.task import (
    Answer,
    Claim,
    Enqueued,
    Head,
    Held,
    OnConflict,
    Renewal,
    Run,
    Settlement,
    StoredTask,
    Tally,
    TaskFilter,
    TaskStatus,
    Timing,
    WorkerInfo,
    replace,
    shown,
)

REMEMBER_ID_S: Final = 600.0
# A worker beats several times per lease: one that was silent for this long has ended without a word.
FORGET_WORKER_S: Final = 86400.0
# Whoever moved a parcel and was killed goes on with it: so long a parcel that came in is known again.
REMEMBER_PARCEL_S: Final = 30 * 86400.0
# A claim that meets expired tasks ends them and looks again; so often at most in one call.
MAX_EXPIRY_ROUNDS: Final = 20


class Rows(ABC):
    """What a store must bring, and the verbs made of it."""

    def __init__(self) -> None:
        self.rang_due = False  # something may have become due, or a running task is to be cancelled
        self.rang_result = False  # something has ended
        self.changes = Changes()  # what this transaction changes in the tallies
        self.next_due: datetime | None = None  # when the next waiting task comes up; set by a short claim

    # --- what a store brings ---------------------------------------------------------------------

    @abstractmethod
    def now(self) -> datetime: ...

    @abstractmethod
    def get(self, task_id: str) -> StoredTask | None:
        """The row, or None. Raises `CorruptRecord` when it cannot be read."""

    @abstractmethod
    def insert(self, task: StoredTask) -> None: ...

    @abstractmethod
    def put(self, task: StoredTask) -> None:
        """Write a row back. A row that does not run has no lease and no claim."""

    @abstractmethod
    def hold(self, task: StoredTask, claim: Claim) -> None:
        """Write back a row that was just claimed, with its lease."""

    @abstractmethod
    def remove(self, task: StoredTask, remember_s: float) -> None:
        """Delete a row and its history, and remember its id and content for a while."""

    @abstractmethod
    def remembered(self, task_id: str) -> bytes | None:
        """The content digest of a deleted task."""

    @abstractmethod
    def holder(self, unique_key: str) -> StoredTask | None:
        """The living task that holds a unique key."""

    @abstractmethod
    def due(self, claim: Claim, limit: int, now: datetime) -> list[StoredTask]:
        """The first `limit` due tasks in claim order, expired ones too. The caller changes every one."""

    @abstractmethod
    def due_next(self, claim: Claim, now: datetime) -> datetime | None:
        """When the next waiting task of the queues asked for comes up."""

    @abstractmethod
    def running(self, worker: str, claim_id: str | None = None) -> list[StoredTask]: ...

    @abstractmethod
    def extend(self, worker: str, lease_s: float) -> None: ...

    @abstractmethod
    def over(self, limit: int) -> Iterator[StoredTask]:
        """Running rows whose lease is over or whose owner is dead; what cannot be read is passed over."""

    @abstractmethod
    def overdue(self, limit: int, now: datetime) -> list[StoredTask]:
        """Waiting rows that expired."""

    @abstractmethod
    def add_run(self, task: StoredTask, run: Run) -> None: ...

    @abstractmethod
    def runs(self, task_id: str) -> list[Run]: ...

    @abstractmethod
    def prunable(self, limit: int, now: datetime) -> list[StoredTask]: ...

    @abstractmethod
    def set_paused(self, queue: str, paused: bool) -> None: ...

    @abstractmethod
    def paused(self) -> set[str]: ...

    @abstractmethod
    def beat(self, worker: WorkerInfo) -> None: ...

    @abstractmethod
    def leave(self, worker: str) -> None: ...

    @abstractmethod
    def forget_workers(self, before: datetime) -> None:
        """Those that were not seen since; also what is left of one and cannot be read."""

    @abstractmethod
    def workers(self) -> list[WorkerInfo]: ...

    @abstractmethod
    def select(
        self, wanted: TaskFilter, after: str | None, limit: int
    ) -> tuple[list[StoredTask], str | None]:
        """What a bounded look finds, and the id behind which to look on, if there may be more."""

    @abstractmethod
    def longest_running(self, limit: int) -> list[StoredTask]: ...

    @abstractmethod
    def tallies(self) -> list[Tally]: ...

    @abstractmethod
    def fold_tallies(self, before: datetime) -> None:
        """Put those of older minutes together."""

    @abstractmethod
    def heads(self) -> list[Head]: ...

    @abstractmethod
    def timings(self, limit: int) -> list[Timing]: ...

    @abstractmethod
    def ahead(self, task_id: str, most: int) -> int: ...

    @abstractmethod
    def ended(self, ids: Sequence[str]) -> set[str]:
        """Which of these have a result, or are gone."""

    @abstractmethod
    def verify(self) -> list[str]: ...

    @abstractmethod
    def schedule(self, name: str) -> Schedule | None: ...

    @abstractmethod
    def schedules(self) -> list[Schedule]: ...

    @abstractmethod
    def schedules_due(self, now: datetime, limit: int) -> list[Schedule]:
        """Those whose next tick has come, the one that has waited longest first."""

    @abstractmethod
    def next_tick(self) -> datetime | None: ...

    @abstractmethod
    def put_schedule(self, schedule: Schedule) -> None: ...

    @abstractmethod
    def drop_schedule(self, name: str) -> bool:
        """Whether there was one."""

    @abstractmethod
    def limits(self) -> dict[str, int]: ...

    @abstractmethod
    def put_limit(self, queue: str, max_depth: int | None) -> None: ...

    @abstractmethod
    def depth(self, queue: str, most: int) -> int:
        """How many tasks wait in a queue, counted up to `most`."""

    @abstractmethod
    def movable(self, limit: int) -> Iterator[StoredTask]:
        """At most `limit` rows that do not run: waiting ones by due, then ended ones, oldest first."""

    @abstractmethod
    def move_away(self, task: StoredTask) -> None:
        """Delete a row and its history, and remember nothing."""

    @abstractmethod
    def outgoing(self) -> bytes | None:
        """The parcel that was taken out and not dropped yet."""

    @abstractmethod
    def keep_parcel(self, parcel_id: str, body: bytes | None) -> None:
        """One that goes, or, without a body, the receipt of one that came."""

    @abstractmethod
    def has_receipt(self, parcel_id: str) -> bool: ...

    @abstractmethod
    def forget_receipts(self, before: datetime) -> None:
        """Of parcels that came in before that."""

    @abstractmethod
    def drop_parcel(self, parcel_id: str) -> None:
        """The one that goes; receipts have a time of their own."""

    # --- enqueue ---------------------------------------------------------------------------------

    def enqueue_many(self, tasks: Sequence[StoredTask], on_conflict: OnConflict) -> list[Enqueued]:
        """T1 for all or none: everything is looked at before anything is written."""
        now = self.now()
        new: dict[str, StoredTask] = {}
        keys: dict[str, StoredTask] = {}
        changed: dict[str, StoredTask] = {}
        enqueued = [self._place(task, on_conflict, now, new, keys, changed) for task in tasks]
        self.check_room(new.values())
        for task in new.values():
            self.insert(task)
        for task in changed.values():
            self.put(task)
        self.rang_due = True
        return enqueued

    def _place(
        self,
        task: StoredTask,
        on_conflict: OnConflict,
        now: datetime,
        new: dict[str, StoredTask],
        keys: dict[str, StoredTask],
        changed: dict[str, StoredTask],
    ) -> Enqueued:
        """Where one task of a batch goes; `new`, `keys` and `changed` are the batch so far."""
        if (there := self._already_there(task, new)) is not None:
            return there
        key = task.unique_key
        holder = None if key is None else keys.get(key) or self.holder(key)
        if holder is not None:
            assert key is not None
            if on_conflict == "raise":
                raise DuplicateTask(f"unique key {shown(key)} is held by task {holder.id}", holder.id)
            if on_conflict == "replace":
                arrived = lifecycle.arrive(task, now)
                before = changed.get(holder.id, holder)
                # It remembers what it was first enqueued with: an enqueue that is sent again finds itself.
                substitute = replace(lifecycle.substitute(before, arrived), first_content=digest(before))
                (new if holder.id in new else changed)[holder.id] = keys[key] = substitute
            return Enqueued(holder.id, created=False)
        fresh = lifecycle.arrive(task, now)
        new[task.id] = fresh
        if key is not None:
            keys[key] = fresh
        return Enqueued(task.id, created=True)

    def check_room(self, new: Iterable[StoredTask]) -> None:
        """Only what is new is counted: an enqueue that is sent again finds itself, full or not."""
        limits = self.limits()
        if not limits:
            return
        for queue, more in Counter(task.queue for task in new).items():
            most = limits.get(queue)
            if most is not None and self.depth(queue, most) + more > most:
                raise queue_full(queue, most)

    def _already_there(self, task: StoredTask, new: dict[str, StoredTask]) -> Enqueued | None:
        existing = new.get(task.id) or self.get(task.id)
        known = digest(existing) if existing is not None else self.remembered(task.id)
        if known is None:
            return None
        if known != digest(task):
            raise IdConflict(
                f"id {task.id!r} already belongs to another call; leave id out to get a fresh one"
            )
        return Enqueued(task.id, created=False)

    # --- exchange --------------------------------------------------------------------------------

    def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None
    ) -> tuple[list[Answer], list[StoredTask]]:
        now = self.now()
        answers = self.settle_all(settlements, now) if settlements else []
        return answers, [] if claim is None else self.hand_out(claim, now)

    def settle_all(self, settlements: Sequence[Settlement], now: datetime) -> list[Answer]:
        return [self.settle_readable(settlement, now) for settlement in settlements]

    def settle_readable(self, settlement: Settlement, now: datetime) -> Answer:
        """One row that cannot be read must not undo its neighbours."""
        try:
            return self.settle_one(settlement, now)
        except CorruptRecord as corrupt:
            logger.error("cannot settle: {}", corrupt)
        except ArithmeticError as exc:  # a delay that leads beyond the last moment there is
            logger.error("cannot settle {}: {!r}", settlement.task.id, exc)
        return Answer.STALE

    def settle_one(self, settlement: Settlement, now: datetime) -> Answer:
        """T4 to T7, T12: fenced by the epoch."""
        task = self.get(settlement.task.id)
        if task is None or not lifecycle.holds(task, settlement.task.epoch):
            runs = [] if task is None else self.runs(task.id)
            return lifecycle.answer(task, runs, settlement)
        self.apply(lifecycle.close(task, settlement, now))
        return Answer.HELD

    def hand_out(self, claim: Claim, now: datetime) -> list[StoredTask]:
        """T2 for the first `limit` due tasks, or again for those that this claim already has."""
        again = self.running(claim.worker, claim.claim_id)
        if again:
            self.next_due = now
            return again
        claimed: list[StoredTask] = []
        for expiry_round in range(MAX_EXPIRY_ROUNDS):
            wish, wanted = _left_of(claim, claimed), claim.limit - len(claimed)
            batch = self.due(wish, wanted, now) if wanted > 0 else []
            running = self._claim_or_expire(batch, claim, now)
            claimed += running
            if expiry_round and running:  # a scarce one may have stood behind one that expired
                claimed.sort(key=lifecycle.claim_order)
            if len(running) == len(batch) < wanted:
                self.next_due = self.due_next(_left_of(claim, claimed), now)
                return claimed
            if len(claimed) == claim.limit:
                break
        self.next_due = now  # there may be more right away
        return claimed

    def _claim_or_expire(self, batch: list[StoredTask], claim: Claim, now: datetime) -> list[StoredTask]:
        claimed: list[StoredTask] = []
        for task in batch:
            if lifecycle.expired(task, now):
                self.apply(Change(lifecycle.expire(task, now)))
            else:
                running = lifecycle.claim(task, claim.worker, now, claim.isolates)
                self.hold(running, claim)
                claimed.append(running)
        return claimed

    def apply(self, change: Change) -> None:
        """Write a change, and remember whom to wake after the commit."""
        self.put(change.task)
        if change.run is not None:
            self.add_run(change.task, change.run)
            self.changes.close(change.task.queue, change.task.status, change.run)
        if change.task.status is TaskStatus.PENDING:
            self.rang_due = True
        if change.task.result_status is not None:
            self.rang_result = True

    # --- leases ----------------------------------------------------------------------------------

    def renew(self, worker: str, lease_s: float, holding: Iterable[Held]) -> Renewal:
        """T3."""
        self.extend(worker, lease_s)
        held = {one.id: one for one in self.held(worker)}
        lost = frozenset(h.id for h in holding if h.id not in held or held[h.id].epoch != h.epoch)
        return Renewal(held, lost, frozenset(h.id for h in held.values() if h.cancel_requested))

    def held(self, worker: str) -> list[Held]:
        return [Held(t.id, t.epoch, t.cancel_requested, t.seq) for t in self.running(worker)]

    def release(self, worker: str) -> int:
        now = self.now()
        lost = self.running(worker)
        for task in lost:
            self.apply(lifecycle.lapse(task, now))
        return len(lost)

    def lapse(self, limit: int) -> int:
        """T8, T9, T12 for what is over; T14 for what waited too long."""
        now, ended = self.now(), 0
        for task in list(self.over(limit)):
            self.apply(lifecycle.lapse(task, now))
            ended += 1
        for task in self.overdue(limit - ended, now) if ended < limit else ():
            self.apply(Change(lifecycle.expire(task, now)))
            ended += 1
        return ended

    def progress(self, task_id: str, epoch: int, progress: tuple[float, float | None]) -> bool:
        task = self.get(task_id)
        if task is None or not lifecycle.holds(task, epoch):
            return False
        self.put(replace(task, progress=progress))
        return True

    # --- by hand ---------------------------------------------------------------------------------

    def cancel(self, task_id: str) -> TaskStatus:
        """T10, T11."""
        task = self.must_get(task_id)
        changed = lifecycle.cancel(task, self.now())
        if changed is not task:
            self.apply(Change(changed))
            self.rang_due = True
        return changed.status

    def retry(self, task_id: str) -> None:
        """T13."""
        task = self.must_get(task_id)
        waiting = lifecycle.requeue(task, self.now())
        holder = None if task.unique_key is None else self.holder(task.unique_key)
        if holder is not None:
            raise DuplicateTask(
                f"unique key {shown(task.unique_key)} is now held by task {holder.id}", holder.id
            )
        self.apply(Change(waiting))

    def reschedule(self, task_id: str, eta: datetime, epoch: int | None) -> None:
        """T15."""
        task = self.must_get(task_id)
        if epoch is not None and task.epoch != epoch:
            raise Conflict(f"task {task_id} is at epoch {task.epoch}, no longer at {epoch}")
        self.apply(Change(lifecycle.reschedule(task, eta)))

    def delete(self, task_id: str) -> None:
        """T16."""
        task = self.must_get(task_id)
        if not task.status.final:
            raise Conflict(f"task {task_id} is {task.status}; cancel it first, then delete it")
        self.remove(task, REMEMBER_ID_S)
        self.rang_result = True

    def prune(self, limit: int) -> int:
        """T16."""
        gone = self.prunable(limit, self.now())
        for task in gone:
            self.remove(task, REMEMBER_ID_S)
        self.forget_workers(self.now() - timedelta(seconds=FORGET_WORKER_S))
        self.forget_receipts(self.now() - timedelta(seconds=REMEMBER_PARCEL_S))
        self.fold_tallies(oldest_minute(self.now()))
        return len(gone)

    def pause(self, queue: str) -> None:
        self.set_paused(queue, True)

    def resume(self, queue: str) -> None:
        self.set_paused(queue, False)
        self.rang_due = True

    def must_get(self, task_id: str) -> StoredTask:
        task = self.get(task_id)
        if task is None:
            raise unknown(task_id)
        return task


def _left_of(claim: Claim, claimed: list[StoredTask]) -> Claim:
    """The claim with what is left of its share in the scarce queues."""
    if not claim.scarce or not claimed:
        return claim
    taken = sum(task.queue in claim.scarce for task in claimed)
    return replace(claim, scarce_limit=claim.scarce_limit - taken)


def queue_full(queue: str, most: int) -> QueueFull:
    return QueueFull(
        f"queue {shown(queue)} may hold {most:,} waiting tasks, and is full; try again when workers have "
        "caught up, or raise its max_depth"
    )


def digest(task: StoredTask) -> bytes:
    """What makes two enqueues of one id the same call: what it was first enqueued with."""
    if task.first_content is not None:
        return task.first_content
    content = (task.func_path.encode(), task.queue.encode(), task.payload)
    return hashlib.blake2b(b"\x00".join(content), digest_size=16).digest()
