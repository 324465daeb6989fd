"""What every storage must do, also one with nothing but the seed's five verbs.

Half of these go through the batched verbs that `BaseStorage` makes from the five: that is how workers
speak to a storage. A storage without `reschedule` runs a retry as a new task.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omniq.storage.base import Claimed
from omniq.task import Answer, Claim, Held, Settlement, StoredTask, Task, TaskResult, TaskStatus
from omniq.testing.conformance.case import BOOM, JOB, Case, StoreT


class SeedConformance(Case[StoreT]):
    """The verbs of the seed, and the batched ones made from them."""

    async def dequeue(self) -> Task | None:
        return await self.store.dequeue(now=self.now())

    async def take(self, limit: int = 1) -> list[Claimed]:
        return await self.store.claim("ann", None, limit, 3 * self.tick_s)

    def call_of(self, claimed: Claimed) -> tuple[str, list[Any], dict[str, Any]]:
        if isinstance(claimed, StoredTask):
            _, args, kwargs = self.store.serializer.decode_call(claimed.payload)
            return claimed.func_path, list(args), kwargs
        return claimed.func_path, list(claimed.args), claimed.kwargs

    def first_id_of(self, claimed: Claimed) -> str:
        """The id under which a call was enqueued, also where a retry became a new task."""
        return claimed.headers.get("retry_of", claimed.id)

    # --- enqueue, dequeue ------------------------------------------------------------------------

    async def test_enqueue_gives_the_id_of_the_task(self) -> None:
        task = Task(JOB)
        assert await self.store.enqueue(task) == task.id

    async def test_dequeue_of_an_empty_storage_gives_nothing(self) -> None:
        assert await self.dequeue() is None

    async def test_dequeue_gives_the_call_unchanged(self) -> None:
        """S000-9."""
        await self.store.enqueue(Task(JOB, ("a.png", 2, None), {"fit": True, "sizes": [1, 2]}))
        task = await self.dequeue()
        assert task is not None
        assert (task.func_path, task.args) == (JOB, ("a.png", 2, None))
        assert task.kwargs == {"fit": True, "sizes": [1, 2]}

    async def test_dequeue_gives_nobody_a_task_twice(self) -> None:
        ids = {await self.store.enqueue(Task(JOB, (number,))) for number in range(3)}
        dequeued = [await self.dequeue() for _ in range(3)]
        assert {task.id for task in dequeued if task is not None} == ids
        assert await self.dequeue() is None

    async def test_two_claimers_never_share_a_task(self) -> None:
        for number in range(30):
            await self.store.enqueue(Task(JOB, (number,)))
        other = await self.another()
        lease_s = 3 * self.tick_s
        first, second = await asyncio.gather(
            self.store.claim("ann", None, 20, lease_s), other.claim("bob", None, 20, lease_s)
        )
        assert len({task.id for task in (*first, *second)}) == len(first) + len(second) == 30

    async def test_a_task_is_not_handed_out_before_its_eta(self) -> None:
        """S000-5."""
        await self.store.enqueue(Task(JOB, eta=self.moment(2)))
        assert await self.dequeue() is None
        await self.advance(1)
        assert await self.dequeue() is None
        await self.advance(1)
        assert await self.dequeue() is not None

    async def test_an_eta_in_the_past_is_due(self) -> None:
        await self.store.enqueue(Task(JOB, eta=self.moment(-5)))
        assert await self.dequeue() is not None

    async def test_a_task_is_handed_out_with_what_it_was_enqueued_with(self) -> None:
        await self.store.enqueue(
            Task(JOB, timeout=5, max_retries=7, interval=60, headers={"trace": "1"}, on_failure="continue")
        )
        task = await self.dequeue()
        assert task is not None
        assert (task.timeout, task.max_retries, task.interval) == (5, 7, 60)
        assert (task.headers, task.on_failure, task.attempts) == ({"trace": "1"}, "continue", 0)

    # --- the marks -------------------------------------------------------------------------------

    async def test_mark_running_may_be_repeated(self) -> None:
        await self.store.enqueue(Task(JOB))
        task = await self.dequeue()
        assert task is not None
        await self.store.mark_running(task.id)
        await self.store.mark_running(task.id)
        assert await self.dequeue() is None

    @pytest.mark.parametrize("value", [None, 7, {"width": 20}])
    async def test_mark_done_ends_it(self, value: Any) -> None:
        """S001-18, S000-12: None is a result."""
        await self.store.enqueue(Task(JOB))
        task = await self.dequeue()
        assert task is not None
        done = TaskResult(task.id, TaskStatus.SUCCESS, value, None, self.now())
        await self.store.mark_done(task.id, done)
        await self.advance(1)
        assert await self.dequeue() is None
        if self.store.overrides("get_result"):
            result = await self.store.get_result(task.id)
            assert result is not None
            assert (result.task_id, result.status, result.result) == (task.id, TaskStatus.SUCCESS, value)

    async def test_mark_failed_ends_it(self) -> None:
        await self.store.enqueue(Task(JOB))
        task = await self.dequeue()
        assert task is not None
        await self.store.mark_failed(task.id, BOOM, will_retry=False)
        await self.advance(1)
        assert await self.dequeue() is None
        if self.store.overrides("get_result"):
            result = await self.store.get_result(task.id)
            assert result is not None
            assert (result.status, result.error) == (TaskStatus.FAILED, BOOM)

    async def test_mark_failed_then_reschedule_runs_it_again_at_that_moment(self) -> None:
        """S001-23."""
        if not self.store.overrides("reschedule"):
            pytest.skip("this storage has no reschedule: a retry is a new task")
        task_id = await self.store.enqueue(Task(JOB))
        task = await self.dequeue()
        assert task is not None
        await self.store.mark_failed(task.id, BOOM, will_retry=True)
        await self.store.reschedule(task.id, self.moment(2))
        await self.advance(1)
        assert await self.dequeue() is None
        await self.advance(1)
        again = await self.dequeue()
        assert again is not None
        assert (again.id, again.attempts) == (task_id, 1)

    # --- the batched verbs -----------------------------------------------------------------------

    async def test_claim_takes_no_more_than_its_limit(self) -> None:
        """S000-3."""
        for number in range(3):
            await self.store.enqueue(Task(JOB, (number,)))
        assert await self.take(0) == []
        assert len(await self.take(2)) == 2
        assert len(await self.take(2)) == 1
        assert await self.take(2) == []

    async def test_claim_takes_them_in_the_order_of_enqueueing(self) -> None:
        ids = [await self.store.enqueue(Task(JOB, (number,))) for number in range(5)]
        assert [task.id for task in await self.take(5)] == ids

    async def test_exchange_settles_and_claims(self) -> None:
        ids = [await self.store.enqueue(Task(JOB, (number,))) for number in range(3)]
        first = await self.take(2)
        done = [Settlement.success(task, self.store.serializer.dumps(1)) for task in first]
        answers, claims = await self.store.exchange(done, Claim("ann", limit=2, lease=3 * self.tick_s))
        assert answers == [Answer.HELD, Answer.HELD]
        assert [task.id for task in claims] == ids[2:]
        assert await self.take() == []

    async def test_settled_as_failed_it_does_not_come_back(self) -> None:
        await self.store.enqueue(Task(JOB))
        [task] = await self.take()
        assert await self.store.settle([Settlement.failed(task, BOOM)]) == [Answer.HELD]
        await self.advance(1)
        assert await self.take() == []

    async def test_settled_as_retry_it_comes_back_after_the_delay_with_one_attempt_more(self) -> None:
        """S001-21, S001-23, S001-24."""
        task_id = await self.store.enqueue(Task(JOB, ("a.png",), {"fit": True}))
        for attempts in (1, 2):
            [task] = await self.take()
            retry = Settlement.retry(task, 2 * self.tick_s, BOOM)
            assert await self.store.settle([retry]) == [Answer.HELD]
            await self.advance(1)
            assert await self.take() == []
            await self.advance(1)
            [again] = await self.take()
            assert self.call_of(again) == (JOB, ["a.png"], {"fit": True})
            assert (again.attempts, self.first_id_of(again)) == (attempts, task_id)
            assert (again.id == task_id) == self.store.overrides("reschedule")
            await self.store.settle([Settlement.give_back(again)])

    async def test_settled_as_repeat_it_comes_back_after_the_interval_with_all_its_chances(self) -> None:
        """S000-18, S000-20, S001-27."""
        task_id = await self.store.enqueue(Task(JOB, ("a.png",), interval=2 * self.tick_s))
        [task] = await self.take()
        await self.store.settle([Settlement.retry(task, 0, BOOM)])
        [task] = await self.take()
        repeat = Settlement.repeat(task, self.store.serializer.dumps(None), 2 * self.tick_s)
        assert await self.store.settle([repeat]) == [Answer.HELD]
        await self.advance(1)
        assert await self.take() == []
        await self.advance(1)
        [again] = await self.take()
        assert self.call_of(again) == (JOB, ["a.png"], {})
        assert (again.attempts, again.interval) == (0, 2 * self.tick_s)
        assert self.first_id_of(again) == task_id

    async def test_given_back_it_comes_back_and_nothing_is_spent(self) -> None:
        task_id = await self.store.enqueue(Task(JOB))
        [task] = await self.take()
        assert await self.store.settle([Settlement.give_back(task, 2 * self.tick_s)]) == [Answer.HELD]
        assert await self.take() == []
        await self.advance(2)
        [again] = await self.take()
        assert (self.first_id_of(again), again.attempts) == (task_id, 0)

    async def test_a_report_about_an_unknown_task_is_stale(self) -> None:
        assert await self.store.settle([Settlement.give_back(Held("unknown", 1))]) == [Answer.STALE]

    async def test_opening_and_closing_twice_is_harmless(self) -> None:
        await self.store.open()
        await self.store.open()
        other = await self.another()
        await other.close()
        await other.close()
