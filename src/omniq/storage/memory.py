"""A store in this process's memory: for tests, for trying things out, for work that may be lost.

It is no mock: it keeps the whole contract except durability, and passes the same conformance suite.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, TypeVar

from omniq.clock import REAL_CLOCK, Clock
from omniq.logic import lifecycle
from omniq.schedule import Schedule
from omniq.storage.base import Capabilities
from omniq.storage.batched import HISTORY_LIMIT
from omniq.storage.embedded import Bell, EmbeddedStorage
from omniq.storage.rows import Rows, digest
from omniq.task import (
    Claim,
    Rates,
    Run,
    StoredTask,
    TaskFilter,
    TaskStatus,
    WorkerInfo,
    replace,
)

T = TypeVar("T")


class MemoryRows(Rows):
    """Rows in dicts, waiting tasks in heaps. Entries of the heaps are dropped when they are stale."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.lock = threading.RLock()
        self.bell = Bell()
        self.tasks: dict[str, StoredTask] = {}
        self.result_ttl_s = self.failed_ttl_s = 0.0
        self._seq = itertools.count(1)
        self._keys: dict[str, str] = {}
        self._ready: dict[str, list[tuple[int, datetime, int, str]]] = {}
        self._later: list[tuple[datetime, int, str]] = []
        self._expiring: list[tuple[datetime, str]] = []
        self._ending: list[tuple[datetime, str]] = []
        self._leases: dict[str, tuple[float, str]] = {}
        self._owned: dict[str, set[str]] = {}
        self._runs: dict[str, list[Run]] = {}
        self._gone: dict[str, tuple[bytes, float]] = {}
        self._paused: set[str] = set()
        self._workers: dict[str, WorkerInfo] = {}
        self._schedules: dict[str, Schedule] = {}
        self._waiting: Counter[str] = Counter()
        self._limits: dict[str, int] = {}
        self._parcels: dict[str, bytes | None] = {}

    def now(self) -> datetime:
        return self.clock.now()

    def get(self, task_id: str) -> StoredTask | None:
        return self.tasks.get(task_id)

    # --- writing ---------------------------------------------------------------------------------

    def insert(self, task: StoredTask) -> None:
        self.put(replace(task, seq=next(self._seq)))

    def put(self, task: StoredTask) -> None:
        before = self.tasks.get(task.id)
        self.tasks[task.id] = task
        self._count(before, -1)
        self._count(task, 1)
        if before is not None and before.owner is not None and task.owner is None:
            self._leases.pop(task.id, None)
            self._owned[before.owner].discard(task.id)
            if not self._owned[before.owner]:
                del self._owned[before.owner]
        if task.unique_key is not None:
            if not task.status.final:
                self._keys[task.unique_key] = task.id
            elif self._keys.get(task.unique_key) == task.id:
                del self._keys[task.unique_key]
        if task.status is TaskStatus.PENDING:
            due_at = lifecycle.due_at(task)
            if task.eta is None:  # due whatever the clock says
                heapq.heappush(self._ready_in(task.queue), (-task.priority, due_at, task.seq, task.id))
            else:
                heapq.heappush(self._later, (due_at, task.seq, task.id))
            if task.expires_at is not None:
                heapq.heappush(self._expiring, (task.expires_at, task.id))
        elif task.finished_at is not None:
            heapq.heappush(self._ending, (self._kept_until(task, task.finished_at), task.id))

    def _kept_until(self, task: StoredTask, finished_at: datetime) -> datetime:
        keep_s = self.failed_ttl_s
        if task.status is TaskStatus.SUCCESS:
            keep_s = self.result_ttl_s if task.result_ttl is None else task.result_ttl
        return finished_at + timedelta(seconds=keep_s)

    def _count(self, task: StoredTask | None, change: int) -> None:
        if task is not None and task.status is TaskStatus.PENDING:
            self._waiting[task.queue] += change

    def hold(self, task: StoredTask, claim: Claim) -> None:
        self._count(self.tasks.get(task.id), -1)
        self.tasks[task.id] = task
        self._leases[task.id] = (self.clock.monotonic() + claim.lease, claim.claim_id)
        self._owned.setdefault(claim.worker, set()).add(task.id)

    def remove(self, task: StoredTask, remember_s: float) -> None:
        self.move_away(task)
        now = self.clock.monotonic()
        # Kept in order of forgetting, so only the oldest need a look.
        while self._gone and next(iter(self._gone.values()))[1] <= now:
            del self._gone[next(iter(self._gone))]
        self._gone.pop(task.id, None)
        self._gone[task.id] = (digest(task), now + remember_s)

    def extend(self, worker: str, lease_s: float) -> None:
        until = self.clock.monotonic() + lease_s
        for task_id in self._owned.get(worker, ()):
            self._leases[task_id] = (until, self._leases[task_id][1])

    def add_run(self, task: StoredTask, run: Run) -> None:
        self._runs[task.id] = [*self._runs.get(task.id, ()), run][-HISTORY_LIMIT:]

    def set_paused(self, queue: str, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(queue)

    def beat(self, worker: WorkerInfo) -> None:
        self._workers.pop(worker.id, None)  # the newest beat goes last
        self._workers[worker.id] = replace(worker, seen_at=self.now())

    def leave(self, worker: str) -> None:
        self._workers.pop(worker, None)

    def forget_workers(self, before: datetime) -> None:
        for worker in self.workers():
            if worker.seen_at is not None and worker.seen_at < before:
                self.leave(worker.id)

    # --- claiming --------------------------------------------------------------------------------

    def due(self, claim: Claim, limit: int, now: datetime) -> list[StoredTask]:
        self._promote(now)
        names = self._ready if claim.queues is None else dict.fromkeys(claim.queues)
        served = [name for name in names if name in self._ready and name not in self._paused]
        found: dict[str, StoredTask] = {}
        scarce_left = claim.scarce_limit
        while len(found) < limit:
            heaps = [self._ready[name] for name in served if scarce_left > 0 or name not in claim.scarce]
            heads = [heap for heap in heaps if self._clean(heap, found, now)]
            if not heads:
                break
            *_, task_id = heapq.heappop(min(heads))
            found[task_id] = self.tasks[task_id]
            scarce_left -= found[task_id].queue in claim.scarce
        return list(found.values())

    def _promote(self, now: datetime) -> None:
        while self._later and self._later[0][0] <= now:
            due_at, seq, task_id = heapq.heappop(self._later)
            if self._waits(task_id, due_at):
                task = self.tasks[task_id]
                heapq.heappush(self._ready_in(task.queue), (-task.priority, due_at, seq, task_id))

    def _ready_in(self, queue: str) -> list[tuple[int, datetime, int, str]]:
        return self._ready.setdefault(queue, [])

    def _clean(
        self, heap: list[tuple[int, datetime, int, str]], found: dict[str, StoredTask], now: datetime
    ) -> bool:
        """Drop entries that no longer stand for a due task; says whether one is left."""
        while heap:
            _, due_at, seq, task_id = heap[0]
            waits = task_id not in found and self._waits(task_id, due_at)
            if waits and (due_at <= now or self.tasks[task_id].eta is None):
                return True
            heapq.heappop(heap)
            if waits:  # the wall clock was set back, so it is due later again
                heapq.heappush(self._later, (due_at, seq, task_id))
        return False

    def _waits(self, task_id: str, due_at: datetime) -> bool:
        task = self.tasks.get(task_id)
        return task is not None and task.status is TaskStatus.PENDING and lifecycle.due_at(task) == due_at

    def due_next(self, claim: Claim, now: datetime) -> datetime | None:
        # Of any queue: being woken once for a task that is not ours costs less than looking for ours.
        while self._later and not self._waits(self._later[0][2], self._later[0][0]):
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else None

    # --- leases ----------------------------------------------------------------------------------

    def running(self, worker: str, claim_id: str | None = None) -> list[StoredTask]:
        held = [self.tasks[task_id] for task_id in self._owned.get(worker, ())]
        if claim_id is not None:
            held = [task for task in held if self._leases[task.id][1] == claim_id]
        return sorted(held, key=lambda task: (-task.priority, lifecycle.due_at(task), task.seq))

    def over(self, limit: int) -> Iterator[StoredTask]:
        now = self.clock.monotonic()
        ended = [task_id for task_id, (until, _) in self._leases.items() if until <= now]
        return iter([self.tasks[task_id] for task_id in ended[:limit]])

    def overdue(self, limit: int, now: datetime) -> list[StoredTask]:
        found: dict[str, StoredTask] = {}
        while self._expiring and self._expiring[0][0] <= now and len(found) < limit:
            _, task_id = heapq.heappop(self._expiring)
            task = self.tasks.get(task_id)
            if task is not None and task.status is TaskStatus.PENDING and lifecycle.expired(task, now):
                found[task_id] = task
        return list(found.values())

    # --- looking ---------------------------------------------------------------------------------

    def remembered(self, task_id: str) -> bytes | None:
        known = self._gone.get(task_id)
        return known[0] if known is not None and known[1] > self.clock.monotonic() else None

    def holder(self, unique_key: str) -> StoredTask | None:
        return self.tasks.get(self._keys.get(unique_key, ""))

    def runs(self, task_id: str) -> list[Run]:
        return list(self._runs.get(task_id, ()))

    def prunable(self, limit: int, now: datetime) -> list[StoredTask]:
        found: dict[str, StoredTask] = {}
        while self._ending and self._ending[0][0] <= now and len(found) < limit:
            _, task_id = heapq.heappop(self._ending)
            task = self.tasks.get(task_id)
            if task is None or task.finished_at is None:
                continue
            until = self._kept_until(task, task.finished_at)
            if until <= now:
                found[task_id] = task
            else:  # ended again since, or by a storage with another retention
                heapq.heappush(self._ending, (until, task_id))
        return list(found.values())

    def paused(self) -> set[str]:
        return set(self._paused)

    def workers(self) -> list[WorkerInfo]:
        return list(reversed(self._workers.values()))

    def select(self, wanted: TaskFilter, after: str | None, limit: int) -> list[StoredTask]:
        found = sorted((t for t in self.tasks.values() if _matches(t, wanted)), key=lambda t: -t.seq)
        if after is not None:
            last = self.must_get(after).seq
            found = [task for task in found if task.seq < last]
        return found[:limit]

    def counts(self) -> dict[str, dict[TaskStatus, int]]:
        counted: dict[str, dict[TaskStatus, int]] = {}
        for task in self.tasks.values():
            per_status = counted.setdefault(task.queue, dict.fromkeys(TaskStatus, 0))
            per_status[task.status] += 1
        return counted

    def rates(self, since: datetime) -> Rates:
        ended = [t.status for t in self.tasks.values() if t.finished_at is not None and t.finished_at > since]
        enqueued = sum(t.enqueued_at is not None and t.enqueued_at > since for t in self.tasks.values())
        return Rates(
            enqueued,
            ended.count(TaskStatus.SUCCESS),
            ended.count(TaskStatus.FAILED),
            ended.count(TaskStatus.CANCELLED),
            (self.now() - since).total_seconds(),
        )

    def ended(self, ids: Sequence[str]) -> set[str]:
        return {i for i in ids if i not in self.tasks or self.tasks[i].result_status is not None}

    # --- schedules -------------------------------------------------------------------------------

    def schedule(self, name: str) -> Schedule | None:
        return self._schedules.get(name)

    def schedules(self) -> list[Schedule]:
        return [self._schedules[name] for name in sorted(self._schedules)]

    def schedules_due(self, now: datetime, limit: int) -> list[Schedule]:
        due = [(one.next_at, one.name) for one in self._schedules.values() if one.next_at is not None]
        return [self._schedules[name] for at, name in heapq.nsmallest(limit, due) if at <= now]

    def next_tick(self) -> datetime | None:
        return min((one.next_at for one in self._schedules.values() if one.next_at), default=None)

    def put_schedule(self, schedule: Schedule) -> None:
        self._schedules[schedule.name] = schedule

    def drop_schedule(self, name: str) -> bool:
        return self._schedules.pop(name, None) is not None

    # --- limits and parcels ----------------------------------------------------------------------

    def limits(self) -> dict[str, int]:
        return dict(self._limits)

    def put_limit(self, queue: str, max_depth: int | None) -> None:
        self._limits.pop(queue, None)
        if max_depth is not None:
            self._limits[queue] = max_depth

    def depth(self, queue: str, most: int) -> int:
        return min(most, self._waiting[queue])

    def movable(self, limit: int) -> Iterator[StoredTask]:
        waiting = [task for task in self.tasks.values() if task.status is TaskStatus.PENDING]
        ended = [task for task in self.tasks.values() if task.status.final]
        waiting.sort(key=lambda task: (task.queue, -task.priority, lifecycle.due_at(task), task.seq))
        ended.sort(key=lambda task: (task.finished_at or self.now(), task.seq))
        return iter([*waiting, *ended][:limit])

    def move_away(self, task: StoredTask) -> None:
        self._count(task, -1)
        del self.tasks[task.id]
        self._runs.pop(task.id, None)
        if task.unique_key is not None and self._keys.get(task.unique_key) == task.id:
            del self._keys[task.unique_key]

    def outgoing(self) -> bytes | None:
        return next((body for body in self._parcels.values() if body is not None), None)

    def keep_parcel(self, parcel_id: str, body: bytes | None) -> None:
        self._parcels[parcel_id] = body

    def has_receipt(self, parcel_id: str) -> bool:
        return parcel_id in self._parcels and self._parcels[parcel_id] is None

    def drop_parcel(self, parcel_id: str) -> None:
        if self._parcels.get(parcel_id) is not None:
            del self._parcels[parcel_id]

    def verify(self) -> list[str]:
        wrong: list[str] = []
        for task in self.tasks.values():
            running = task.status is TaskStatus.RUNNING
            if running != (task.owner is not None) or running != (task.id in self._leases):
                wrong.append(f"{task.id} is {task.status} but owner or lease say otherwise")
            if task.status.final != (task.finished_at is not None):
                wrong.append(f"{task.id} is {task.status} but finished_at is {task.finished_at}")
            epochs = [run.epoch for run in self._runs.get(task.id, ())]
            if len(epochs) != len(set(epochs)):
                wrong.append(f"{task.id} has two closing outcomes for one epoch")
        return wrong


def _matches(task: StoredTask, wanted: TaskFilter) -> bool:
    return (
        wanted.status in (None, task.status)
        and wanted.queue in (None, task.queue)
        and wanted.func_path in (None, task.func_path)
        and wanted.unique_key in (None, task.unique_key)
        and (
            wanted.finished_before is None
            or (task.finished_at is not None and task.finished_at < wanted.finished_before)
        )
    )


class MemoryStorage(EmbeddedStorage):
    """Tasks in memory. Clones share them, in this process only."""

    capabilities: ClassVar[Capabilities] = Capabilities(batched=True, leases=True, wakes=True, here=True)

    def __init__(self, *, clock: Clock = REAL_CLOCK, _rows: MemoryRows | None = None) -> None:
        super().__init__()
        self.clock = clock
        self._rows = _rows or MemoryRows(clock)

    def clone(self) -> MemoryStorage:
        twin = MemoryStorage(clock=self.clock, _rows=self._rows)
        self._give_settings(twin)
        return twin

    async def _connect(self) -> None:
        self._listen()

    async def _disconnect(self) -> None:
        await self._stop_listening()

    def _bell(self) -> Bell:
        return self._rows.bell

    async def _write(self, job: Callable[[Rows], T]) -> T:
        return self._write_here(job)

    def _write_here(self, job: Callable[[Rows], T], tasks: list[StoredTask] | None = None) -> T:
        rows = self._rows
        with rows.lock:
            rows.result_ttl_s, rows.failed_ttl_s = self.result_ttl_s, self.failed_ttl_s
            rows.rang_due = rows.rang_result = False
            answer = job(rows)
            due, result = rows.rang_due, rows.rang_result
        if due or result:
            rows.bell.ring(due=due, result=result)
        return answer

    async def _read(self, job: Callable[[Rows], T]) -> T:
        with self._rows.lock:
            return job(self._rows)
