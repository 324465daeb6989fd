"""A task and its row in PostgreSQL, one as the other. Nothing here touches a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from loguru import logger

from omniq.errors import CorruptRecord
from omniq.storage.rows import digest
from omniq.task import (
    Action,
    Claim,
    OnConflict,
    Run,
    RunOutcome,
    Settlement,
    StoredTask,
    TaskError,
    TaskFilter,
    TaskStatus,
    WorkerInfo,
    replace,
)

STATUSES: Final = tuple(TaskStatus)
NUMBERS: Final = {status: number for number, status in enumerate(STATUSES)}
ACTIONS: Final = {action: number for number, action in enumerate(Action)}

# In front of the columns of a task, `exchange` has what it says of the call as a whole.
HEAD_COLUMNS: Final = 5
# What a claim hands out, in the order of `exchange`, and what any task has beyond it.
_WAITING: Final = (
    *(
        "seq",
        "id",
        "func_path",
        "payload",
        "queue",
        "rank",
        "eta",
        "due",
        "expires_at",
        '"interval"',
        "timeout",
    ),
    *("max_retries", "max_losses", "unique_key", "headers", "on_failure", "result_ttl", "epoch", "attempts"),
    *("losses", "suspicions", "enqueued_at", "started_at"),
)
_REST: Final = (
    *("status", "owner", "cancel_requested", "error", "progress", "finished_at", "result", "result_status"),
    *("result_at", "isolates"),
)
COLUMNS: Final = ", ".join(f"t.{name}" for name in (*_WAITING, *_REST))

_to_json: Final = msgspec.json.Encoder()
_read_headers: Final = msgspec.json.Decoder(dict[str, str])
_read_error: Final = msgspec.json.Decoder(TaskError)
_read_progress: Final = msgspec.json.Decoder(tuple[float, float | None])
_read_worker: Final = msgspec.json.Decoder(WorkerInfo)
read_missed: Final = msgspec.json.Decoder(dict[str, str])

Row = Sequence[Any]


class Vitals(msgspec.Struct, frozen=True):
    """How the server is, for `omniq doctor`."""

    server_version: str
    schema_version: int
    oldest_xmin_ids: int | None  # transactions begun since the oldest snapshot that somebody still holds
    oldest_xmin_age_s: float | None
    oldest_xmin_who: str | None
    dead_rows: int | None
    fsync: bool
    synchronous_commit: bool
    connections: int
    max_connections: int
    missing_rights: list[str]
    pooled: bool = False  # there is a pooler between us and the server
    wakes: bool = True  # what others notify of is heard


Columns = tuple[Sequence[Any], ...]


# --- reading -------------------------------------------------------------------------------------


def _nonsense(row: Row, exc: Exception) -> CorruptRecord:
    return CorruptRecord(f"the record of task {row[1]!a} (seq {row[0]}) makes no sense: {exc}")


def _aware(moment: datetime | None) -> datetime | None:
    """The driver takes the last moment there is for infinity, and gives it back without a time zone."""
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def read_waiting(row: Row) -> StoredTask:
    """The first columns of a row as a value: what a worker needs."""
    try:
        headers: str | None = row[14]
        return StoredTask(
            row[2],
            row[3],
            row[0],
            id=row[1],
            queue=row[4],
            priority=-row[5],
            eta=_aware(row[6]),
            expires_at=_aware(row[8]),
            interval=row[9],
            timeout=row[10],
            max_retries=row[11],
            max_losses=row[12],
            unique_key=row[13],
            headers={} if headers is None else _read_headers.decode(headers),
            on_failure=row[15],
            result_ttl=row[16],
            epoch=row[17],
            attempts=row[18],
            losses=row[19],
            suspicions=row[20],
            enqueued_at=row[21],
            started_at=row[22],
        )
    except msgspec.MsgspecError as exc:
        raise _nonsense(row, exc) from exc


def claim_order(row: Row) -> tuple[Any, ...]:
    """Of a whole row of `exchange`: priority, then due, then order of enqueueing."""
    return row[HEAD_COLUMNS + 5], _aware(row[HEAD_COLUMNS + 7]), row[HEAD_COLUMNS]


def read_claimed(row: Row, claim: Claim) -> StoredTask:
    waiting = read_waiting(row)
    return replace(waiting, status=TaskStatus.RUNNING, owner=claim.worker, isolates=claim.isolates)


def filter_arguments(wanted: TaskFilter) -> tuple[Any, ...]:
    return (
        None if wanted.status is None else NUMBERS[wanted.status],
        wanted.queue,
        wanted.func_path,
        wanted.unique_key,
        wanted.owner,
        None if wanted.error is None else json_text(wanted.error)[1:-1],
        wanted.enqueued_after,
        wanted.enqueued_before,
        wanted.finished_after,
        wanted.finished_before,
    )


def read_task(row: Row) -> StoredTask:
    """A whole row as a value."""
    waiting = read_waiting(row)
    status, owner, cancel_requested, error, progress, finished_at, result, ended, result_at, isolates = row[
        23:33
    ]
    try:
        return replace(
            waiting,
            status=STATUSES[status],
            owner=owner,
            cancel_requested=cancel_requested,
            error=None if error is None else _read_error.decode(error),
            progress=None if progress is None else _read_progress.decode(progress),
            finished_at=finished_at,
            result=result,
            result_status=None if ended is None else STATUSES[ended],
            result_at=result_at,
            isolates=isolates,
        )
    except (IndexError, msgspec.MsgspecError) as exc:
        raise _nonsense(row, exc) from exc


def read_run(row: Row) -> Run:
    epoch, owner, started_at, finished_at, outcome, error = row
    try:
        known = None if error is None else _read_error.decode(error)
        return Run(epoch, owner, started_at, finished_at, RunOutcome(outcome), known)
    except (ValueError, msgspec.MsgspecError) as exc:
        raise CorruptRecord(f"a line of a task's history (epoch {epoch!a}) makes no sense: {exc}") from exc


def read_workers(rows: Iterable[Sequence[Any]]) -> Iterator[WorkerInfo]:
    """What cannot be read is passed over: one worker must not hide all the others."""
    for info, seen_at in rows:
        try:
            yield replace(_read_worker.decode(info), seen_at=seen_at)
        except (ValueError, msgspec.MsgspecError) as exc:
            logger.error("passed over: the record of a worker makes no sense: {}", exc)


# --- writing -------------------------------------------------------------------------------------


def can_be_kept(name: str) -> bool:
    """Whether anything stored can have this id or name: PostgreSQL keeps no NUL and no lone surrogate."""
    try:
        return "\x00" not in name and bool(name.encode())
    except UnicodeEncodeError:
        return False


def json_text(value: Any) -> str:
    try:
        return _to_json.encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate in an error text must not stop its neighbours
        assert isinstance(value, TaskError)
        kind, message, traceback = (
            part.encode(errors="replace").decode() for part in (value.type, value.message, value.traceback)
        )
        return _to_json.encode(TaskError(kind, message, traceback, value.kind)).decode()


def enqueue_arguments(tasks: Sequence[StoredTask], on_conflict: OnConflict) -> tuple[Any, ...]:
    """The columns of `enqueue`, one list each."""
    return (
        [task.id for task in tasks],
        [digest(task) for task in tasks],
        [task.func_path for task in tasks],
        [task.payload for task in tasks],
        [task.queue for task in tasks],
        [-task.priority for task in tasks],
        [task.eta for task in tasks],
        [task.delay_s for task in tasks],
        [task.expires_at for task in tasks],
        [task.expires_in_s for task in tasks],
        [task.interval for task in tasks],
        [task.timeout for task in tasks],
        [task.max_retries for task in tasks],
        [task.max_losses for task in tasks],
        [task.unique_key for task in tasks],
        [json_text(task.headers) if task.headers else None for task in tasks],
        [task.on_failure for task in tasks],
        [task.result_ttl for task in tasks],
        on_conflict,
    )


def move_arguments(
    tasks: Sequence[StoredTask], kept_until: Callable[[StoredTask], datetime | None]
) -> Columns:
    """The columns of `move_in`: tasks as another store had them."""
    return (
        [task.id for task in tasks],
        [digest(task) for task in tasks],
        [task.func_path for task in tasks],
        [task.payload for task in tasks],
        [task.queue for task in tasks],
        [-task.priority for task in tasks],
        [task.eta for task in tasks],
        [task.expires_at for task in tasks],
        [task.interval for task in tasks],
        [task.timeout for task in tasks],
        [task.max_retries for task in tasks],
        [task.max_losses for task in tasks],
        [task.unique_key for task in tasks],
        [json_text(task.headers) if task.headers else None for task in tasks],
        [task.on_failure for task in tasks],
        [task.result_ttl for task in tasks],
        [NUMBERS[task.status] for task in tasks],
        [task.epoch for task in tasks],
        [task.attempts for task in tasks],
        [task.losses for task in tasks],
        [task.suspicions for task in tasks],
        [None if task.error is None else json_text(task.error) for task in tasks],
        [None if task.progress is None else json_text(task.progress) for task in tasks],
        [task.enqueued_at for task in tasks],
        [task.started_at for task in tasks],
        [task.finished_at for task in tasks],
        [task.result for task in tasks],
        [None if task.result_status is None else NUMBERS[task.result_status] for task in tasks],
        [task.result_at for task in tasks],
        [kept_until(task) for task in tasks],
    )


def run_arguments(runs: Sequence[tuple[int, Run]]) -> Columns:
    """The columns of `move_runs_in`, each run with the number of its task."""
    return (
        [seq for seq, _ in runs],
        [run.epoch for _, run in runs],
        [run.owner for _, run in runs],
        [run.started_at for _, run in runs],
        [run.finished_at for _, run in runs],
        [run.outcome.value for _, run in runs],
        [None if run.error is None else json_text(run.error) for _, run in runs],
    )


def settle_arguments(said: Sequence[Settlement]) -> Columns:
    """The columns of what is settled. Where all of it succeeded, nothing else has to be said of it."""
    ids, epochs = [one.task.id for one in said], [one.task.epoch for one in said]
    results = [one.result for one in said]
    if all(one.action is Action.SUCCEED for one in said):
        return ids, epochs, (), results, (), (), ()
    return (
        ids,
        epochs,
        [ACTIONS[one.action] for one in said],
        results,
        [one.delay_s for one in said],
        [None if one.error is None else json_text(one.error) for one in said],
        [_poison(one) for one in said],
    )


def _poison(settlement: Settlement) -> str | None:
    """The error if this loss is the last one; how many there were only the store knows."""
    if settlement.action is not Action.LOSE:
        return None
    why = "its process died" if settlement.error is None else settlement.error.message
    return json_text(TaskError("WorkerLost", f"{why}, too often while running it", "", "poison"))
