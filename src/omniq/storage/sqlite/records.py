"""A task and its record in SQLite, one as the other; and the statements, which are the same for ever.

Nothing here touches a connection. Statements are made of constants only: what a caller gives is bound.
"""

# ruff: noqa: S608
from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from omniq.errors import CorruptRecord
from omniq.logic import lifecycle
from omniq.task import TOP_PRIORITY, Run, RunOutcome, StoredTask, TaskError, TaskStatus, WorkerInfo

ROW_BYTES: Final = 1024  # larger arguments and results lie beside the row
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
STATUSES: Final = tuple(TaskStatus)
NUMBERS: Final = {status: number for number, status in enumerate(STATUSES)}

_COLUMNS: Final = (
    "seq, id, func_path, coalesce(payload, (SELECT payload FROM omniq_body b WHERE b.seq = t.seq)), queue, "
    "priority, eta, expires_at, interval, timeout, max_retries, max_losses, unique_key, headers, on_failure, "
    "result_ttl, status, epoch, attempts, losses, owner, cancel_requested, error, progress, enqueued_at, "
    "started_at, finished_at, "
    "CASE WHEN result_status = 2 THEN coalesce(result, (SELECT result FROM omniq_result r "
    "WHERE r.seq = t.seq)) END, result_status, result_at, first_content"
)
SELECT: Final = f"SELECT {_COLUMNS} FROM omniq_task t "
_WRITTEN: Final = (
    "func_path, payload, queue, priority, eta, due, expires_at, interval, timeout, max_retries, max_losses, "
    "unique_key, headers, on_failure, result_ttl, status, epoch, attempts, losses, owner, cancel_requested, "
    "error, progress, enqueued_at, started_at, finished_at, result, result_status, result_at, "
    "prune_at, first_content"
)
_N_WRITTEN: Final = _WRITTEN.count(",") + 1
INSERT: Final = (
    f"INSERT INTO omniq_task (seq, id, {_WRITTEN}) VALUES (?, ?{', ?' * _N_WRITTEN}) ON CONFLICT DO NOTHING"
)
PUT: Final = f"UPDATE omniq_task SET ({_WRITTEN}) = (?{', ?' * (_N_WRITTEN - 1)}) WHERE seq = ?"
SUCCEED: Final = (
    "UPDATE omniq_task SET status = 2, result = ?, result_status = 2, result_at = ?2, finished_at = ?2, "
    "prune_at = ?2 + coalesce(CAST(result_ttl * 1000000 AS INTEGER), ?3), owner = NULL, lease = NULL, "
    "boot = NULL, claim_id = NULL, cancel_requested = 0, error = NULL "
    "WHERE seq = ?4 AND id = ?5 AND status = 1 AND epoch = ?6"
)
CLAIM: Final = (
    "UPDATE omniq_task SET status = 1, epoch = epoch + 1, owner = ?, lease = ?, boot = ?, claim_id = ?, "
    "started_at = ?, progress = NULL WHERE seq = ? AND status = 0"
)
# One range of the index per priority: tasks due later, however urgent, cost a look at their edge.
DUE: Final = (
    " UNION ALL ".join(
        f"SELECT * FROM ({SELECT} INDEXED BY omniq_task_waiting WHERE status = 0 AND queue = ?1 "
        f"AND priority = {priority} AND due <= ?2 ORDER BY due, seq LIMIT ?3)"
        for priority in range(TOP_PRIORITY, -1, -1)
    )
    + " LIMIT ?3"
)
DUE_NEXT: Final = (
    "SELECT min(due) FROM ("
    + " UNION ALL ".join(
        "SELECT min(due) AS due FROM omniq_task INDEXED BY omniq_task_waiting "
        f"WHERE status = 0 AND queue = ?1 AND priority = {priority} AND due > ?2"
        for priority in range(TOP_PRIORITY + 1)
    )
    + ")"
)

to_json = msgspec.json.Encoder()
read_headers = msgspec.json.Decoder(dict[str, str])
read_error = msgspec.json.Decoder(TaskError)
read_progress = msgspec.json.Decoder(tuple[float, float | None])
read_worker = msgspec.json.Decoder(WorkerInfo)


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // _MICROSECOND


