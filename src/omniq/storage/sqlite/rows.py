"""The rows of a SQLite file: what every store must bring, and the verbs that must be faster than usual.

A `SQLiteRows` works on one connection, inside a transaction that its caller begins and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from omniq.errors import CorruptRecord
from omniq.logic import lifecycle
from omniq.storage.batched import HISTORY_LIMIT
from omniq.storage.rows import digest
from omniq.storage.sqlite import looking
from omniq.storage.sqlite.claiming import Head
from omniq.storage.sqlite.claims import ClaimRows
from omniq.storage.sqlite.connected import NotAllHeld
from omniq.storage.sqlite.leases import LeaseRows
from omniq.storage.sqlite.moving import MovingRows
from omniq.storage.sqlite.records import (
    INSERT,
    INSERT_NEW,
    NUMBERS,
    PUT,
    ROW_BYTES,
    SELECT,
    SUCCEED,
    SUCCEED_ALL,
    given_of,
    maybe_micros,
    micros,
    read_run,
    read_task,
    record_of,
    to_json,
)
from omniq.storage.sqlite.schedules import ScheduleRows
from omniq.storage.sqlite.verifying import problems_of
from omniq.task import (
    Action,
    Answer,
    Enqueued,
    Held,
    OnConflict,
    Run,
    Settlement,
    StoredTask,
    Tally,
    Task,
    TaskFilter,
    TaskStatus,
    Timing,
)
from omniq.task import Head as TaskHead

# In one look what every insert has to know: what there is, and whether there is anything to compare it with.
BEFORE_INSERT: Final = (
    "SELECT (SELECT max(seq) FROM omniq_task), EXISTS (SELECT 1 FROM omniq_gone), "
    "EXISTS (SELECT 1 FROM omniq_limit)"
)
FINAL_NUMBERS: Final = tuple(NUMBERS[status] for status in TaskStatus if status.final)


def _seq(task: StoredTask | Task | Held) -> int:
    return 0 if isinstance(task, Task) else task.seq


def _plain_successes(settlements: Sequence[Settlement]) -> tuple[list[Any], list[str | None]]:
    """Seq, id, epoch and result of each that touches nothing but its own row, and their queues."""
    values: list[Any] = []
    queues: list[str | None] = []
    for one in settlements:
        task, result = one.task, one.result
        if one.action is Action.SUCCEED and result is not None and len(result) <= ROW_BYTES:
            seq, queue = (task.seq, task.queue) if type(task) is StoredTask else (_seq(task), None)
            if seq > 0:
                values += (seq, task.id, task.epoch, result)
                queues.append(queue)
    return values, queues


def _in_chunks(
    values: list[Any], width: int, statements: Mapping[int, str]
) -> Iterator[tuple[str, int, list[Any]]]:
    """Rows of so many values each as they go into one statement, and how many: for fewer steps of SQLite."""
    first, end = 0, len(values)
    for size, statement in statements.items():
        while (last := first + width * size) <= end:
            yield statement, size, values[first:last]
            first = last


class SQLiteRows(ClaimRows, LeaseRows, ScheduleRows, MovingRows):
    """Rows over one connection: its parts, and here what a row is from its enqueue to its end."""

    # --- writing ---------------------------------------------------------------------------------

    def enqueue_many(self, tasks: Sequence[StoredTask], on_conflict: OnConflict) -> list[Enqueued]:
        """All at once where no id and no key is known yet; otherwise by the general way."""
        if self.insert_new(tasks):
            return [Enqueued(task.id, created=True) for task in tasks]
        return super().enqueue_many(tasks, on_conflict)

    def insert_new(self, tasks: Sequence[StoredTask]) -> bool:
        """Insert all of `tasks` if every id and key is new; otherwise leave everything as it was."""
        if not tasks:
            return True
        now = self.now()
        newest, remembers, limits = self.conn.execute(BEFORE_INSERT).fetchone()
        if remembers and self._any_remembered(tasks, now):
            return False
        if limits and not self.limits().keys().isdisjoint(task.queue for task in tasks):
            return False
        fresh = [lifecycle.arrive(task, now) for task in tasks]
        if not self._insert_all(fresh, TaskStatus.PENDING, newest, INSERT_NEW, given_of):
            return False
        self.rang_due = True
        return True

    def _any_remembered(self, tasks: Sequence[StoredTask], now: datetime) -> bool:
        ids = to_json.encode([str(task.id) for task in tasks]).decode()
        known = "SELECT 1 FROM omniq_gone WHERE id IN (SELECT value FROM json_each(?)) AND until > ? LIMIT 1"
        return self._one(known, (ids, micros(now))) is not None

    def insert(self, task: StoredTask) -> None:
        newest = self._one("SELECT max(seq) FROM omniq_task")
        record = partial(record_of, retention=self.retention)
        if not self._insert_all([task], task.status, newest, INSERT, record):
            raise CorruptRecord(
                f"unique key {task.unique_key!a} is held by a record that cannot be read; try `omniq doctor`"
            )

    def _insert_all(
        self,
        tasks: Sequence[StoredTask],
        status: TaskStatus,
        newest: int | None,
        statements: Mapping[int, str],
        record: Callable[[StoredTask], tuple[Any, ...]],
    ) -> bool:
        first = (newest or 0) + 1
        values: list[Any] = []
        for seq, task in enumerate(tasks, first):
            values += (seq, task.id, *record(task))
        chunks = _in_chunks(values, len(values) // len(tasks), statements)
        if sum(self.conn.execute(insert, rows).rowcount for insert, _, rows in chunks) != len(tasks):
            # Numbers from `first` on are ours alone. A savepoint would copy every page it touches.
            self.conn.execute("DELETE FROM omniq_task WHERE seq >= ?", (first,))
            return False
        large = [(n, t.payload) for n, t in enumerate(tasks, first) if len(t.payload) > ROW_BYTES]
        if large:
            self.conn.executemany("INSERT INTO omniq_body (seq, payload) VALUES (?, ?)", large)
        self._moved([task.queue for task in tasks], None, status)
        return True

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
            # Somebody says two things of one task: in order, then.
            return super().settle_all(settlements, now)
        values, queues = _plain_successes(settlements)
        queue = queues[0] if queues and queues.count(queues[0]) == len(queues) else None
        if queue is None or self.expects_stale:
            held = self._succeed(values, now)
        else:
            held = self._succeed_all(values, queue, now)
        if len(held) == len(settlements):
            return [Answer.HELD] * len(settlements)
        ids = set(held)
        return [Answer.HELD if one.task.id in ids else self.settle_readable(one, now) for one in settlements]

    def _succeed(self, values: list[Any], now: datetime) -> list[str]:
        """T4 for all of these whose epoch still holds; the ids of those."""
        times, held = self._times_of_success(now), list[str]()
        for succeed, _, chunk in _in_chunks(values, 4, SUCCEED):
            ended = self.conn.execute(succeed, (*times, *chunk)).fetchall()
            held += [task_id for task_id, _ in ended]
            self._moved([queue for _, queue in ended], TaskStatus.RUNNING, TaskStatus.SUCCESS)
        if held:
            self.rang_result = True
        return held

    def _succeed_all(self, values: list[Any], queue: str, now: datetime) -> list[str]:
        """The same where all of them are of one queue and should hold; else all is to be undone."""
        times = self._times_of_success(now)
        for succeed, size, chunk in _in_chunks(values, 4, SUCCEED_ALL):
            if self.conn.execute(succeed, (*times, *chunk, queue)).rowcount != size:
                raise NotAllHeld
            self.changes.move(queue, TaskStatus.RUNNING, TaskStatus.SUCCESS, size)
        self.rang_result = True
        return values[1::4]

    def _times_of_success(self, now: datetime) -> tuple[int, int, int, int]:
        at = micros(now)
        return (at, at, at, round(self.retention.result_s * 1_000_000))

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

    def select(
        self, wanted: TaskFilter, after: str | None, limit: int
    ) -> tuple[list[StoredTask], str | None]:
        before = None if after is None else self.must_get(after).seq
        rows, behind = looking.page(self.conn, wanted, before, limit)
        found = [task for task in self._readable(rows) if wanted.matches(task, task.func_path)]
        return found, None if behind is None else self._id_of(behind)

    def longest_running(self, limit: int) -> list[StoredTask]:
        return list(self._readable(looking.longest_running(self.conn, limit)))

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
        return problems_of(self.conn)
