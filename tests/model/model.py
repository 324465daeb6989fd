"""What a store should do, written plainly from the table of transitions and nothing else.

One dict of rows, loops over all of them, no index, no cleverness; and nothing of `omniq.logic`, so that
a mistake there is not repeated here.
"""

import copy
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from omniq.errors import Conflict, DuplicateTask, IdConflict, NotFound
from omniq.task import Action, Task, TaskError
from omniq.testing import VirtualClock

DAY_S = 86400.0
HISTORY = 20
REMEMBERED_S = 600.0

# An error that the store made itself is known by its kind alone.
Error = TaskError | str | None


@dataclass
class Row:
    task: Task
    func_path: str
    args: tuple[object, ...]
    eta: datetime | None
    expires_at: datetime | None
    enqueued_at: datetime
    order: int
    steady_at_enqueue: float
    jumps_at_enqueue: int
    status: str = "PENDING"
    epoch: int = 0
    attempts: int = 0
    losses: int = 0
    suspicions: int = 0
    isolates: bool = False
    owner: str | None = None
    claim_id: str | None = None
    lease_until: float = 0.0
    cancel_requested: bool = False
    error: Error = None
    progress: tuple[float, float | None] | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    # status, value, error, moment
    result: tuple[str, object, Error, datetime] | None = None
    # epoch, owner, started, ended, outcome, error
    runs: list[tuple[int, str | None, datetime | None, datetime, str, Error]] = field(default_factory=list)

    @property
    def content(self) -> tuple[object, ...]:
        """What it was first enqueued with, also after a replace."""
        return self.task.func_path, self.task.queue, self.task.args

    @property
    def due_at(self) -> datetime:
        return self.eta or self.enqueued_at

    @property
    def final(self) -> bool:
        return self.status not in ("PENDING", "RUNNING")


@dataclass(frozen=True)
class Report:
    """What somebody says of a run that they have, or had."""

    id: str
    epoch: int
    action: Action
    value: object = None
    delay_s: float = 0.0
    error: TaskError | None = None


OUTCOME = {
    Action.SUCCEED: "success",
    Action.REPEAT: "success",
    Action.RETRY: "retried",
    Action.FAIL: "failed",
    Action.CONTINUE: "failed",
    Action.GIVE_BACK: "given back",
    Action.LOSE: "died",
}


def pause_s(times: int) -> float:
    """At once the first time, then a second, doubling."""
    return 0.0 if times == 1 else 2.0 ** (times - 2)


