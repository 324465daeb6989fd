"""Looking at a store: lists, counts, rates, workers; and who may use a storage object."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from omniq.errors import InvalidOption, NotFound
from omniq.task import Action, Settlement, Task, TaskError, TaskFilter, TaskStatus, WorkerInfo, replace
from omniq.testing.conformance.case import BOOM, FINAL, JOB, FullCase


class Looking(FullCase):
    """What can be seen changes nothing."""

    # --- lists -----------------------------------------------------------------------------------

    async def test_list_gives_the_newest_first(self) -> None:
        ids = [await self.put(number, priority=number) for number in range(5)]
        listed = await self.store.list_tasks()
        assert [task.id for task in listed] == ids[::-1]
        assert listed == [await self.look(task.id) for task in listed]

    async def test_list_gives_pages_that_join(self) -> None:
        ids = [await self.put(number) for number in range(7)]
        seen: list[str] = []
        after: str | None = None
        while page := await self.store.list_tasks(after=after, limit=3):
            assert len(page) <= 3
            seen += [task.id for task in page]
            after = seen[-1]
        assert seen == ids[::-1]

    async def test_a_page_is_not_moved_by_what_comes_or_changes_meanwhile(self) -> None:
        ids = [await self.put(number) for number in range(4)]
        [newest, second] = await self.store.list_tasks(limit=2)
        await self.put("new")
        await self.claim(limit=2)
        rest = await self.store.list_tasks(after=second.id)
        assert [newest.id, second.id, *(task.id for task in rest)] == ids[::-1]

    async def test_a_page_behind_an_unknown_task_says_so(self) -> None:
        with pytest.raises(NotFound, match="unknown"):
            await self.store.list_tasks(after="unknown")

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            ({}, "failed running mail keyed other"),
            ({"status": TaskStatus.PENDING}, "mail keyed other"),
            ({"status": TaskStatus.RUNNING}, "running"),
            ({"status": TaskStatus.FAILED}, "failed"),
            ({"status": TaskStatus.SUCCESS}, ""),
            ({"queue": "mail"}, "mail"),
            ({"queue": "mai"}, ""),
            ({"queue": "%"}, ""),
            ({"func_path": "jobs.other"}, "other"),
            ({"unique_key": "k"}, "keyed"),
            ({"owner": "ann"}, "running"),
            ({"owner": "ann", "status": TaskStatus.PENDING}, ""),
            ({"owner": "bob"}, ""),
            ({"error": "BOO"}, "failed"),
            ({"error": "valueerror", "status": TaskStatus.FAILED}, "failed"),
            ({"error": "most recent call"}, "failed"),
            ({"error": "%"}, ""),
            ({"error": "message"}, ""),
            ({"error": 'b"o'}, ""),
            ({"queue": "default", "status": TaskStatus.PENDING, "func_path": JOB}, "keyed"),
        ],
    )
    async def test_list_gives_what_matches_everything_that_is_set(
        self, wanted: dict[str, Any], found: str
    ) -> None:
        await self.settle(Settlement.failed(await self.start("failed"), BOOM))
        await self.start("running")
        await self.put("mail", queue="mail")
        await self.put("keyed", unique_key="k")
        await self.store.enqueue(Task("jobs.other", ("other",)))
        listed = await self.store.list_tasks(TaskFilter(**wanted))
        assert [task.args[0] for task in reversed(listed)] == found.split()

    async def test_list_gives_what_ended_before_a_moment(self) -> None:
        early = [await self.end(status) for status in FINAL]
        await self.put()
        await self.advance(1)
        moment = self.now()
        await self.advance(1)
        late = await self.end(TaskStatus.FAILED, priority=9)
        listed = await self.store.list_tasks(TaskFilter(finished_before=moment))
        assert [task.id for task in listed] == early[::-1]
        failed = TaskFilter(finished_before=self.moment(1), status=TaskStatus.FAILED)
        assert [task.id for task in await self.store.list_tasks(failed)] == [late, early[1]]

    async def test_list_gives_what_was_enqueued_between_two_moments(self) -> None:
        ids: list[str] = []
        moments = [self.now()]
        for _ in range(3):
            await self.advance(1)
            ids.append(await self.put())
            await self.advance(1)
            moments.append(self.now())
        wanted = TaskFilter(enqueued_after=moments[1], enqueued_before=moments[2])
        assert [task.id for task in await self.store.list_tasks(wanted)] == [ids[1]]
        listed = await self.store.list_tasks(TaskFilter(enqueued_after=moments[1]))
        assert [task.id for task in listed] == [ids[2], ids[1]]
        assert await self.store.list_tasks(TaskFilter(finished_after=moments[0])) == []

    async def test_the_text_of_an_error_is_found_as_it_was_said(self) -> None:
        said = 'it said: "no\\n" to \u00e9 and \u4e16\u754c\n100%'
        await self.settle(Settlement.failed(await self.start(), TaskError("E", said)))
        for part in ('"no', '"no\\n"', "\u00e9 and", "\u4e16", "\n100%", "100%"):
            assert len(await self.store.list_tasks(TaskFilter(error=part))) == 1, part
        assert await self.store.list_tasks(TaskFilter(error="said:  ")) == []

    async def test_pages_join_whatever_they_filter(self) -> None:
        ids = [await self.put(number, queue="odd" if number % 2 else "even") for number in range(7)]
        for wanted, expected in (
            (TaskFilter(queue="odd"), ids[5::-2]),
            (TaskFilter(queue="odd", status=TaskStatus.PENDING), ids[5::-2]),
            (TaskFilter(), ids[::-1]),
        ):
            seen: list[str] = []
            page = await self.store.page(wanted, limit=2)
            while page.after is not None:
                seen += [task.id for task in page.tasks]
                page = await self.store.page(wanted, page.after, limit=2)
            assert seen + [task.id for task in page.tasks] == expected

    # --- counts and rates ------------------------------------------------------------------------

    async def test_counts_are_by_queue_and_status(self) -> None:
        for status in FINAL:
            await self.end(status, queue="mail")
        await self.start(queue="mail")
        await self.put(queue="mail")
        await self.put(queue="mail", eta=self.moment(9))
        await self.put(queue="video")
        counts = await self.store.counts()
        assert counts["mail"] == {"PENDING": 2, "RUNNING": 1, "SUCCESS": 1, "FAILED": 1, "CANCELLED": 1}
        assert {status: n for status, n in counts["video"].items() if n} == {"PENDING": 1}
        assert set(counts) == {"mail", "video"}

    async def test_counts_are_of_every_status_a_task_goes_through(self) -> None:
        """Every write adds to the tallies: after each one they say what is there."""
        waiting = await self.put(interval=1)
        assert await self._counted() == {"PENDING": 1}
        claimed = await self.restart()
        assert await self._counted() == {"RUNNING": 1}
        await self.settle(self.settlement(claimed, Action.REPEAT, ticks=0))
        assert await self._counted() == {"PENDING": 1}
        await self.settle(Settlement.failed(await self.restart(), BOOM))
        assert await self._counted() == {"FAILED": 1}
        await self.store.retry(waiting)
        assert await self._counted() == {"PENDING": 1}
        await self.store.cancel(waiting)
        assert await self._counted() == {"CANCELLED": 1}
        await self.store.delete(waiting)
        assert await self.store.counts() == {}

    async def _counted(self) -> dict[str, int]:
        [per_status] = (await self.store.counts()).values()
        return {str(status): many for status, many in per_status.items() if many}

    async def test_rates_count_what_happened_since_a_minute_began(self) -> None:
        since = self.now()
        await self.end(TaskStatus.SUCCESS)
        before = await self.put()
        for status in (TaskStatus.SUCCESS, TaskStatus.SUCCESS, TaskStatus.FAILED):
            await self.end(status, priority=9)
        await self.store.cancel(before)
        await self.settle(self.settlement(await self.start(), Action.RETRY, ticks=9))
        await self.start(priority=9)
        await self.store.release("ann")
        await self.advance(0.5)
        rates = await self.store.rates(since)
        assert (rates.enqueued, rates.succeeded, rates.failed, rates.cancelled) == (7, 3, 1, 1)
        assert (rates.retried, rates.lost) == (1, 1)
        begin = since.replace(second=0, microsecond=0)
        assert rates.over_s == pytest.approx((self.now() - begin).total_seconds(), abs=2 * self.slack_s)
        assert rates.finished_per_s == pytest.approx(5 / rates.over_s)

    async def test_rates_leave_out_the_minutes_before(self) -> None:
        self.needs_virtual_time()
        await self.end(TaskStatus.SUCCESS)
        await self.clock.advance(minutes=1)
        since = self.now()
        await self.end(TaskStatus.FAILED)
        rates = await self.store.rates(since)
        assert (rates.enqueued, rates.succeeded, rates.failed) == (1, 0, 1)

    async def test_tallies_are_by_queue_and_minute_and_add_up(self) -> None:
        self.needs_virtual_time()
        await self.end(TaskStatus.SUCCESS, queue="mail")
        await self.clock.advance(minutes=1)
        await self.put(queue="mail")
        await self.put(queue="video")
        first, second, third = sorted(await self.store.tallies(), key=lambda one: (one.minute, one.queue))
        assert (first.queue, first.enqueued, first.success, first.pending, first.running) == (
            "mail",
            1,
            1,
            0,
            0,
        )
        assert (second.queue, second.enqueued, second.succeeded, second.pending) == ("mail", 1, 0, 1)
        assert (third.queue, third.minute) == ("video", second.minute)
        assert second.minute - first.minute == timedelta(minutes=1)
        assert second.minute == self.now().replace(second=0, microsecond=0)

    async def test_old_tallies_are_put_together_and_still_add_up(self) -> None:
        self.needs_virtual_time()
        for _ in range(3):
            await self.end(TaskStatus.FAILED, queue="mail")
            await self.clock.advance(minutes=1)
        before = await self.store.counts()
        await self.clock.advance(hours=3)
        await self.put(queue="mail")
        await self.store.prune()
        old, new = sorted(await self.store.tallies(), key=lambda one: one.minute)
        assert (old.enqueued, old.given_up, old.failed, old.minute.year) == (3, 3, 3, 1970)
        assert (new.enqueued, new.pending) == (1, 1)
        assert (await self.store.counts())["mail"][TaskStatus.FAILED] == before["mail"][TaskStatus.FAILED]

    # --- what is late ----------------------------------------------------------------------------

    async def test_heads_are_the_first_due_task_of_each_queue_and_priority(self) -> None:
        late = await self.put()
        await self.advance(1)
        await self.put()
        urgent = await self.put(priority=5)
        mail = await self.put(queue="mail")
        await self.put(queue="later", eta=self.moment(9))
        await self.store.pause("mail")
        heads = {(head.queue, head.priority): head for head in await self.store.heads()}
        assert {key: head.task_id for key, head in heads.items()} == {
            ("default", 0): late,
            ("default", 5): urgent,
            ("mail", 0): mail,
        }
        assert heads["default", 0].func_path == JOB
        assert self.is_about(heads["default", 0].due_at, self.moment(-1))

    async def test_heads_go_on_when_the_first_is_taken(self) -> None:
        _, second = await self.put(), await self.put()
        await self.claim()
        assert [head.task_id for head in await self.store.heads()] == [second]
        await self.claim()
        assert await self.store.heads() == []

    async def test_what_runs_longest_comes_first(self) -> None:
        """By when the run began, whoever was enqueued first; what waits or has ended is not there."""
        await self.end(TaskStatus.SUCCESS)
        young, old = await self.put(), await self.put(priority=9)
        for _ in range(2):
            await self.claim(limit=1)
            await self.advance(1)
        await self.put()
        found = await self.store.longest_running()
        assert [task.id for task in found] == [old, young]
        assert {task.status for task in found} == {TaskStatus.RUNNING}
        assert [task.id for task in await self.store.longest_running(1)] == [old]

    async def test_what_runs_is_found_behind_a_backlog(self) -> None:
        """However much was enqueued since: at night that is what is looked for."""
        first = await self.start()
        await self.store.enqueue_many([Task(JOB) for _ in range(2_500)])
        page = await self.store.page(TaskFilter(status=TaskStatus.RUNNING), limit=10)
        assert [task.id for task in page.tasks] == [first.id]
        assert [task.id for task in await self.store.longest_running(10)] == [first.id]

    @pytest.mark.parametrize("status", FINAL)
    async def test_what_ended_is_found_behind_a_backlog(self, status: TaskStatus) -> None:
        """Failures of the night, by the morning; a look for them reaches behind all that came since."""
        ended = [await self.end(status) for _ in range(3)]
        for other in FINAL:
            if other is not status:
                await self.end(other)
        await self.store.enqueue_many([Task(JOB) for _ in range(2_500)])
        page = await self.store.page(TaskFilter(status=status), limit=2)
        assert [task.id for task in page.tasks] == ended[:0:-1]
        rest = await self.store.page(TaskFilter(status=status), page.after, limit=2)
        assert [task.id for task in rest.tasks] == ended[:1]
        assert rest.after is None

    async def test_timings_are_of_the_latest_that_succeeded(self) -> None:
        for ticks in (1, 2):
            await self.put(queue="mail")
            await self.advance(ticks)
            claimed = await self.restart()
            await self.advance(1)
            await self.succeed(claimed)
        await self.end(TaskStatus.FAILED)
        newest, oldest = await self.store.timings()
        assert (newest.queue, oldest.queue) == ("mail", "mail")
        for timing, wait_ticks in ((newest, 2), (oldest, 1)):
            assert timing.wait_s == pytest.approx(wait_ticks * self.tick_s, abs=self.slack_s)
            assert timing.run_s == pytest.approx(self.tick_s, abs=self.slack_s)
        assert await self.store.timings(limit=1) == [newest]

    async def test_ahead_a_task_that_was_replaced_counts_once(self) -> None:
        for call in ("first", "second", "third"):
            await self.store.enqueue(Task(JOB, (call,), unique_key="k"), on_conflict="replace")
        await self.advance(0.1)
        assert await self.store.ahead(await self.put()) == 1

    async def test_ahead_are_those_that_a_claim_would_hand_out_before(self) -> None:
        first = await self.put()
        await self.put(queue="mail", priority=9)
        await self.put(priority=9, eta=self.moment(9))
        await self.put(priority=5)
        await self.advance(0.1)
        last = await self.put()
        assert await self.store.ahead(first) == 1
        assert await self.store.ahead(last) == 2
        assert await self.store.ahead(last, most=1) == 1
        await self.claim(limit=9)
        assert await self.store.ahead(last) == 0
        with pytest.raises(NotFound, match="unknown"):
            await self.store.ahead("unknown")

    # --- workers ---------------------------------------------------------------------------------

    async def test_workers_are_those_that_beat_the_newest_beat_first(self) -> None:
        ann = WorkerInfo(
            *("ann-1", "ann", "host", 42, ("mail", "default"), 100, 7, ("jobs.a", "jobs.b")),
            started_at=self.now(),
        )
        bob = WorkerInfo("bob-1", "bob", "host", 43)
        for info in (ann, bob, replace(ann, in_flight=3)):
            await self.store.beat(info)
            await self.advance(1)
        first, second = await self.store.workers()
        assert replace(first, seen_at=None) == replace(ann, in_flight=3)
        assert replace(second, seen_at=None) == bob
        assert self.is_about(first.seen_at, self.moment(-1))
        assert self.is_about(second.seen_at, self.moment(-2))

    async def test_a_worker_that_left_is_not_listed(self) -> None:
        await self.store.beat(WorkerInfo("ann-1", "ann", "host", 42))
        await self.store.beat(WorkerInfo("bob-1", "bob", "host", 43))
        await self.store.leave("ann-1")
        await self.store.leave("unknown")
        assert [worker.id for worker in await self.store.workers()] == ["bob-1"]

    async def test_a_worker_that_fell_silent_is_forgotten(self) -> None:
        self.needs_virtual_time()
        await self.store.beat(WorkerInfo("ann-1", "ann", "host", 42))
        await self.clock.advance(hours=23)
        await self.store.beat(WorkerInfo("bob-1", "bob", "host", 43))
        await self.store.prune()
        assert {worker.id for worker in await self.store.workers()} == {"ann-1", "bob-1"}
        await self.clock.advance(hours=2)
        await self.store.prune()
        assert [worker.id for worker in await self.store.workers()] == ["bob-1"]

    # --- whose storage this is -------------------------------------------------------------------

    async def test_a_clone_sees_the_same_data(self) -> None:
        other = await self.another()
        task_id = await self.put("a.png")
        assert (await other.list_tasks()) == (await self.store.list_tasks())
        [claimed] = await self.claim(store=other)
        assert claimed.id == task_id
        assert await self.succeed(claimed) == "held"
        assert (await other.counts())["default"][TaskStatus.SUCCESS] == 1

    async def test_a_clone_is_not_open_until_it_is_used(self) -> None:
        twin = self.store.clone()
        assert not twin.is_open
        assert await twin.counts() == {}
        assert twin.is_open
        await twin.close()
        assert not twin.is_open

    async def test_a_storage_belongs_to_the_loop_that_opened_it(self) -> None:
        await self.put()

        def elsewhere() -> None:
            asyncio.run(use())

        async def use() -> None:
            await self.store.counts()

        with pytest.raises(InvalidOption, match=r"clone\(\)"):
            await asyncio.to_thread(elsewhere)

    async def test_a_clone_serves_another_loop_in_another_thread(self) -> None:
        await self.put()

        async def use() -> int:
            async with self.store.clone() as twin:
                return (await twin.counts())["default"][TaskStatus.PENDING]

        assert await asyncio.to_thread(lambda: asyncio.run(use())) == 1
