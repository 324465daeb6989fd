"""Where on earth the clocks are changed, and what a cron line should do there: an answer of our own.

The answer is counted out minute by minute, so that it shares nothing with the search it judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

WEEK = timedelta(days=7)
MINUTE = timedelta(minutes=1)
NOT_BEFORE = datetime(1995, 1, 1, tzinfo=UTC)
NOT_AFTER = datetime(2027, 12, 31, tzinfo=UTC)


@dataclass(frozen=True)
class Change:
    """A change of the clocks: the first moment of the new offset, and both offsets."""

    zone: str
    at: datetime
    before: timedelta
    after: timedelta

    @property
    def rule(self) -> tuple[datetime, timedelta, timedelta]:
        return self.at, self.before, self.after


@cache
def changes(per_zone: int = 2) -> tuple[Change, ...]:
    """The latest changes of every zone that has any; zones that change alike are there once."""
    found: dict[object, Change] = {}
    for name in sorted(available_timezones()):
        for change in _latest(name, per_zone):
            found.setdefault(change.rule, change)
    return tuple(found.values())


def _latest(name: str, how_many: int) -> list[Change]:
    zone, found = ZoneInfo(name), []
    end, after = NOT_AFTER, _offset(zone, NOT_AFTER)
    while end > NOT_BEFORE and len(found) < how_many:
        begin = end - WEEK
        before = _offset(zone, begin)
        if before != after:
            found.append(_between(name, zone, begin, end))
        end, after = begin, before
    return found


def _between(name: str, zone: ZoneInfo, begin: datetime, end: datetime) -> Change:
    before, after = _offset(zone, begin), _offset(zone, end)
    while end - begin > MINUTE:
        middle = begin + (end - begin) // (2 * MINUTE) * MINUTE
        begin, end = (middle, end) if _offset(zone, middle) == before else (begin, middle)
    return Change(name, end, before, after)


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def once_a_day(change: Change, times: set[tuple[int, int]], begin: datetime, end: datetime) -> list[datetime]:
    """When lines that name hours and minutes fire: when a wall shows it first, or has passed it."""
    expected: set[datetime] = set()
    zone = ZoneInfo(change.zone)
    # A day to either side, because dates are local ones.
    day = (begin.astimezone(zone) - timedelta(days=2)).date()
    while day <= (end.astimezone(zone) + timedelta(days=2)).date():
        for hour, minute in times:
            wall = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001 - a wall, no moment
            moment = _first_showing(wall, change)
            if begin < moment <= end:
                expected.add(moment)
        day += timedelta(days=1)
    return sorted(expected)


def _first_showing(wall: datetime, change: Change) -> datetime:
    early = (wall - change.before).replace(tzinfo=UTC)
    late = (wall - change.after).replace(tzinfo=UTC)
    if early < change.at:
        return early
    return max(late, change.at)  # a wall that was left out is shown as the new offset begins


def in_real_time(
    change: Change, times: set[tuple[int, int]], begin: datetime, end: datetime
) -> list[datetime]:
    """When lines that begin with a star fire: every time the wall shows it."""
    expected: list[datetime] = []
    moment = begin
    while moment < end:
        moment += MINUTE
        offset = change.before if moment < change.at else change.after
        wall = moment + offset
        if (wall.hour, wall.minute) in times:
            expected.append(moment)
    return expected
