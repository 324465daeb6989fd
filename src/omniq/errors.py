"""Every exception that OmniQ raises, in one tree.

    OmniqError
    ├── InvalidOption (ValueError)       a bad argument; says what to write instead
    │   ├── UnserializableArgument (TypeError)   an argument that no serializer can carry
    │   └── UnknownTask                  a name that no task of this application has
    ├── StoreError
    │   ├── StoreUnavailable             the store is away: repeat the call as it is
    │   ├── Conflict                     the task is not in a state that allows this
    │   │   ├── IdConflict               this id already belongs to another call
    │   │   └── DuplicateTask            this unique key is held by a living task
    │   ├── QueueFull                    the queue's limit is reached
    │   ├── PayloadTooLarge              arguments or result over the limit
    │   ├── NotFound (LookupError)       unknown or pruned
    │   ├── CorruptRecord                stored bytes that make no sense; they are kept
    │   ├── SchemaMismatch               the store was made by another version
    │   └── Unsupported                  this store cannot do that
    ├── TaskFailed                       the awaited task ended as FAILED; `.error` says why
    ├── TaskCancelled                    the awaited task was cancelled
    ├── ResultTimeout (TimeoutError)     no result yet
    ├── BlockingCallInLoop (RuntimeError)  a blocking face called inside a running event loop
    ├── BlockingCallInHandler            ... in a signal handler that interrupted another one
    ├── WorkerStuck                      every slot is held by a body that does not return
    ├── CallFailed                       a pooled call raised what cannot travel; `.traceback` shows it
    ├── CallTimeout (TimeoutError)       a pooled call ran longer than its timeout, and was stopped
    ├── CallCancelled                    a pooled call was cancelled before it had ended
    ├── WorkerDied                       the process died that ran a pooled call; `.cause` says how
    ├── CollateFailed (ValueError)       samples that make no batch, or a sample nobody knows how to batch
    ├── StartFailed                      a process of a pool could not be started
    ├── StillDue                         a test ran more tasks than it may, and it was not over
    └── PoolNotRunning (RuntimeError)    the pool was not started, or has ended
        └── PoolClosed                   the pool has ended for good

`Snooze`, `Retry` and `GiveUp` are no errors: a task body raises them to say what should become of it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omniq.task import TaskError


class OmniqError(Exception):
    """The root of everything that OmniQ raises on purpose."""


class InvalidOption(OmniqError, ValueError):
    """A bad argument. The message says what to write instead."""


class UnserializableArgument(InvalidOption, TypeError):
    """An argument or result that the serializer cannot carry; the message names it and its type."""


class UnknownTask(InvalidOption):
    """A name that no registered task has."""


class StoreError(OmniqError):
    """Something that the store said, or failed to say."""


class StoreUnavailable(StoreError):
    """The store did not answer. Repeating the same call is always safe."""


class Conflict(StoreError):
    """The task is not in a state that allows this."""


class IdConflict(Conflict):
    """The id already belongs to a task with another function, queue or arguments."""


class DuplicateTask(Conflict):
    """The unique key is held by a task that has not ended; `task_id` names it."""

    def __init__(self, message: str, task_id: str = "") -> None:
        super().__init__(message)
        self.task_id = task_id


class QueueFull(StoreError):
    """The queue holds as many waiting tasks as its limit allows."""


class PayloadTooLarge(StoreError):
    """Encoded arguments, or an encoded result, over the limit."""


class NotFound(StoreError, LookupError):
    """No such task: never enqueued, deleted, or pruned after its retention."""


class CorruptRecord(StoreError):
    """Stored bytes that cannot be understood. They are kept as they are."""


class SchemaMismatch(StoreError):
    """The store was made by a newer, or an unfinished, version of OmniQ."""


class Unsupported(StoreError):
    """This store cannot do what was asked."""


class TaskFailed(OmniqError):
    """The task ended as FAILED. `error` is what was recorded; nothing is rebuilt from its type name."""

    def __init__(self, message: str, error: TaskError | None = None) -> None:
        super().__init__(message)
        self.error = error


class TaskCancelled(OmniqError):
    """The task was cancelled before it could succeed."""


class ResultTimeout(OmniqError, TimeoutError):
    """The task had not ended when the time was up. It goes on."""


class BlockingCallInLoop(OmniqError, RuntimeError):
    """A blocking face was called inside a running event loop; the message names the async twin."""


class BlockingCallInHandler(OmniqError):
    """A blocking face was called in a signal handler that interrupted a write of the same thread."""


class WorkerStuck(OmniqError):
    """Every slot is held by a body that went on after its timeout."""


class CallFailed(OmniqError):
    """A call in a process raised what cannot travel as itself, or returned what cannot be read here."""

    def __init__(self, message: str, type_name: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.traceback = traceback


class CallTimeout(OmniqError, TimeoutError):
    """A call in a process ran longer than its timeout. It was interrupted or killed: it does not go on."""


class CallCancelled(OmniqError):
    """A call in a process was cancelled by somebody else than the one who waits for it."""


class WorkerDied(OmniqError):
    """The process died that ran this call. `cause` says how; whether the call had an effect is not known.

    `has_begun` is False where no process was ever given the call, as none could live: it surely had none.
    """

    def __init__(self, message: str, cause: str = "", *, has_begun: bool = True) -> None:
        super().__init__(message)
        self.cause = cause
        self.has_begun = has_begun


class CollateFailed(OmniqError, ValueError):
    """Samples that make no batch; the message names the sample, and what it has and should have."""


class StartFailed(OmniqError):
    """A process of the pool could not be started; the message says why."""


class StillDue(OmniqError):
    """`omniq.testing` ran as much as it may, and more was due: a task that enqueues itself never ends."""


class PoolNotRunning(OmniqError, RuntimeError):
    """The pool was not started, or has ended."""


class PoolClosed(PoolNotRunning):
    """The pool has ended and will not start again."""


class Signal(Exception):
    """What a body raises to decide its own fate."""


class Snooze(Signal):
    """Put this task back for `delay`. Costs no attempt."""

    def __init__(self, delay: float | timedelta) -> None:
        super().__init__(delay)
        self.delay = delay


class Retry(Signal):
    """Fail this attempt and run again after `delay` (by default after the usual backoff)."""

    def __init__(self, delay: float | timedelta | None = None, reason: str = "") -> None:
        super().__init__(reason or "the task asked for a retry")
        self.delay = delay
        self.reason = reason or "the task asked for a retry"


class GiveUp(Signal):
    """Fail for good, whatever retries are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the task gave up")
        self.reason = reason or "the task gave up"
