"""When a schedule's ticks are, which of them are due, and what is made of them.

Everything is decided here, from a schedule and the moment: stores keep what comes out. A change is written
only where the revision is still the one that it was decided from, together with the tasks of its ticks.

    save ──> begin ──> next_at ... now >= next_at ──> advance ──> tasks of the ticks, and the next next_at

Over daylight saving a cron line that names minutes and hours (`30 2 * * *`) fires once a day: a time that
the clocks leave out fires when they have moved on, one that they repeat fires the first time. A line that
begins its minutes or hours with a star (`*/5 * * * *`) goes by real time, so it neither pauses nor doubles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from omniq.errors import InvalidOption
from omniq.schedule import Schedule
from omniq.task import (
    Duration,
    StoredTask,
    check_text,
    positive_seconds,
    replace,
    shown,
)

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MAX_SCHEDULE_NAME_CHARS: Final = 128
MAX_CRON_CHARS: Final = 256
MAX_ZONE_CHARS: Final = 128
SHORTEST_INTERVAL_S: Final = 0.1
# "all" makes so many tasks at most after a downtime: those of the newest ticks.
MAX_CATCH_UP: Final = 1000
# A tick that is fired this late still counts as fired in time, for catch_up="skip".
LATE: Final = timedelta(seconds=60)
_FIRST_WINDOW: Final = timedelta(hours=1)
_WIDER: Final = 4
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)
_WEEK: Final = timedelta(days=7)


# --- what may be saved ---------------------------------------------------------------------------


def every_s(value: Duration) -> float:
    interval_s = positive_seconds(value, "every")
    if interval_s < SHORTEST_INTERVAL_S:
        raise InvalidOption(
            f"every must be at least {SHORTEST_INTERVAL_S} seconds, not {value!r}; for less, let a task loop"
        )
    return interval_s


def check(schedule: Schedule) -> None:
    """Refuse what could never fire, or not be kept; the message says what to write instead."""
    check_text(schedule.name, "the name of a schedule", MAX_SCHEDULE_NAME_CHARS)
    if schedule.catch_up not in ("latest", "all", "skip"):
        raise InvalidOption(f"catch_up must be 'latest', 'all' or 'skip', not {shown(schedule.catch_up)}")
    if schedule.overlap not in ("allow", "skip"):
        raise InvalidOption(f"overlap must be 'allow' or 'skip', not {shown(schedule.overlap)}")
    if (schedule.every is None) == (schedule.cron is None):
        raise InvalidOption(
            f"schedule {shown(schedule.name)} needs either every=60 or cron='*/5 * * * *', and not both"
        )
    zone(schedule.tz)
    if schedule.every is not None:
        every_s(schedule.every)
    else:
        _check_cron(schedule)
    _check_call(schedule)


def _check_cron(schedule: Schedule) -> None:
    line = schedule.cron
    if not isinstance(line, str) or len(line) > MAX_CRON_CHARS:
        raise InvalidOption(f"cron must be a line such as '*/5 * * * *', not {shown(line)}")
    if len(line.split()) != 5:
        raise InvalidOption(
            f"cron line {shown(line)} must have five fields: minute hour day month weekday; "
            "for seconds write every=10"
        )
    wrong = _wrong_with(line)
    minute, hour, day, month, weekday = line.split()
    # cronsim calls the day bad where no month of the line has it, though each field is fine by itself.
    if wrong and (
        _wrong_with(f"{minute} {hour} {day} * {weekday}")
        or _wrong_with(f"{minute} {hour} 1 {month} {weekday}")
    ):
        raise InvalidOption(f"cron line {shown(line)} makes no sense: {wrong}")
    if wrong or next_after(schedule, datetime(2024, 1, 1, tzinfo=UTC)) is None:
        raise InvalidOption(f"cron line {shown(line)} never fires: no such day comes up")


def _wrong_with(line: str) -> str | None:
    try:
        CronSim(line, datetime(2024, 1, 1, tzinfo=UTC))
    except (CronSimError, ValueError, AssertionError, IndexError) as exc:
        return str(exc) or type(exc).__name__
    return None


def _check_call(schedule: Schedule) -> None:
    call = schedule.call
    if call.eta is not None or (isinstance(call, StoredTask) and call.delay_s is not None):
        raise InvalidOption(
            f"the call of schedule {shown(schedule.name)} has an eta or delay; the schedule says when"
        )
    if call.expires_at is not None:
        raise InvalidOption(
            f"the call of schedule {shown(schedule.name)} expires at a moment; every task of it would, "
            "so write expires= in seconds"
        )
    if call.interval is not None:
        raise InvalidOption(
            f"the call of schedule {shown(schedule.name)} repeats by itself; leave interval out"
        )


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_ZONE_CHARS:
        raise InvalidOption(f"tz must be the name of a time zone, such as 'Europe/Berlin', not {shown(name)}")
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):  # what it raises depends on where it looked
        raise InvalidOption(
            f"there is no time zone {shown(name)}; write one such as 'Europe/Berlin' or 'UTC'"
        ) from None


# --- what becomes of a schedule ------------------------------------------------------------------


def begin(new: Schedule, known: Schedule | None, now: datetime) -> Schedule:
    """What is kept when `new` is saved: what was known of it goes on, unless its times are others now."""
    if known is None:
        # Not from one: whoever still fires the one that was deleted must not take this for the same.
        first = (now - EPOCH) // timedelta(microseconds=1)
        fresh = replace(new, paused=False, created_at=now, last_at=None, revision=first)
        return replace(fresh, next_at=next_after(fresh, now))
    kept = replace(
        new,
        paused=known.paused,
        created_at=known.created_at,
        next_at=known.next_at,
        last_at=known.last_at,
        revision=known.revision,
    )
    if (new.every, new.cron, new.tz) != (known.every, known.cron, known.tz):
        moved = replace(kept, created_at=now)
        kept = replace(moved, next_at=None if moved.paused else next_after(moved, now))
    return known if kept == known else replace(kept, revision=known.revision + 1)


def pause(schedule: Schedule) -> Schedule:
    if schedule.paused:
        return schedule
    return replace(schedule, paused=True, next_at=None, revision=schedule.revision + 1)


def resume(schedule: Schedule, now: datetime) -> Schedule:
    """From the next tick on: what would have been meanwhile is not caught up."""
    if not schedule.paused:
        return schedule
    awake = replace(schedule, paused=False, revision=schedule.revision + 1)
    return replace(awake, next_at=next_after(awake, now))


def advance(schedule: Schedule, now: datetime) -> tuple[Schedule, list[StoredTask]]:
    """A schedule whose next tick has come: as it is afterwards, and a task for each tick to be fired."""
    assert schedule.next_at is not None
    assert schedule.next_at <= now
    passed = _passed(schedule, schedule.next_at, now)
    after = replace(
        schedule,
        last_at=passed[-1] if passed else schedule.last_at,
        next_at=next_after(schedule, now),
        revision=schedule.revision + 1,
    )
    if schedule.catch_up == "skip":
        passed = [tick for tick in passed if now - tick <= LATE]
    return after, [task_of(schedule, tick) for tick in passed]


def task_of(schedule: Schedule, tick: datetime) -> StoredTask:
    """The task of one tick: its id is made of both, so that no store can hold two of them."""
    at = moment_text(tick)
    return replace(by_hand(schedule, f"{schedule.name}@{at}", tick=at), eta=tick)


def by_hand(schedule: Schedule, task_id: str, **headers: str) -> StoredTask:
    """A task of the schedule's call, due at once."""
    call = schedule.call
    assert isinstance(call, StoredTask), "a schedule is kept with its call encoded"
    key = call.unique_key
    if key is None and schedule.overlap == "skip":
        key = f"schedule:{schedule.name}"
    named = {**call.headers, "schedule": schedule.name, **headers}
    return replace(call, id=task_id, unique_key=key, headers=named)


