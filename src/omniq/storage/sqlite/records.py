"""A task and its record in SQLite, one as the other; and the statements, which are the same for ever.

Nothing here touches a connection. Statements are made of constants only: what a caller gives is bound.
"""

# ruff: noqa: S608
from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from omniq.errors import CorruptRecord
from omniq.logic import lifecycle
from omniq.task import (
    MAX_COUNT,
    MAX_DURATION_S,
    TOP_PRIORITY,
    OnFailure,
    Run,
    RunOutcome,
    StoredTask,
    TaskError,
    TaskStatus,
    WorkerInfo,
    replace,
)

ROW_BYTES: Final = 1024  # larger arguments and results lie beside the row
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# Up to here, in the year 2112, seconds as a float still tell every microsecond from the next.
_EXACT_MICROS: Final = 1 << 52
STATUSES: Final = tuple(TaskStatus)
NUMBERS: Final = {status: number for number, status in enumerate(STATUSES)}

# In the order of `_Waiting`, and of what `_Record` adds.
WAITING: Final = (
    "seq, id, func_path, coalesce(payload, (SELECT payload FROM omniq_body b WHERE b.seq = t.seq)), queue, "
    "priority, eta, expires_at, interval, timeout, max_retries, max_losses, unique_key, on_failure, "
    "result_ttl, epoch, attempts, losses, suspicions, headers, enqueued_at"
)
_RECORD: Final = (
    "status, owner, cancel_requested, error, progress, started_at, finished_at, "
    "CASE WHEN result_status = 2 THEN coalesce(result, (SELECT result FROM omniq_result r "
    "WHERE r.seq = t.seq)) END, result_status, result_at, first_content, isolates"
)
SELECT: Final = f"SELECT {WAITING}, {_RECORD} FROM omniq_task t "
# What an enqueue brings, in the order of `given_of`; and what only the store sets, as `record_of` adds it.
_GIVEN: Final = (
    "func_path, payload, queue, priority, eta, due, expires_at, interval, timeout, max_retries, max_losses, "
    "unique_key, headers, on_failure, result_ttl, enqueued_at"
)
_WRITTEN: Final = (
    f"{_GIVEN}, status, epoch, attempts, losses, suspicions, owner, cancel_requested, error, progress, "
    "started_at, finished_at, result, result_status, result_at, prune_at, first_content, isolates"
)
_N_GIVEN: Final = _GIVEN.count(",") + 1
_N_WRITTEN: Final = _WRITTEN.count(",") + 1
AT_ONCE: Final = (50, 10, 1)  # statements for so many rows: each is prepared once


def _insert(columns: str, row: str, count: int) -> str:
    rows = ", ".join([f"({row})"] * count)
    return f"INSERT INTO omniq_task (seq, id, {columns}) VALUES {rows} ON CONFLICT DO NOTHING"


# By how many rows they are for, the most first, as everything that `in_chunks` takes.
INSERT: Final = {1: _insert(_WRITTEN, f"?, ?{', ?' * _N_WRITTEN}", 1)}
# Of a new task: what is the same for all of them SQLite need not be told, for two thirds of the price.
_FRESH: Final = "status, epoch, attempts, losses, suspicions, cancel_requested, isolates"
_NEW: Final = f"?, ?{', ?' * _N_GIVEN}{', 0' * (_FRESH.count(',') + 1)}"
INSERT_NEW: Final = {count: _insert(f"{_GIVEN}, {_FRESH}", _NEW, count) for count in AT_ONCE}
PUT: Final = f"UPDATE omniq_task SET ({_WRITTEN}) = (?{', ?' * (_N_WRITTEN - 1)}) WHERE seq = ?"


def _succeed(count: int) -> str:
    """The moment, three times, and how long to keep it; then seq, id, epoch, result of each."""
    # Without numbers: from Python 3.14 on, numbered marks do not go with a tuple of values.
    values = ", ".join(["(?, ?, ?, ?)"] * count)
    return (
        "UPDATE omniq_task SET status = 2, result = v.column4, result_status = 2, result_at = ?, "
        "finished_at = ?, prune_at = ? + coalesce(CAST(result_ttl * 1000000 AS INTEGER), ?), "
        "owner = NULL, lease = NULL, boot = NULL, claim_id = NULL, isolates = 0, cancel_requested = 0, "
        "error = NULL "
        f"FROM (VALUES {values}) v "
        "WHERE seq = v.column1 AND id = v.column2 "
        "AND status = 1 AND epoch = v.column3 RETURNING id, queue"
    )


