"""What a pool is doing, as values that can be printed, logged and compared."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from omniq.logic.scaling import Limits
from omniq.pool.message import Message
from omniq.pool.worker import Status, WorkerView

PoolState = Literal["new", "running", "closing", "closed"]
CallState = Literal["waiting", "running"]


class WorkerStatus(Struct, frozen=True):
    """One worker: `doing` is the call that it runs, and `for_s` since when."""

    id: int
    pid: int | None
    status: Status
    doing: str | None
    for_s: float
    calls_done: int
    reason: str

    @classmethod
    def of(cls, view: WorkerView, now: float) -> WorkerStatus:
        task = view.current_task
        doing = task.title if isinstance(task, Message) else None if task is None else repr(task)
        for_s = max(0.0, now - view.since)
        return cls(view.id, view.pid, view.status, doing, for_s, view.calls_done, view.reason)


class CallStatus(Struct, frozen=True):
    """One call, or a range of `count` calls of which `done` have ended."""

    id: int
    name: str
    state: CallState
    for_s: float
    worker: int | None
    count: int
    done: int
    deaths: int

    @classmethod
    def of(cls, message: Message, now: float) -> CallStatus:
        worker = message.worker
        return cls(
            message.id,
            message.name,
            "waiting" if worker is None else "running",
            max(0.0, now - message.since),
            None if worker is None else worker.id,
            message.encoded.count,
            len(message.outcomes),
            message.deaths,
        )


class EndedWorker(Struct, frozen=True):
    id: int
    pid: int | None
    ago_s: float
    reason: str


class PoolStatus(Struct, frozen=True):
    """A pool at one moment. `wanted` workers for `reason` is what the autoscaler decided last."""

    state: PoolState
    workers: list[WorkerStatus]
    waiting: int
    running: int
    wanted: int
    reason: str
    limits: Limits
    ended: list[EndedWorker]
