"""The seed's verbs on a store that fences them, and the same store in the words of the other seed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omniq.errors import DuplicateTask, InvalidOption, PayloadTooLarge, Unsupported
from omniq.serializer import Encoded
from omniq.storage.base import BaseStorage
from omniq.task import Answer, Settlement, StoredTask, Task, TaskError, TaskResult, TaskStatus
from omniq.testing.conformance.case import BOOM, JOB, FullCase, promptly


class BlockingEnqueue(FullCase):
    """A store that lives in this process takes tasks from any thread, without an event loop."""

    async def needs_it(self) -> None:
        if not self.store.capabilities.here:
            pytest.skip("this store is not in this process")
        await self.store.open()

    async def test_what_a_thread_enqueues_is_there(self) -> None:
        await self.needs_it()
        tasks = [Task(JOB, (n,)) for n in range(3)]
        enqueued = await asyncio.to_thread(self.store.enqueue_here, tasks)
        assert [(str(one), one.created) for one in enqueued] == [(task.id, True) for task in tasks]
        assert [claim.id for claim in await self.claim(limit=5)] == [task.id for task in tasks]

    async def test_it_refuses_and_repeats_as_every_enqueue_does(self) -> None:
        await self.needs_it()
        task = Task(JOB, unique_key="one")
        [first] = self.store.enqueue_here([task])
        [again] = self.store.enqueue_here([task])
        [other] = self.store.enqueue_here([Task(JOB, unique_key="one")])
        assert (first.created, again.created, other.created) == (True, False, False)
        assert first == again == other
        with pytest.raises(DuplicateTask):
            self.store.enqueue_here([Task(JOB), Task(JOB, unique_key="one")], on_conflict="raise")
        with pytest.raises(InvalidOption):
            self.store.enqueue_here([task], on_conflict="maybe")  # type: ignore[arg-type]
        assert len(await self.store.list_tasks()) == 1

    async def test_it_wakes_who_sleeps(self) -> None:
        await self.needs_it()
        assert await self.claim() == []
        sleeper = asyncio.create_task(self.store.wait(1000 * self.tick_s))
        await asyncio.to_thread(self.store.enqueue_here, [Task(JOB)])
        assert await promptly(sleeper) is True

    async def test_many_threads_and_a_loop_at_once(self) -> None:
        await self.needs_it()
        here = [asyncio.to_thread(self.store.enqueue_here, [Task(JOB, (n,))]) for n in range(40)]
        there = [self.store.enqueue_many([Task(JOB, (n,))]) for n in range(40)]
        enqueued = [one for several in await asyncio.gather(*here, *there) for one in several]
        kept = {task.id for task in await self.store.list_tasks(limit=100)}
        assert len(enqueued) == 80
        assert kept == {str(one) for one in enqueued}


class SeedVerbs(FullCase):
    """`dequeue`, `mark_running`, `mark_done`, `mark_failed`, `reschedule`."""

    async def taken(self, store: BaseStorage | None = None) -> Task:
        task = await (store or self.store).dequeue()
        assert task is not None
        return task

    def done(self, task: Task, value: object = None) -> TaskResult:
        return TaskResult(task.id, TaskStatus.SUCCESS, value, None, self.now())

    async def test_dequeue_claims(self) -> None:
        """C15."""
        await self.put("a.png")
        task = await self.taken()
        kept = await self.look(task.id)
        assert (task.args, task.epoch, task.attempts) == (("a.png",), 1, 0)
        assert (kept.status, kept.epoch) == (TaskStatus.RUNNING, 1)
        assert kept.owner is not None

    async def test_dequeue_holds_under_a_lease(self) -> None:
        self.needs_virtual_time()
        await self.put()
        task = await self.taken()
        await self.clock.advance(seconds=29)
        assert await self.store.lapse() == 0
        await self.clock.advance(seconds=1)
        assert await self.store.lapse() == 1
        assert await self.store.mark_done(task.id, self.done(task)) is Answer.STALE

    async def test_mark_running_confirms_and_counts_nothing(self) -> None:
        await self.put()
        task = await self.taken()
        before = await self.snapshot()
        assert await self.store.mark_running(task.id) is Answer.HELD
        assert await self.store.mark_running(task.id, epoch=1) is Answer.HELD
        assert await self.store.mark_running(task.id, epoch=2) is Answer.STALE
        assert await self.store.mark_running("unknown") is Answer.STALE
        assert await self.snapshot() == before

    async def test_mark_done_is_a_success(self) -> None:
        await self.put()
        task = await self.taken()
        assert await self.store.mark_done(task.id, self.done(task, 7)) is Answer.HELD
        result = await self.store.get_result(task.id)
        assert result is not None
        assert (result.status, result.result) == (TaskStatus.SUCCESS, 7)

    async def test_mark_done_takes_a_success_of_this_task(self) -> None:
        """A failure that is told in the wrong verb must not be kept as a success."""
        await self.put()
        task = await self.taken()
        failed = TaskResult(task.id, TaskStatus.FAILED, None, BOOM)
        for wrong in (failed, TaskResult("another", TaskStatus.SUCCESS, 7), None, 7):
            with pytest.raises(InvalidOption, match="mark_done"):
                await self.store.mark_done(task.id, wrong)  # type: ignore[arg-type]
        assert (await self.look(task.id)).status is TaskStatus.RUNNING

    async def test_mark_done_takes_no_more_than_a_payload_may_be(self) -> None:
        await self.put()
        task = await self.taken()
        with pytest.raises(PayloadTooLarge):
            await self.store.mark_done(task.id, self.done(task, "x" * self.store.max_payload))
        assert (await self.look(task.id)).status is TaskStatus.RUNNING

    async def test_mark_done_of_an_interval_task_waits_for_the_next_run(self) -> None:
        await self.put(interval=3 * self.tick_s)
        task = await self.taken()
        await self.store.mark_done(task.id, self.done(task, 7))
        kept = await self.look(task.id)
        assert kept.status is TaskStatus.PENDING
        assert self.is_about(kept.eta, self.moment(3))
        result = await self.store.get_result(task.id)
        assert result is not None
        assert result.result == 7

    @pytest.mark.parametrize("will_retry", [False, True])
    async def test_mark_failed_counts_the_attempt(self, will_retry: bool) -> None:
        await self.put()
        task = await self.taken()
        assert await self.store.mark_failed(task.id, BOOM, will_retry=will_retry) is Answer.HELD
        kept = await self.look(task.id)
        assert (kept.attempts, kept.error) == (1, BOOM)
        assert kept.status is (TaskStatus.PENDING if will_retry else TaskStatus.FAILED)

    async def test_mark_failed_takes_an_exception_or_text(self) -> None:
        await self.put()
        task = await self.taken()
        await self.store.mark_failed(task.id, KeyError("missing"), will_retry=True)
        error = (await self.look(task.id)).error
        assert error is not None
        assert (error.type, error.message) == ("KeyError", "'missing'")
        task = await self.taken()
        await self.store.mark_failed(task.id, "no luck")
        error = (await self.look(task.id)).error
        assert error is not None
        assert error.message == "no luck"

    @pytest.mark.parametrize(
        "said",
        ["x" * 1_000_000, ValueError("x" * 1_000_000), TaskError("x" * 10_000, "x", "x" * 1_000_000)],
        ids=["text", "exception", "error"],
    )
    async def test_mark_failed_keeps_a_bounded_part(self, said: Any) -> None:
        await self.put()
        task = await self.taken()
        await self.store.mark_failed(task.id, said)
        error = (await self.look(task.id)).error
        assert error is not None
        assert error.type
        assert error.message
        assert len(error.type + error.message + error.traceback) < 30_000

    @pytest.mark.parametrize(
        "said", ["\ud800 alone", TaskError("\ud800", "\x00", "\ud800")], ids=["text", "error"]
    )
    async def test_mark_failed_takes_text_of_any_letters(self, said: Any) -> None:
        await self.put()
        task = await self.taken()
        assert await self.store.mark_failed(task.id, said) is Answer.HELD

    # --- without an epoch ------------------------------------------------------------------------

    async def test_without_an_epoch_it_is_the_newest_claim_of_this_storage(self) -> None:
        await self.put()
        for epoch in (1, 2):
            task = await self.taken()
            assert task.epoch == epoch
            await self.store.mark_failed(task.id, BOOM, will_retry=True)
        task = await self.taken()
        assert await self.store.mark_done(task.id, self.done(task)) is Answer.HELD

    async def test_without_an_epoch_it_is_stale_once_somebody_else_has_the_task(self) -> None:
        other = await self.another()
        await self.put()
        mine = await self.taken()
        [held] = [one for one in await self.store.list_tasks() if one.owner]
        assert held.owner is not None
        await self.store.release(held.owner)
        theirs = await self.taken(other)
        assert theirs.id == mine.id
        before = await self.snapshot()
        assert await self.store.mark_running(mine.id) is Answer.STALE
        assert await self.store.mark_done(mine.id, self.done(mine)) is Answer.STALE
        assert await self.store.mark_failed(mine.id, BOOM) is Answer.STALE
        assert await self.store.mark_failed(mine.id, BOOM, will_retry=True) is Answer.STALE
        assert await self.snapshot() == before
        assert await other.mark_done(theirs.id, self.done(theirs)) is Answer.HELD

    async def test_without_an_epoch_nobody_speaks_for_a_claim_that_is_not_theirs(self) -> None:
        other = await self.another()
        await self.put()
        task = await self.taken(other)
        assert await self.store.mark_done(task.id, self.done(task)) is Answer.STALE
        assert (await self.look(task.id)).status is TaskStatus.RUNNING

    async def test_with_an_epoch_anybody_speaks_for_that_claim(self) -> None:
        other = await self.another()
        await self.put()
        task = await self.taken(other)
        assert await self.store.mark_done(task.id, self.done(task), epoch=9) is Answer.STALE
        assert await self.store.mark_done(task.id, self.done(task), epoch=1) is Answer.HELD
        assert await other.mark_done(task.id, self.done(task), epoch=1) is Answer.ALREADY


class AsBackend(FullCase):
    """`reserve`, `mark_success`, `mark_failure` over the same store."""

    async def test_reserve_gives_calls_that_a_serializer_can_read(self) -> None:
        """S002-6, S002-7."""
        backend = self.store.as_backend()
        await self.store.enqueue_many([Task("operator.add", (number, 1)) for number in range(3)])
        reserved = await backend.reserve(2)
        assert len(reserved) == 2
        calls = [self.store.serializer.load_call(one.payload) for one in reserved]
        assert [func(*args, **kwargs) for func, args, kwargs in calls] == [1, 2]
        assert len(await backend.reserve(2)) == 1
        assert await backend.reserve(2) == []

    async def test_mark_success_keeps_the_encoded_result(self) -> None:
        """S002-8."""
        backend = self.store.as_backend()
        task_id = await self.put()
        [reserved] = await backend.reserve(1)
        await backend.mark_success(reserved.id, self.store.serializer.dumps([1, 2]))
        result = await self.store.get_result(task_id)
        assert result is not None
        assert (result.status, result.result) == (TaskStatus.SUCCESS, [1, 2])

    async def test_mark_success_of_an_interval_task_waits_for_the_next_run(self) -> None:
        backend = self.store.as_backend()
        task_id = await self.put(interval=3 * self.tick_s)
        [reserved] = await backend.reserve(1)
        await backend.mark_success(reserved.id, self.store.serializer.dumps(1))
        assert (await self.look(task_id)).status is TaskStatus.PENDING

    async def test_mark_failure_is_final(self) -> None:
        """S002-10, S002-18, C22."""
        backend = self.store.as_backend()
        task_id = await self.put(max_retries=9)
        [reserved] = await backend.reserve(1)
        await backend.mark_failure(reserved.id, "boom", "Traceback ...")
        task = await self.look(task_id)
        assert task.status is TaskStatus.FAILED
        assert task.error is not None
        assert (task.error.message, task.error.traceback) == ("boom", "Traceback ...")

    async def test_what_was_reserved_comes_back_when_its_holder_dies(self) -> None:
        """S002-14; and what the dead one says afterwards is stale."""
        self.needs_virtual_time()
        backend = self.store.as_backend()
        task_id = await self.put()
        [reserved] = await backend.reserve(1)
        await self.clock.advance(seconds=30)
        assert await self.store.lapse() == 1
        claimed = await self.restart()
        assert await backend.mark_success(reserved.id, self.store.serializer.dumps(1)) is Answer.STALE
        assert (await self.look(task_id)).status is TaskStatus.RUNNING
        assert await self.succeed(claimed) is Answer.HELD

    async def test_marks_about_what_was_not_reserved_here_are_stale(self) -> None:
        backend = self.store.as_backend()
        claimed = await self.start()
        before = await self.snapshot()
        assert await backend.mark_success(claimed.id, b"") is Answer.STALE
        assert await backend.mark_failure("unknown", "boom", "") is Answer.STALE
        assert await self.snapshot() == before

    async def test_a_payload_that_cannot_be_read_is_reserved_as_it_is(self) -> None:
        """S002-11: it fails where it is decoded, not here."""
        backend = self.store.as_backend()
        await self.store.enqueue(StoredTask(JOB, b"\xff garbage", id="bad"))
        [reserved] = await backend.reserve(1)
        assert (reserved.id, reserved.payload) == ("bad", b"\xff garbage")
        assert isinstance((await self.look("bad")).args[0], Encoded)

    async def test_connect_and_close_are_the_storages_own(self) -> None:
        """S002-2."""
        twin = self.store.clone()
        backend = twin.as_backend()
        assert not backend.is_connected
        await backend.connect()
        assert backend.is_connected
        assert twin.is_open
        await backend.close()
        assert not twin.is_open

    async def test_a_storage_that_cannot_join_a_transaction_says_so(self) -> None:
        if self.store.capabilities.joins:
            pytest.skip("this storage joins the caller's own transaction")
        with pytest.raises(Unsupported, match="conn"):
            await self.store.enqueue(Task(JOB), conn=object())
        assert await self.store.list_tasks() == []

    async def test_a_give_back_is_seen_by_every_vocabulary(self) -> None:
        backend = self.store.as_backend()
        claimed = await self.start()
        await self.settle(Settlement.give_back(claimed))
        assert [one.id for one in await backend.reserve(5)] == [claimed.id]
