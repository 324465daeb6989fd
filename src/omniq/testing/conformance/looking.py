"""Looking at a store: lists, counts, rates, workers; and who may use a storage object."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omniq.errors import InvalidOption, NotFound
from omniq.task import Settlement, Task, TaskFilter, TaskStatus, WorkerInfo, replace
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

    async def test_rates_count_what_happened_since_a_moment(self) -> None:
        await self.end(TaskStatus.SUCCESS)
        before = await self.put()
        await self.advance(1)
        since = self.now()
        await self.advance(1)
        for status in (TaskStatus.SUCCESS, TaskStatus.SUCCESS, TaskStatus.FAILED):
            await self.end(status, priority=9)
        await self.store.cancel(before)
        rates = await self.store.rates(since)
        assert (rates.enqueued, rates.succeeded, rates.failed, rates.cancelled) == (3, 2, 1, 1)
        assert rates.over_s == pytest.approx(self.tick_s, abs=2 * self.slack_s)
        assert rates.finished_per_s == pytest.approx(4 / rates.over_s)

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
