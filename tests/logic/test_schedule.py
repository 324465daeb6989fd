"""Ticks: intervals, cron lines, time zones, what is caught up, and what is refused."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniq.errors import InvalidOption
from omniq.logic import schedule as logic
from omniq.logic.schedule import MAX_CATCH_UP, advance, begin, next_after, ticks
from omniq.schedule import Schedule
from omniq.task import StoredTask, replace
from tests.logic.zones import Change, changes, in_real_time, once_a_day

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
CALL = StoredTask("jobs.tidy", b"", id="tidy")


def saved(now: datetime = NOON, **options: Any) -> Schedule:
    return begin(Schedule(name="tidy", call=CALL, **options), None, now)


def fired(schedule: Schedule, now: datetime) -> list[str]:
    _, tasks = advance(schedule, now)
    return [task.headers["tick"] for task in tasks]


def minutes(*numbers: float) -> list[datetime]:
    return [NOON + timedelta(minutes=number) for number in numbers]


# --- intervals -----------------------------------------------------------------------------------


def test_an_interval_is_counted_from_its_beginning_whatever_happens_between() -> None:
    schedule = saved(every=60.0)
    assert list(islice(ticks(schedule, NOON), 3)) == minutes(1, 2, 3)
    assert next_after(schedule, NOON + timedelta(seconds=150)) == minutes(3)[0]
    assert next_after(schedule, NOON - timedelta(days=1)) == minutes(1)[0]


@given(
    st.floats(0.1, 1e7),
    st.timedeltas(timedelta(microseconds=1), timedelta(days=3000)),
    st.timedeltas(timedelta(0), timedelta(days=400)),
)
def test_ticks_of_an_interval_do_not_depend_on_where_one_looks_from(
    every: float, passed: timedelta, more: timedelta
) -> None:
    schedule = saved(every=every)
    tick = next_after(schedule, NOON + passed)
    assert tick is not None
    assert tick > NOON + passed
    assert tick - (NOON + passed) <= timedelta(seconds=every) + timedelta(microseconds=1)
    assert (tick - NOON) % timedelta(seconds=every) == timedelta(0)
    later = next_after(schedule, NOON + passed + more)
    assert later is not None
    assert later >= tick


# --- what is fired -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "late_s", "ticks_fired"),
    [
        ("latest", 0, ["12:01"]),
        ("latest", 59, ["12:01"]),
        ("latest", 60, ["12:02"]),
        ("latest", 200, ["12:04"]),
        ("all", 0, ["12:01"]),
        ("all", 200, ["12:01", "12:02", "12:03", "12:04"]),
        ("skip", 0, ["12:01"]),
        ("skip", 59, ["12:01"]),
        ("skip", 200, ["12:04"]),  # the newest is not late
    ],
)
def test_what_is_caught_up(catch_up: str, late_s: float, ticks_fired: list[str]) -> None:
    schedule = saved(every=60.0, catch_up=catch_up)
    made = fired(schedule, minutes(1)[0] + timedelta(seconds=late_s))
    assert made == [f"2030-01-01T{tick}:00Z" for tick in ticks_fired]


def test_skip_leaves_out_what_is_more_than_a_minute_late() -> None:
    schedule = saved(every=3600.0, catch_up="skip")
    assert len(fired(schedule, NOON + timedelta(hours=1, seconds=60))) == 1
    assert fired(schedule, NOON + timedelta(hours=1, seconds=61)) == []
    after, _ = advance(schedule, NOON + timedelta(hours=5, minutes=30))
    assert after.last_at == NOON + timedelta(hours=5)
    assert after.next_at == NOON + timedelta(hours=6)


@given(
    st.sampled_from(["latest", "all", "skip"]),
    st.sampled_from([{"every": 60.0}, {"every": 7.5}, {"cron": "*/5 * * * *"}, {"cron": "0 2 * * 1"}]),
    st.lists(st.timedeltas(timedelta(0), timedelta(days=40)), max_size=8),
)
def test_every_tick_is_fired_at_most_once_and_in_order(
    catch_up: str, when: dict[str, Any], pauses: list[timedelta]
) -> None:
    """F19, F20: whatever the moments at which somebody looks."""
    schedule, now, made = saved(catch_up=catch_up, **when), NOON, []
    for pause in pauses:
        now += pause
        assert schedule.next_at is not None
        if schedule.next_at <= now:
            schedule, tasks = advance(schedule, now)
            made += [task.eta for task in tasks]
            assert schedule.next_at is not None
            assert schedule.next_at > now
            assert len(tasks) <= MAX_CATCH_UP
    assert all(one < other for one, other in pairwise(made))


def test_catching_up_a_year_takes_no_time() -> None:
    """A schedule of every minute, forgotten for a year, has half a million ticks."""
    schedule = saved(cron="* * * * *", catch_up="all")
    began = time.process_time()
    made = fired(schedule, NOON + timedelta(days=365))
    assert len(made) == MAX_CATCH_UP
    assert made[-1] == "2031-01-01T12:00:00Z"
    assert time.process_time() - began < 2


def test_the_task_of_a_tick_is_known_by_both() -> None:
    schedule = saved(every=60.0, overlap="skip")
    _, [task] = advance(schedule, minutes(1)[0])
    assert task.id == "tidy@2030-01-01T12:01:00Z"
    assert (task.eta, task.unique_key) == (minutes(1)[0], "schedule:tidy")
    assert task.headers == {"schedule": "tidy", "tick": "2030-01-01T12:01:00Z"}


def test_a_unique_key_of_its_own_is_kept() -> None:
    schedule = saved(every=60.0, overlap="skip")
    own = replace(schedule, call=replace(CALL, unique_key="mine"))
    _, [task] = advance(own, minutes(1)[0])
    assert task.unique_key == "mine"


# --- daylight saving -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "tz", "after", "expected"),
    [
        # Berlin, 31 March 2030: 02:00 becomes 03:00 (01:00 UTC).
        ("30 2 * * *", "Europe/Berlin", "2030-03-30T12:00", ["2030-03-31T01:00", "2030-04-01T00:30"]),
        ("0,30 2 * * *", "Europe/Berlin", "2030-03-30T12:00", ["2030-03-31T01:00", "2030-04-01T00:00"]),
        ("0 * * * *", "Europe/Berlin", "2030-03-30T23:30", ["2030-03-31T00:00", "2030-03-31T01:00"]),
        # Berlin, 27 October 2030: 03:00 becomes 02:00 (01:00 UTC).
        ("30 2 * * *", "Europe/Berlin", "2030-10-26T12:00", ["2030-10-27T00:30", "2030-10-28T01:30"]),
        ("30 2 * * *", "Europe/Berlin", "2030-10-27T01:10", ["2030-10-28T01:30"]),
        ("*/30 * * * *", "Europe/Berlin", "2030-10-27T00:10", ["2030-10-27T00:30", "2030-10-27T01:00"]),
        # Lord Howe moves by half an hour, and Samoa left out a whole day.
        ("15 2 * * *", "Australia/Lord_Howe", "2030-10-05T12:00", ["2030-10-05T15:30", "2030-10-06T15:15"]),
        ("0 12 * * *", "Pacific/Apia", "2011-12-29T12:00", ["2011-12-29T22:00", "2011-12-30T10:00"]),
    ],
)
def test_f20_over_a_change_of_the_clocks(line: str, tz: str, after: str, expected: list[str]) -> None:
    """F20: a time that is left out fires once after it, one that is repeated fires once."""
    schedule = Schedule(name="tidy", call=CALL, cron=line, tz=tz)
    moments = islice(ticks(schedule, datetime.fromisoformat(after).replace(tzinfo=UTC)), len(expected))
    assert [f"{moment:%Y-%m-%dT%H:%M}" for moment in moments] == expected


WINDOW = timedelta(hours=5)
CHARACTERS = "0123456789*,-/LW#ABC"


def lines_near(change: Change) -> list[tuple[str, set[tuple[int, int]]]]:
    """Fifty lines, most of them for hours at which the clocks are changed there; and the times they name."""
    around = (change.at + change.before).hour
    hours = sorted({(around + step) % 24 for step in range(-2, 4)})
    lines: list[tuple[str, set[tuple[int, int]]]] = []
    for hour in hours:
        for minute in (0, 1, 15, 30, 45, 59):
            lines.append((f"{minute} {hour} * * *", {(hour, minute)}))
    named = ",".join(map(str, hours))
    lines.append((f"0,30 {named} * * *", {(hour, minute) for hour in hours for minute in (0, 30)}))
    lines.append((f"5-59/20 {named} * * *", {(hour, minute) for hour in hours for minute in (5, 25, 45)}))
    return lines


STARS = {
    "* * * * *": {(hour, minute) for hour in range(24) for minute in range(60)},
    "*/5 * * * *": {(hour, minute) for hour in range(24) for minute in range(0, 60, 5)},
    "*/20 * * * *": {(hour, minute) for hour in range(24) for minute in range(0, 60, 20)},
    "0 * * * *": {(hour, 0) for hour in range(24)},
    "17 * * * *": {(hour, 17) for hour in range(24)},
    "30 */2 * * *": {(hour, 30) for hour in range(0, 24, 2)},
}


def found(change: Change, line: str) -> list[datetime]:
    schedule = Schedule(name="tidy", call=CALL, cron=line, tz=change.zone)
    moments: list[datetime] = []
    for tick in ticks(schedule, change.at - WINDOW):
        if tick > change.at + WINDOW:
            return moments
        moments.append(tick)
    return moments


def test_f20_every_zone_that_changes_its_clocks() -> None:
    """F20: fifty lines at each of the latest two changes of every zone there is."""
    everywhere = changes()
    assert len({change.zone for change in everywhere}) > 60
    wrong: list[str] = []
    for change in everywhere:
        begin, end = change.at - WINDOW, change.at + WINDOW
        for line, times in lines_near(change):
            if found(change, line) != once_a_day(change, times, begin, end):
                wrong.append(f"{line} in {change}")
        for line, times in STARS.items():
            if found(change, line) != in_real_time(change, times, begin, end):
                wrong.append(f"{line} in {change}")
    assert wrong == []


@given(st.data())
def test_f20_ticks_rise_strictly_from_wherever_one_looks(data: st.DataObject) -> None:
    change = data.draw(st.sampled_from(changes()))
    line = data.draw(st.sampled_from([*STARS, *(line for line, _ in lines_near(change))]))
    after = change.at + data.draw(st.timedeltas(-2 * WINDOW, 2 * WINDOW))
    schedule = Schedule(name="tidy", call=CALL, cron=line, tz=change.zone)
    first, *more = islice(ticks(schedule, after), 4)
    assert after < first
    assert all(one < other for one, other in pairwise([first, *more]))
    assert next_after(schedule, first) == more[0]


# --- S15: nothing takes for ever -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 2 *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("0 0 32 * *", "no sense: Bad day-of-month"),
        ("0 0 30 13 *", "no sense: Bad month"),
        ("*/0 * * * *", "no sense: Bad minute"),
        ("1" * 100_000, "must be a line"),
        ("* * * * * * *", "five fields"),
        ("@daily", "five fields"),
    ],
)
def test_s15_what_never_fires_is_refused(line: str, words: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidOption, match=words):
        logic.check(Schedule(name="tidy", call=CALL, cron=line))
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("line", "expected"),
    [("0 0 29 2 *", "2032-02-29"), ("0 0 L 2 *", "2030-02-28"), ("0 0 * * 5#5", "2030-03-29")],
)
def test_s15_what_fires_seldom_is_found(line: str, expected: str) -> None:
    schedule = Schedule(name="tidy", call=CALL, cron=line)
    logic.check(schedule)
    assert f"{next_after(schedule, NOON):%Y-%m-%d}" == expected


def test_s15_nonsense_is_refused_at_once_whatever_it_is() -> None:
    """Ten thousand lines of the characters that a line may have."""
    chance = random.Random(15)
    slowest = 0.0
    for _ in range(10_000):
        fields = ["".join(chance.choices(CHARACTERS, k=chance.randint(1, 4))) for _ in range(5)]
        began = time.process_time()
        try:
            logic.check(Schedule(name="tidy", call=CALL, cron=" ".join(fields)))
        except InvalidOption as refused:
            assert "\n" not in str(refused)
        slowest = max(slowest, time.process_time() - began)
    assert slowest < 0.5


# --- saving again --------------------------------------------------------------------------------


def test_the_same_again_is_the_same() -> None:
    first = saved(every=60.0)
    assert begin(replace(first, next_at=None, revision=99), first, NOON + timedelta(hours=1)) is first


def test_one_that_is_saved_anew_is_another_one() -> None:
    """Who still fires the one that was deleted compares revisions."""
    deleted = saved(every=60.0)
    anew = begin(replace(deleted, revision=0), None, NOON + timedelta(seconds=1))
    assert anew.revision > deleted.revision


def test_other_times_begin_now_and_other_calls_change_no_tick() -> None:
    first, later = saved(every=60.0), NOON + timedelta(seconds=90)
    slower = begin(replace(first, every=600.0), first, later)
    assert (slower.created_at, slower.next_at) == (later, later + timedelta(minutes=10))
    other = begin(replace(first, call=replace(CALL, payload=b"other")), first, later)
    assert (other.created_at, other.next_at) == (first.created_at, first.next_at)
    assert slower.revision == other.revision == first.revision + 1