SUCCEED: Final = {count: _succeed(count) for count in AT_ONCE}
# Where all of them should hold: their number says whether they do. To be told which would cost a fourth more.
SUCCEED_ALL: Final = {
    count: text.replace("RETURNING id, queue", "AND queue = ?") for count, text in SUCCEED.items()
}
CLAIM: Final = (
    "UPDATE omniq_task SET status = 1, epoch = epoch + 1, owner = ?, lease = ?, boot = ?, claim_id = ?, "
    "started_at = ?, isolates = ?, progress = NULL "
    "WHERE seq IN (SELECT value FROM json_each(?)) AND status = 0"
)

to_json = msgspec.json.Encoder()
read_headers = msgspec.json.Decoder(dict[str, str])
read_error = msgspec.json.Decoder(TaskError)
read_progress = msgspec.json.Decoder(tuple[float, float | None])
read_worker = msgspec.json.Decoder(WorkerInfo)


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // _MICROSECOND


def moment_of(micros: int) -> datetime:
    if 0 <= micros < _EXACT_MICROS:
        return datetime.fromtimestamp(micros / 1_000_000, UTC)  # half the price
    return EPOCH + timedelta(microseconds=micros)


def maybe_micros(moment: datetime | None) -> int | None:
    return None if moment is None else micros(moment)


