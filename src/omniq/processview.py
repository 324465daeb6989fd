"""A worker's processes as its beats tell of them: who there is, what each does, and why there are so many.

Read from whatever thread beats: only values that are replaced as a whole, never the pool's own books.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from omniq.pool import Message, WorkerPool
from omniq.pool.autoscaler import Decision
from omniq.pool.worker import GONE, WorkerView
from omniq.reports import PoolInfo, ProcessInfo, Scaling
from omniq.storage.base import Claimed

# A beat is read by people, and stored again and again.
MAX_PROCESSES: Final = 64
MAX_SCALINGS: Final = 12


def seen(
    pool: WorkerPool,
    purpose: str,
    tasks: Mapping[Message, Claimed],
    *,
    free: int,
    queues: Iterable[str] = (),
) -> PoolInfo:
    """`tasks` says which task a call is; from `queues` no more is claimed than processes are free."""
    now = _Moments(pool)
    trace = pool.scaling_trace()
    changes = [one for one in trace if one.wanted.workers != one.load.workers][-MAX_SCALINGS:]
    views = [view for view in pool.workers.views() if view.status not in GONE]
    return PoolInfo(
        purpose=purpose,
        least=pool.min_workers,
        most=pool.max_workers,
        free=max(0, free),
        queues=tuple(sorted(queues)),
        reason=trace[-1].wanted.reason if trace else "",
        processes=tuple(_process(view, tasks, now) for view in views[:MAX_PROCESSES]),
        scalings=tuple(_scaling(one, now) for one in reversed(changes)),
    )


class _Moments:
    """The pool counts seconds that never jump; people read moments."""

    def __init__(self, pool: WorkerPool) -> None:
        self._now, self._counted = pool.clock.now(), pool.clock.monotonic()

    def of(self, counted: float) -> datetime:
        return self._now - timedelta(seconds=max(0.0, self._counted - counted))


def _process(view: WorkerView, tasks: Mapping[Message, Claimed], now: _Moments) -> ProcessInfo:
    call = view.current_task
    task = tasks.get(call) if isinstance(call, Message) else None
    return ProcessInfo(
        pid=view.pid,
        status="busy" if view.status == "ready" and call is not None else view.status,
        since=now.of(view.since),
        runs=view.calls_done,
        task_id=None if task is None else task.id,
        func_path=None if task is None else task.func_path,
        reason=view.reason,
    )


def _scaling(one: Decision, now: _Moments) -> Scaling:
    return Scaling(now.of(one.at), one.load.workers, one.wanted.workers, one.wanted.reason)
