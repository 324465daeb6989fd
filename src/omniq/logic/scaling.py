"""How many workers a pool should have, and why. The only place that decides it.

    Load (now)  +  History (of late)  +  Limits  ──>  Wanted(workers, reason)

More at once, as soon as calls wait for longer than they may; fewer only when the same workers were
not needed at any moment of `scaledown_wait`. One number comes out, so no pass both grows and shrinks.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from omniq.logic.retry import doubled

# The history of one wait for scaling down is kept in this many parts.
PARTS: Final = 8
MIN_LOOK_S: Final = 0.01
PAUSE_BASE_S: Final = 0.1
MAX_PAUSE_S: Final = 5.0


class Limits(Struct, frozen=True):
    """What the owner of the pool allows. `target_wait_s` is how long the oldest call may wait."""

    min_workers: int
    max_workers: int
    scaledown_wait_s: float
    target_wait_s: float


class Load(Struct, frozen=True):
    """What there is to do, and who is there to do it."""

    waiting: int = 0
    oldest_wait_s: float = 0.0
    busy: int = 0
    idle: int = 0
    starting: int = 0
    leaving: int = 0  # asked to stop, but still there
    spare: int = 0  # not needed at any moment of the last scaledown_wait
    deaths: int = 0  # in a row, without a finished call in between
    held_s: float = 0.0  # how long no worker may be started, because of those deaths

    @property
    def workers(self) -> int:
        """Whom a call can hope for. One that is starting counts: it was started for a call that waits."""
        return self.busy + self.idle + self.starting

    @property
    def needed(self) -> int:
        return self.busy + self.waiting


class Wanted(Struct, frozen=True):
    workers: int
    reason: str


def wanted_workers(load: Load, limits: Limits) -> Wanted:
    """Decide how many workers there should be."""
    have, facts = load.workers, _facts(load)
    if have > limits.max_workers:
        return Wanted(limits.max_workers, f"{facts}, at most {limits.max_workers}")
    if have < limits.min_workers or load.needed > have:
        return _more(load, limits, facts)
    surplus = 0 if load.waiting else min(load.spare, load.idle, have - limits.min_workers)
    if surplus > 0:
        return Wanted(have - surplus, f"{facts}, {surplus} not needed for {limits.scaledown_wait_s:g} s")
    return Wanted(have, facts)


def _more(load: Load, limits: Limits, facts: str) -> Wanted:
    have = load.workers
    # Until the last of those who leave is gone, its place is not free: there are never more than max.
    room = limits.max_workers - have - load.leaving
    goal = min(max(load.needed, limits.min_workers), have + room)
    if goal <= have:
        full = f"{load.leaving} leaving" if load.leaving and have < limits.max_workers else ""
        return Wanted(have, f"{facts}, {full or f'at most {limits.max_workers}'}")
    if load.held_s > 0:
        return Wanted(have, f"{facts}, but {load.deaths} deaths in a row: no start for {load.held_s:.1f} s")
    # With nobody there, waiting longer would not help.
    if have >= max(1, limits.min_workers) and load.oldest_wait_s < limits.target_wait_s:
        allowed = f"the oldest may wait {limits.target_wait_s:g} s"
        return Wanted(have, f"{facts}, {allowed}")
    if load.needed < goal:
        return Wanted(goal, f"{facts}, at least {goal}")
    return Wanted(goal, facts if load.needed == goal else f"{facts}, at most {limits.max_workers}")


def _facts(load: Load) -> str:
    """`9 waiting, 2 busy`: what counts, without what is not there."""
    parts = [f"{load.waiting} waiting", f"{load.busy} busy"]
    parts += [f"{load.idle} idle"] if load.idle else []
    parts += [f"{load.starting} starting"] if load.starting else []
    return ", ".join(parts)


def next_look_s(load: Load, limits: Limits, wanted: Wanted) -> float | None:
    """When the same facts may lead to another decision; None: not before something happens."""
    too_few = max(load.needed, limits.min_workers) > load.workers
    has_room = load.workers + load.leaving < limits.max_workers
    if too_few and has_room and wanted.workers == load.workers:
        return max(load.held_s, limits.target_wait_s - load.oldest_wait_s, MIN_LOOK_S)
    if load.workers > limits.min_workers:
        return max(limits.scaledown_wait_s / PARTS, MIN_LOOK_S)
    return None


def start_pause_s(deaths: int) -> float:
    """How long to wait before a dead worker is replaced: not at all the first time, then doubling."""
    if deaths <= 1:
        return 0.0
    return min(doubled(PAUSE_BASE_S, deaths - 2), MAX_PAUSE_S)


# --- need, judged over time ----------------------------------------------------------------------


class Low(Struct, frozen=True):
    """The fewest idle workers of some stretch of time; `at` is when it was first looked at."""

    at: float
    idle: int


class History(Struct, frozen=True):
    """How many workers had nothing to do, at the busiest moments of late."""

    since: float
    lows: tuple[Low, ...] = ()

    def noting(self, now: float, idle: int, window_s: float) -> History:
        """This history with one more observation. Close ones share a part; old ones are forgotten."""
        kept = self._recent(now, window_s)
        if kept and now - kept[-1].at < window_s / PARTS:
            return History(self.since, (*kept[:-1], Low(kept[-1].at, min(kept[-1].idle, idle))))
        return History(self.since, (*kept, Low(now, idle)))

    def spare(self, now: float, window_s: float) -> int:
        """How many were idle all the time of the window; none before it has been watched that long."""
        if now - self.since < window_s:
            return 0
        return min((low.idle for low in self._recent(now, window_s)), default=0)

    def _recent(self, now: float, window_s: float) -> tuple[Low, ...]:
        # A part is dated by its first observation, and may have grown for another part's length since.
        forgotten_at = now - window_s * (1 + 1 / PARTS)
        return tuple(low for low in self.lows if low.at > forgotten_at)