def moment_text(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


# --- ticks ---------------------------------------------------------------------------------------


def next_after(schedule: Schedule, after: datetime) -> datetime | None:
    """The first tick later than `after`."""
    return next(ticks(schedule, after), None)


def ticks(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """Every tick later than `after`, in UTC, each later than the one before."""
    if schedule.every is not None:
        return _interval_ticks(schedule, after)
    return _cron_ticks(schedule, after)


def _interval_ticks(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    assert schedule.every is not None
    step = timedelta(seconds=schedule.every)
    begin = schedule.created_at or after
    # Whole numbers of microseconds: the thousandth tick is where the first one said it would be.
    tick = begin + step * max(1, (after - begin) // step + 1)
    while True:
        yield tick
        tick += step


def _cron_ticks(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    assert schedule.cron is not None
    minute, hour, *_ = schedule.cron.split()
    by_real_time = minute.startswith("*") or hour.startswith("*")
    find = _real_time_ticks if by_real_time else _daily_ticks
    try:
        yield from find(schedule.cron, zone(schedule.tz), after)
    except OverflowError:  # beyond the last year there is
        return


def _daily_ticks(line: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    latest = after
    for local in CronSim(line, after.astimezone(zone)):
        tick = local.astimezone(UTC)
        # Around a change of the clocks several local times are one moment, or lie in the past.
        if tick > latest:
            latest = tick
            yield tick


def _real_time_ticks(line: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """As long as the offset is the same, a wall is just another way to write a moment.

    cronsim has a way of its own with such lines. It passes over ticks where clocks move by half an hour, and
    in some zones never returns.
    """
    while True:
        offset = _offset(zone, after)
        changed = None
        for wall in CronSim(line, (after + offset).replace(tzinfo=None)):
            tick = wall.replace(tzinfo=UTC) - offset
            changed = _first_change(zone, after, tick)
            if changed is not None:
                break
            yield tick
            after = tick
        if changed is None:
            return
        # The new offset holds from this very moment on, which may be a tick.
        found = _offset(zone, changed)
        for wall in CronSim(line, (changed + found).replace(tzinfo=None) - _SECOND):
            if wall.replace(tzinfo=UTC) - found == changed:
                yield changed
            break
        after = changed


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _first_change(zone: ZoneInfo, begin: datetime, end: datetime) -> datetime | None:
    """The first moment after `begin`, up to `end`, with another offset; to the second."""
    offset = _offset(zone, begin)
    while begin < end:
        step = min(end, begin + _WEEK)  # nobody changes clocks twice in a week
        if _offset(zone, step) != offset:
            while step - begin > _SECOND:
                middle = begin + (step - begin) // 2
                begin, step = (middle, step) if _offset(zone, middle) == offset else (begin, middle)
            return step.replace(microsecond=0)
        begin = step
    return None


def _passed(schedule: Schedule, first: datetime, now: datetime) -> list[datetime]:
    """The newest ticks from `first` to `now`, oldest first: as many as are caught up.

    Looked for in a window that ends now and widens until it holds enough, because a schedule that nobody
    fired for a year would have half a million of them.
    """
    enough = MAX_CATCH_UP if schedule.catch_up == "all" else 1
    window = _FIRST_WINDOW
    while True:
        begin = max(first - _MICROSECOND, now - window)
        found: deque[datetime] = deque(maxlen=enough)
        for tick in ticks(schedule, begin):
            if tick > now:
                break
            found.append(tick)
        if len(found) == enough or begin < first:
            return list(found)
        window *= _WIDER
