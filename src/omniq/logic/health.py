"""Is work being done? Judged by progress, not by who says that he lives."""

from __future__ import annotations

from msgspec import Struct


class Work(Struct, frozen=True):
    """What a look at a store found. Times are in seconds."""

    waits_s: float | None  # how long a due task has waited; None: nothing is due
    moved: int  # runs that began or tasks that ended within the last lease
    workers: int  # that beat within the last lease
    free_slots: int  # of those workers


class Health(Struct, frozen=True):
    ok: bool
    why: str


def judge(work: Work, lease_s: float) -> Health:
    """Red when due work has not moved for longer than a lease although somebody could, or nobody is there."""
    if work.waits_s is None:
        return Health(True, "nothing is due")
    if work.moved:
        return Health(True, f"{work.moved} runs began or ended within {lease_s:g} s")
    waits = f"due work has waited for {work.waits_s:.0f} s"
    if work.waits_s <= lease_s:
        return Health(True, f"{waits}, less than {lease_s:g} s")
    if not work.workers:
        return Health(False, f"{waits} and no worker is there; start one with omniq worker MODULE:APP")
    if not work.free_slots:
        return Health(True, f"{waits}; all slots of {work.workers} workers are taken by long runs")
    return Health(
        False,
        f"{waits} and nothing moves, although {work.workers} workers have {work.free_slots} free slots; "
        "do they serve its queue and its function?",
    )
