"""Schedules: one task per tick whoever fires, what is kept when one is saved again, and after a downtime."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omniq.errors import InvalidOption, NotFound
from omniq.logic.schedule import MAX_CATCH_UP, moment_text
from omniq.schedule import Fired, Schedule
from omniq.task import Settlement, StoredTask, Task, TaskStatus, replace
from omniq.testing.conformance.case import BOOM, JOB, FullCase


class Schedules(FullCase):
    """What a store promises of `save_schedule`, `fire_due` and the others."""

    async def save(self, name: str = "tidy", ticks: float = 2, **options: Any) -> Schedule:
        """A schedule every so many ticks of the suite, unless it says when."""
        options.setdefault("call", Task(JOB, (1,), {"size": 2}))
        if "cron" not in options:
            options.setdefault("every", ticks * self.tick_s)
        return await self.store.save_schedule(Schedule(name=name, **options))

    async def kept(self, name: str = "tidy") -> Schedule:
        [schedule] = [one for one in await self.store.schedules() if one.name == name]
        return schedule

    async def fire(self) -> list[str]:
        return (await self.store.fire_due()).ids

    # --- saving ----------------------------------------------------------------------------------

    async def test_a_schedule_is_kept_as_it_was_saved(self) -> None:
        call = Task(JOB, ("a",), queue="mail", priority=7, timeout=9, max_retries=1, headers={"who": "ann"})
        saved = await self.save(call=call, cron="*/5 * * * *", tz="Europe/Berlin", catch_up="all")
        other = await self.another()
        assert await other.schedules() == [saved]
        assert (saved.name, saved.every, saved.cron, saved.tz) == (
            "tidy",
            None,
            "*/5 * * * *",
            "Europe/Berlin",
        )
        assert (saved.catch_up, saved.overlap, saved.paused) == ("all", "allow", False)
        assert isinstance(saved.call, StoredTask)
        assert (saved.call.func_path, saved.call.queue, saved.call.priority) == (JOB, "mail", 7)
        assert (saved.call.timeout, saved.call.max_retries, saved.call.headers) == (9, 1, {"who": "ann"})
        assert self.is_about(saved.created_at, self.now())
        assert saved.next_at is not None
        assert timedelta(0) < saved.next_at - self.now() <= timedelta(minutes=5)

    async def test_an_interval_begins_when_it_is_saved(self) -> None:
        saved = await self.save(ticks=3)
        assert saved.created_at is not None
        assert saved.next_at == saved.created_at + timedelta(seconds=3 * self.tick_s)

    async def test_schedules_are_listed_by_name(self) -> None:
        for name in ("b", "C", "a"):
            await self.save(name)
        assert [one.name for one in await self.store.schedules()] == ["C", "a", "b"]

    async def test_saving_again_changes_nothing(self) -> None:
        """So every process may do it when it starts, without moving a tick."""
        saved = await self.save()
        await self.advance(1)
        assert await self.save() == saved
        assert await (await self.another()).save_schedule(saved) == saved
        assert await self.store.schedules() == [saved]

    async def test_another_call_leaves_the_ticks_where_they_are(self) -> None:
        saved = await self.save()
        await self.advance(1)
        changed = await self.save(call=Task(JOB, (9,)), catch_up="all", overlap="skip")
        assert changed.next_at == saved.next_at
        assert changed.revision > saved.revision
        await self.advance(1)
        [task_id] = await self.fire()
        assert (await self.look(task_id)).args == (9,)

    async def test_other_times_count_from_now(self) -> None:
        await self.save(ticks=100)
        await self.advance(1)
        changed = await self.save(ticks=2)
        assert self.is_about(changed.next_at, self.moment(2))
        assert await self.store.schedules() == [changed]

    async def test_one_that_is_paused_stays_paused_when_it_is_saved(self) -> None:
        await self.save()
        await self.store.pause_schedule("tidy")
        changed = await self.save(ticks=1)
        assert (changed.paused, changed.next_at) == (True, None)
        await self.advance(3)
        assert await self.fire() == []

    async def test_many_who_save_at_once_keep_one(self) -> None:
        stores = [self.store, *[await self.another() for _ in range(3)]]
        schedule = Schedule(name="tidy", call=Task(JOB), every=self.tick_s)
        saved = await asyncio.gather(*(store.save_schedule(schedule) for store in stores for _ in range(3)))
        assert await self.store.schedules() == [saved[0]]
        assert all(one == saved[0] for one in saved)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"every": None}, "every=60 or cron"),
            ({"every": 5.0, "cron": "* * * * *"}, "not both"),
            ({"every": 0.0}, "more than 0"),
            ({"every": -1.0}, "more than 0"),
            ({"every": float("nan")}, "finite"),
            ({"every": 0.01}, "at least"),
            ({"every": "5"}, "seconds"),
            ({"cron": "0 0 30 2 *"}, "day"),
            ({"cron": "0 0 31 4,6,9,11 *"}, "day"),
            ({"cron": "* * * *"}, "five fields"),
            ({"cron": "* * * * * *"}, "five fields"),
            ({"cron": "*/0 * * * *"}, "makes no sense"),
            ({"cron": "61 * * * *"}, "makes no sense"),
            ({"cron": "tomorrow"}, "five fields"),
            ({"cron": ""}, "five fields"),
            ({"cron": "1" * 100_000 + " * * * *"}, "cron must be a line"),
            ({"cron": 5}, "cron must be a line"),
            ({"every": 5.0, "tz": "Europe/Atlantis"}, "no time zone 'Europe/Atlantis'"),
            ({"every": 5.0, "tz": "../../etc/passwd"}, "no time zone"),
            ({"every": 5.0, "tz": ""}, "tz must be"),
            ({"every": 5.0, "catch_up": "some"}, "'latest', 'all' or 'skip'"),
            ({"every": 5.0, "overlap": "never"}, "'allow' or 'skip'"),
            ({"every": 5.0, "name": ""}, "name of a schedule"),
            ({"every": 5.0, "name": "a\nb"}, "name of a schedule"),
            ({"every": 5.0, "name": "x" * 200}, "name of a schedule"),
            ({"every": 5.0, "call": "jobs.resize"}, "takes a Task"),
            ({"every": 5.0, "call": Task(JOB, eta=datetime(2030, 1, 1, tzinfo=UTC))}, "says when"),
            ({"every": 5.0, "call": Task(JOB, interval=5)}, "repeats by itself"),
            ({"every": 5.0, "call": Task(JOB, expires_at=datetime(2030, 1, 1, tzinfo=UTC))}, "expires="),
        ],
    )
    async def test_what_can_never_fire_is_refused(self, options: dict[str, Any], words: str) -> None:
        """S15: at registration, in words that say what to write."""
        wanted: dict[str, Any] = {"name": "tidy", "call": Task(JOB), **options}
        with pytest.raises(InvalidOption, match=words) as refused:
            await self.store.save_schedule(Schedule(**wanted))
        assert len(str(refused.value).splitlines()) == 1
        assert len(str(refused.value)) < 400
        assert await self.store.schedules() == []

    # --- ticks -----------------------------------------------------------------------------------

    async def test_a_tick_makes_one_task_with_the_call_of_the_schedule(self) -> None:
        call = Task(JOB, ("a",), {"b": 2}, queue="mail", priority=7, timeout=9, headers={"who": "ann"})
        saved = await self.save(call=call)
        assert saved.next_at is not None
        assert await self.fire() == []
        await self.advance(2)
        [task_id] = await self.fire()
        assert task_id == f"tidy@{moment_text(saved.next_at)}"
        task = await self.look(task_id)
        assert (task.func_path, task.args, task.kwargs) == (JOB, ("a",), {"b": 2})
        assert (task.queue, task.priority, task.timeout) == ("mail", 7, 9)
        assert (task.status, task.eta) == (TaskStatus.PENDING, saved.next_at)
        assert task.headers == {"who": "ann", "schedule": "tidy", "tick": moment_text(saved.next_at)}
        assert await self.fire() == []
        kept = await self.kept()
        assert (kept.last_at, kept.next_at) == (
            saved.next_at,
            saved.next_at + timedelta(seconds=2 * self.tick_s),
        )
        [claimed] = await self.claim(limit=5)
        assert claimed.id == task_id

    async def test_it_says_when_the_next_tick_is(self) -> None:
        assert await self.store.fire_due() == Fired([], None)
        await self.save("late", ticks=50)
        await self.save("soon", ticks=2)
        until = (await self.store.fire_due()).next_in_s
        assert until is not None
        assert 2 * self.tick_s - self.slack_s <= until <= 2 * self.tick_s
        await self.advance(2)
        fired = await self.store.fire_due()
        assert len(fired.ids) == 1
        assert fired.next_in_s is not None
        assert 0 <= fired.next_in_s <= 2 * self.tick_s

    async def test_no_more_schedules_than_asked_for(self) -> None:
        for number in range(5):
            await self.save(f"tidy-{number}", ticks=10)
        await self.advance(10)
        first = await self.store.fire_due(3)
        assert (len(first.ids), first.next_in_s) == (3, 0.0)
        assert len((await self.store.fire_due(3)).ids) == 2
        assert await self.fire() == []

    async def test_f19_many_who_fire_at_once_make_one_task_per_tick(self) -> None:
        stores = [self.store, *[await self.another() for _ in range(4)]]
        for name in ("a", "b", "c"):
            await self.save(name, ticks=1, catch_up="all")
        made: list[str] = []
        for _ in range(4):
            await self.advance(1)
            fired = await asyncio.gather(*(store.fire_due() for store in stores))
            made += [task_id for one in fired for task_id in one.ids]
        assert len(made) == len(set(made)) >= 12
        assert {task.id for task in await self.store.list_tasks()} == set(made)

    async def test_a_task_that_fires_wakes_who_sleeps(self) -> None:
        await self.save(ticks=1)
        other = await self.another()
        assert await self.claim() == []
        sleeper = asyncio.create_task(self.store.wait(1000 * self.tick_s))
        await self.advance(1)
        await other.fire_due()
        async with asyncio.timeout(10):
            assert await sleeper is True

    async def test_f21_what_becomes_of_a_task_never_stops_its_schedule(self) -> None:
        await self.save(ticks=2)
        ends = ["fail", "cancel", "delete", "nothing", "succeed"]
        for end in ends:
            await self.advance(2)
            [task_id] = await self.fire()
            [claimed] = await self.claim()
            assert claimed.id == task_id
            if end == "succeed":
                await self.succeed(claimed)
            if end in ("fail", "delete"):
                await self.settle(Settlement.failed(claimed, BOOM))
            if end == "delete":
                await self.store.delete(task_id)
            if end == "cancel":
                await self.store.cancel(task_id)
                await self.settle(Settlement.give_back(claimed))
        await self.advance(2)
        assert len(await self.fire()) == 1

    async def test_a_tick_whose_id_is_known_makes_no_second_task(self) -> None:
        """By (schedule, tick), also when the schedule was removed and made again."""
        saved = await self.save()
        assert saved.next_at is not None
        there = await self.put(id=f"tidy@{moment_text(saved.next_at)}")
        await self.advance(2)
        assert await self.fire() == []
        assert [task.id for task in await self.store.list_tasks()] == [there]
        assert (await self.kept()).last_at == saved.next_at

    # --- catching up, overlapping ----------------------------------------------------------------

    async def test_after_a_downtime_latest_makes_one_task(self) -> None:
        self.needs_virtual_time()
        saved = await self.save(ticks=1)
        assert saved.next_at is not None
        await self.advance(5.5)
        assert await self.fire() == [f"tidy@{moment_text(self.moment(-0.5))}"]
        assert await self.fire() == []
        assert (await self.kept()).next_at == self.moment(0.5)

    async def test_after_a_downtime_all_makes_every_task_in_order(self) -> None:
        self.needs_virtual_time()
        await self.save(ticks=1, catch_up="all")
        await self.advance(5.5)
        made = await self.fire()
        assert made == [f"tidy@{moment_text(self.moment(back - 0.5))}" for back in (-4, -3, -2, -1, 0)]
        assert [claimed.id for claimed in await self.claim(limit=9)] == made

    async def test_after_a_downtime_all_is_bounded(self) -> None:
        self.needs_virtual_time()
        await self.save(cron="* * * * *", catch_up="all")
        await self.clock.advance(days=40)
        made = await self.fire()
        assert len(made) == MAX_CATCH_UP
        assert made[-1] == f"tidy@{moment_text(self.now())}"

    async def test_after_a_downtime_skip_makes_none(self) -> None:
        self.needs_virtual_time()
        await self.save(cron="0 * * * *", catch_up="skip")
        await self.clock.advance(hours=5, minutes=20)
        assert await self.fire() == []
        await self.clock.advance(minutes=40)
        assert await self.fire() == [f"tidy@{moment_text(self.now())}"]
        await self.clock.advance(hours=1, seconds=30)  # a little late is not missed
        assert len(await self.fire()) == 1

    async def test_overlap_skip_waits_for_the_task_before(self) -> None:
        await self.save(ticks=2, overlap="skip")
        await self.advance(2)
        [first] = await self.fire()
        await self.advance(2)
        assert await self.fire() == []
        [claimed] = await self.claim()
        await self.advance(2)
        assert await self.fire() == []
        await self.succeed(claimed)
        assert (await self.look(first)).status is TaskStatus.SUCCESS
        await self.advance(2)
        assert len(await self.fire()) == 1

    async def test_overlap_allow_does_not_wait(self) -> None:
        await self.save(ticks=2)
        for _ in range(3):
            await self.advance(2)
            assert len(await self.fire()) == 1

    async def test_a_wall_clock_that_is_set_back_fires_nothing_twice(self) -> None:
        """F20: it waits until the wall is where it was."""
        self.needs_virtual_time()
        await self.save(cron="* * * * *")
        await self.clock.advance(minutes=1)
        assert len(await self.fire()) == 1
        self.clock.set_wall(self.now() - timedelta(hours=1))
        for _ in range(60):
            assert await self.fire() == []
            await self.clock.advance(minutes=1)
        await self.clock.advance(minutes=1)
        assert len(await self.fire()) == 1

    # --- by hand ---------------------------------------------------------------------------------

    async def test_a_paused_schedule_does_not_fire_and_catches_nothing_up(self) -> None:
        await self.save(ticks=2, catch_up="all")
        await self.store.pause_schedule("tidy")
        await self.store.pause_schedule("tidy")
        assert (await self.kept()).paused
        await self.advance(5)
        assert await self.store.fire_due() == Fired([], None)
        await self.store.resume_schedule("tidy")
        await self.store.resume_schedule("tidy")
        assert not (await self.kept()).paused
        assert await self.fire() == []
        await self.advance(2)
        assert len(await self.fire()) == 1

    async def test_running_one_now_changes_no_tick(self) -> None:
        saved = await self.save()
        await self.store.pause_schedule("tidy")
        made = await self.store.run_schedule("tidy")
        assert made.created
        task = await self.look(str(made))
        assert (task.args, task.kwargs, task.headers) == ((1,), {"size": 2}, {"schedule": "tidy"})
        await self.store.resume_schedule("tidy")
        assert (await self.kept()).created_at == saved.created_at
        assert [claimed.id for claimed in await self.claim(limit=9)] == [made]

    async def test_running_one_now_that_does_not_overlap_gives_the_living_task(self) -> None:
        await self.save(overlap="skip")
        first = await self.store.run_schedule("tidy")
        again = await self.store.run_schedule("tidy")
        assert (again, again.created) == (first, False)

    async def test_a_deleted_schedule_is_gone_and_its_tasks_stay(self) -> None:
        await self.save()
        await self.advance(2)
        [task_id] = await self.fire()
        await self.store.delete_schedule("tidy")
        assert await self.store.schedules() == []
        await self.advance(3)
        assert await self.store.fire_due() == Fired([], None)
        assert (await self.look(task_id)).status is TaskStatus.PENDING

    async def test_schedules_that_are_not_there_are_not_found(self) -> None:
        for verb in ("pause_schedule", "resume_schedule", "run_schedule", "delete_schedule"):
            for name in ("nobody", "", "\ud800"):
                with pytest.raises(NotFound, match="no schedule"):
                    await getattr(self.store, verb)(name)

    async def test_the_limit_of_schedules_to_fire_is_a_number(self) -> None:
        for limit in (0, -1, "5", True):
            with pytest.raises(InvalidOption, match="limit"):
                await self.store.fire_due(limit)  # type: ignore[arg-type]

    async def test_who_saves_may_give_what_it_was_given(self) -> None:
        saved = await self.save()
        again = replace(saved, paused=True, next_at=None, revision=99)
        assert await self.store.save_schedule(again) == saved
