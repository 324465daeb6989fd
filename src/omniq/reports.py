"""What is known of workers and queues: values for whoever looks at them, frozen.

Knows nothing of single tasks, and nothing of how a store counts.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class ProcessInfo(Struct, frozen=True):
    """One process that runs bodies: what it does, and since when."""

    pid: int | None
    status: str  # starting, ready, busy, stopping
    since: datetime
    runs: int = 0  # that it has ended
    task_id: str | None = None
    func_path: str | None = None
    reason: str = ""  # why it leaves


class Scaling(Struct, frozen=True):
    """One decision of an autoscaler: from how many processes to how many, and why."""

    at: datetime
    before: int
    after: int
    reason: str


class PoolInfo(Struct, frozen=True):
    """A pool of processes: `purpose` says whose bodies run there, `reason` why there are so many."""

    purpose: str
    least: int
    most: int
    free: int = 0  # how many more bodies could begin
    queues: tuple[str, ...] = ()  # from these no more is claimed than processes are free
    reason: str = ""
    processes: tuple[ProcessInfo, ...] = ()
    scalings: tuple[Scaling, ...] = ()  # the latest first


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
    blocked_s: float = 0.0  # for how long it has been, at this beat
    unserved: tuple[
        tuple[str, str], ...
    ] = ()  # queue and function of what it gave back lately, unknown to it
    pools: tuple[PoolInfo, ...] = ()  # its processes; none before the first body needs one


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
