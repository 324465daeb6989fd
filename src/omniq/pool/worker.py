"""One worker as the pool knows it. Whoever reads or changes what can change here holds its `lock`.

    initialized ─> spawned ─> starting ─> ready ─> stopping ─> exited ─> retired
                                            (ready, with a `current_task`, is busy)
    and from everywhere, when the process ends without saying goodbye: ─> error

Knows neither the registry nor other workers. Its child does the work.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from omniq.clock import REAL_CLOCK, Clock
from omniq.pool.message import Message

if TYPE_CHECKING:
    from omniq.pool.process import Child

Status = Literal["initialized", "spawned", "starting", "ready", "stopping", "exited", "retired", "error"]
# Nothing more is to be expected of these. One that stops may still finish its last call.
GONE: Final = frozenset({"exited", "retired", "error"})
COMING: Final = frozenset({"initialized", "spawned", "starting"})


class WorkerView(Struct, frozen=True):
    """A worker at one moment. Made under its lock, never changed: so anybody may read it at any time."""

    id: int
    pid: int | None
    status: Status
    current_task: Any
    since: float  # of this status, or of this task
    calls_done: int
    reason: str  # why it leaves, or how it ended


class PoolWorker:
    """A lock, a status, at most one `current_task`, and the process that does it."""

    def __init__(self, id: int, clock: Clock = REAL_CLOCK) -> None:
        self.id = id
        self.lock = asyncio.Lock()
        self._clock = clock
        self.created_at = clock.monotonic()
        self.status: Status = "initialized"
        self.current_task: Any = None
        self.since = self.created_at
        self.child: Child | None = None
        self.calls_done = 0
        self.reason = ""
        self.condemned = ""  # why its process was killed by us
        self.view = self._seen()

    def __repr__(self) -> str:
        return f"<PoolWorker {self.id}>"

    @property
    def is_idle(self) -> bool:
        """Ready, with nothing to do: the one state in which it may be given a task, or be asked to stop."""
        return self.status == "ready" and self.current_task is None

    def enter(self, status: Status, reason: str = "") -> None:
        assert self.lock.locked()
        self.status = status
        self.reason = reason or self.reason
        self._moved()

    def bind(self, child: Child) -> None:
        """Its process exists, and imports what it needs."""
        assert self.lock.locked()
        self.child = child
        if self.status == "spawned":
            self.enter("starting")

    def ask_to_stop(self, reason: str) -> None:
        """Give it nothing more. It finishes what it does, says goodbye and ends."""
        self.enter("stopping", reason)
        if self.child is not None:
            self.child.ask_to_stop()

    def kill(self, reason: str) -> None:
        assert self.lock.locked()
        self.condemned = reason
        if self.child is not None:
            self.child.kill()

    def start_task(self, message: Any) -> None:
        """Be busy with `message` until it is finished, or lost."""
        assert self.lock.locked() and self.is_idle
        self.current_task = message
        self._moved()
        if isinstance(message, Message) and self.child is not None:
            message.send_to(self.child)

    def finish_task(self, calls: int = 1) -> Any:
        """Be done with the current task, of which `calls` calls have ended; returns it."""
        assert self.lock.locked()
        message, self.current_task = self.current_task, None
        self.calls_done += calls
        self._moved()
        return message

    def _moved(self) -> None:
        self.since = self._clock.monotonic()
        self.view = self._seen()

    def _seen(self) -> WorkerView:
        pid = None if self.child is None else self.child.pid
        return WorkerView(
            self.id, pid, self.status, self.current_task, self.since, self.calls_done, self.reason
        )
