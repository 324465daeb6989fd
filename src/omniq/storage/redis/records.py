"""A task and what Redis keeps of it, one as the other. Nothing here touches a connection.

What never changes (the call and how to treat it) is two msgpack values, written once; what does change is a
record of fixed fields and a few texts, whose layout lua/tasks.lua has too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec
from loguru import logger
from msgspec import Struct

from omniq.errors import CorruptRecord
from omniq.storage.rows import digest
from omniq.task import (
    TOP_PRIORITY,
    Action,
    Answer,
    OnFailure,
    Run,
    RunOutcome,
    Settlement,
    StoredTask,
    TaskError,
    TaskStatus,
    WorkerInfo,
    replace,
)

STATUSES: Final[tuple[TaskStatus, ...]] = tuple(TaskStatus)
NUMBERS: Final = {status: number for number, status in enumerate(STATUSES)}
ACTIONS: Final = {action: number for number, action in enumerate(Action)}
OUTCOMES: Final[tuple[RunOutcome, ...]] = tuple(RunOutcome)
ANSWERS: Final = (Answer.HELD, Answer.ALREADY, Answer.STALE)
DIGEST_BYTES: Final = 16
NO_RESULT: Final = 255
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)

# See FORMAT in lua/tasks.lua: the fixed fields, then five texts with two bytes of length and two with four.
_FIXED: Final = struct.Struct(">6B5IQ8s8s5Qd")
_EPOCH_AT, _SEQ_AT = 6, 26
# See PLAIN there: what most tasks have, and what a success adds. Seven bytes of a moment are 1, 2 and 4.
_PLAIN: Final = struct.Struct(">4BIHIBHIBHIIB")
_SUCCESS: Final = struct.Struct(">BHIBHIH")
_PLAIN_FROM, _PLAIN_EPOCH_AT, _PLAIN_SEQ_AT, _PLAIN_STARTED_AT, _PLAIN_ROOM = 128, 4, 8, 21, 84
_PLAIN_SEQ: Final = struct.Struct(">HI")
_NO_TTL: Final = 0xFFFFFFFF
_SHORT: Final = struct.Struct(">H")
_LONG: Final = struct.Struct(">I")
_MOMENT: Final = struct.Struct(">Q")
_META: Final = struct.Struct(">BBId8s8s")
_SAID: Final = struct.Struct(">dBdI")
_RUN: Final = struct.Struct(">IQQBH")
_SECONDS: Final = struct.Struct(">d")
_NEVER: Final = bytes(8)
_ZERO: Final = 1 << 63
_HAS_ETA, _ETA_IN, _EXPIRES, _EXPIRES_IN = 1, 2, 4, 8

_to_json: Final = msgspec.json.Encoder()
_to_msgpack: Final = msgspec.msgpack.Encoder()
_read_error: Final = msgspec.json.Decoder(TaskError)
_read_progress: Final = msgspec.json.Decoder(tuple[float, float | None])
_read_worker: Final = msgspec.json.Decoder(WorkerInfo)


class Call(Struct, frozen=True, array_like=True):
    """What `on_conflict="replace"` exchanges."""

    func_path: str
    payload: bytes


class Options(Struct, frozen=True, array_like=True):
    """What a task keeps for life."""

    interval: float | None
    timeout: float | None
    max_retries: int
    headers: dict[str, str]
    on_failure: OnFailure


# What is not written down: part of the format, whatever becomes of the defaults of `Task`.
_USUAL: Final = Options(None, None, 3, {}, "stop")
_AS_USUAL: Final = msgspec.structs.astuple(_USUAL)

_read_call: Final = msgspec.msgpack.Decoder(Call)
_read_options: Final = msgspec.msgpack.Decoder(Options)


# --- moments -------------------------------------------------------------------------------------


def microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


# A batch has few moments: what was enqueued or claimed together shares them.
@lru_cache(maxsize=256)
def moment_of(value: int) -> datetime:
    return EPOCH + timedelta(microseconds=value)


def raw_moment(moment: datetime) -> bytes:
    """Eight bytes whose order is that of time, also before 1970."""
    return _MOMENT.pack(microseconds(moment) + _ZERO)


def from_raw(raw: bytes) -> datetime:
    return moment_of(_MOMENT.unpack(raw)[0] - _ZERO)


def _or_none(value: int) -> datetime | None:
    return moment_of(value) if value else None


# --- reading -------------------------------------------------------------------------------------


def read_task(task_id: bytes, state: bytes | None, body: bytes | None) -> StoredTask:
    """A whole task. Raises `CorruptRecord` where one half is missing or makes no sense."""
    try:
        if not state or not body:
            raise ValueError("its record is gone" if not state else "its body is gone")
        [length] = _LONG.unpack_from(body, DIGEST_BYTES)
        call_end = DIGEST_BYTES + _LONG.size + length
        call = _read_call.decode(body[call_end - length : call_end])
        options = _read_options.decode(body[call_end:]) if len(body) > call_end else _USUAL
        read = _read_task if state[0] < _PLAIN_FROM else _read_plain
        return read(task_id.decode(), state, call, options)
    except (ValueError, IndexError, OverflowError, struct.error, msgspec.MsgspecError) as exc:
        raise CorruptRecord(
            f"the record of task {task_id.decode(errors='replace')!a} makes no sense: {exc}"
        ) from exc


def _read_task(task_id: str, state: bytes, call: Call, options: Options) -> StoredTask:
    fixed: tuple[Any, ...] = _FIXED.unpack_from(state)
    status, cancel, isolates, has_eta, rank, ended = fixed[:6]
    epoch, attempts, losses, suspicions, max_losses, seq, due, expires = fixed[6:14]
    enqueued, started, finished, result_at, _, result_ttl = fixed[14:]
    queue, owner, _, key, progress, error, result = _texts(state)
    result_status = None if ended == NO_RESULT else STATUSES[int(ended)]
    return StoredTask(
        call.func_path,
        call.payload,
        seq,
        id=task_id,
        queue=queue.decode(),
        priority=TOP_PRIORITY - rank,
        eta=from_raw(due) if has_eta else None,
        expires_at=None if expires == _NEVER else from_raw(expires),
        interval=options.interval,
        timeout=options.timeout,
        max_retries=options.max_retries,
        max_losses=max_losses,
        unique_key=key.decode() or None,
        headers=options.headers.copy(),  # one set of options serves many
        on_failure=options.on_failure,
        result_ttl=None if result_ttl < 0 else result_ttl,
        status=STATUSES[int(status)],
        epoch=epoch,
        attempts=attempts,
        losses=losses,
        suspicions=suspicions,
        owner=owner.decode() or None,
        cancel_requested=bool(cancel),
        error=_read_error.decode(error) if error else None,
        progress=_read_progress.decode(progress) if progress else None,
        enqueued_at=moment_of(enqueued),
        started_at=_or_none(started),
        finished_at=_or_none(finished),
        result=(result or None) if result_status is TaskStatus.SUCCESS else None,
        result_status=result_status,
        result_at=_or_none(result_at),
        isolates=bool(isolates),
    )


def _read_plain(task_id: str, state: bytes, call: Call, options: Options) -> StoredTask:
    fixed: tuple[int, ...] = _PLAIN.unpack_from(state)
    number, isolates, rank, max_losses, epoch, seq_1, seq_2, enqueued_1, enqueued_2, enqueued_3 = fixed[:10]
    started_1, started_2, started_3, ttl_ms, size = fixed[10:]
    at = _PLAIN.size + size
    status, queue = STATUSES[number - _PLAIN_FROM], state[at - size : at]
    owner, finished, result = b"", 0, b""
    if status is TaskStatus.RUNNING:
        owner = state[at + 1 : at + 1 + state[at]]
        at += 1 + len(owner)
        at += 1 + state[at]  # past the id of its claim
    elif status is TaskStatus.SUCCESS:
        finished_1, finished_2, finished_3, _, _, _, size = _SUCCESS.unpack_from(state, at)
        finished = finished_1 << 48 | finished_2 << 32 | finished_3
        at += _SUCCESS.size + size
        result = state[at - size : at]
    if at != len(state) and (status is not TaskStatus.PENDING or at > len(state)):
        raise ValueError(f"it has {len(state)} bytes instead of {at}")
    finished_at = _or_none(finished)
    return StoredTask(
        call.func_path,
        call.payload,
        seq_1 << 32 | seq_2,
        id=task_id,
        queue=queue.decode(),
        priority=TOP_PRIORITY - rank,
        interval=options.interval,
        timeout=options.timeout,
        max_retries=options.max_retries,
        max_losses=max_losses,
        headers=options.headers.copy(),  # one set of options serves many
        on_failure=options.on_failure,
        result_ttl=None if ttl_ms == _NO_TTL else ttl_ms / 1000,
        status=status,
        epoch=epoch,
        owner=owner.decode() or None,
        enqueued_at=moment_of(enqueued_1 << 48 | enqueued_2 << 32 | enqueued_3),
        started_at=_or_none(started_1 << 48 | started_2 << 32 | started_3),
        finished_at=finished_at,
        result=result or None,
        result_status=None if finished_at is None else status,
        result_at=finished_at,
        isolates=bool(isolates),
    )


def _texts(state: bytes) -> list[bytes]:
    at, texts = _FIXED.size, list[bytes]()
    for length in (_SHORT, _SHORT, _SHORT, _SHORT, _SHORT, _LONG, _LONG):
        [size] = length.unpack_from(state, at)
        at += length.size
        texts.append(state[at : at + size])
        at += size
    if at != len(state):
        raise ValueError(f"it has {len(state)} bytes instead of {at}")
    return texts


def func_path_of(body: bytes) -> str:
    try:
        [length] = _LONG.unpack_from(body, DIGEST_BYTES)
        begin = DIGEST_BYTES + _LONG.size
        return _read_call.decode(body[begin : begin + length]).func_path
    except (ValueError, struct.error, msgspec.MsgspecError) as exc:
        raise CorruptRecord(f"the body of a task makes no sense: {exc}") from exc


def seq_of(state: bytes) -> int:
    if state[0] >= _PLAIN_FROM:
        first, rest = _PLAIN_SEQ.unpack_from(state, _PLAIN_SEQ_AT)
        return int(first) << 32 | int(rest)
    return int(_MOMENT.unpack_from(state, _SEQ_AT)[0])


def epoch_of(state: bytes) -> int:
    return int(_LONG.unpack_from(state, _PLAIN_EPOCH_AT if state[0] >= _PLAIN_FROM else _EPOCH_AT)[0])


def read_run(raw: bytes) -> Run:
    try:
        fixed: tuple[Any, ...] = _RUN.unpack_from(raw)
        epoch, started, finished, outcome, length = fixed
        owner, error = raw[_RUN.size : _RUN.size + length], raw[_RUN.size + length :]
        known = _read_error.decode(error) if error else None
        return Run(
            epoch,
            owner.decode() or None,
            _or_none(started),
            moment_of(finished),
            OUTCOMES[int(outcome)],
            known,
        )
    except (ValueError, IndexError, OverflowError, struct.error, msgspec.MsgspecError) as exc:
        raise CorruptRecord(f"a line of a task's history makes no sense: {exc}") from exc


def read_workers(told: Sequence[bytes]) -> Iterator[WorkerInfo]:
    """What cannot be read is passed over: one worker must not hide all the others."""
    for info, seen_us in zip(told[::2], told[1::2], strict=True):
        try:
            yield replace(_read_worker.decode(info), seen_at=moment_of(int(float(seen_us))))
        except (ValueError, OverflowError, msgspec.MsgspecError) as exc:
            logger.error("passed over: the record of a worker makes no sense: {}", exc)


# --- writing -------------------------------------------------------------------------------------


def name_bytes(text: str) -> bytes:
    """An id, a worker, a schedule. A lone surrogate cannot be stored, so whatever has one is unknown."""
    return str(text).encode(errors="backslashreplace")


def json_bytes(value: Any) -> bytes:
    try:
        return _to_json.encode(value)
    except UnicodeEncodeError:  # a lone surrogate in an error text must not stop its neighbours
        assert isinstance(value, TaskError)
        kind, message, traceback = (
            part.encode(errors="replace").decode() for part in (value.type, value.message, value.traceback)
        )
        return _to_json.encode(TaskError(kind, message, traceback, value.kind))


def enqueue_arguments(tasks: Sequence[StoredTask]) -> list[bytes]:
    """Three for each task: its id, its body, and what its record begins with."""
    arguments: list[bytes] = []
    for task in tasks:
        arguments += (task.id.encode(), _body(task), _meta(task))
    return arguments


def enqueue_one_arguments(tasks: Sequence[StoredTask]) -> tuple[bytes, ...] | None:
    """For a single task that is due at once, and nothing else: its id, its body, and its record around what
    the server puts in. None for all others."""
    [task, *others] = tasks
    is_plain = task.eta is None and task.delay_s is None and not task.unique_key
    if others or not is_plain or task.expires_at is not None or task.expires_in_s is not None:
        return None
    record = _new_record(task.queue, task.priority, task.max_losses, task.result_ttl)
    return None if record is None else (task.id.encode(), _body(task), *record)


# Those of one program are mostly alike.
@lru_cache(maxsize=256)
def _new_record(
    queue: str, priority: int, max_losses: int, result_ttl: float | None
) -> tuple[bytes, bytes, bytes] | None:
    """The queue, and the record of a task that nothing has happened to, but for what the server puts in. None
    where that is no short one."""
    name = queue.encode()
    ttl_ms = float(_NO_TTL) if result_ttl is None else result_ttl * 1000
    is_exact = ttl_ms.is_integer() and (result_ttl is None or ttl_ms / 1000 == result_ttl)
    if max_losses > 255 or not is_exact or (result_ttl is not None and ttl_ms >= _NO_TTL):
        return None
    waits = (_PLAIN_FROM, False, TOP_PRIORITY - priority, max_losses)
    fixed = _PLAIN.pack(*waits, 0, *(0, 0), *(0, 0, 0), *(0, 0, 0), int(ttl_ms), len(name))
    record = (fixed + name).ljust(_PLAIN_ROOM, b"\0")
    return name, record[:_PLAIN_SEQ_AT], record[_PLAIN_STARTED_AT:]


def _body(task: StoredTask) -> bytes:
    call = _to_msgpack.encode(Call(task.func_path, task.payload))
    head = digest(task) + _LONG.pack(len(call))
    options = (task.interval, task.timeout, task.max_retries, task.headers, task.on_failure)
    return head + call if options == _AS_USUAL else head + call + _to_msgpack.encode(options)


def _meta(task: StoredTask) -> bytes:
    eta, eta_flag = _when(task.eta, task.delay_s, _HAS_ETA, _ETA_IN)
    expires, expires_flag = _when(task.expires_at, task.expires_in_s, _EXPIRES, _EXPIRES_IN)
    queue, key = task.queue.encode(), (task.unique_key or "").encode()
    fixed = _META.pack(
        TOP_PRIORITY - task.priority,
        eta_flag | expires_flag,
        task.max_losses,
        -1.0 if task.result_ttl is None else task.result_ttl,
        eta,
        expires,
    )
    return b"".join((fixed, _SHORT.pack(len(queue)), queue, _SHORT.pack(len(key)), key))


def _when(moment: datetime | None, in_s: float | None, at_flag: int, in_flag: int) -> tuple[bytes, int]:
    if in_s is not None:
        return _SECONDS.pack(in_s), in_flag
    return (_NEVER, 0) if moment is None else (raw_moment(moment), at_flag)


def pack_task(task: StoredTask, prune_at: datetime | None) -> tuple[bytes, bytes]:
    """State and body of a task that another store had; its order number is given here."""
    assert task.enqueued_at is not None
    due = task.eta if task.eta is not None else task.enqueued_at
    fixed = _FIXED.pack(
        *(NUMBERS[task.status], False, False, task.eta is not None, TOP_PRIORITY - task.priority),
        NO_RESULT if task.result_status is None else NUMBERS[task.result_status],
        *(task.epoch, task.attempts, task.losses, task.suspicions, task.max_losses, 0, raw_moment(due)),
        _NEVER if task.expires_at is None else raw_moment(task.expires_at),
        *map(_us_or_0, (task.enqueued_at, task.started_at, task.finished_at, task.result_at, prune_at)),
        -1.0 if task.result_ttl is None else task.result_ttl,
    )
    short = (task.queue.encode(), b"", b"", (task.unique_key or "").encode(), _json_or_nothing(task.progress))
    long = (_json_or_nothing(task.error), task.result or b"")
    texts = [part for text in short for part in (_SHORT.pack(len(text)), text)]
    texts += [part for text in long for part in (_LONG.pack(len(text)), text)]
    return b"".join((fixed, *texts)), _body(task)


def pack_runs(runs: Sequence[Run]) -> bytes:
    """Newest first, each with its length in front."""
    lines: list[bytes] = []
    for run in reversed(runs):
        owner = (run.owner or "").encode()
        moments = (_us_or_0(run.started_at), _us_or_0(run.finished_at))
        fixed = _RUN.pack(run.epoch, *moments, OUTCOMES.index(run.outcome), len(owner))
        lines.append(fixed + owner + _json_or_nothing(run.error))
    return b"".join(_LONG.pack(len(line)) + line for line in lines)


def read_runs(packed: bytes) -> list[Run]:
    runs, at = list[Run](), 0
    while at < len(packed):
        [length] = _LONG.unpack_from(packed, at)
        at += _LONG.size + length
        runs.append(read_run(packed[at - length : at]))
    return runs[::-1]


def _us_or_0(moment: datetime | None) -> int:
    return 0 if moment is None else microseconds(moment)


def _json_or_nothing(value: Any) -> bytes:
    return b"" if value is None else json_bytes(value)


def settle_arguments(said: Sequence[Settlement]) -> list[bytes]:
    """Three for each: id; epoch, action, delay; its result or error, and what a last loss would be."""
    arguments: list[bytes] = []
    for one in said:
        first = one.result if one.result is not None else b"" if one.error is None else json_bytes(one.error)
        head = _SAID.pack(one.task.epoch, ACTIONS[one.action], one.delay_s, len(first))
        arguments += (name_bytes(one.task.id), head, first + _poison(one))
    return arguments


def _poison(settlement: Settlement) -> bytes:
    """The error if this loss is the last one; how many there were only the store knows."""
    if settlement.action is not Action.LOSE:
        return b""
    why = "its process died" if settlement.error is None else settlement.error.message
    return json_bytes(TaskError("WorkerLost", f"{why}, too often while running it", "", "poison"))
