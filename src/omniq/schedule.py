"""A schedule: a call, when to make it, and what a store notes beside that. Frozen, and knows no clock.

When its ticks are, and which of them are due, is decided in `omniq.logic.schedule`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from msgspec import Struct, field

from omniq.task import StoredTask, Task

CatchUp: TypeAlias = Literal["latest", "all", "skip"]
Overlap: TypeAlias = Literal["allow", "skip"]


class Schedule(Struct, frozen=True, kw_only=True):
    """One task per tick: `every` so many seconds, or by a `cron` line in the time zone `tz`.

    catch_up  what becomes of ticks that nobody was there for: "latest" (one task for the newest of them),
              "all" (one each, of the newest thousand), or "skip" (none)
    overlap   "allow", or "skip": no task for a tick while the one before has not ended
    """

    name: str
    call: Task | StoredTask
    every: float | None = None
    cron: str | None = None
    tz: str = "UTC"
    catch_up: CatchUp = "latest"
    overlap: Overlap = "allow"

    # set by the store
    paused: bool = False
    created_at: datetime | None = None  # ticks of an interval are counted from here
    next_at: datetime | None = None  # None: paused, or never again
    last_at: datetime | None = None  # the newest tick that was looked at
    revision: int = 0  # rises with every change, so that two who change it notice


class Fired(Struct, frozen=True):
    """What a call of `fire_due` came to."""

    ids: list[str] = field(default_factory=list)  # the tasks that it made
    next_in_s: float | None = None  # until the next tick; 0 when more is due; None without schedules
