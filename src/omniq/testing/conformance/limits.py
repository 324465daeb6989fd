"""How many tasks may wait in a queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omniq.errors import InvalidOption, QueueFull
from omniq.schedule import Schedule
from omniq.task import Settlement, Task
from omniq.testing.conformance.case import BOOM, JOB, FullCase


class Limits(FullCase):
    """`limit_queue`, and `QueueFull` for whoever enqueues more."""

    async def fill(self, depth: int = 3, **options: Any) -> list[str]:
        await self.store.limit_queue("default", depth)
        return [await self.put(number, **options) for number in range(depth)]

    async def test_a_full_queue_takes_no_more(self) -> None:
        await self.fill(3)
        with pytest.raises(QueueFull, match=r"'default'.* 3 waiting"):
            await self.put("one too many")
        assert len(await self.store.list_tasks()) == 3
        assert await self.put(queue="other")

    async def test_there_is_room_again_when_one_was_claimed(self) -> None:
        await self.fill(3)
        await self.claim()
        assert await self.put("room")
        with pytest.raises(QueueFull):
            await self.put("full again")

    async def test_tasks_that_are_due_later_count(self) -> None:
        await self.fill(2, eta=self.moment(100))
        with pytest.raises(QueueFull):
            await self.put()

    async def test_bulk_goes_in_whole_or_not_at_all(self) -> None:
        await self.store.limit_queue("default", 3)
        await self.put()
        before = await self.snapshot()
        with pytest.raises(QueueFull):
            await self.store.enqueue_many([Task(JOB, queue="other"), *(Task(JOB) for _ in range(3))])
        assert await self.snapshot() == before
        await self.store.enqueue_many([Task(JOB), Task(JOB)])

    async def test_an_enqueue_that_is_sent_again_finds_itself_in_a_full_queue(self) -> None:
        task = Task(JOB, unique_key="key")
        await self.store.enqueue(task)
        await self.store.limit_queue("default", 1)
        assert await self.store.enqueue(task) == task.id
        assert await self.store.enqueue(Task(JOB, unique_key="key")) == task.id
        assert await self.store.enqueue(Task(JOB, (2,), unique_key="key"), on_conflict="replace") == task.id

    async def test_what_comes_back_is_never_refused(self) -> None:
        await self.fill(1)
        [claimed] = await self.claim()
        await self.put("took its place")
        await self.settle(Settlement.retry(claimed, 0, BOOM))
        assert len(await self.claim(limit=9)) == 2

    async def test_retrying_by_hand_is_never_refused(self) -> None:
        await self.store.limit_queue("default", 1)
        claimed = await self.start()
        await self.settle(Settlement.failed(claimed, BOOM))
        await self.put()
        await self.store.retry(claimed.id)
        assert len(await self.claim(limit=9)) == 2

    async def test_limits_are_listed_changed_and_lifted(self) -> None:
        assert await self.store.queue_limits() == {}
        await self.store.limit_queue("a", 5)
        await self.store.limit_queue("b", 0)
        await self.store.limit_queue("a", 7)
        assert await (await self.another()).queue_limits() == {"a": 7, "b": 0}
        with pytest.raises(QueueFull):
            await self.put(queue="b")
        await self.store.limit_queue("b", None)
        await self.store.limit_queue("never-had-one", None)
        assert await self.store.queue_limits() == {"a": 7}
        await self.put(queue="b")

    async def test_many_who_enqueue_at_once_do_not_pass_a_limit(self) -> None:
        await self.store.limit_queue("default", 10)
        stores = [self.store, *[await self.another() for _ in range(3)]]
        calls = [store.enqueue(Task(JOB)) for store in stores for _ in range(8)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(one, QueueFull) for one in answers) == 22
        assert len(await self.store.list_tasks()) == 10

    async def test_a_tick_for_a_full_queue_makes_no_task_and_the_next_one_does(self) -> None:
        await self.fill(1)
        await self.store.save_schedule(Schedule(name="tidy", call=Task(JOB), every=2 * self.tick_s))
        await self.advance(2)
        assert (await self.store.fire_due()).ids == []
        await self.claim()
        await self.advance(2)
        assert len((await self.store.fire_due()).ids) == 1

    async def test_a_limit_is_a_number_for_a_queue(self) -> None:
        for queue, most in (("a b", 1), ("", 1), ("a", -1), ("a", 1.5), ("a", True), ("a", "5")):
            with pytest.raises(InvalidOption):
                await self.store.limit_queue(queue, most)  # type: ignore[arg-type]
        assert await self.store.queue_limits() == {}