def moment_of(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def maybe_micros(moment: datetime | None) -> int | None:
    return None if moment is None else micros(moment)


_SPANS: Final = frozenset({float, int, type(None)})


class Retention(Struct, frozen=True):
    """How long what has ended is kept."""

    result_s: float
    failed_s: float


def read_task(row: tuple[Any, ...]) -> StoredTask:
    """One record as a value; what makes no sense is `CorruptRecord` and stays as it is."""
    status: int
    result_status: int | None
    (seq, task_id, func_path, payload, queue, priority, eta, expires_at, interval, timeout) = row[:10]
    (max_retries, max_losses, unique_key, headers, on_failure, result_ttl, status, epoch) = row[10:18]
    (attempts, losses, owner, cancel_requested, error, progress, enqueued_at, started_at) = row[18:26]
    (finished_at, result, result_status, result_at, first_content) = row[26:]
    numbers = (priority, max_retries, max_losses, status, epoch, attempts, losses, enqueued_at)
    texts = (task_id, func_path, queue, on_failure)
    spans = (interval, timeout, result_ttl)
    # A column of SQLite holds anything; what is used without another look is looked at here.
    if (
        type(payload) is not bytes
        or {*map(type, numbers)} != {int}
        or {*map(type, texts)} != {str}
        or not _SPANS.issuperset(map(type, spans))
    ):
        raise CorruptRecord(f"the record of task {task_id!a} (seq {seq}) has lost a value, or its type")
    try:
        return StoredTask(
            func_path,
            payload,
            seq,
            None,
            None,
            result,
            None if result_status is None else STATUSES[result_status],
            None if result_at is None else moment_of(result_at),
            first_content,
            id=task_id,
            queue=queue,
            priority=priority,
            eta=None if eta is None else moment_of(eta),
            expires_at=None if expires_at is None else moment_of(expires_at),
            interval=interval,
            timeout=timeout,
            max_retries=max_retries,
            max_losses=max_losses,
            unique_key=unique_key,
            headers={} if headers is None else read_headers.decode(headers),
            on_failure=on_failure,
            result_ttl=result_ttl,
            status=STATUSES[status],
            epoch=epoch,
            attempts=attempts,
            losses=losses,
            owner=owner,
            cancel_requested=bool(cancel_requested),
            error=None if error is None else read_error.decode(error),
            progress=None if progress is None else read_progress.decode(progress),
            enqueued_at=moment_of(enqueued_at),
            started_at=None if started_at is None else moment_of(started_at),
            finished_at=None if finished_at is None else moment_of(finished_at),
        )
    except (TypeError, ValueError, IndexError, OverflowError, msgspec.DecodeError) as exc:
        raise CorruptRecord(f"the record of task {task_id!r} (seq {seq}) makes no sense: {exc}") from exc


def read_run(row: tuple[Any, ...]) -> Run:
    epoch, owner, started_at, finished_at, outcome, error = row
    try:
        return Run(
            epoch,
            owner,
            None if started_at is None else moment_of(started_at),
            None if finished_at is None else moment_of(finished_at),
            RunOutcome(outcome),
            None if error is None else read_error.decode(error),
        )
    except (TypeError, ValueError, OverflowError, msgspec.DecodeError) as exc:
        raise CorruptRecord(f"a line of a task's history (epoch {epoch!a}) makes no sense: {exc}") from exc


def record_of(task: StoredTask, retention: Retention) -> tuple[Any, ...]:
    result = task.result
    return (
        task.func_path,
        task.payload if len(task.payload) <= ROW_BYTES else None,
        task.queue,
        task.priority,
        maybe_micros(task.eta),
        micros(lifecycle.due_at(task)),
        maybe_micros(task.expires_at),
        task.interval,
        task.timeout,
        task.max_retries,
        task.max_losses,
        task.unique_key,
        to_json.encode(task.headers).decode() if task.headers else None,
        task.on_failure,
        task.result_ttl,
        NUMBERS[task.status],
        task.epoch,
        task.attempts,
        task.losses,
        task.owner,
        task.cancel_requested,
        None if task.error is None else to_json.encode(task.error).decode(),
        None if task.progress is None else to_json.encode(task.progress).decode(),
        maybe_micros(task.enqueued_at),
        maybe_micros(task.started_at),
        maybe_micros(task.finished_at),
        result if result is None or len(result) <= ROW_BYTES else None,
        None if task.result_status is None else NUMBERS[task.result_status],
        maybe_micros(task.result_at),
        _prune_at(task, retention),
        task.first_content,
    )


def _prune_at(task: StoredTask, retention: Retention) -> int | None:
    if task.finished_at is None:
        return None
    keep_s = retention.failed_s
    if task.status is TaskStatus.SUCCESS:
        keep_s = retention.result_s if task.result_ttl is None else task.result_ttl
    return micros(task.finished_at) + round(keep_s * 1_000_000)
