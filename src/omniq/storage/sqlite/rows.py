"""The rows of a SQLite file: what every store must bring, and the verbs that must be faster than usual.

A `SQLiteRows` works on one connection, inside a transaction that its caller begins and ends.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from loguru import logger

from omniq.clock import Clock
from omniq.errors import CorruptRecord
from omniq.logic import lifecycle
from omniq.storage.batched import HISTORY_LIMIT
from omniq.storage.rows import digest
from omniq.storage.sqlite import looking
from omniq.storage.sqlite.beside import Beside
from omniq.storage.sqlite.claiming import Head, first_due, heads
from omniq.storage.sqlite.moving import MovingRows
from omniq.storage.sqlite.records import (
    CLAIM,
    EPOCH,
    FIRST_MICROS,
    INSERT,
    LAST_MICROS,
    NUMBERS,
    PUT,
    ROW_BYTES,
    SELECT,
    SETTLED_AT_ONCE,
    STATUSES,
    SUCCEED,
    Retention,
    maybe_micros,
    micros,
    moment_of,
    read_run,
    read_task,
    read_waiting,
    read_worker,
    record_of,
    to_json,
)
from omniq.storage.tallying import miscounted
from omniq.task import (
    TOP_PRIORITY,
    Action,
    Answer,
    Claim,
    Enqueued,
    Held,
    OnConflict,
    Run,
    Settlement,
    StoredTask,
    Tally,
    Task,
    TaskError,
    TaskFilter,
    TaskStatus,
    Timing,
    WorkerInfo,
    replace,
)
from omniq.task import Head as TaskHead

# Another process may have enqueued a little later than our latest look at the clock, before it was set back.
AHEAD_MICROS: Final = 60_000_000
NEWEST_ROWS: Final = 100
FINAL_NUMBERS: Final = tuple(NUMBERS[status] for status in TaskStatus if status.final)


def _seq(task: StoredTask | Task | Held) -> int:
    return 0 if isinstance(task, Task) else task.seq


def _plain_successes(settlements: Sequence[Settlement]) -> list[Any]:
    """Seq, id, epoch and result of each that touches nothing but its own row, one after the other."""
    values: list[Any] = []
    for one in settlements:
        task, result = one.task, one.result
        if one.action is Action.SUCCEED and result is not None and len(result) <= ROW_BYTES:
            seq = task.seq if type(task) is StoredTask else _seq(task)
            if seq > 0:
                values += (seq, task.id, task.epoch, result)
    return values


def _nonsense(head: Head) -> CorruptRecord:
    return CorruptRecord(f"the record with seq {head.seq} has no queue, priority or moment that makes sense")


def _status(number: Any) -> TaskStatus | None:
    """A column of SQLite holds anything."""
    return STATUSES[number] if type(number) is int and 0 <= number < len(STATUSES) else None


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


class SQLiteRows(MovingRows):
    """Rows over one connection. `boot` is this machine's number in `omniq_boot`."""

    def __init__(self, conn: sqlite3.Connection, clock: Clock, beside: Beside, boot: int) -> None:
        super().__init__()
        self.conn = conn
        self.clock = clock
        self.beside = beside
        self.boot = boot
        self.retention = Retention(0.0, 0.0)
        self._reported: set[str] = set()
        self._heads: list[Head] | None = None  # what a claim that found nothing has seen
        self._latest = EPOCH  # the latest moment that the wall clock has shown here

    def now(self) -> datetime:
        now = self.clock.now()
        self._latest = max(self._latest, now)
        return now

    def _tasks(self, sql: str, parameters: Iterable[Any] = ()) -> list[StoredTask]:
        return self._readable(self.conn.execute(SELECT + sql, tuple(parameters)).fetchall())

    def _readable(self, rows: Iterable[tuple[Any, ...]]) -> list[StoredTask]:
        """The tasks that can be read; the others are named once in the log."""
        tasks: list[StoredTask] = []
        for row in rows:
            try:
                tasks.append(read_task(row))
            except CorruptRecord as corrupt:
                self._report(corrupt)
        return tasks

    def _report(self, corrupt: CorruptRecord) -> None:
        if str(corrupt) not in self._reported:
            self._reported.add(str(corrupt))
            logger.error("passed over: {}", corrupt)

    def _names(self, sql: str, parameters: Iterable[Any] = ()) -> list[str]:
        """A column of text; what is none is named once in the log."""
        names: list[str] = []
        for (name,) in self.conn.execute(sql, tuple(parameters)):
            if type(name) is str:
                names.append(name)
            else:
                self._report(CorruptRecord(f"{name!a:.80} is no name, found by {sql}"))
        return names

    def _one(self, sql: str, parameters: Iterable[Any] = ()) -> Any:
        row = self.conn.execute(sql, tuple(parameters)).fetchone()
        return None if row is None else row[0]

    # --- writing ---------------------------------------------------------------------------------

    def enqueue_many(self, tasks: Sequence[StoredTask], on_conflict: OnConflict) -> list[Enqueued]:
        """All at once where no id and no key is known yet; otherwise by the general way."""
        if self.insert_new(tasks):
            return [Enqueued(task.id, created=True) for task in tasks]
        return super().enqueue_many(tasks, on_conflict)

    def insert_new(self, tasks: Sequence[StoredTask]) -> bool:
        """Insert all of `tasks` if every id and key is new; otherwise leave everything as it was."""
        now = self.now()
        if self._one("SELECT 1 FROM omniq_gone LIMIT 1") is not None and self._any_remembered(tasks, now):
            return False
        if not self.limits().keys().isdisjoint(task.queue for task in tasks):
            return False
        if not self._insert_all([lifecycle.arrive(task, now) for task in tasks]):
            return False
        self.rang_due = True
        return True

    def _any_remembered(self, tasks: Sequence[StoredTask], now: datetime) -> bool:
        ids = to_json.encode([str(task.id) for task in tasks]).decode()
        known = "SELECT 1 FROM omniq_gone WHERE id IN (SELECT value FROM json_each(?)) AND until > ? LIMIT 1"
        return self._one(known, (ids, micros(now))) is not None

    def insert(self, task: StoredTask) -> None:
        if not self._insert_all([task]):
            raise CorruptRecord(
                f"unique key {task.unique_key!a} is held by a record that cannot be read; try `omniq doctor`"
            )

    def _insert_all(self, tasks: Sequence[StoredTask]) -> bool:
        first = (self._one("SELECT max(seq) FROM omniq_task") or 0) + 1
        records = [(seq, task.id, *record_of(task, self.retention)) for seq, task in enumerate(tasks, first)]
        if self.conn.executemany(INSERT, records).rowcount != len(tasks):
            # Numbers from `first` on are ours alone. A savepoint would copy every page it touches.
            self.conn.execute("DELETE FROM omniq_task WHERE seq >= ?", (first,))
            return False
        large = [(n, t.payload) for n, t in enumerate(tasks, first) if len(t.payload) > ROW_BYTES]
        if large:
            self.conn.executemany("INSERT INTO omniq_body (seq, payload) VALUES (?, ?)", large)
        for status in {task.status for task in tasks}:
            self._moved((task.queue for task in tasks if task.status is status), None, status)
        return True

    def _moved(self, queues: Iterable[str], before: TaskStatus | None, after: TaskStatus | None) -> None:
        for queue, many in Counter(queues).items():
            self.changes.move(queue, before, after, many)

    def _leave(self, seq: int, after: TaskStatus | None) -> None:
        """Note that a row, whatever it is now, goes to another status."""
        found = self.conn.execute("SELECT queue, status FROM omniq_task WHERE seq = ?", (seq,)).fetchone()
        if found is None:
            return
        queue, status = found
        if type(queue) is str and (before := _status(status)) is not None:
            self.changes.move(queue, before, after)

    def write_tallies(self) -> None:
        """As the last thing of a transaction."""
        minute = looking.minute_number(micros(self.now()))
        for queue, numbers in self.changes.by_queue.items():
            self.conn.execute(looking.ADD_TO_TALLY, (minute, queue, *numbers))
        self.changes.clear()

    def put(self, task: StoredTask) -> None:
        self._leave(task.seq, task.status)
        self.conn.execute(PUT, (*record_of(task, self.retention), task.seq))
        if task.status is not TaskStatus.RUNNING:
            self.conn.execute(
                "UPDATE omniq_task SET lease = NULL, boot = NULL, claim_id = NULL WHERE seq = ?", (task.seq,)
            )
        self._put_beside("omniq_body", "payload", task.seq, task.payload)
        self._put_beside("omniq_result", "result", task.seq, task.result)

    def _put_beside(self, table: str, column: str, seq: int, data: bytes | None) -> None:
        if data is not None and len(data) > ROW_BYTES:
            self.conn.execute(f"INSERT OR REPLACE INTO {table} (seq, {column}) VALUES (?, ?)", (seq, data))  # noqa: S608
        else:
            self.conn.execute(f"DELETE FROM {table} WHERE seq = ?", (seq,))  # noqa: S608

    def settle_all(self, settlements: Sequence[Settlement], now: datetime) -> list[Answer]:
        """Plain successes many at once; everything else, and what does not hold, one by one."""
        if len({one.task.id for one in settlements}) < len(settlements):
            return super().settle_all(
                settlements, now
            )  # somebody says two things of one task: in order, then
        held = self._succeed(_plain_successes(settlements), now)
        if len(held) == len(settlements):
            return [Answer.HELD] * len(settlements)
        return [
            Answer.HELD if (one.task.id, one.task.epoch) in held else self.settle_readable(one, now)
            for one in settlements
        ]

    def _succeed(self, values: list[Any], now: datetime) -> set[tuple[str, int]]:
        """T4 for all of these whose epoch still holds; id and epoch of those."""
        at = micros(now)
        times = (at, at, at, round(self.retention.result_s * 1_000_000))
        held: set[tuple[str, int]] = set()
        first, end = 0, len(values)
        for size in SETTLED_AT_ONCE:
            while (last := first + 4 * size) <= end:
                ended = self.conn.execute(SUCCEED[size], (*times, *values[first:last])).fetchall()
                held.update((task_id, epoch) for task_id, epoch, _ in ended)
                queues = (queue for _, _, queue in ended if type(queue) is str)
                self._moved(queues, TaskStatus.RUNNING, TaskStatus.SUCCESS)
                first = last
        if held:
            self.rang_result = True
        return held

    def _claim_or_expire(self, batch: list[StoredTask], claim: Claim, now: datetime) -> list[StoredTask]:
        if any(task.expires_at is not None and lifecycle.expired(task, now) for task in batch):
            # What expires is written back whole, so it must be read whole.
            return super()._claim_or_expire(self._whole(batch, now), claim, now)
        self._hold(batch, claim, now)
        return [lifecycle.claim(task, claim.worker, now, claim.isolates) for task in batch]

    def _whole(self, tasks: list[StoredTask], now: datetime) -> list[StoredTask]:
        whole: list[StoredTask] = []
        for task in tasks:
            try:
                whole.append(self.must_get(task.id))
            except CorruptRecord as corrupt:
                self._quarantine(task.seq, corrupt, now)
        return whole

    def hold(self, task: StoredTask, claim: Claim) -> None:
        self._hold([task], claim, task.started_at or self.now())

    def _hold(self, tasks: list[StoredTask], claim: Claim, now: datetime) -> None:
        if tasks:
            seqs = [task.seq for task in tasks]
            self._moved((task.queue for task in tasks), TaskStatus.PENDING, TaskStatus.RUNNING)
            lease = self._lease_until(claim.lease)
            values = (claim.worker, lease, self.boot, claim.claim_id, micros(now), claim.isolates, str(seqs))
            self.conn.execute(CLAIM, values)

    def _lease_until(self, lease_s: float) -> int:
        return round((self.clock.monotonic() + lease_s) * 1_000_000)

    def remove(self, task: StoredTask, remember_s: float) -> None:
        self._forget(task.seq)
        now = micros(self.now())
        self.conn.execute("DELETE FROM omniq_gone WHERE until <= ?", (now,))
        # Only an enqueue that could still be repeated needs to be remembered.
        if task.enqueued_at is not None and micros(task.enqueued_at) + remember_s * 1_000_000 > now:
            self.conn.execute(
                "INSERT OR REPLACE INTO omniq_gone (id, digest, until) VALUES (?, ?, ?)",
                (task.id, digest(task), now + round(remember_s * 1_000_000)),
            )

    def _forget(self, seq: int) -> None:
        self._leave(seq, None)
        for table in ("omniq_task", "omniq_body", "omniq_result", "omniq_run"):
            self.conn.execute(f"DELETE FROM {table} WHERE seq = ?", (seq,))  # noqa: S608

    def extend(self, worker: str, lease_s: float) -> None:
        self.conn.execute(
            "UPDATE omniq_task SET lease = ?, boot = ? WHERE status = 1 AND owner = ?",
            (self._lease_until(lease_s), self.boot, worker),
        )

    def add_run(self, task: StoredTask, run: Run) -> None:
        self.conn.execute(
            "INSERT INTO omniq_run (seq, epoch, owner, started_at, finished_at, outcome, error) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                task.seq,
                run.epoch,
                run.owner,
                maybe_micros(run.started_at),
                maybe_micros(run.finished_at),
                run.outcome.value,
                None if run.error is None else to_json.encode(run.error).decode(),
            ),
        )
        self.conn.execute(
            "DELETE FROM omniq_run WHERE seq = ? AND epoch <= "
            "(SELECT epoch FROM omniq_run WHERE seq = ? ORDER BY epoch DESC LIMIT 1 OFFSET ?)",
            (task.seq, task.seq, HISTORY_LIMIT),
        )

    def set_paused(self, queue: str, paused: bool) -> None:
        change = "INSERT OR IGNORE INTO omniq_paused (queue) VALUES (?)"
        self.conn.execute(change if paused else "DELETE FROM omniq_paused WHERE queue = ?", (queue,))

    def beat(self, worker: WorkerInfo) -> None:
        now = self.now()
        self.beside.hold(worker.id)
        self.conn.execute(
            "INSERT OR REPLACE INTO omniq_worker (id, info, seen_at) VALUES (?, ?, ?)",
            (worker.id, to_json.encode(replace(worker, seen_at=now)), micros(now)),
        )

    def leave(self, worker: str) -> None:
        self.conn.execute("DELETE FROM omniq_worker WHERE id = ?", (worker,))
        self.beside.let_go(worker)
        if self.beside.is_dead(worker):  # somebody says it for a worker that no longer can
            self.beside.bury(worker)

    def forget_workers(self, before: datetime) -> None:
        at = micros(before)
        for worker in self._names("SELECT id FROM omniq_worker WHERE seen_at < ?", (at,)):
            self.leave(worker)
        # What has no name that could be said, or no moment that could be compared, goes all the same.
        self.conn.execute("DELETE FROM omniq_worker WHERE seen_at < ? OR typeof(seen_at) <> 'integer'", (at,))

    # --- claiming --------------------------------------------------------------------------------

    def due(self, claim: Claim, limit: int, now: datetime) -> list[StoredTask]:
        self._heads = []
        found = self._due_in(claim.queues, self._passed_over(claim), limit, now)
        if claim.scarce and claim.scarce_limit > 0:
            scarce = [name for name in claim.scarce if claim.queues is None or name in claim.queues]
            found += self._due_in(scarce, self.paused(), min(limit, claim.scarce_limit), now)
            found.sort(key=lambda task: (-task.priority, lifecycle.due_at(task), task.seq))
        if found:  # they are claimed next, and others come first then
            self._heads = None
        return found[:limit]

    def _passed_over(self, claim: Claim) -> set[str]:
        return self.paused().union(claim.scarce)

    def _due_in(
        self, queues: Sequence[str] | None, passed_over: set[str], limit: int, now: datetime
    ) -> list[StoredTask]:
        at, horizon = micros(now), self._horizon(now)
        while True:
            waiting = heads(self.conn, queues, passed_over)
            nonsense = [(head.seq, _nonsense(head)) for head in waiting if not head.makes_sense]
            found: list[StoredTask] = []
            for row in () if nonsense else first_due(self.conn, waiting, at, horizon, limit):
                try:
                    found.append(read_waiting(row))
                except CorruptRecord as corrupt:
                    nonsense.append((row[0], corrupt))
            if not nonsense:
                if self._heads is not None:
                    self._heads += waiting
                return found
            for seq, why in nonsense:
                self._quarantine(seq, why, now)

    def _horizon(self, now: datetime) -> int:
        """Up to where tasks may lie that were enqueued before the wall clock was set back; usually now."""
        return micros(now) if now >= self._latest else micros(self._latest) + AHEAD_MICROS

    def look_at_newest(self) -> None:
        """What the clock showed to others, before this process was there."""
        newest = self._one(
            "SELECT max(enqueued_at) FROM (SELECT enqueued_at FROM omniq_task ORDER BY seq DESC LIMIT ?)",
            (NEWEST_ROWS,),
        )
        if type(newest) is int and FIRST_MICROS <= newest <= LAST_MICROS:
            self._latest = max(self._latest, moment_of(newest))

    def _quarantine(self, seq: int, corrupt: CorruptRecord, now: datetime) -> None:
        """A record that cannot be read must not stand in everybody's way: it fails, its bytes stay."""
        logger.error("failed: {}", corrupt)
        error = to_json.encode(TaskError("CorruptRecord", str(corrupt), "", "undecodable")).decode()
        at = micros(now)
        self._leave(seq, TaskStatus.FAILED)
        self.conn.execute(
            "UPDATE omniq_task SET status = 3, error = ?, finished_at = ?, result_status = 3, "
            "result_at = ?, prune_at = ?, owner = NULL, lease = NULL, boot = NULL, claim_id = NULL, "
            "isolates = 0, cancel_requested = 0 WHERE seq = ?",
            (error, at, at, at + round(self.retention.failed_s * 1_000_000), seq),
        )

    def due_next(self, claim: Claim, now: datetime) -> datetime | None:
        """Asked when everything due was handed out: whatever is first now is due later."""
        at, waiting, self._heads = micros(now), self._heads, None
        if waiting is None:
            passed_over = self._passed_over(claim) if claim.scarce_limit <= 0 else self.paused()
            waiting = heads(self.conn, claim.queues, passed_over)
        later = [head.due for head in waiting if head.makes_sense and head.due > at]
        return moment_of(min(later)) if later else None

    # --- leases ----------------------------------------------------------------------------------

    def running(self, worker: str, claim_id: str | None = None) -> list[StoredTask]:
        condition = "WHERE status = 1 AND owner = ?"
        if claim_id is None:
            return self._tasks(condition, (worker,))
        return self._tasks(
            condition + " AND claim_id = ? ORDER BY priority DESC, due, seq", (worker, claim_id)
        )

    def held(self, worker: str) -> list[Held]:
        """Asked twice a second, so without the payloads."""
        rows = self.conn.execute(
            "SELECT id, epoch, cancel_requested, seq FROM omniq_task WHERE status = 1 AND owner = ?",
            (worker,),
        )
        # What makes no sense runs out of its lease, and is put aside then.
        return [
            Held(task_id, epoch, bool(cancel), seq)
            for task_id, epoch, cancel, seq in rows
            if type(task_id) is str and type(epoch) is int
        ]

    def anything_over(self) -> bool:
        """Whether `lapse` would find something: a look that needs no write lock."""
        now = micros(self.now())
        if self._one("SELECT 1 FROM omniq_task WHERE status = 0 AND expires_at <= ? LIMIT 1", (now,)):
            return True
        if self._dead():
            return True
        return bool(self._over_seqs(1))

    def lapse(self, limit: int) -> int:
        """As everywhere; and who is dead and holds nothing any more is forgotten."""
        dead = self._dead()
        ended = super().lapse(limit)
        for owner in dead:
            if not self._one("SELECT 1 FROM omniq_task WHERE status = 1 AND owner = ? LIMIT 1", (owner,)):
                self.conn.execute("DELETE FROM omniq_worker WHERE id = ?", (owner,))
                self.beside.bury(owner)
        return ended

    def over(self, limit: int) -> Iterator[StoredTask]:
        found = 0
        for seq in self._over_seqs(limit + len(self._reported)):
            row = self.conn.execute(SELECT + "WHERE seq = ?", (seq,)).fetchone()
            try:
                yield read_task(row)
                found += 1
            except CorruptRecord as corrupt:
                self._quarantine(seq, corrupt, self.now())
            if found == limit:
                return

    def _over_seqs(self, limit: int) -> list[int]:
        """Whose lease is over by this machine's clock, and what belongs to the dead."""
        now = round(self.clock.monotonic() * 1_000_000)
        dead = self._dead()
        # Another boot's lease counts in another clock: only the lock file can tell.
        held = [owner for owner in self._owners() if self.beside.is_held(owner)]
        rows = self.conn.execute(
            "SELECT seq FROM omniq_task WHERE status = 1 AND ((boot = ? AND lease <= ?) "  # noqa: S608
            f"OR typeof(lease) <> 'integer' OR typeof(boot) <> 'integer' OR owner IN ({_marks(dead)}) "
            f"OR (boot <> ? AND coalesce(owner, '') NOT IN ({_marks(held)}))) LIMIT ?",
            (self.boot, now, *dead, self.boot, *held, limit),
        )
        return [seq for (seq,) in rows]

    def _dead(self) -> list[str]:
        """Workers whose lock file nobody holds: those with tasks, and those that died idle."""
        known = self._names("SELECT id FROM omniq_worker")
        return [name for name in dict.fromkeys((*self._owners(), *known)) if self.beside.is_dead(name)]

    def _owners(self) -> list[str]:
        return self._names("SELECT DISTINCT owner FROM omniq_task WHERE status = 1")

    def overdue(self, limit: int, now: datetime) -> list[StoredTask]:
        expired = "WHERE status = 0 AND expires_at <= ? ORDER BY expires_at LIMIT ?"
        found: list[StoredTask] = []
        for row in self.conn.execute(SELECT + expired, (micros(now), limit)).fetchall():
            try:
                found.append(read_task(row))
            except CorruptRecord as corrupt:  # passed over, it would be found again twice a second
                self._quarantine(row[0], corrupt, now)
        return found

    # --- looking ---------------------------------------------------------------------------------

    def get(self, task_id: str) -> StoredTask | None:
        try:
            row = self.conn.execute(SELECT + "WHERE id = ?", (task_id,)).fetchone()
        except UnicodeEncodeError:  # a lone surrogate: nothing stored can have that name
            return None
        return None if row is None else read_task(row)

    def remembered(self, task_id: str) -> bytes | None:
        now = micros(self.now())
        known = self._one("SELECT digest FROM omniq_gone WHERE id = ? AND until > ?", (task_id, now))
        assert known is None or isinstance(known, bytes)
        return known

    def holder(self, unique_key: str) -> StoredTask | None:
        held = self._tasks("WHERE unique_key = ? AND unique_key IS NOT NULL AND status < 2", (unique_key,))
        return held[0] if held else None

    def runs(self, task_id: str) -> list[Run]:
        rows = self.conn.execute(
            "SELECT epoch, owner, started_at, finished_at, outcome, error FROM omniq_run "
            "WHERE seq = (SELECT seq FROM omniq_task WHERE id = ?) ORDER BY epoch",
            (task_id,),
        )
        return [read_run(row) for row in rows]

    def prunable(self, limit: int, now: datetime) -> list[StoredTask]:
        ended = "INDEXED BY omniq_task_ended WHERE status = ? AND prune_at <= ? LIMIT ?"
        found: list[StoredTask] = []
        for status in FINAL_NUMBERS:
            left = limit - len(found)
            for row in self.conn.execute(SELECT + ended, (status, micros(now), left)).fetchall():
                try:
                    found.append(read_task(row))
                except CorruptRecord:  # its time is over as well, readable or not
                    self._forget(row[0])
        return found

    def paused(self) -> set[str]:
        return set(self._names("SELECT queue FROM omniq_paused"))

    def workers(self) -> list[WorkerInfo]:
        workers: list[WorkerInfo] = []
        for worker, info in self.conn.execute("SELECT id, info FROM omniq_worker ORDER BY seen_at DESC, id"):
            try:
                workers.append(read_worker.decode(info))
            except (msgspec.MsgspecError, TypeError, ValueError) as exc:
                self._report(CorruptRecord(f"the record of worker {worker!a:.80} makes no sense: {exc}"))
        return workers

    def select(
        self, wanted: TaskFilter, after: str | None, limit: int
    ) -> tuple[list[StoredTask], str | None]:
        before = None if after is None else self.must_get(after).seq
        rows, behind = looking.page(self.conn, wanted, before, limit)
        found = [task for task in self._readable(rows) if wanted.matches(task, task.func_path)]
        return found, None if behind is None else self._id_of(behind)

    def _id_of(self, seq: int) -> str | None:
        task_id = self._one("SELECT id FROM omniq_task WHERE seq = ?", (seq,))
        return task_id if type(task_id) is str else None

    def tallies(self) -> list[Tally]:
        return looking.tallies(self.conn)

    def fold_tallies(self, before: datetime) -> None:
        minute = looking.minute_number(micros(before))
        if self._one("SELECT 1 FROM omniq_tally WHERE minute > 0 AND minute < ? LIMIT 1", (minute,)):
            self.conn.execute(looking.FOLD_TALLIES, (minute,))
            self.conn.execute("DELETE FROM omniq_tally WHERE minute > 0 AND minute < ?", (minute,))

    def heads(self) -> list[TaskHead]:
        return looking.due_heads(self.conn, micros(self.now()))

    def timings(self, limit: int) -> list[Timing]:
        return looking.timings(self.conn, limit)

    def ahead(self, task_id: str, most: int) -> int:
        task = self.must_get(task_id)
        if task.status is not TaskStatus.PENDING:
            return 0
        place = Head(task.queue, task.priority, micros(lifecycle.due_at(task)), task.seq)
        return looking.ahead(self.conn, place, micros(self.now()), most)

    def ended(self, ids: Sequence[str]) -> set[str]:
        wanted = to_json.encode([str(one) for one in ids]).decode()
        waiting = self.conn.execute(
            "SELECT id FROM omniq_task WHERE id IN (SELECT value FROM json_each(?)) "
            "AND result_status IS NULL",
            (wanted,),
        )
        return set(ids) - {task_id for (task_id,) in waiting}

    def verify(self) -> list[str]:
        wrong = [f"SQLite: {line}" for (line,) in self.conn.execute("PRAGMA quick_check") if line != "ok"]
        for problem, condition in _PROBLEMS.items():
            rows = self.conn.execute(f"SELECT id FROM omniq_task t WHERE {condition} LIMIT 100")  # noqa: S608
            wrong += [
                f"{task_id if type(task_id) is str else ascii(task_id)} {problem}" for (task_id,) in rows
            ]
        for table in ("omniq_body", "omniq_result", "omniq_run"):
            orphans = self._one(
                f"SELECT count(*) FROM {table} WHERE seq NOT IN (SELECT seq FROM omniq_task)"  # noqa: S608
            )
            if orphans:
                wrong.append(f"{orphans} rows of {table} belong to no task")
        rows = self.conn.execute("SELECT queue, status, count(*) FROM omniq_task GROUP BY queue, status")
        counted: dict[tuple[str, TaskStatus], int] = {}
        for queue, status, many in rows.fetchall():
            if type(queue) is str and (known := _status(status)) is not None:
                counted[queue, known] = many
        return wrong + miscounted(self.tallies(), counted)


_PROBLEMS: Final = {
    "has a status that does not exist": "status NOT BETWEEN 0 AND 4",
    "runs without an owner or a lease": "status = 1 AND (owner IS NULL OR lease IS NULL)",
    "does not run but has an owner or a lease": "status <> 1 AND (owner IS NOT NULL OR lease IS NOT NULL)",
    "has ended without a moment": "status >= 2 AND (finished_at IS NULL OR prune_at IS NULL)",
    "has not ended but says when": "status < 2 AND finished_at IS NOT NULL",
    "has lost its arguments": (
        "payload IS NULL AND NOT EXISTS (SELECT 1 FROM omniq_body b WHERE b.seq = t.seq)"
    ),
    "has lost its result": (
        "result_status = 2 AND result IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM omniq_result r WHERE r.seq = t.seq)"
    ),
    "is due at another moment than it says": "due <> coalesce(eta, enqueued_at)",
    "has a priority that does not exist": f"priority NOT BETWEEN 0 AND {TOP_PRIORITY}",
}