class Model:
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.rows: dict[str, Row] = {}
        self.gone: dict[str, Row] = {}
        self.paused: set[str] = set()
        self.orders = 0
        self.jumps = 0

    def row(self, task_id: str) -> Row:
        if task_id not in self.rows:
            raise NotFound(task_id)
        return self.rows[task_id]

    # --- T1 --------------------------------------------------------------------------------------

    def enqueue(self, tasks: Iterable[Task], on_conflict: str) -> list[tuple[str, bool]]:
        before = copy.deepcopy(self.rows), self.orders
        try:
            return [self._enqueue_one(task, on_conflict) for task in tasks]
        except Conflict:
            self.rows, self.orders = before
            raise

    def _enqueue_one(self, task: Task, on_conflict: str) -> tuple[str, bool]:
        known = self.rows.get(task.id) or (self.gone.get(task.id) if self.remembers(task.id) else None)
        if known is not None:
            if known.content != (task.func_path, task.queue, task.args):
                raise IdConflict(task.id)
            return task.id, False
        holder = self.holder(task.unique_key)
        if holder is None:
            self.orders += 1
            self.rows[task.id] = Row(
                *(task, task.func_path, task.args, task.eta, task.expires_at, self.clock.now()),
                *(self.orders, self.clock.monotonic(), self.jumps),
            )
            return task.id, True
        if on_conflict == "raise":
            raise DuplicateTask("", holder.task.id)
        if on_conflict == "replace" and holder.status == "PENDING":
            holder.func_path, holder.args, holder.eta = task.func_path, task.args, task.eta
        return holder.task.id, False

    def holder(self, key: str | None) -> Row | None:
        for row in self.rows.values():
            if key is not None and row.task.unique_key == key and not row.final:
                return row
        return None

    def remembers(self, task_id: str) -> bool:
        """Whether it certainly does: ten minutes by an undisturbed clock."""
        row = self.gone.get(task_id)
        return (
            row is not None
            and row.jumps_at_enqueue == self.jumps
            and self.clock.monotonic() - row.steady_at_enqueue < REMEMBERED_S
        )

    # --- T2 --------------------------------------------------------------------------------------

    def claim(
        self,
        worker: str,
        queues: Iterable[str] | None,
        limit: int,
        lease_s: float,
        claim_id: str,
        *,
        isolates: bool = False,
        scarce: Collection[str] = (),
        scarce_limit: int = 0,
    ) -> list[tuple[str, int]]:
        now = self.clock.now()
        due = [
            row
            for row in self.rows.values()
            if row.status == "PENDING"
            and (row.eta is None or row.eta <= now)
            and not self.expired(row)
            and row.task.queue not in self.paused
            and (queues is None or row.task.queue in queues)
        ]
        due.sort(key=lambda row: (-row.task.priority, row.due_at, row.order))
        few = [row for row in due if row.task.queue in scarce][:scarce_limit]
        due = [row for row in due if row.task.queue not in scarce or row in few]
        for row in due[:limit]:
            row.isolates = isolates
            row.status, row.owner, row.claim_id = "RUNNING", worker, claim_id
            row.epoch += 1
            row.started_at, row.progress = now, None
            row.lease_until = self.clock.monotonic() + lease_s
        return [(row.task.id, row.epoch) for row in due[:limit]]

    def claimed_again(self, worker: str, claim_id: str) -> list[tuple[str, int]]:
        return [(row.task.id, row.epoch) for row in self.held(worker) if row.claim_id == claim_id]

    def runs(self, task_id: str, epoch: int) -> bool:
        row = self.rows.get(task_id)
        return row is not None and row.status == "RUNNING" and row.epoch == epoch

    def held(self, worker: str) -> list[Row]:
        return [row for row in self.rows.values() if row.status == "RUNNING" and row.owner == worker]

    # --- T3 --------------------------------------------------------------------------------------

    def renew(
        self, worker: str, lease_s: float, holding: Iterable[tuple[str, int]]
    ) -> tuple[set[tuple[str, int]], set[str], set[str]]:
        held = self.held(worker)
        for row in held:
            row.lease_until = self.clock.monotonic() + lease_s
        runs = {(row.task.id, row.epoch) for row in held}
        lost = {task_id for task_id, epoch in holding if (task_id, epoch) not in runs}
        return runs, lost, {row.task.id for row in held if row.cancel_requested}

    def progress(self, task_id: str, epoch: int, done: float, total: float | None) -> bool:
        if self.runs(task_id, epoch):
            self.rows[task_id].progress = (done, total)
            return True
        return False

    # --- T4 to T7, T12 ---------------------------------------------------------------------------

    def settle(self, report: Report) -> str:
        row = self.rows.get(report.id)
        if row is None:
            return "stale"
        if not self.runs(report.id, report.epoch):
            return "already" if self._closed_so_before(row, report) else "stale"
        if report.action is Action.SUCCEED:
            self._end(row, "SUCCESS", None, report.value)
        elif row.cancel_requested:
            self._close(row, "cancelled", report.error)
            self._end(row, "CANCELLED", "cancelled")
        elif report.action is Action.LOSE:
            self._count_loss(row, "died", report.error)
        else:
            self._close(row, OUTCOME[report.action], report.error)
            self._settle_uncancelled(row, report)
        return "held"

    def _settle_uncancelled(self, row: Row, report: Report) -> None:
        now = self.clock.now()
        match report.action:
            case Action.FAIL:
                row.attempts += 1
                self._end(row, "FAILED", report.error)
                return
            case Action.REPEAT:
                row.attempts = row.losses = row.suspicions = 0
                row.error = None
                row.result = ("SUCCESS", report.value, None, now)
            case Action.CONTINUE:
                row.attempts = 0
                row.error = report.error
                row.result = ("FAILED", None, report.error, now)
            case Action.RETRY:
                row.attempts += 1
                row.error = report.error
        self._wait(row, report.delay_s)

    def _closed_so_before(self, row: Row, report: Report) -> bool:
        if report.action is Action.SUCCEED and row.status == "SUCCESS" and row.epoch == report.epoch:
            return True
        same = {OUTCOME[report.action]}
        if report.action is not Action.SUCCEED:
            same.add("cancelled")
        return any(run[0] == report.epoch and run[4] in same for run in row.runs[-HISTORY:])

    def _close(self, row: Row, outcome: str, error: Error) -> None:
        row.runs.append((row.epoch, row.owner, row.started_at, self.clock.now(), outcome, error))

    def _end(self, row: Row, status: str, error: Error, value: object = None) -> None:
        now = self.clock.now()
        row.status, row.error, row.finished_at = status, error, now
        row.owner, row.cancel_requested = None, False
        row.result = (status, value, error, now)

    def _wait(self, row: Row, delay_s: float) -> None:
        row.status, row.owner = "PENDING", None
        row.eta = self.clock.now() + timedelta(seconds=max(0.0, delay_s))

    # --- T8, T9, T12, T14 ------------------------------------------------------------------------

    def lapse(self) -> int:
        over = [row for row in self.rows.values() if row.status == "RUNNING"]
        over = [row for row in over if row.lease_until <= self.clock.monotonic()]
        late = [row for row in self.rows.values() if row.status == "PENDING" and self.expired(row)]
        for row in over:
            self._lose(row)
        # What was lost just now may have expired while it ran.
        late += [row for row in over if row.status == "PENDING" and self.expired(row)]
        for row in late:
            self.expire(row)
        return len(over) + len(late)

    def release(self, worker: str) -> int:
        held = self.held(worker)
        for row in held:
            self._lose(row)
        return len(held)

    def _lose(self, row: Row) -> None:
        if row.cancel_requested:
            self._close(row, "lost", None)
            self._end(row, "CANCELLED", "cancelled")
            return
        if row.isolates and row.suspicions < 10:
            row.suspicions += 1
            self._close(row, "lost", None)
            self._wait(row, pause_s(row.suspicions))
            return
        self._count_loss(row, "lost", None)

    def _count_loss(self, row: Row, outcome: str, error: Error) -> None:
        row.losses += 1
        if row.losses >= row.task.max_losses:
            self._close(row, outcome, error or "poison")
            self._end(row, "FAILED", "poison")
            return
        self._close(row, outcome, error)
        self._wait(row, pause_s(row.losses))

    def expired(self, row: Row) -> bool:
        return row.expires_at is not None and row.expires_at <= self.clock.now()

    def expire(self, row: Row) -> None:
        self._end(row, "FAILED", "expired")

    # --- T10, T11, T13, T15, T16 -----------------------------------------------------------------

    def cancel(self, task_id: str) -> str:
        row = self.row(task_id)
        if row.status == "PENDING":
            self._end(row, "CANCELLED", "cancelled")
        elif row.status == "RUNNING":
            row.cancel_requested = True
        return row.status

    def retry(self, task_id: str) -> None:
        row = self.row(task_id)
        if row.status not in ("FAILED", "CANCELLED"):
            raise Conflict(task_id)
        holder = self.holder(row.task.unique_key)
        if holder is not None:
            raise DuplicateTask("", holder.task.id)
        row.status, row.attempts, row.losses, row.error = "PENDING", 0, 0, None
        row.suspicions = 0
        row.eta, row.expires_at = self.clock.now(), None
        row.finished_at = row.result = None

    def reschedule(self, task_id: str, eta: datetime) -> None:
        row = self.row(task_id)
        if row.status != "PENDING":
            raise Conflict(task_id)
        row.eta = eta

    def delete(self, task_id: str) -> None:
        if not self.row(task_id).final:
            raise Conflict(task_id)
        self.gone[task_id] = self.rows.pop(task_id)

    def prune(self) -> int:
        now = self.clock.now()
        over = [
            row for row in self.rows.values() if row.finished_at and row.finished_at + self.kept(row) <= now
        ]
        for row in over:
            self.delete(row.task.id)
        return len(over)

    def kept(self, row: Row) -> timedelta:
        if row.status != "SUCCESS":
            return timedelta(seconds=30 * DAY_S)
        ttl_s = row.task.result_ttl
        return timedelta(seconds=DAY_S if ttl_s is None else ttl_s)
