"""The values that travel: a task, what became of a run, what a worker tells the store.

All of them are frozen and know nothing of clocks, stores or event loops. Those that can hold nothing that
holds them (`gc=False`) are left out of the garbage collector's rounds, which cost a worker two microseconds
a task. Ids, checks and what is told of whole queues have files of their own, and are imported from here
as well.

    Task ── encoded ──> StoredTask ── claimed ──> Outcome ── decided ──> Settlement ──> Answer
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import force_setattr

from omniq.checks import (
    FUNC_PATH,
    MAX_COUNT,
    MAX_DURATION_S,
    MAX_NAME_CHARS,
    Duration,
    check_progress,
    check_text,
    count,
    func_path,
    moment,
    name_list,
    one_line,
    positive_seconds,
    queue_name,
    refuse_unknown,
    seconds,
    shown,
)
from omniq.errors import InvalidOption
from omniq.ids import new_id
from omniq.reports import (
    Head,
    Rates,
    Tally,
    Timing,
    WorkerInfo,
)

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

MAX_HEADER_BYTES: Final = 16 << 10
MAX_TYPE_CHARS: Final = 256
MAX_MESSAGE_CHARS: Final = 4096
MAX_TRACEBACK_CHARS: Final = 16384
TOP_PRIORITY: Final = 9

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


class TaskError(Struct, frozen=True, gc=False):
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


def task_error(type_: str, message: str, traceback: str = "", kind: ErrorKind = "error") -> TaskError:
    """An error of bounded size, in text that every store and terminal can take."""
    return TaskError(
        _first_words(type_, MAX_TYPE_CHARS),
        _first_words(message, MAX_MESSAGE_CHARS),
        last_words(traceback),
        kind,
    )


def _first_words(text: str, limit: int) -> str:
    return _plain(text if len(text) <= limit else text[:limit] + " ...")


def last_words(text: str) -> str:
    """The end of a traceback, where it says what happened."""
    return _plain(text if len(text) <= MAX_TRACEBACK_CHARS else "... " + text[-MAX_TRACEBACK_CHARS:])


def _plain(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


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
        raise InvalidOption(f"priority must be 0 (last) to 9 (first), not {shown(task.priority)}")
    count(task.max_retries, "max_retries", least=0)
    count(task.max_losses, "max_losses", least=1)
    if task.eta is not None:
        force_setattr(task, "eta", moment(task.eta, "eta"))
    if task.expires_at is not None:
        force_setattr(task, "expires_at", moment(task.expires_at, "expires_at"))
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
    if task.headers or type(task.headers) is not dict:
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


class StoredTask(TaskFields, frozen=True, gc=False):
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


class Checked(list[StoredTask]):
    """Calls whose options were checked when those were given: a store asks only how large they are."""


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


class Succeeded(Struct, frozen=True, gc=False):
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


class Held(Struct, frozen=True, gc=False):
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


class Settlement(Struct, frozen=True, gc=False):
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


replace = msgspec.structs.replace

__all__ = [
    "FUNC_PATH", "MAX_COUNT", "MAX_DURATION_S", "MAX_HEADER_BYTES", "MAX_NAME_CHARS", "MAX_TYPE_CHARS",
    "TOP_PRIORITY", "Action", "Answer", "Checked", "Claim", "Died", "Duration", "Enqueued", "ErrorKind",
    "Failed", "Head", "Held", "Interrupted", "OnConflict", "OnFailure", "Outcome", "Page", "Rates", "Renewal",
    "Run", "RunOutcome", "Settlement", "Snoozed", "StoredTask", "Succeeded", "Tally", "Task", "TaskError",
    "TaskFields", "TaskFilter", "TaskResult", "TaskStatus", "Timing", "WorkerInfo", "check_fields",
    "check_headers", "check_progress", "check_text", "count", "func_path", "last_words", "moment",
    "name_list", "new_id", "one_line", "positive_seconds", "queue_name", "refuse_unknown", "replace",
    "seconds", "shown", "task_error",
]  # fmt: skip
