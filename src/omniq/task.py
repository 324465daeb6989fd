"""The values that travel: a task, what became of a run, what a worker tells the store.

All of them are frozen and know nothing of clocks, stores or event loops.

    Task ── encoded ──> StoredTask ── claimed ──> Outcome ── decided ──> Settlement ──> Answer
"""

from __future__ import annotations

import difflib
import math
import os
import random
import re
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import force_setattr

from omniq.errors import InvalidOption

Duration: TypeAlias = float | int | timedelta
ErrorKind: TypeAlias = Literal[
    "error",
    "timeout",
    "poison",
    "expired",
    "unresolvable",
    "unknown_task",
    "undecodable",
    "unserializable",
    "cancelled",
]
OnFailure: TypeAlias = Literal["stop", "continue"]
OnConflict: TypeAlias = Literal["skip", "raise", "replace"]

QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")
FUNC_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*(\.[^\W\d]\w*)*)?")
MAX_NAME_CHARS: Final = 512
MAX_HEADER_BYTES: Final = 16 << 10
MAX_COUNT: Final = 2**31 - 1
MAX_DURATION_S: Final = 100 * 366 * 86400.0
TOP_PRIORITY: Final = 9

# --- ids ----------------------------------------------------------------------------------------

# Its own source of chance: `random.seed(0)` in an application must not make two processes agree on ids.
_chance = random.Random()
_id_lock = threading.RLock()  # a signal handler may want an id while its own thread makes one
_last_id_time = 0


def _begin_anew_in_child() -> None:
    global _id_lock  # noqa: PLW0603 - another thread of the parent may have held it
    _id_lock = threading.RLock()
    _chance.seed()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew_in_child)


