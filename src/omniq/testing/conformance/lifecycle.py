"""Every row of the transition table, each test named by its number: T1 to T9, what claims and workers do."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from omniq.task import Action, Answer, Claim, RunOutcome, Settlement, StoredTask, Task, TaskStatus, replace
from omniq.testing.conformance.case import BOOM, JOB, FullCase, promptly


class Lifecycle(FullCase):
    """T1 to T9."""

    # --- T1: enqueue -----------------------------------------------------------------------------

    async def test_t1_enqueue_keeps_every_field(self) -> None:
        task = Task(
            JOB,
            ("a.png", 2),
            {"fit": True},
            id="given-by-the-caller",
            queue="mail.fast:1",
            priority=7,
            eta=self.moment(3),
            expires_at=self.moment(9),
            interval=60,
            timeout=2.5,
            max_retries=5,
            max_losses=4,
            unique_key="ann@example.org",
            headers={"trace": "abc", "größe": "ü"},
            on_failure="continue",
            result_ttl=90,
        )
        assert await self.store.enqueue(task) == "given-by-the-caller"
        kept = await self.look(task.id)
        assert kept == replace(task, enqueued_at=kept.enqueued_at)
        assert self.is_about(kept.enqueued_at, self.now())

    async def test_t1_enqueue_begins_with_nothing_spent(self) -> None:
        kept = await self.look(await self.put())
        assert (kept.status, kept.epoch, kept.attempts, kept.losses) == (TaskStatus.PENDING, 0, 0, 0)
        assert (kept.owner, kept.error, kept.progress, kept.eta) == (None, None, None, None)
        assert (kept.started_at, kept.finished_at, kept.cancel_requested) == (None, None, False)
        assert await self.store.history(kept.id) == []

    async def test_t1_enqueue_ignores_what_only_the_store_may_set(self) -> None:
        """A task that was read, or claimed, can be enqueued again under a new id."""
        claimed = await self.start(max_retries=1)
        await self.settle(Settlement.retry(claimed, 0, BOOM))
        read = await self.look(claimed.id)
        pushy = Task(JOB, id="pushy", status=TaskStatus.SUCCESS, epoch=9, owner="me", attempts=3)
        copies: list[Task | StoredTask] = [replace(read, id="of-read"), pushy]
        copies.append(replace(claimed, id="of-claimed"))
        await self.store.enqueue_many(copies)
        for copy in copies:
            kept = await self.look(copy.id)
            assert (kept.status, kept.epoch, kept.attempts) == (TaskStatus.PENDING, 0, 0)
            assert (kept.owner, kept.error, kept.started_at) == (None, None, None)
            assert kept.enqueued_at is not None

    @pytest.mark.parametrize(
        "eta",
        [
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(2031, 7, 8, 9, 10, 11, 123457, tzinfo=UTC),
            datetime(2399, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime.max.replace(tzinfo=UTC),
        ],
    )
    async def test_t1_enqueue_keeps_a_moment_to_the_microsecond(self, eta: datetime) -> None:
        assert (await self.look(await self.put(eta=eta))).eta == eta

    @pytest.mark.parametrize("among_others", [False, True])
    async def test_t1_enqueue_counts_durations_by_the_stores_own_clock(self, among_others: bool) -> None:
        payload = self.store.serializer.dump_call(None, (), {})
        task = StoredTask(
            JOB, payload, id="t", delay_s=2 * self.tick_s, expires_in_s=4 * self.tick_s, unique_key="k"
        )
        others = [Task(JOB, eta=self.moment(99)) for _ in range(3)] if among_others else []
        await self.store.enqueue_many([*others, task])
        kept = await self.look("t")
        assert self.is_about(kept.eta, self.moment(2))
        assert self.is_about(kept.expires_at, self.moment(4))
        later = replace(task, id="other", delay_s=3 * self.tick_s)
        await self.store.enqueue_many([later], on_conflict="replace")
        assert self.is_about((await self.look("t")).eta, self.moment(3))
        assert await self.claim() == []
        await self.advance(3)
        assert [claimed.id for claimed in await self.claim()] == ["t"]

    async def test_t1_the_id_that_enqueue_gives_can_be_used_like_any_text(self) -> None:
        """As an argument, a header, a key: whatever else it tells."""
        parent = await self.put()
        child = await self.look(await self.put(parent, headers={"parent": parent}, unique_key=parent))
        assert (child.args, child.headers, child.unique_key) == ((parent,), {"parent": parent}, parent)
        [other] = await self.store.enqueue_many([Task(JOB)])
        for task_id in (parent, other):
            waiter = asyncio.create_task(self.store.wait_result(task_id))
            await asyncio.sleep(0)
            await self.store.cancel(task_id)
            assert await promptly(waiter) is not None

    async def test_t1_enqueue_of_nothing_is_nothing(self) -> None:
        assert await self.store.enqueue_many([]) == []
        assert await self.store.counts() == {}

    # --- T2: claim -------------------------------------------------------------------------------

    async def test_t2_claim_takes_the_next_epoch_for_its_worker(self) -> None:
        before = await self.look(await self.put("a.png"))
        [claimed] = await self.claim("ann")
        after = await self.look(before.id)
        assert (after.status, after.epoch, after.owner) == (TaskStatus.RUNNING, 1, "ann")
        assert self.is_about(after.started_at, self.now())
        assert replace(after, status=before.status, epoch=0, owner=None, started_at=None) == before
        assert (claimed.epoch, claimed.owner, claimed.func_path) == (1, "ann", JOB)

    async def test_t2_claim_hands_out_the_call_as_it_was_encoded(self) -> None:
        claimed = await self.start("a.png", [1, 2], None)
        _, args, kwargs = self.store.serializer.decode_call(claimed.payload)
        assert (list(args), kwargs) == (["a.png", [1, 2], None], {})

    @pytest.mark.parametrize("size", [100, 5_000, 900_000])
    async def test_t2_claim_hands_out_large_calls_too(self, size: int) -> None:
        claimed = await self.start("x" * size)
        _, args, _ = self.store.serializer.decode_call(claimed.payload)
        assert list(args) == ["x" * size]

    # --- T3: renew, progress ---------------------------------------------------------------------

    async def test_t3_renew_keeps_it_running(self) -> None:
        claimed = await self.start()
        before = await self.look(claimed.id)
        await self.advance(2)
        await self.store.renew("ann", 3 * self.tick_s)
        await self.advance(2)
        assert await self.store.lapse() == 0
        assert await self.look(claimed.id) == before

    @pytest.mark.parametrize(("done", "total"), [(3, 10), (0.5, None), (7.25, 8.5)])
    async def test_t3_progress_is_noted(self, done: float, total: float | None) -> None:
        claimed = await self.start()
        assert await self.store.progress(claimed.id, claimed.epoch, done, total)
        task = await self.look(claimed.id)
        assert (task.status, task.progress) == (TaskStatus.RUNNING, (done, total))
        assert await self.succeed(claimed) is Answer.HELD

    async def test_t3_progress_begins_anew_with_the_next_run(self) -> None:
        claimed = await self.start()
        await self.store.progress(claimed.id, claimed.epoch, 3, 10)
        await self.settle(Settlement.give_back(claimed))
        again = await self.restart()
        assert (await self.look(again.id)).progress is None

    # --- T4, T4i: success ------------------------------------------------------------------------

    @pytest.mark.parametrize("cancel_asked", [False, True])
    async def test_t4_success_ends_it_with_its_result(self, cancel_asked: bool) -> None:
        """A cancel request changes nothing: it was done."""
        claimed = await self.start()
        if cancel_asked:
            await self.store.cancel(claimed.id)
        await self.advance(1)
        assert await self.succeed(claimed, {"width": 20}) is Answer.HELD
        task = await self.look(claimed.id)
        assert (task.status, task.error, task.owner) == (TaskStatus.SUCCESS, None, None)
        assert self.is_about(task.finished_at, self.now())
        result = await self.store.get_result(claimed.id)
        assert result is not None
        assert (result.status, result.result) == (TaskStatus.SUCCESS, {"width": 20})
        assert await self.store.history(claimed.id) == []

    async def test_t4_success_after_failures_leaves_no_error_behind(self) -> None:
        claimed = await self.start()
        await self.settle(Settlement.retry(claimed, 0, BOOM))
        await self.succeed(await self.restart(), 1)
        task = await self.look(claimed.id)
        assert (task.status, task.error, task.attempts) == (TaskStatus.SUCCESS, None, 1)
        assert [run.outcome for run in await self.store.history(claimed.id)] == [RunOutcome.RETRIED]

    async def test_t4i_success_of_an_interval_task_waits_for_its_next_run(self) -> None:
        """S000-18, S000-20: completion + interval, a fresh budget, the same id."""
        claimed = await self.start(interval=5 * self.tick_s)
        await self.settle(Settlement.retry(claimed, 0, BOOM))
        claimed = await self.restart()
        await self.advance(4)
        await self.store.lapse()
        claimed = await self.restart()
        assert (claimed.attempts, claimed.losses) == (1, 1)
        await self.advance(1)
        assert await self.settle(self.settlement(claimed, Action.REPEAT, 5)) is Answer.HELD
        task = await self.look(claimed.id)
        assert (task.status, task.attempts, task.losses, task.error) == (TaskStatus.PENDING, 0, 0, None)
        assert self.is_about(task.eta, self.moment(5))
        assert (task.owner, task.finished_at) == (None, None)
        result = await self.store.get_result(claimed.id)
        assert result is not None
        assert (result.status, result.result, result.error) == (TaskStatus.SUCCESS, "done", None)
        assert self.is_about(result.finished_at, self.now())

    # --- T5, T6, T6c: failure --------------------------------------------------------------------

    async def test_t5_retry_waits_for_its_delay_and_keeps_the_error(self) -> None:
        """S000-14, S000-17."""
        claimed = await self.start()
        await self.advance(1)
        assert await self.settle(Settlement.retry(claimed, 2 * self.tick_s, BOOM)) is Answer.HELD
        task = await self.look(claimed.id)
        assert (task.status, task.attempts, task.error) == (TaskStatus.PENDING, 1, BOOM)
        assert self.is_about(task.eta, self.moment(2))
        assert (task.owner, task.finished_at, task.epoch) == (None, None, 1)
        assert await self.store.get_result(claimed.id) is None
        await self.advance(1)
        assert await self.claim() == []
        await self.advance(1)
        assert (await self.restart()).attempts == 1

    async def test_t6_failure_ends_it_with_its_error(self) -> None:
        claimed = await self.start()
        await self.advance(1)
        assert await self.settle(Settlement.failed(claimed, BOOM)) is Answer.HELD
        task = await self.look(claimed.id)
        assert (task.status, task.attempts, task.error) == (TaskStatus.FAILED, 1, BOOM)
        assert self.is_about(task.finished_at, self.now())
        result = await self.store.get_result(claimed.id)
        assert result is not None
        assert (result.status, result.result, result.error) == (TaskStatus.FAILED, None, BOOM)

    async def test_t6c_an_interval_task_may_go_on_after_its_failure(self) -> None:
        claimed = await self.start(interval=5 * self.tick_s, on_failure="continue")
        await self.settle(Settlement.retry(claimed, 0, BOOM))
        claimed = await self.restart()
        last = replace(BOOM, message="for good")
        await self.settle(Settlement.carry_on(claimed, 5 * self.tick_s, last))
        task = await self.look(claimed.id)
        assert (task.status, task.attempts, task.error) == (TaskStatus.PENDING, 0, last)
        assert self.is_about(task.eta, self.moment(5))
        result = await self.store.get_result(claimed.id)
        assert result is not None
        assert (result.status, result.error) == (TaskStatus.FAILED, last)

    async def test_t6c_a_failure_clears_no_loss(self) -> None:
        """Only a success does (T4i): what kills its worker again and again comes to an end."""
        claimed = await self.start(interval=5 * self.tick_s, on_failure="continue")
        await self.store.release("ann")
        await self.settle(Settlement.carry_on(await self.restart(), 0, BOOM))
        assert ((await self.look(claimed.id)).losses, (await self.look(claimed.id)).attempts) == (1, 0)

    # --- T7: give back ---------------------------------------------------------------------------

    @pytest.mark.parametrize("ticks", [0, 2])
    async def test_t7_give_back_spends_nothing(self, ticks: int) -> None:
        claimed = await self.start()
        await self.settle(Settlement.retry(claimed, 0, BOOM))
        before = await self.look(claimed.id)
        claimed = await self.restart()
        assert await self.settle(Settlement.give_back(claimed, ticks * self.tick_s)) is Answer.HELD
        task = await self.look(claimed.id)
        assert (task.status, task.attempts, task.losses) == (TaskStatus.PENDING, 1, 0)
        assert (task.error, task.owner) == (before.error, None)
        assert self.is_about(task.eta, self.moment(ticks))
        await self.advance(ticks)
        assert (await self.restart()).epoch == 3

    async def test_t7_a_negative_delay_is_now(self) -> None:
        claimed = await self.start()
        await self.settle(Settlement.give_back(claimed, -5.0))
        assert self.is_about((await self.look(claimed.id)).eta, self.now())

    # --- T8, T9: lapse ---------------------------------------------------------------------------

    async def test_t8_lapse_of_a_lost_run_is_due_at_once_the_first_time(self) -> None:
        claimed = await self.start()
        await self.advance(3)
        assert await self.store.lapse() == 1
        task = await self.look(claimed.id)
        assert (task.status, task.losses, task.attempts) == (TaskStatus.PENDING, 1, 0)
        assert (task.owner, task.error) == (None, None)
        assert self.is_about(task.eta, self.now())

    @pytest.mark.parametrize("isolates", [False, True])
    async def test_t8_lapse_keeps_attempts_and_error(self, isolates: bool) -> None:
        claimed = await self.start()
        await self.settle(Settlement.retry(claimed, 0, BOOM))
        _, claims = await self.store.exchange((), Claim("ann", None, 1, 3 * self.tick_s, isolates=isolates))
        assert len(claims) == 1
        await self.advance(3)
        assert await self.store.lapse() == 1
        task = await self.look(claimed.id)
        assert (task.attempts, task.error, task.losses) == (1, BOOM, not isolates)

    async def test_t8_lapse_waits_longer_each_further_time(self) -> None:
        self.needs_virtual_time()
        await self.put(max_losses=6)
        pauses: list[float] = []
        for _ in range(5):
            [claimed] = await self.claim()
            await self.advance(3)
            await self.store.lapse()
            eta = (await self.look(claimed.id)).eta
            assert eta is not None
            pauses.append((eta - self.now()) / timedelta(seconds=1))
            await self.clock.advance(pauses[-1])
        assert pauses == [0, 1, 2, 4, 8]

    async def test_t8_lapse_never_waits_longer_than_an_hour(self) -> None:
        task_id = await self.put(max_losses=99)
        for _ in range(14):
            await self.store.reschedule(task_id, self.now())
            assert len(await self.claim()) == 1
            await self.store.release("ann")
        eta = (await self.look(task_id)).eta
        assert self.is_about(eta, self.now() + timedelta(hours=1))

    async def test_t9_lapse_for_the_last_time_is_poison(self) -> None:
        """F13."""
        task_id = await self.put(max_losses=2)
        for _ in range(2):
            assert len(await self.claim()) == 1
            await self.advance(3)
            assert await self.store.lapse() == 1
        task = await self.look(task_id)
        assert (task.status, task.losses, task.attempts) == (TaskStatus.FAILED, 2, 0)
        assert task.error is not None
        assert task.error.kind == "poison"
        result = await self.store.get_result(task_id)
        assert result is not None
        assert (result.status, result.error) == (TaskStatus.FAILED, task.error)
        outcomes = [run.outcome for run in await self.store.history(task_id)]
        assert outcomes == [RunOutcome.LOST, RunOutcome.LOST]

    @pytest.mark.parametrize("max_losses", [1, 2])
    async def test_t9_a_death_that_its_worker_tells_keeps_its_cause(self, max_losses: int) -> None:
        claimed = await self.start(max_losses=max_losses)
        await self.settle(Settlement.lost(claimed, BOOM))
        [run] = await self.store.history(claimed.id)
        assert (run.outcome, run.error) == (RunOutcome.DIED, BOOM)
        task = await self.look(claimed.id)
        assert (task.error is None) == (task.status is TaskStatus.PENDING) == (max_losses > 1)