def text_or_bytes(text: bytes) -> str | bytes:
    """What SQLite calls text. If it is none it stays bytes, which no field of a record takes for text."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


class Retention(Struct, frozen=True):
    """How long what has ended is kept."""

    result_s: float
    failed_s: float


# What makes sense in a column: SQLite holds anything there, and what is out of range would break the
# arithmetic of whoever claims or settles it, and its neighbours with it.
FIRST_MICROS: Final = micros(datetime.min.replace(tzinfo=UTC))
LAST_MICROS: Final = micros(datetime.max.replace(tzinfo=UTC))
_Moment: TypeAlias = Annotated[int, Meta(ge=FIRST_MICROS, le=LAST_MICROS)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
_Tally: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]  # what only ever counts up by one
_Seconds: TypeAlias = Annotated[float, Meta(ge=-MAX_DURATION_S, le=MAX_DURATION_S)]


class _Waiting(Struct, array_like=True, frozen=True, gc=False):
    """What is read of a task that waits."""

    seq: int
    id: str
    func_path: str
    payload: bytes
    queue: str
    priority: Annotated[int, Meta(ge=0, le=TOP_PRIORITY)]
    eta: _Moment | None
    expires_at: _Moment | None
    interval: _Seconds | None
    timeout: Annotated[float, Meta(gt=0, le=MAX_DURATION_S)] | None
    max_retries: _Count
    max_losses: _Count
    unique_key: str | None
    on_failure: OnFailure
    result_ttl: _Seconds | None
    epoch: _Tally
    attempts: _Tally
    losses: _Tally
    suspicions: _Tally
    headers: str | None
    enqueued_at: _Moment


class _Record(_Waiting, array_like=True, frozen=True, gc=False):
    """What is read of any task."""

    status: int
    owner: str | None
    cancel_requested: int
    error: str | None
    progress: str | None
    started_at: _Moment | None
    finished_at: _Moment | None
    result: bytes | None
    result_status: int | None
    result_at: _Moment | None
    first_content: bytes | None
    isolates: int


# Of a row as `_Waiting` reads it: all but what each task has of its own.
_OPTIONS: Final = slice(4, -2)
assert _Waiting.__struct_fields__[:4] == ("seq", "id", "func_path", "payload")
assert _Waiting.__struct_fields__[-2:] == ("headers", "enqueued_at")
_NONSENSE: Final = (TypeError, ValueError, IndexError, OverflowError, msgspec.MsgspecError)


def _nonsense(row: tuple[Any, ...], exc: Exception) -> CorruptRecord:
    return CorruptRecord(f"the record of task {row[1]!a} (seq {row[0]}) makes no sense: {exc}")


def read_waiting(row: tuple[Any, ...]) -> StoredTask:
    """The record of a waiting task as a value, as far as a worker needs it."""
    try:
        return _waiting_task(msgspec.convert(row, _Waiting, builtin_types=(bytes,)))
    except _NONSENSE as exc:
        raise _nonsense(row, exc) from exc


def read_all_waiting(rows: list[tuple[Any, ...]]) -> list[StoredTask] | None:
    """Many at once, for a third of the price; None when one of them makes no sense."""
    try:
        return _waiting_tasks(rows, msgspec.convert(rows, list[_Waiting], builtin_types=(bytes,)))
    except _NONSENSE:
        return None


def _waiting_tasks(rows: list[tuple[Any, ...]], waiting: list[_Waiting]) -> list[StoredTask]:
    """One behind the other they are mostly calls of one function: a copy with another call is cheaper."""
    tasks: list[StoredTask] = []
    task, path, options = None, None, None
    at, at_micros = EPOCH, 0
    headers, headers_text = {}, None
    for row, one in zip(rows, waiting, strict=True):
        own_options = row[_OPTIONS]
        if task is not None and own_options == options and one.func_path == path:
            if one.enqueued_at != at_micros:  # those of one call have come at the same moment
                at, at_micros = moment_of(one.enqueued_at), one.enqueued_at
            if one.headers != headers_text:  # where traces are on, each call has its own
                headers, headers_text = _headers(one), one.headers
            task = replace(task, seq=one.seq, id=one.id, payload=one.payload, headers=headers, enqueued_at=at)
        else:
            task, path, options = _waiting_task(one), one.func_path, own_options
        tasks.append(task)
    return tasks


def _headers(one: _Waiting) -> dict[str, str]:
    return {} if one.headers is None else read_headers.decode(one.headers)


def _waiting_task(one: _Waiting) -> StoredTask:
    return StoredTask(
        one.func_path,
        one.payload,
        one.seq,
        id=one.id,
        queue=one.queue,
        priority=one.priority,
        eta=None if one.eta is None else moment_of(one.eta),
        expires_at=None if one.expires_at is None else moment_of(one.expires_at),
        interval=one.interval,
        timeout=one.timeout,
        max_retries=one.max_retries,
        max_losses=one.max_losses,
        unique_key=one.unique_key,
        headers=_headers(one),
        on_failure=one.on_failure,
        result_ttl=one.result_ttl,
        epoch=one.epoch,
        attempts=one.attempts,
        losses=one.losses,
        suspicions=one.suspicions,
        enqueued_at=moment_of(one.enqueued_at),
    )


def read_task(row: tuple[Any, ...]) -> StoredTask:
    """One record as a value; what makes no sense is `CorruptRecord` and stays as it is."""
    waiting = read_waiting(row)
    try:
        one = msgspec.convert(row, _Record, builtin_types=(bytes,))
        return replace(
            waiting,
            status=STATUSES[one.status],
            owner=one.owner,
            cancel_requested=bool(one.cancel_requested),
            error=None if one.error is None else read_error.decode(one.error),
            progress=None if one.progress is None else read_progress.decode(one.progress),
            started_at=None if one.started_at is None else moment_of(one.started_at),
            finished_at=None if one.finished_at is None else moment_of(one.finished_at),
            result=one.result,
            result_status=None if one.result_status is None else STATUSES[one.result_status],
            result_at=None if one.result_at is None else moment_of(one.result_at),
            first_content=one.first_content,
            isolates=bool(one.isolates),
        )
    except _NONSENSE as exc:
        raise _nonsense(row, exc) from exc


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


def given_of(task: StoredTask) -> tuple[Any, ...]:
    """What an enqueue brings. Each pays for this, so what is None, as most of it is, costs no call."""
    due = lifecycle.due_at(task)
    due_micros = micros(due)
    return (
        task.func_path,
        task.payload if len(task.payload) <= ROW_BYTES else None,
        task.queue,
        task.priority,
        None if task.eta is None else micros(task.eta),
        due_micros,
        None if task.expires_at is None else micros(task.expires_at),
        task.interval,
        task.timeout,
        task.max_retries,
        task.max_losses,
        task.unique_key,
        to_json.encode(task.headers).decode() if task.headers else None,
        task.on_failure,
        task.result_ttl,
        due_micros if task.enqueued_at is due else maybe_micros(task.enqueued_at),
    )


def record_of(task: StoredTask, retention: Retention) -> tuple[Any, ...]:
    result = task.result
    return (
        *given_of(task),
        NUMBERS[task.status],
        task.epoch,
        task.attempts,
        task.losses,
        task.suspicions,
        task.owner,
        task.cancel_requested,
        None if task.error is None else to_json.encode(task.error).decode(),
        None if task.progress is None else to_json.encode(task.progress).decode(),
        maybe_micros(task.started_at),
        maybe_micros(task.finished_at),
        result if result is None or len(result) <= ROW_BYTES else None,
        None if task.result_status is None else NUMBERS[task.result_status],
        maybe_micros(task.result_at),
        _prune_at(task, retention),
        task.first_content,
        task.isolates,
    )


def _prune_at(task: StoredTask, retention: Retention) -> int | None:
    if task.finished_at is None:
        return None
    keep_s = retention.failed_s
    if task.status is TaskStatus.SUCCESS:
        keep_s = retention.result_s if task.result_ttl is None else task.result_ttl
    return micros(task.finished_at) + round(keep_s * 1_000_000)