def new_id() -> str:
    """A UUID version 7 as text: time-ordered over this process, random enough over all of them."""
    global _last_id_time  # noqa: PLW0603 - the point is one order for the whole process
    with _id_lock:
        # 48 bits of milliseconds and 12 bits of their fraction; two ids never share that time.
        millis, nanos = divmod(time.time_ns(), 1_000_000)
        _last_id_time = now = max(millis << 12 | nanos * 4096 // 1_000_000, _last_id_time + 1)
        tail = _chance.getrandbits(62)
    digits = f"{now >> 12:012x}7{now & 0xFFF:03x}{tail | 0x8000_0000_0000_0000:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


# --- checks that every face shares ---------------------------------------------------------------


def seconds(value: Duration, name: str) -> float:
    """A duration as seconds; `name` is what the caller called it."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOption(f"{name} must be seconds (int or float) or a timedelta, not {value!r}")
    if not -MAX_DURATION_S <= value <= MAX_DURATION_S:
        raise InvalidOption(
            f"{name} must be a finite number of seconds within a hundred years, not {value!r}"
        )
    return float(value)


def positive_seconds(value: Duration, name: str) -> float:
    duration_s = seconds(value, name)
    if duration_s <= 0:
        raise InvalidOption(f"{name} must be more than 0 seconds, not {value!r}")
    return duration_s


def moment(value: datetime, name: str) -> datetime:
    """An aware moment in UTC; a naive one is refused, because nobody can know what it means."""
    if not isinstance(value, datetime):
        raise InvalidOption(f"{name} must be a datetime with a time zone, not {value!r}")
    if value.utcoffset() is None:
        raise InvalidOption(
            f"{name} {value!r} has no time zone; write datetime.now(UTC) + timedelta(...), "
            "or add tzinfo=ZoneInfo('Europe/Berlin')"
        )
    try:
        return value if value.tzinfo is UTC else value.astimezone(UTC)
    except OverflowError:
        raise InvalidOption(f"{name} {value!r} is beyond the last moment that UTC can name") from None


def count(value: int, name: str, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_COUNT:
        raise InvalidOption(f"{name} must be a whole number from {least}, not {value!r}")
    return value


def check_progress(done: float, total: float | None) -> None:
    for value in (done,) if total is None else (done, total):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidOption(f"progress takes finite numbers, such as progress(3, 10), not {shown(value)}")


def refuse_unknown(given: Iterable[str], known: Iterable[str], whose: str) -> None:
    """An option that does not exist, with the one that was probably meant."""
    names = tuple(known)
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
            raise InvalidOption(f"{whose} has no option {shown(name)}; {hint}")


def queue_name(value: str) -> str:
    if not isinstance(value, str) or not QUEUE_NAME.fullmatch(value):
        raise InvalidOption(
            f"queue name {shown(value)} must be 1 to 128 characters of A-Z a-z 0-9 _ . : - "
            "and begin with a letter, digit or underscore"
        )
    return value


def func_path(value: str) -> str:
    """Check a path such as `myapp.jobs.resize`; whether it exists is for the worker to find out."""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS or not FUNC_PATH.fullmatch(value):
        raise InvalidOption(f"func_path {shown(value)} must look like 'package.module.function'")
    return value


def shown(value: object, limit: int = 80) -> str:
    """A value in a message or log line: one line, no control characters, never long."""
    text = ascii(value) if not isinstance(value, str) else ascii(value[: limit * 2])
    return text if len(text) <= limit else text[: limit - 3] + "..."


def one_line(name: str) -> str:
    """A name in a log line. Ours are printable; somebody else's backend may have others."""
    return name if name.isprintable() else shown(name)


# --- a task --------------------------------------------------------------------------------------


class TaskStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        return self not in (TaskStatus.PENDING, TaskStatus.RUNNING)


class TaskError(Struct, frozen=True):
    """Why a run failed: text only. Nothing is ever rebuilt from `type`."""

    type: str
    message: str
    traceback: str = ""
    kind: ErrorKind = "error"

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    def mentions(self, text: str) -> bool:
        wanted = text.lower()
        return any(wanted in said.lower() for said in (self.type, self.message, self.traceback))


class TaskFields(Struct, frozen=True, kw_only=True):
    """What a task is made of, apart from the call itself."""

    id: str = field(default_factory=new_id)
    queue: str = "default"
    priority: int = 0
    eta: datetime | None = None
    expires_at: datetime | None = None
    interval: float | None = None
    timeout: float | None = None
    max_retries: int = 3
    max_losses: int = 3
    unique_key: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    on_failure: OnFailure = "stop"
    result_ttl: float | None = None

    # set by the store
    status: TaskStatus = TaskStatus.PENDING
    epoch: int = 0
    attempts: int = 0
    losses: int = 0
    suspicions: int = 0
    owner: str | None = None
    cancel_requested: bool = False
    error: TaskError | None = None
    progress: tuple[float, float | None] | None = None
    enqueued_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def repeats(self) -> bool:
        return self.interval is not None and self.interval > 0


class Task(TaskFields, frozen=True):
    """A call to run: a function by its path, its arguments, and how to treat it."""

    func_path: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        func_path(self.func_path)
        if not isinstance(self.args, tuple):
            if not isinstance(self.args, list):
                raise InvalidOption(
                    f"args must be a tuple of arguments, such as (1,), not {shown(self.args)}"
                )
            force_setattr(self, "args", tuple(self.args))
        if not isinstance(self.kwargs, Mapping) or not all(isinstance(key, str) for key in self.kwargs):
            raise InvalidOption(f"kwargs must be a dict with str keys, not {shown(self.kwargs)}")
        check_fields(self)


def check_fields(task: TaskFields) -> None:
    """Refuse what no store could keep, and bring durations and moments into one form."""
    check_text(task.id, "id", MAX_NAME_CHARS)
    queue_name(task.queue)
    if count(task.priority, "priority", least=0) > TOP_PRIORITY:
        raise InvalidOption(f"priority must be 0 (last) to 9 (first), not {task.priority!r}")
    count(task.max_retries, "max_retries", least=0)
    count(task.max_losses, "max_losses", least=1)
    for name in ("eta", "expires_at"):
        if (value := getattr(task, name)) is not None:
            force_setattr(task, name, moment(value, name))
    if task.interval is not None:
        force_setattr(task, "interval", seconds(task.interval, "interval"))
    if task.timeout is not None:
        force_setattr(task, "timeout", positive_seconds(task.timeout, "timeout"))
    if task.result_ttl is not None:
        force_setattr(task, "result_ttl", max(0.0, seconds(task.result_ttl, "result_ttl")))
    if task.unique_key is not None:
        check_text(task.unique_key, "unique_key", MAX_NAME_CHARS)
    if task.on_failure not in ("stop", "continue"):
        raise InvalidOption(f"on_failure must be 'stop' or 'continue', not {shown(task.on_failure)}")
    if task.headers:
        check_headers(task.headers)


def check_headers(headers: dict[str, str]) -> None:
    try:
        size = len("".join(text for pair in headers.items() for text in pair).encode())
    except (TypeError, AttributeError, UnicodeEncodeError) as exc:
        raise InvalidOption(f"headers must be a dict from str to str, in plain text: {exc}") from None
    if size > MAX_HEADER_BYTES:
        raise InvalidOption(
            f"headers take {size:,} bytes, more than {MAX_HEADER_BYTES:,}; pass data as arguments"
        )


def check_text(value: str, name: str, most: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
        raise InvalidOption(f"{name} must be 1 to {most} printable characters, not {shown(value)}")
    return value


class StoredTask(TaskFields, frozen=True):
    """A task as a store keeps it and a claim hands it out: the call still encoded.

    An empty `func_path` says that the function travels in the payload itself.
    """

    func_path: str
    payload: bytes
    seq: int = 0
    delay_s: float | None = None  # on its way in: eta is the store's now and this
    expires_in_s: float | None = None  # on its way in: expires_at is the store's now and this
    result: bytes | None = None
    result_status: TaskStatus | None = None
    result_at: datetime | None = None
    first_content: bytes | None = None  # digest of the call before it was replaced
    isolates: bool = False  # while it runs: its worker will run it in a process of its own if this one dies


class TaskResult(Struct, frozen=True):
    """How a task ended, or how the latest run of an interval task did. `result` is the Python value."""

    task_id: str
    status: TaskStatus
    result: Any = None
    error: TaskError | None = None
    finished_at: datetime | None = None


class Run(Struct, frozen=True):
    """One closed run in a task's history."""

    epoch: int
    owner: str | None
    started_at: datetime | None
    finished_at: datetime | None
    outcome: RunOutcome
    error: TaskError | None = None


class RunOutcome(StrEnum):
    """How a run was closed. Every epoch has exactly one, except the open one of a RUNNING task."""

    SUCCESS = "success"
    RETRIED = "retried"
    FAILED = "failed"
    GIVEN_BACK = "given back"
    LOST = "lost"  # with its worker
    DIED = "died"  # alone, in a process of its own
    CANCELLED = "cancelled"


# --- what a run came to --------------------------------------------------------------------------


class Succeeded(Struct, frozen=True):
    """The body returned; `result` is already encoded."""

    result: bytes


class Failed(Struct, frozen=True):
    """The body raised, timed out, or could not be started."""

    error: TaskError
    delay_s: float | None = None  # a wish of the body: retry after this long
    final: bool = False  # no retry, whatever is left
    kinds: tuple[str, ...] = ()  # the class of what was raised and those above it; empty: nothing to judge


class Snoozed(Struct, frozen=True):
    """The body asked to run later, or this worker cannot serve the task."""

    delay_s: float


class Interrupted(Struct, frozen=True):
    """Our own shutdown, or a cancel request, ended the body; the store knows which."""


class Died(Struct, frozen=True):
    """The body ran in a process of its own, and that process died."""

    cause: str


Outcome: TypeAlias = Succeeded | Failed | Snoozed | Interrupted | Died


# --- what a worker tells the store ---------------------------------------------------------------


class Held(Struct, frozen=True):
    """One run that the store thinks a worker has."""

    id: str
    epoch: int
    cancel_requested: bool = False
    seq: int = 0


class Action(StrEnum):
    SUCCEED = "succeed"  # T4
    REPEAT = "repeat"  # T4i
    RETRY = "retry"  # T5
    FAIL = "fail"  # T6
    CONTINUE = "continue"  # T6c
    GIVE_BACK = "give back"  # T7
    LOSE = "lose"  # T8, T9, told by a worker that lives: the body's own process died


class Settlement(Struct, frozen=True):
    """What should become of one run. It holds only while `task.epoch` is still the task's epoch."""

    task: StoredTask | Task | Held
    action: Action
    result: bytes | None = None
    delay_s: float = 0.0
    error: TaskError | None = None

    @property
    def status(self) -> TaskStatus:
        match self.action:
            case Action.SUCCEED:
                return TaskStatus.SUCCESS
            case Action.FAIL:
                return TaskStatus.FAILED
            case _:
                return TaskStatus.PENDING

    @classmethod
    def success(cls, task: StoredTask | Task | Held, result: bytes) -> Settlement:
        return cls(task, Action.SUCCEED, result)

    @classmethod
    def repeat(cls, task: StoredTask | Task | Held, result: bytes, delay_s: float) -> Settlement:
        return cls(task, Action.REPEAT, result, delay_s)

    @classmethod
    def retry(cls, task: StoredTask | Task | Held, delay_s: float, error: TaskError) -> Settlement:
        return cls(task, Action.RETRY, None, delay_s, error)

    @classmethod
    def failed(cls, task: StoredTask | Task | Held, error: TaskError) -> Settlement:
        return cls(task, Action.FAIL, None, 0.0, error)

    @classmethod
    def carry_on(cls, task: StoredTask | Task | Held, delay_s: float, error: TaskError) -> Settlement:
        return cls(task, Action.CONTINUE, None, delay_s, error)

    @classmethod
    def lost(cls, task: StoredTask | Task | Held, error: TaskError) -> Settlement:
        return cls(task, Action.LOSE, None, 0.0, error)

    @classmethod
    def give_back(cls, task: StoredTask | Task | Held, delay_s: float = 0.0) -> Settlement:
        return cls(task, Action.GIVE_BACK, None, delay_s)


class Answer(StrEnum):
    """What the store says to a settlement."""

    HELD = "held"  # it was ours, and is done
    ALREADY = "already"  # this epoch was closed with this outcome before
    STALE = "stale"  # somebody else closed it; nothing changed
    UNSENT = "unsent"  # a store with the seed's verbs only went away half-way: send it again


class Claim(Struct, frozen=True):
    """A worker's wish for work. Repeating its `claim_id`, unique per worker, gives the same tasks again."""

    worker: str
    queues: tuple[str, ...] | None = None
    limit: int = 1
    lease: float = 30.0
    claim_id: str = field(default_factory=new_id)
    scarce: tuple[str, ...] = ()  # queues of which it can start only few at a time
    scarce_limit: int = 0  # how many of `limit` may come from those
    isolates: bool = False  # should this worker die, what it held is run on its own next, before it counts


class Renewal(Struct, frozen=True):
    """What a worker holds after renewing: what it lost, and what it should cancel."""

    held: dict[str, Held] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    cancel: frozenset[str] = frozenset()


class Enqueued(str):
    """The id that an enqueued call now has; `created` is False where a task was already there."""

    __slots__ = ("created",)
    created: bool

    def __new__(cls, task_id: str, *, created: bool) -> Enqueued:
        self = super().__new__(cls, task_id)
        self.created = created
        return self


class WorkerInfo(Struct, frozen=True):
    """What a worker says of itself when it beats."""

    id: str
    name: str
    host: str
    pid: int
    queues: tuple[str, ...] | None = None
    concurrency: int = 1
    in_flight: int = 0
    functions: tuple[str, ...] | None = None  # None: whatever can be imported
    started_at: datetime | None = None
    seen_at: datetime | None = None
    loop_stalls: int = 0  # how often its event loop was found blocked


class TaskFilter(Struct, frozen=True, kw_only=True):
    """Which tasks to list. Everything that is set must match."""

    status: TaskStatus | None = None
    queue: str | None = None
    func_path: str | None = None
    unique_key: str | None = None
    owner: str | None = None  # the worker that runs it
    error: str | None = None  # a part of the error's type, message or traceback, in any case
    enqueued_after: datetime | None = None
    enqueued_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None

    def matches(self, task: TaskFields, func_path: str) -> bool:
        """What every store means by this filter; one that looks by other means looks for the same."""
        return (
            self.status in (None, task.status)
            and self.queue in (None, task.queue)
            and self.func_path in (None, func_path)
            and self.unique_key in (None, task.unique_key)
            and self.owner in (None, task.owner)
            and (self.error is None or (task.error is not None and task.error.mentions(self.error)))
            and _between(task.enqueued_at, self.enqueued_after, self.enqueued_before)
            and _between(task.finished_at, self.finished_after, self.finished_before)
        )


def _between(moment: datetime | None, after: datetime | None, before: datetime | None) -> bool:
    if after is None and before is None:
        return True
    return moment is not None and (after is None or moment > after) and (before is None or moment < before)


class Page(Struct, frozen=True):
    """Some tasks, newest first. Behind `after` there may be more; with None there is nothing more."""

    tasks: list[Task]
    after: str | None = None


class Head(Struct, frozen=True):
    """The due task that comes first in one queue and priority."""

    queue: str
    priority: int
    task_id: str
    func_path: str
    due_at: datetime


class Timing(Struct, frozen=True):
    """How long one task that succeeded had waited since it was due, and then ran."""

    queue: str
    wait_s: float
    run_s: float


class Tally(Struct, frozen=True):
    """One queue in one minute: by how much each status grew, and how often each thing happened."""

    queue: str
    minute: datetime
    pending: int = 0
    running: int = 0
    success: int = 0
    failed: int = 0
    cancelled: int = 0
    enqueued: int = 0
    succeeded: int = 0  # runs, those of interval tasks too
    given_up: int = 0  # FAILED, or a failed run of an interval task that goes on
    stopped: int = 0  # CANCELLED
    retried: int = 0
    lost: int = 0  # runs that ended with their worker or process


class Rates(Struct, frozen=True):
    """What happened since the beginning of a minute."""

    enqueued: int
    succeeded: int
    failed: int
    cancelled: int
    over_s: float
    retried: int = 0
    lost: int = 0

    @property
    def finished_per_s(self) -> float:
        return (self.succeeded + self.failed + self.cancelled) / self.over_s if self.over_s > 0 else 0.0


replace = msgspec.structs.replace
