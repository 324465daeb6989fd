"""A store in this process's memory: for tests, for trying things out, for work that may be lost.

It is no mock: it keeps the whole contract except durability, and passes the same conformance suite.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, Final, TypeVar

from omniq.clock import REAL_CLOCK, Clock
from omniq.logic import lifecycle
from omniq.schedule import Schedule
from omniq.storage.base import Capabilities
from omniq.storage.batched import HISTORY_LIMIT
from omniq.storage.embedded import EmbeddedStorage
from omniq.storage.ringing import Bell
from omniq.storage.rows import Rows, digest
from omniq.storage.tallying import COLUMNS, FIRST_MINUTE, minute_of, miscounted
from omniq.task import (
    Claim,
    Head,
    Run,
    StoredTask,
    Tally,
    TaskFilter,
    TaskStatus,
    Timing,
    WorkerInfo,
    replace,
)

T = TypeVar("T")
# One page looks at so many tasks at most; so many of one status are sorted rather than looked for.
LOOK: Final = 20_000
SORTED: Final = 5_000
# Entries of removed tasks that may stay in the order of enqueueing.
LEFTOVERS: Final = 1_000


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
        self._ready: dict[tuple[str, int], list[tuple[int, datetime, int, str]]] = {}
        self._order: list[tuple[int, str]] = []  # by seq; what was removed stays for a while
        self._in_status: dict[TaskStatus, dict[str, None]] = {status: {} for status in TaskStatus}
        self._tallies: dict[tuple[datetime, str], list[int]] = {}
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
        self._outgoing: dict[str, bytes] = {}
        self._receipts: dict[str, datetime] = {}  # of the parcels that came in, and when

    def now(self) -> datetime:
        return self.clock.now()

    def get(self, task_id: str) -> StoredTask | None:
        return self.tasks.get(task_id)

    # --- writing ---------------------------------------------------------------------------------

    def insert(self, task: StoredTask) -> None:
        arrived = replace(task, seq=next(self._seq))
        self._order.append((arrived.seq, arrived.id))
        self.put(arrived)

    def _note(self, before: StoredTask | None, after: StoredTask) -> None:
        was = None if before is None else before.status
        if was is not after.status:
            if was is not None:
                del self._in_status[was][after.id]
            self._in_status[after.status][after.id] = None
            self._tell(after.queue, was, after.status)

    def _tell(self, queue: str, before: TaskStatus | None, after: TaskStatus | None) -> None:
        self.changes.move(queue, before, after)
        self._waiting[queue] += (after is TaskStatus.PENDING) - (before is TaskStatus.PENDING)

    def put(self, task: StoredTask) -> None:
        before = self.tasks.get(task.id)
        self._note(before, task)
        self.tasks[task.id] = task
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
            waited = before is not None and before.status is TaskStatus.PENDING
            if waited and before is not None and lifecycle.due_at(before) == due_at:
                return  # its entries stand already
            if task.eta is None:  # due whatever the clock says
                heapq.heappush(self._ready_in(task), (-task.priority, due_at, task.seq, task.id))
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

    def hold(self, task: StoredTask, claim: Claim) -> None:
        self._note(self.tasks[task.id], task)
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
        served = [
            (queue, heap)
            for (queue, _), heap in self._ready.items()
            if queue not in self._paused and (claim.queues is None or queue in claim.queues)
        ]
        found: dict[str, StoredTask] = {}
        scarce_left = claim.scarce_limit
        while len(found) < limit:
            heaps = [heap for queue, heap in served if scarce_left > 0 or queue not in claim.scarce]
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
                heapq.heappush(self._ready_in(task), (-task.priority, due_at, seq, task_id))

    def _ready_in(self, task: StoredTask) -> list[tuple[int, datetime, int, str]]:
        return self._ready.setdefault((task.queue, task.priority), [])

    def _clean(
        self, heap: list[tuple[int, datetime, int, str]], found: dict[str, StoredTask], now: datetime
    ) -> bool:
        """Drop entries that no longer stand for a due task; says whether one is left."""
        while heap:
            _, due_at, seq, task_id = heap[0]
            waits = task_id not in found and self._waits(task_id, due_at)
            if waits and lifecycle.is_due(self.tasks[task_id], now):
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

    def select(
        self, wanted: TaskFilter, after: str | None, limit: int
    ) -> tuple[list[StoredTask], str | None]:
        last = None if after is None else self.must_get(after).seq
        candidates, behind = self._candidates(wanted, last)
        found = list(itertools.islice((t for t in candidates if wanted.matches(t, t.func_path)), limit))
        return found, found[-1].id if len(found) == limit else behind

    def _candidates(self, wanted: TaskFilter, last: int | None) -> tuple[Iterator[StoredTask], str | None]:
        """Tasks enqueued before `last`, newest first, and where they end without being all."""
        few = None if wanted.status is None else self._in_status[wanted.status]
        if few is not None and len(few) <= SORTED:
            tasks = sorted((self.tasks[task_id] for task_id in few), key=lambda task: -task.seq)
            return (task for task in tasks if last is None or task.seq < last), None
        end = len(self._order) if last is None else bisect.bisect_left(self._order, (last, ""))
        there: list[StoredTask] = []
        while end and not there:  # where nothing but removed ones is left, look on
            begin = max(0, end - LOOK)
            there = [self.tasks[one] for _, one in reversed(self._order[begin:end]) if one in self.tasks]
            end = begin
        return iter(there), there[-1].id if end else None

    def longest_running(self, limit: int) -> list[StoredTask]:
        running = (self.tasks[task_id] for task_id in self._in_status[TaskStatus.RUNNING])
        return heapq.nsmallest(limit, running, key=lambda task: (task.started_at or self.now(), task.seq))

    def tallies(self) -> list[Tally]:
        return [Tally(queue, minute, *numbers) for (minute, queue), numbers in self._tallies.items()]

    def fold_tallies(self, before: datetime) -> None:
        for minute, queue in [key for key in self._tallies if FIRST_MINUTE < key[0] < before]:
            self._add_to_tally(FIRST_MINUTE, queue, self._tallies.pop((minute, queue)))

    def write_tallies(self) -> None:
        minute = minute_of(self.now())
        for queue, numbers in self.changes.by_queue.items():
            self._add_to_tally(minute, queue, numbers)
        self.changes.clear()

    def _add_to_tally(self, minute: datetime, queue: str, numbers: list[int]) -> None:
        before = self._tallies.get((minute, queue), [0] * len(COLUMNS))
        self._tallies[minute, queue] = [a + b for a, b in zip(before, numbers, strict=True)]

    def heads(self) -> list[Head]:
        now = self.now()
        self._promote(now)
        tops = [heap[0][3] for heap in self._ready.values() if self._clean(heap, {}, now)]
        due = [self.tasks[task_id] for task_id in tops]
        return [Head(t.queue, t.priority, t.id, t.func_path, lifecycle.due_at(t)) for t in due]

    def timings(self, limit: int) -> list[Timing]:
        newest = itertools.islice(reversed(self._in_status[TaskStatus.SUCCESS]), limit)
        return [timing for task_id in newest if (timing := lifecycle.timing(self.tasks[task_id]))]

    def ahead(self, task_id: str, most: int) -> int:
        self._promote(self.now())
        task = self.must_get(task_id)
        if task.status is not TaskStatus.PENDING:
            return 0
        mine = (-task.priority, lifecycle.due_at(task), task.seq, task.id)
        counted = 0
        for (queue, priority), heap in self._ready.items():
            if queue == task.queue and priority >= task.priority:
                counted += self._before(heap, mine, most - counted)
        return counted

    def _before(
        self,
        heap: list[tuple[int, datetime, int, str]],
        mine: tuple[int, datetime, int, str],
        most: int,
    ) -> int:
        """What stands before `mine`: below an entry of a heap that does not, nothing does."""
        counted, look_at = 0, [0]
        while look_at and counted < most:
            at = look_at.pop()
            if at < len(heap) and heap[at] < mine:
                counted += self._waits(heap[at][3], heap[at][1])
                look_at += (2 * at + 1, 2 * at + 2)
        return counted

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
        del self.tasks[task.id]
        del self._in_status[task.status][task.id]
        self._tell(task.queue, task.status, None)
        if len(self._order) > 2 * len(self.tasks) + LEFTOVERS:
            self._order = [entry for entry in self._order if entry[1] in self.tasks]
        self._runs.pop(task.id, None)
        if task.unique_key is not None and self._keys.get(task.unique_key) == task.id:
            del self._keys[task.unique_key]

    def outgoing(self) -> bytes | None:
        return next(iter(self._outgoing.values()), None)

    def keep_parcel(self, parcel_id: str, body: bytes | None) -> None:
        if body is None:
            self._receipts[parcel_id] = self.now()
        else:
            self._outgoing[parcel_id] = body

    def has_receipt(self, parcel_id: str) -> bool:
        return parcel_id in self._receipts

    def forget_receipts(self, before: datetime) -> None:
        for parcel_id in [one for one, at in self._receipts.items() if at < before]:
            del self._receipts[parcel_id]

    def drop_parcel(self, parcel_id: str) -> None:
        self._outgoing.pop(parcel_id, None)

    def verify(self) -> list[str]:
        wrong: list[str] = []
        for task in self.tasks.values():
            running = task.status is TaskStatus.RUNNING
            if running != (task.owner is not None) or running != (task.id in self._leases):
                wrong.append(f"{task.id} is {task.status} but owner or lease say otherwise")
            if task.id not in self._in_status[task.status]:
                wrong.append(f"{task.id} is {task.status} but is not among those")
            if task.status.final != (task.finished_at is not None):
                wrong.append(f"{task.id} is {task.status} but finished_at is {task.finished_at}")
            epochs = [run.epoch for run in self._runs.get(task.id, ())]
            if len(epochs) != len(set(epochs)):
                wrong.append(f"{task.id} has two closing outcomes for one epoch")
        return wrong + miscounted(self.tallies(), Counter((t.queue, t.status) for t in self.tasks.values()))


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
            try:
                answer = job(rows)
            finally:
                rows.write_tallies()
            due, result = rows.rang_due, rows.rang_result
        if due or result:
            rows.bell.ring(due=due, result=result)
        return answer

    async def _read(self, job: Callable[[Rows], T]) -> T:
        with self._rows.lock:
            return job(self._rows)
