"""Parcels: what leaves one store and arrives in another, once, whatever is repeated."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from omniq.errors import IdConflict, InvalidOption
from omniq.parcel import Parcel, TakenIn, pack, unpack
from omniq.schedule import Schedule
from omniq.storage import MemoryStorage
from omniq.storage.batched import BatchedStorage
from omniq.task import Answer, Settlement, Task, TaskStatus
from omniq.testing.conformance.case import BOOM, JOB, FullCase


class Moving(FullCase):
    """`take_out`, `take_in`, `drop_parcel`. The other side is a memory store."""

    async def other_store(self) -> BatchedStorage:
        other = MemoryStorage(clock=self.clock) if self.virtual_time else MemoryStorage()
        await other.open()
        return other

    async def parcel(self, limit: int = 500) -> Parcel:
        parcel = await self.store.take_out(limit)
        assert parcel is not None
        return parcel

    async def some_of_everything(self) -> dict[str, str]:
        """A task in every status that can move, by what it is."""
        made: dict[str, str] = {}
        for status in (TaskStatus.SUCCESS, TaskStatus.FAILED, TaskStatus.CANCELLED):
            made[status.value] = await self.end(status, headers={"who": "ann"})
        claimed = await self.start("again", max_retries=5)
        await self.settle(Settlement.retry(claimed, 0, BOOM))
        claimed = await self.restart()
        await self.settle(Settlement.retry(claimed, 5 * self.tick_s, BOOM))
        made["retrying"] = claimed.id
        made["later"] = await self.put(eta=self.moment(50), priority=9, queue="mail", unique_key="one")
        made["repeating"] = (claimed := await self.start(interval=5 * self.tick_s)).id
        await self.settle(Settlement.repeat(claimed, self.store.serializer.dumps(7), 5 * self.tick_s))
        made["waiting"] = await self.put("x" * 5000)
        return made

    async def seen(self, store: BatchedStorage, ids: dict[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for what, task_id in ids.items():
            found[what] = await store.get_task(task_id)
            found[f"{what}'s result"] = await store.get_result(task_id)
            found[f"{what}'s history"] = await store.history(task_id)
        return found

    async def test_what_is_taken_out_is_gone_and_arrives_as_it_was(self) -> None:
        """With ids, attempts, epochs, results and history."""
        ids = await self.some_of_everything()
        before = await self.seen(self.store, ids)
        parcel = await self.parcel()
        assert {one.task.id for one in parcel.tasks} == set(ids.values())
        assert await self.store.list_tasks() == []
        assert await self.claim(limit=9) == []
        other = await self.other_store()
        assert await other.take_in(unpack(pack(parcel))) == TakenIn(tasks=len(ids))
        assert await self.seen(other, ids) == before
        await other.close()

    async def test_what_arrives_goes_on_as_everywhere(self) -> None:
        other = await self.other_store()
        claims = await self.filled(other)
        parcel = await other.take_out()
        assert parcel is not None
        await self.store.take_in(parcel)
        [claimed] = await self.claim(limit=9)
        assert (claimed.id, claimed.epoch, claimed.attempts) == (claims[0], 2, 1)
        assert await self.succeed(claimed) is Answer.HELD
        await other.close()

    async def filled(self, other: BatchedStorage) -> list[str]:
        task_id = await other.enqueue(Task(JOB, max_retries=5))
        [claimed] = await other.claim("ann")
        await other.settle([Settlement.retry(claimed, 0, BOOM)])
        return [task_id]

    async def test_it_arrives_as_it_was_from_elsewhere(self) -> None:
        """The same the other way round: a memory store's parcel, in this store."""
        mine, self.store = self.store, await self.other_store()
        try:
            ids = await self.some_of_everything()
            before = await self.seen(self.store, ids)
            parcel = await self.parcel()
        finally:
            await self.store.close()
            self.store = mine
        assert await mine.take_in(parcel) == TakenIn(tasks=len(ids))
        assert await self.seen(mine, ids) == before

    async def test_the_same_parcel_is_given_until_it_is_dropped(self) -> None:
        await self.put(1)
        first = await self.parcel()
        await self.put(2)
        assert await self.parcel() == first
        assert await (await self.another()).take_out() == first
        await self.store.drop_parcel("another")
        assert await self.parcel() == first
        for _ in range(2):
            await self.store.drop_parcel(first.id)
        second = await self.parcel()
        assert second.id != first.id
        assert [one.task.id for one in second.tasks] != [one.task.id for one in first.tasks]
        await self.store.drop_parcel(second.id)
        assert await self.store.take_out() is None

    async def test_a_parcel_is_taken_in_once(self) -> None:
        """Also when everything in it has ended here and was deleted since."""
        other = await self.other_store()
        await other.enqueue_many([Task(JOB, (number,)) for number in range(3)])
        parcel = await other.take_out()
        assert parcel is not None
        stores = [self.store, await self.another()]
        taken = await asyncio.gather(*(store.take_in(parcel) for store in stores for _ in range(2)))
        assert sorted(one.tasks for one in taken) == [0, 0, 0, 3]
        for claimed in await self.claim(limit=9):
            await self.succeed(claimed)
            await self.store.delete(claimed.id)
        assert await self.store.take_in(parcel) == TakenIn()
        assert await self.store.list_tasks() == []
        await other.close()

    async def test_a_parcel_that_came_in_is_known_for_thirty_days_and_not_for_ever(self) -> None:
        self.needs_virtual_time()
        other = await self.other_store()
        await other.enqueue(Task(JOB))
        parcel = await other.take_out()
        assert parcel is not None
        await self.store.take_in(parcel)
        await self.succeed(*await self.claim())
        for days, again in ((29, 0), (2, 1)):
            await self.clock.advance(seconds=timedelta(days=days).total_seconds())
            await self.store.prune()
            assert (await self.store.take_in(parcel)).tasks == again
        await other.close()

    async def test_parcels_are_small_and_keep_the_order_of_claims(self) -> None:
        ids = [await self.put(number) for number in range(7)]
        first = await self.put("first", priority=5)
        other = await self.other_store()
        sizes: list[int] = []
        while (parcel := await self.store.take_out(3)) is not None:
            sizes.append(len(parcel.tasks))
            await other.take_in(parcel)
            await self.store.drop_parcel(parcel.id)
        assert sizes == [3, 3, 2]
        claims = await other.claim("ann", None, 99)
        assert [claim.id for claim in claims] == [first, *ids]
        await other.close()

    async def test_large_tasks_make_small_parcels(self) -> None:
        for _ in range(3):
            await self.put("x" * 900_000)
        whole = sum(len(one.task.payload) for one in (await self.parcel()).tasks)
        assert 0 < whole <= 8 << 20

    async def test_what_runs_stays(self) -> None:
        running = await self.start()
        waiting = await self.put()
        assert [one.task.id for one in (await self.parcel()).tasks] == [waiting]
        assert await self.succeed(running) is Answer.HELD
        assert [task.id for task in await self.store.list_tasks()] == [running.id]

    async def test_an_empty_store_has_nothing_to_move(self) -> None:
        assert await self.store.take_out() is None

    async def test_schedules_pauses_and_limits_go_along(self) -> None:
        schedule = Schedule(name="tidy", call=Task(JOB, (1,)), every=2 * self.tick_s)
        saved = await self.store.save_schedule(schedule)
        await self.store.pause("mail")
        await self.store.limit_queue("default", 5)
        parcel = await self.parcel()
        assert (await self.store.schedules(), await self.store.paused()) == ([], set())
        assert await self.store.queue_limits() == {}
        other = await self.other_store()
        assert await other.take_in(parcel) == TakenIn(schedules=1)
        assert (await other.schedules(), await other.paused()) == ([saved], {"mail"})
        assert await other.queue_limits() == {"default": 5}
        await self.store.drop_parcel(parcel.id)
        back = await other.take_out()
        assert back is not None
        assert await self.store.take_in(back) == TakenIn(schedules=1)
        assert (await self.store.schedules(), await self.store.paused()) == ([saved], {"mail"})
        assert await self.store.queue_limits() == {"default": 5}
        await other.close()

    async def test_a_schedule_that_is_here_already_stays_as_it_is_here(self) -> None:
        other = await self.other_store()
        await other.save_schedule(Schedule(name="tidy", call=Task(JOB, (1,)), every=2 * self.tick_s))
        mine = await self.store.save_schedule(Schedule(name="tidy", call=Task(JOB, (2,)), every=self.tick_s))
        parcel = await other.take_out()
        assert parcel is not None
        assert await self.store.take_in(parcel) == TakenIn()
        assert await self.store.schedules() == [mine]
        await other.close()

    async def test_an_id_that_is_known_here_is_not_taken_twice(self) -> None:
        other = await self.other_store()
        task = Task(JOB, (1,))
        await other.enqueue(task)
        await self.store.enqueue(task)
        fresh = await other.enqueue(Task(JOB, (2,)))
        parcel = await other.take_out()
        assert parcel is not None
        assert await self.store.take_in(parcel) == TakenIn(tasks=1, known=1)
        assert {one.id for one in await self.store.list_tasks()} == {task.id, fresh}
        await other.close()

    async def test_an_id_of_another_call_refuses_the_whole_parcel(self) -> None:
        other = await self.other_store()
        await other.enqueue_many([Task(JOB, (0,)), Task(JOB, (1,), id="mine")])
        await self.put(2, id="mine")
        before = await self.snapshot()
        parcel = await other.take_out()
        assert parcel is not None
        for _ in range(2):
            with pytest.raises(IdConflict, match="'mine'"):
                await self.store.take_in(parcel)
        assert await self.snapshot() == before
        await other.close()

    async def test_a_unique_key_that_is_held_here_holds_the_other_one_back(self) -> None:
        other = await self.other_store()
        theirs = await other.enqueue(Task(JOB, (1,), unique_key="key"))
        mine = await self.put(2, unique_key="key")
        parcel = await other.take_out()
        assert parcel is not None
        assert await self.store.take_in(parcel) == TakenIn(tasks=1, blocked=1)
        blocked = await self.look(theirs)
        assert blocked.status is TaskStatus.CANCELLED
        assert blocked.error is not None
        assert mine in blocked.error.message
        [claimed] = await self.claim(limit=9)
        await self.succeed(claimed)
        await self.store.retry(theirs)
        assert [one.id for one in await self.claim(limit=9)] == [theirs]
        await other.close()

    async def test_what_arrives_wakes_who_sleeps(self) -> None:
        other = await self.other_store()
        await other.enqueue(Task(JOB))
        parcel = await other.take_out()
        assert parcel is not None
        assert await self.claim() == []
        sleeper = asyncio.create_task(self.store.wait(1000 * self.tick_s))
        await (await self.another()).take_in(parcel)
        async with asyncio.timeout(10):
            assert await sleeper is True
        await other.close()

    async def test_what_ended_is_kept_as_long_as_here(self) -> None:
        self.needs_virtual_time()
        other = await self.other_store()
        task_id = await other.enqueue(Task(JOB))
        [claimed] = await other.claim("ann")
        await other.settle([Settlement.success(claimed, other.serializer.dumps(1))])
        parcel = await other.take_out()
        assert parcel is not None
        await self.store.take_in(parcel)
        assert await self.store.prune() == 0
        await self.clock.advance(seconds=timedelta(days=1).total_seconds() + 1)
        assert await self.store.prune() == 1
        assert await self.store.get_task(task_id) is None
        await other.close()

    async def test_a_parcel_that_is_taken_in_where_it_came_from_is_back(self) -> None:
        ids = await self.some_of_everything()
        await self.store.save_schedule(Schedule(name="tidy", call=Task(JOB), every=self.tick_s))
        before = await self.seen(self.store, ids)
        parcel = await self.parcel()
        for _ in range(2):
            back = await (await self.another()).take_in(parcel)
            assert back == TakenIn(tasks=len(ids), schedules=1, returned=True)
            assert await self.seen(self.store, ids) == before
            parcel = await self.parcel()
        await self.store.take_in(parcel)
        await self.store.drop_parcel(parcel.id)
        assert await self.seen(self.store, ids) == before

    async def test_only_parcels_are_taken_in(self) -> None:
        for wrong in (None, b"", "parcel", 5):
            with pytest.raises(InvalidOption, match="take_out"):
                await self.store.take_in(wrong)  # type: ignore[arg-type]
        for limit in (0, -1, True, "5"):
            with pytest.raises(InvalidOption, match="limit"):
                await self.store.take_out(limit)  # type: ignore[arg-type]
