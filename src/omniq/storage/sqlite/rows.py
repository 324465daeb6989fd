"""The rows of a SQLite file: what every store must bring, and the verbs that must be faster than usual.

A `SQLiteRows` works on one connection, inside a transaction that its caller begins and ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from loguru import logger

from omniq.clock import Clock
from omniq.errors import CorruptRecord
from omniq.logic import lifecycle
from omniq.storage.batched import HISTORY_LIMIT
from omniq.storage.rows import Rows, digest
from omniq.storage.sqlite.beside import Beside
from omniq.storage.sqlite.records import (
    CLAIM,
    DUE,
    DUE_NEXT,
    INSERT,
    NUMBERS,
    PUT,
    ROW_BYTES,
    SELECT,
    STATUSES,
    SUCCEED,
    Retention,
    maybe_micros,
    micros,
    moment_of,
    read_run,
    read_task,
    read_worker,
    record_of,
    to_json,
)
from omniq.task import (
    Action,
    Answer,
    Claim,
    Enqueued,
    Held,
    OnConflict,
    Rates,
    Run,
    Settlement,
    StoredTask,
    TaskError,
    TaskFilter,
    TaskStatus,
    WorkerInfo,
    replace,
)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


class SQLiteRows(Rows):
    """Rows over one connection. `boot` is this machine's number in `omniq_boot`."""

    def __init__(self, conn: sqlite3.Connection, clock: Clock, beside: Beside, boot: int) -> None:
        super().__init__()
        self.conn = conn
        self.clock = clock
        self.beside = beside
        self.boot = boot
        self.retention = Retention(0.0, 0.0)
        self._reported: set[str] = set()

    def now(self) -> datetime:
        return self.clock.now()

    def _tasks(self, sql: str, parameters: Iterable[Any] = ()) -> list[StoredTask]:
        """The tasks that can be read; the others are named once in the log."""
        tasks: list[StoredTask] = []
        for row in self.conn.execute(SELECT + sql, tuple(parameters)).fetchall():
            try:
                tasks.append(read_task(row))
            except CorruptRecord as corrupt:
                self._report(corrupt)
        return tasks

    def _report(self, corrupt: CorruptRecord) -> None:
        if str(corrupt) not in self._reported:
            self._reported.add(str(corrupt))
            logger.error("passed over: {}", corrupt)

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
        return True

    def put(self, task: StoredTask) -> None:
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

    def settle_one(self, settlement: Settlement, now: datetime) -> Answer:
        """A plain success is one statement; everything else reads its row first."""
        task, result = settlement.task, settlement.result
        if settlement.action is not Action.SUCCEED or result is None or len(result) > ROW_BYTES:
            return super().settle_one(settlement, now)
        if not isinstance(task, StoredTask) or not task.seq:
            return super().settle_one(settlement, now)
        kept = round(self.retention.result_s * 1_000_000)
        values = (result, micros(now), kept, task.seq, task.id, task.epoch)
        if self.conn.execute(SUCCEED, values).rowcount != 1:
            return super().settle_one(settlement, now)
        self.rang_result = True
        return Answer.HELD

    def _claim_or_expire(self, batch: list[StoredTask], claim: Claim, now: datetime) -> list[StoredTask]:
        for task in batch:
            if task.expires_at is not None and lifecycle.expired(task, now):
                return super()._claim_or_expire(batch, claim, now)
        at = micros(now)
        lease = self._lease_until(claim.lease)
        self.conn.executemany(
            CLAIM,
            [(claim.worker, lease, self.boot, claim.claim_id, at, task.seq) for task in batch],
        )
        return [lifecycle.claim(task, claim.worker, now) for task in batch]

    def hold(self, task: StoredTask, claim: Claim) -> None:
        lease = self._lease_until(claim.lease)
        at = micros(task.started_at or self.now())
        self.conn.execute(CLAIM, (claim.worker, lease, self.boot, claim.claim_id, at, task.seq))

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
            "DELETE FROM omniq_run WHERE seq = ?1 AND epoch <= "
            "(SELECT epoch FROM omniq_run WHERE seq = ?1 ORDER BY epoch DESC LIMIT 1 OFFSET ?2)",
            (task.seq, HISTORY_LIMIT),
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

    # --- claiming --------------------------------------------------------------------------------

    def due(self, queues: Sequence[str] | None, limit: int, now: datetime) -> list[StoredTask]:
        names = self._open_queues(queues)
        found = [task for name in names for task in self._due_in(name, limit, now)]
        if len(names) > 1:
            found.sort(key=lambda task: (-task.priority, lifecycle.due_at(task), task.seq))
        return found[:limit]

    def _due_in(self, queue: str, limit: int, now: datetime) -> list[StoredTask]:
        while True:
            found: list[StoredTask] = []
            rows = self.conn.execute(DUE, (queue, micros(now), limit)).fetchall()
            for row in rows:
                try:
                    found.append(read_task(row))
                except CorruptRecord as corrupt:
                    self._quarantine(row[0], corrupt, now)
            if len(found) == len(rows):
                return found

    def _quarantine(self, seq: int, corrupt: CorruptRecord, now: datetime) -> None:
        """A record that cannot be read must not stand in everybody's way: it fails, its bytes stay."""
        logger.error("failed: {}", corrupt)
        error = to_json.encode(TaskError("CorruptRecord", str(corrupt), "", "undecodable")).decode()
        at = micros(now)
        self.conn.execute(
            "UPDATE omniq_task SET status = 3, error = ?1, finished_at = ?2, result_status = 3, "
            "result_at = ?2, prune_at = ?3, owner = NULL, lease = NULL, boot = NULL, claim_id = NULL, "
            "cancel_requested = 0 WHERE seq = ?4",
            (error, at, at + round(self.retention.failed_s * 1_000_000), seq),
        )

    def _open_queues(self, queues: Sequence[str] | None) -> list[str]:
        paused = self.paused()
        wanted = self._waiting_queues() if queues is None else dict.fromkeys(queues)
        return [name for name in wanted if name not in paused]

    def _waiting_queues(self) -> Iterator[str]:
        """The queues that have waiting tasks, found by leaps through the index."""
        name: str | None = ""
        while True:
            name = self._one(
                "SELECT min(queue) FROM omniq_task INDEXED BY omniq_task_waiting "
                "WHERE status = 0 AND queue > ?",
                (name,),
            )
            if name is None:
                return
            yield name

    def due_next(self, queues: Sequence[str] | None, now: datetime) -> datetime | None:
        next_due: int | None = None
        for name in self._open_queues(queues):
            due = self._one(DUE_NEXT, (name, micros(now)))
            next_due = due if next_due is None else min(due or next_due, next_due)
        return None if next_due is None else moment_of(next_due)

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
        return [Held(task_id, epoch, bool(cancel), seq) for task_id, epoch, cancel, seq in rows]

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
        unheld = [owner for owner in self._owners() if not self.beside.is_held(owner)]
        rows = self.conn.execute(
            "SELECT seq FROM omniq_task WHERE status = 1 AND ((boot = ? AND lease <= ?) "  # noqa: S608
            f"OR owner IN ({_marks(dead)}) OR (boot <> ? AND owner IN ({_marks(unheld)}))) LIMIT ?",
            (self.boot, now, *dead, self.boot, *unheld, limit),
        )
        return [seq for (seq,) in rows]

    def _dead(self) -> list[str]:
        """Workers whose lock file nobody holds: those with tasks, and those that died idle."""
        known = [worker for (worker,) in self.conn.execute("SELECT id FROM omniq_worker")]
        return [name for name in dict.fromkeys((*self._owners(), *known)) if self.beside.is_dead(name)]

    def _owners(self) -> list[str]:
        return [
            owner for (owner,) in self.conn.execute("SELECT DISTINCT owner FROM omniq_task WHERE status = 1")
        ]

    def overdue(self, limit: int, now: datetime) -> list[StoredTask]:
        return self._tasks(
            "WHERE status = 0 AND expires_at <= ? ORDER BY expires_at LIMIT ?", (micros(now), limit)
        )

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
        ended = "WHERE status >= 2 AND prune_at <= ? ORDER BY prune_at LIMIT ?"
        found: list[StoredTask] = []
        for row in self.conn.execute(SELECT + ended, (micros(now), limit)).fetchall():
            try:
                found.append(read_task(row))
            except CorruptRecord:  # its time is over as well, readable or not
                self._forget(row[0])
        return found

    def paused(self) -> set[str]:
        return {queue for (queue,) in self.conn.execute("SELECT queue FROM omniq_paused")}

    def workers(self) -> list[WorkerInfo]:
        rows = self.conn.execute("SELECT info FROM omniq_worker ORDER BY seen_at DESC, id")
        return [read_worker.decode(info) for (info,) in rows]

    def select(self, wanted: TaskFilter, after: str | None, limit: int) -> list[StoredTask]:
        conditions: list[str] = ["1"]
        values: list[Any] = []
        for condition, value in (
            ("status = ?", None if wanted.status is None else NUMBERS[wanted.status]),
            ("queue = ?", wanted.queue),
            ("func_path = ?", wanted.func_path),
            ("unique_key = ?", wanted.unique_key),
            ("finished_at < ?", maybe_micros(wanted.finished_before)),
            ("seq < ?", None if after is None else self.must_get(after).seq),
        ):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        where = "WHERE " + " AND ".join(conditions)
        return self._tasks(where + " ORDER BY seq DESC LIMIT ?", (*values, limit))

    def counts(self) -> dict[str, dict[TaskStatus, int]]:
        counted: dict[str, dict[TaskStatus, int]] = {}
        rows = self.conn.execute("SELECT queue, status, count(*) FROM omniq_task GROUP BY queue, status")
        for queue, status, how_many in rows:
            counted.setdefault(queue, dict.fromkeys(TaskStatus, 0))[STATUSES[status]] = how_many
        return counted

    def rates(self, since: datetime) -> Rates:
        at = micros(since)
        enqueued = self._one("SELECT count(*) FROM omniq_task WHERE enqueued_at > ?", (at,))
        rows = self.conn.execute(
            "SELECT status, count(*) FROM omniq_task WHERE status >= 2 AND finished_at > ? GROUP BY status",
            (at,),
        )
        ended: dict[TaskStatus, int] = {STATUSES[status]: how_many for status, how_many in rows}
        return Rates(
            enqueued,
            ended.get(TaskStatus.SUCCESS, 0),
            ended.get(TaskStatus.FAILED, 0),
            ended.get(TaskStatus.CANCELLED, 0),
            (self.now() - since).total_seconds(),
        )

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
            wrong += [f"{task_id} {problem}" for (task_id,) in rows]
        for table in ("omniq_body", "omniq_result", "omniq_run"):
            orphans = self._one(
                f"SELECT count(*) FROM {table} WHERE seq NOT IN (SELECT seq FROM omniq_task)"  # noqa: S608
            )
            if orphans:
                wrong.append(f"{orphans} rows of {table} belong to no task")
        return wrong


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
}
