"""Waiting: for work, and for a result. Nothing here moves the clock unless it says so, so that what is
found by polling, and not told, is found out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from omniq.errors import NotFound
from omniq.storage.batched import BatchedStorage
from omniq.task import Action, Settlement, Task, TaskResult, TaskStatus
from omniq.testing.conformance.case import BOOM, JOB, FullCase, promptly

TURNS = 20
FAR = 500  # ticks; a test that waited this long would have failed
RINGS_ON_THE_WAY = 3  # more than a test makes before it goes to sleep


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Sleepers(FullCase):
    async def settled(self) -> None:
        """Let whoever was just started get to its sleep; questions are answered in order."""
        for _ in range(3):
            await turns(TURNS)
            await self.store.paused()
        await turns(TURNS)


class WaitingForWork(Sleepers):
    """`wait` only shortens a wait."""

    async def asleep(self, ticks: float = FAR) -> asyncio.Task[bool]:
        """Somebody who has just found nothing, and sleeps.

        What was rung for before that look may be on its way still, from a server, and wake him for nothing:
        he looks again and goes back to sleep, as a worker does.
        """
        for _ in range(1 + RINGS_ON_THE_WAY):
            assert await self.claim("sleeper") == []
            sleeper = asyncio.create_task(self.store.wait(ticks * self.tick_s))
            await self.settled()
            if not sleeper.done():
                return sleeper
        raise AssertionError("who has found nothing is woken again and again")

    async def test_wait_returns_after_its_timeout(self) -> None:
        sleeper = await self.asleep(2)
        await self.advance(1)
        assert not sleeper.done()
        await self.advance(1)
        assert await promptly(sleeper) is False

    async def test_wait_of_no_time_only_looks(self) -> None:
        await self.claim()
        assert await promptly(self.store.wait(0)) is False
        await self.put()
        assert await promptly(self.store.wait(0)) is True

    @pytest.mark.parametrize("from_another", [False, True])
    async def test_wait_wakes_when_a_task_is_enqueued(self, from_another: bool) -> None:
        storage = await self.another() if from_another else self.store
        # Alone, with a key, among others, known already beside a new one: a store may have a way for each.
        for tasks in ([Task(JOB)], [Task(JOB, unique_key="k")], [Task(JOB)] * 2, [Task(JOB), Task(JOB)]):
            sleeper = await self.asleep()
            await storage.enqueue_many(tasks)
            assert await promptly(sleeper) is True
            assert 1 <= len(await self.claim(limit=9)) <= 2

    async def test_wait_wakes_when_an_eta_comes_up(self) -> None:
        eta = self.moment(2)
        await self.put(eta=eta)
        sleeper = await self.asleep()
        await self.advance(1)
        woken = sleeper.done()
        assert not woken or self.now() >= eta  # on a busy machine a second tick may be over
        await self.advance(1)
        assert await promptly(sleeper) is True
        assert len(await self.claim()) == 1

    async def test_wait_wakes_for_an_eta_that_came_while_it_slept(self) -> None:
        sleeper = await self.asleep()
        await self.put(eta=self.moment(2))
        assert await promptly(sleeper) is True
        sleeper = await self.asleep()
        await self.advance(2)
        assert await promptly(sleeper) is True
        assert len(await self.claim()) == 1

    async def test_wait_does_not_miss_what_came_since_the_latest_claim(self) -> None:
        await self.claim()
        await self.put()
        assert await promptly(self.store.wait(FAR * self.tick_s)) is True

    @pytest.mark.parametrize("from_another", [False, True])
    @pytest.mark.parametrize("what", ["give back", "retry", "repeat", "release", "lapse", "by hand", "now"])
    async def test_wait_wakes_when_a_task_becomes_due_again(self, what: str, from_another: bool) -> None:
        storage = await self.another() if from_another else self.store
        claimed = await self.start(interval=self.tick_s)
        if what == "by hand":
            await self.settle(Settlement.failed(claimed, BOOM))
        if what == "now":
            await self.settle(Settlement.give_back(claimed, FAR * self.tick_s))
        if what == "lapse":
            await self.advance(3)
        sleeper = await self.asleep()
        again: dict[str, Callable[[], Awaitable[Any]]] = {
            "give back": lambda: storage.settle([self.settlement(claimed, Action.GIVE_BACK, 0)]),
            "retry": lambda: storage.settle([self.settlement(claimed, Action.RETRY, 0)]),
            "repeat": lambda: storage.settle([self.settlement(claimed, Action.REPEAT, 0)]),
            "release": lambda: storage.release("ann"),
            "lapse": storage.lapse,
            "by hand": lambda: storage.retry(claimed.id),
            "now": lambda: storage.reschedule(claimed.id, self.now()),
        }
        await again[what]()
        assert await promptly(sleeper) is True
        assert len(await self.claim("sleeper")) == 1

    @pytest.mark.parametrize("from_another", [False, True])
    async def test_wait_wakes_when_a_queue_is_resumed(self, from_another: bool) -> None:
        storage = await self.another() if from_another else self.store
        await self.put()
        await self.store.pause("default")
        sleeper = await self.asleep()
        await storage.resume("default")
        assert await promptly(sleeper) is True

    @pytest.mark.parametrize("from_another", [False, True])
    async def test_wait_wakes_when_a_running_task_is_to_be_cancelled(self, from_another: bool) -> None:
        """Known within a second, not at the next renewal."""
        storage = await self.another() if from_another else self.store
        claimed = await self.start()
        sleeper = await self.asleep()
        await storage.cancel(claimed.id)
        assert await promptly(sleeper) is True

    async def test_everybody_who_waits_is_woken(self) -> None:
        other = await self.another()
        await other.claim("other")
        sleepers = [await self.asleep(), asyncio.create_task(other.wait(FAR * self.tick_s))]
        await self.settled()
        await self.put()
        assert await promptly(asyncio.gather(*sleepers)) == [True, True]

    async def test_a_wait_can_be_cancelled(self) -> None:
        sleeper = await self.asleep()
        sleeper.cancel()
        with pytest.raises(asyncio.CancelledError):
            await promptly(sleeper)
        await self.put()
        assert len(await self.claim()) == 1


class WaitingForResults(Sleepers):
    """`wait_result` is pushed, never busy, and misses nothing."""

    def waiter(self, task_id: str, storage: BatchedStorage | None = None) -> asyncio.Task[TaskResult | None]:
        return asyncio.create_task((storage or self.store).wait_result(task_id))

    async def test_a_result_that_is_there_is_given_at_once(self) -> None:
        task_id = await self.end(TaskStatus.FAILED)
        result = await promptly(self.store.wait_result(task_id))
        assert (result.status, result.error) == (TaskStatus.FAILED, BOOM)

    @pytest.mark.parametrize("status", [TaskStatus.SUCCESS, TaskStatus.FAILED, TaskStatus.CANCELLED])
    @pytest.mark.parametrize("from_another", [False, True])
    async def test_an_end_is_told_to_who_waits(self, status: TaskStatus, from_another: bool) -> None:
        claimed = await self.start()
        waiter = self.waiter(claimed.id, await self.another() if from_another else None)
        await self.settled()
        assert not waiter.done()
        if status is TaskStatus.CANCELLED:
            await self.store.cancel(claimed.id)
        action = Action.SUCCEED if status is TaskStatus.SUCCESS else Action.FAIL
        await self.settle(self.settlement(claimed, action))
        result = await promptly(waiter)
        assert result == await self.store.get_result(claimed.id)
        assert result.status is status

    @pytest.mark.parametrize("from_another", [False, True])
    async def test_an_end_that_no_worker_tells_is_told_too(self, from_another: bool) -> None:
        storage = await self.another() if from_another else None
        poison = (await self.start(max_losses=1)).id
        cancelled, expired = await self.put(), await self.put(expires_at=self.moment(1))
        waiters = [self.waiter(task_id, storage) for task_id in (cancelled, expired, poison)]
        await self.settled()
        await self.store.release("ann")
        assert (await promptly(waiters[2])).error.kind == "poison"
        await self.store.cancel(cancelled)
        assert (await promptly(waiters[0])).status is TaskStatus.CANCELLED
        await self.advance(1)
        await self.store.lapse()
        assert (await promptly(waiters[1])).error.kind == "expired"

    @pytest.mark.parametrize("gap", range(0, 24))
    async def test_an_end_between_looking_and_listening_is_not_missed(self, gap: int) -> None:
        """The end comes any number of turns after the wait began."""
        claimed = await self.start()
        waiter = self.waiter(claimed.id)
        await turns(gap)
        await self.succeed(claimed, gap)
        assert (await promptly(waiter)).result == gap

    async def test_many_ends_at_once_are_each_told(self) -> None:
        ids = [await self.put(number) for number in range(20)]
        claims = await self.claim(limit=20)
        other = await self.another()
        waiters = [self.waiter(task_id, storage) for task_id in ids for storage in (self.store, other)]
        await self.settled()
        await asyncio.gather(*(self.succeed(claimed, claimed.id) for claimed in claims))
        results = await promptly(asyncio.gather(*waiters))
        assert [result.result for result in results] == [task_id for task_id in ids for _ in range(2)]

    async def test_a_retry_is_no_end(self) -> None:
        claimed = await self.start()
        waiter = self.waiter(claimed.id)
        await self.settled()
        await self.settle(Settlement.retry(claimed, 0, BOOM))
        await self.settled()
        assert not waiter.done()
        await self.succeed(await self.restart(), "at last")
        assert (await promptly(waiter)).result == "at last"

    async def test_without_an_end_there_is_nothing_after_the_timeout(self) -> None:
        task_id = await self.put()
        waiter = asyncio.create_task(self.store.wait_result(task_id, 2 * self.tick_s))
        await self.settled()
        await self.advance(1)
        assert not waiter.done()
        await self.advance(1)
        assert await promptly(waiter) is None

    async def test_a_timeout_of_no_time_only_looks(self) -> None:
        task_id = await self.put()
        assert await promptly(self.store.wait_result(task_id, 0)) is None
        [claimed] = await self.claim()
        await self.succeed(claimed, 1)
        assert (await promptly(self.store.wait_result(task_id, 0))).result == 1

    async def test_an_unknown_task_has_no_result_to_wait_for(self) -> None:
        with pytest.raises(NotFound, match="unknown"):
            await promptly(self.store.wait_result("unknown"))

    async def test_the_latest_run_of_an_interval_task_is_a_result(self) -> None:
        claimed = await self.start(interval=self.tick_s)
        waiter = self.waiter(claimed.id)
        await self.settled()
        await self.settle(self.settlement(claimed, Action.REPEAT))
        assert (await promptly(waiter)).result == "done"

    async def test_after_a_retry_by_hand_the_old_result_is_gone(self) -> None:
        task_id = await self.end(TaskStatus.FAILED)
        await self.store.retry(task_id)
        waiter = self.waiter(task_id)
        await self.settled()
        assert not waiter.done()
        await self.succeed(await self.restart(), 2)
        assert (await promptly(waiter)).result == 2

    async def test_a_wait_for_a_result_can_be_cancelled(self) -> None:
        claimed = await self.start()
        waiters = [self.waiter(claimed.id), self.waiter(claimed.id)]
        await self.settled()
        waiters[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await promptly(waiters[0])
        await self.succeed(claimed, 3)
        assert (await promptly(waiters[1])).result == 3
