"""What a pool's owner may set, checked: how many workers, and when one is worn out."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from omniq.errors import InvalidOption
from omniq.logic.scaling import Limits
from omniq.pool.cpus import usable_cpus
from omniq.pool.worker import PoolWorker
from omniq.task import Duration, positive_seconds, seconds


class WorkerLimits(Struct, frozen=True):
    """When a worker has to make way for a new one."""

    max_tasks: int | None = None
    lifetime_s: float | None = None
    memory_bytes: int | None = None

    def worn_out(self, worker: PoolWorker, now: float) -> str:
        """Why this worker should go when it has nothing to do, or "". Its lock is held."""
        if self.max_tasks is not None and worker.calls_done >= self.max_tasks:
            return f"it has done {worker.calls_done} calls"
        if self.lifetime_s is not None and now - worker.created_at >= self.lifetime_s:
            return f"it has lived for {self.lifetime_s:g} s"
        return self.too_big(worker)

    def too_big(self, worker: PoolWorker) -> str:
        if self.memory_bytes is None or worker.child is None:
            return ""
        rss_bytes = worker.child.rss_bytes
        if rss_bytes <= self.memory_bytes:
            return ""
        return f"it held {_mib(rss_bytes)} of memory, more than {_mib(self.memory_bytes)}"


NO_LIMITS: Final = WorkerLimits()


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"


def pool_limits(
    min_workers: int, max_workers: int | None, scaledown_wait: Duration, target_wait: Duration
) -> Limits:
    _check_count(min_workers, "min_workers", 0)
    if max_workers is None:
        max_workers = max(usable_cpus(), min_workers)
    _check_count(max_workers, "max_workers", 1)
    if max_workers < min_workers:
        raise InvalidOption(
            f"max_workers is {max_workers}, less than min_workers, which is {min_workers}; "
            "write the larger one as max_workers"
        )
    return Limits(
        min_workers,
        max_workers,
        positive_seconds(scaledown_wait, "scaledown_wait"),
        _not_negative(seconds(target_wait, "target_wait"), "target_wait"),
    )


def worker_limits(
    max_tasks_per_worker: int | None, worker_lifetime: Duration | None, worker_memory: int | None
) -> WorkerLimits:
    if max_tasks_per_worker is not None:
        _check_count(max_tasks_per_worker, "max_tasks_per_worker", 1)
    if worker_memory is not None:
        _check_count(worker_memory, "worker_memory", 1)
    lifetime_s = None if worker_lifetime is None else positive_seconds(worker_lifetime, "worker_lifetime")
    if max_tasks_per_worker is None and lifetime_s is None and worker_memory is None:
        return NO_LIMITS
    return WorkerLimits(max_tasks_per_worker, lifetime_s, worker_memory)


def changed_limits(
    limits: Limits,
    min_workers: int | None,
    max_workers: int | None,
    scaledown_wait: Duration | None,
    target_wait: Duration | None,
) -> Limits:
    """`limits` with those changes that are not None."""
    return pool_limits(
        limits.min_workers if min_workers is None else min_workers,
        limits.max_workers if max_workers is None else max_workers,
        limits.scaledown_wait_s if scaledown_wait is None else scaledown_wait,
        limits.target_wait_s if target_wait is None else target_wait,
    )


def changed_worker_limits(limits: WorkerLimits, changes: WorkerLimits) -> WorkerLimits:
    given = {name: value for name in changes.__struct_fields__ if (value := getattr(changes, name))}
    return replace(limits, **given) if given else limits


def _check_count(value: object, name: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOption(f"{name} must be a whole number of at least {least}, not {value!r}")


def _not_negative(value: float, name: str) -> float:
    if value < 0:
        raise InvalidOption(f"{name} must be 0 seconds or more, not {value!r}")
    return value
