"""The rest of the transition table: T10 to T16, what people and the passing of time do to a task."""

from __future__ import annotations

import pytest

from omniq.errors import Conflict, DuplicateTask, NotFound
from omniq.task import Action, Answer, Claim, Held, RunOutcome, Settlement, Task, TaskStatus
from omniq.testing.conformance.case import BOOM, FAILING, FINAL, JOB, FullCase

STOPPABLE = [action for action in Action if action is not Action.SUCCEED]
CAN_RETRY = [TaskStatus.FAILED, TaskStatus.CANCELLED]


class ByHand(FullCase):
    """T10 to T16."""

    # --- T10, T11, T12: cancel -------------------------------------------------------------------

    async def test_t10_cancel_of_a_waiting_task_is_at_once(self) -> None:
        task_id = await self.put(eta=self.moment(5))
        assert await self.store.cancel(task_id) is TaskStatus.CANCELLED
        task = await self.look(task_id)
        assert (task.status, task.epoch, task.cancel_requested) == (TaskStatus.CANCELLED, 0, False)
        assert self.is_about(task.finished_at, self.now())
        result = await self.store.get_result(task_id)
        assert result is not None
        assert result.status is TaskStatus.CANCELLED
        assert result.error is not None
        assert result.error.kind == "cancelled"
        await self.advance(5)
        assert await self.claim() == []

    async def test_t11_cancel_of_a_running_task_only_asks(self) -> None:
        claimed = await self.start()
        assert await self.store.cancel(claimed.id) is TaskStatus.RUNNING
        task = await self.look(claimed.id)
        assert (task.status, task.cancel_requested, task.owner) == (TaskStatus.RUNNING, True, "ann")
        assert await self.store.get_result(claimed.id) is None
        renewal = await self.store.renew("ann", 3 * self.tick_s, [Held(claimed.id, claimed.epoch)])
        assert renewal.cancel == {claimed.id}
        assert renewal.lost == frozenset()
        [held] = await self.store.held("ann")
        assert held.cancel_requested

    @pytest.mark.parametrize("action", STOPPABLE)
    async def test_t12_any_end_but_success_of_a_cancelled_run_is_cancelled(self, action: Action) -> None:
        claimed = await self.start(interval=5 * self.tick_s)
        await self.store.cancel(claimed.id)
        assert await self.settle(self.settlement(claimed, action)) is Answer.HELD
        task = await self.look(claimed.id)
        assert (task.status, task.attempts, task.losses) == (TaskStatus.CANCELLED, 0, 0)
        assert (task.owner, task.cancel_requested) == (None, False)
        assert task.error is not None
        assert task.error.kind == "cancelled"
        [run] = await self.store.history(claimed.id)
        assert (run.outcome, run.error) == (RunOutcome.CANCELLED, BOOM if action in FAILING else None)
        await self.advance(9)
        assert await self.claim() == []

    @pytest.mark.parametrize("isolates", [False, True])
    @pytest.mark.parametrize("known_dead", [False, True])
    async def test_t12_a_cancelled_run_that_was_lost_is_cancelled(
        self, known_dead: bool, isolates: bool
    ) -> None:
        await self.put(max_losses=1)
        _, [claimed] = await self.store.exchange(
            (), Claim("ann", None, 1, 3 * self.tick_s, isolates=isolates)
        )
        await self.store.cancel(claimed.id)
        await self.advance(0 if known_dead else 3)
        assert await (self.store.release("ann") if known_dead else self.store.lapse()) == 1
        task = await self.look(claimed.id)
        assert (task.status, task.losses, task.suspicions) == (TaskStatus.CANCELLED, 0, 0)
        assert [run.outcome for run in await self.store.history(claimed.id)] == [RunOutcome.LOST]

    @pytest.mark.parametrize("running", [False, True])
    async def test_the_end_of_an_interval_task_takes_the_place_of_its_latest_result(
        self, running: bool
    ) -> None:
        claimed = await self.start(interval=5 * self.tick_s)
        await self.settle(Settlement.repeat(claimed, self.store.serializer.dumps("latest"), 0))
        claims = await self.claim() if running else []
        await self.store.cancel(claimed.id)
        assert await self.store.settle([Settlement.give_back(one) for one in claims]) == ["held"] * running
        result = await self.store.get_result(claimed.id)
        assert result is not None
        assert (result.status, result.result) == (TaskStatus.CANCELLED, None)

    async def test_until_it_ends_a_cancelled_interval_task_shows_its_latest_result(self) -> None:
        claimed = await self.start(interval=5 * self.tick_s)
        await self.settle(Settlement.repeat(claimed, self.store.serializer.dumps("latest"), 0))
        await self.restart()
        shown = await self.store.get_result(claimed.id)
        await self.store.cancel(claimed.id)
        assert await self.store.get_result(claimed.id) == shown is not None

    @pytest.mark.parametrize("status", FINAL)
    async def test_cancel_of_what_has_ended_changes_nothing(self, status: TaskStatus) -> None:
        task_id = await self.end(status)
        before = await self.snapshot()
        assert await self.store.cancel(task_id) is status
        assert await self.snapshot() == before

    async def test_a_cancel_request_ends_with_the_run_that_it_was_for(self) -> None:
        task_id = await self.end(TaskStatus.CANCELLED)
        await self.store.retry(task_id)
        claimed = await self.restart()
        assert not claimed.cancel_requested
        assert (await self.store.renew("bob", 3 * self.tick_s)).cancel == frozenset()
        assert await self.settle(Settlement.give_back(claimed)) is Answer.HELD
        assert (await self.look(task_id)).status is TaskStatus.PENDING

    # --- T13: retry by hand ----------------------------------------------------------------------

    @pytest.mark.parametrize("status", CAN_RETRY)
    async def test_t13_retry_gives_all_chances_again(self, status: TaskStatus) -> None:
        task_id = await self.end(status, expires_at=self.moment(2), unique_key="k")
        await self.advance(3)
        await self.store.retry(task_id)
        task = await self.look(task_id)
        assert (task.status, task.attempts, task.losses) == (TaskStatus.PENDING, 0, 0)
        assert (task.epoch, task.expires_at, task.error) == (1, None, None)
        assert (task.finished_at, task.cancel_requested) == (None, False)
        assert self.is_about(task.eta, self.now())
        assert await self.store.get_result(task_id) is None
        assert (await self.restart()).epoch == 2

    async def test_t13_retry_after_poison_starts_counting_losses_anew(self) -> None:
        claimed = await self.start(max_losses=1)
        await self.store.release("ann")
        assert (await self.look(claimed.id)).status is TaskStatus.FAILED
        await self.store.retry(claimed.id)
        assert (await self.restart()).losses == 0

    @pytest.mark.parametrize("status", ["waiting", "running", TaskStatus.SUCCESS])
    async def test_t13_retry_of_anything_else_is_a_conflict(self, status: str) -> None:
        if isinstance(status, TaskStatus):
            task_id = await self.end(status)
        else:
            task_id = await self.put() if status == "waiting" else (await self.start()).id
        before = await self.snapshot()
        with pytest.raises(Conflict, match="only FAILED and CANCELLED"):
            await self.store.retry(task_id)
        assert await self.snapshot() == before

    @pytest.mark.parametrize("status", CAN_RETRY)
    async def test_t13_retry_whose_key_is_taken_is_a_conflict(self, status: TaskStatus) -> None:
        """F23: the caller hears of it, and nobody else's work stands still."""
        old = await self.end(status, unique_key="k")
        new = await self.put(unique_key="k")
        before = await self.snapshot()
        with pytest.raises(DuplicateTask) as raised:
            await self.store.retry(old)
        assert raised.value.task_id == new
        assert await self.snapshot() == before
        assert [task.id for task in await self.claim(limit=5)] == [new]

    # --- T14: expire -----------------------------------------------------------------------------

    @pytest.mark.parametrize("eta_ticks", [None, 9])
    async def test_t14_a_task_that_waited_too_long_fails(self, eta_ticks: int | None) -> None:
        """Also one whose eta is still ahead: it can only be late."""
        eta = None if eta_ticks is None else self.moment(eta_ticks)
        task_id = await self.put(expires_at=self.moment(2), eta=eta, unique_key="k")
        assert await self.store.lapse() == 0
        await self.advance(2)
        assert await self.store.lapse() == 1
        task = await self.look(task_id)
        assert (task.status, task.attempts, task.epoch) == (TaskStatus.FAILED, 0, 0)
        assert self.is_about(task.finished_at, self.now())
        result = await self.store.get_result(task_id)
        assert result is not None
        assert result.error is not None
        assert result.error.kind == "expired"

    async def test_t14_what_has_begun_in_time_may_end_late(self) -> None:
        claimed = await self.start(expires_at=self.moment(2))
        await self.store.renew("ann", 9 * self.tick_s)
        await self.advance(3)
        assert await self.store.lapse() == 0
        assert await self.succeed(claimed) is Answer.HELD

    async def test_t14_given_back_too_late_it_is_not_handed_out_again(self) -> None:
        claimed = await self.start(expires_at=self.moment(2))
        await self.advance(2)
        await self.settle(Settlement.give_back(claimed))
        assert await self.claim() == []
        await self.store.lapse()
        assert (await self.look(claimed.id)).status is TaskStatus.FAILED

    # --- T15: reschedule, run now, replace -------------------------------------------------------

    async def test_t15_reschedule_moves_it(self) -> None:
        task_id = await self.put()
        eta = self.moment(2)
        await self.store.reschedule(task_id, eta)
        assert (await self.look(task_id)).eta == eta
        await self.advance(1)
        assert await self.claim() == []
        await self.advance(1)
        assert len(await self.claim()) == 1

    async def test_t15_run_now_brings_it_forward(self) -> None:
        task_id = await self.put(eta=self.moment(99))
        await self.store.reschedule(task_id, self.now())
        assert [task.id for task in await self.claim()] == [task_id]

    async def test_t15_reschedule_keeps_attempts_and_error(self) -> None:
        claimed = await self.start()
        await self.settle(Settlement.retry(claimed, 9 * self.tick_s, BOOM))
        await self.store.reschedule(claimed.id, self.now())
        task = await self.look(claimed.id)
        assert (task.attempts, task.error, task.epoch) == (1, BOOM, 1)

    async def test_t15_reschedule_for_a_run_that_is_not_the_latest_is_a_conflict(self) -> None:
        """Who says after which run it should come again must know of the latest one."""
        claimed = await self.start()
        await self.settle(Settlement.give_back(claimed))
        await self.settle(Settlement.give_back(await self.restart()))
        before = await self.snapshot()
        with pytest.raises(Conflict, match="epoch"):
            await self.store.reschedule(claimed.id, self.moment(3), epoch=claimed.epoch)
        assert await self.snapshot() == before
        await self.store.reschedule(claimed.id, eta := self.moment(3), epoch=2)
        assert (await self.look(claimed.id)).eta == eta

    @pytest.mark.parametrize("status", ["running", *FINAL])
    async def test_t15_reschedule_of_anything_else_is_a_conflict(self, status: str) -> None:
        task_id = await self.end(status) if isinstance(status, TaskStatus) else (await self.start()).id
        before = await self.snapshot()
        with pytest.raises(Conflict, match="only PENDING"):
            await self.store.reschedule(task_id, self.now())
        assert await self.snapshot() == before

    async def test_t15_replace_changes_the_call_and_the_eta_of_a_waiting_task(self) -> None:
        old = await self.put("old", unique_key="k", priority=3)
        await self.store.enqueue_many(
            [Task("jobs.other", ("new",), unique_key="k", eta=self.moment(2))], on_conflict="replace"
        )
        task = await self.look(old)
        assert (task.func_path, task.args, task.priority) == ("jobs.other", ("new",), 3)
        assert await self.claim() == []
        await self.advance(2)
        [claimed] = await self.claim()
        assert (claimed.id, claimed.func_path) == (old, "jobs.other")

    # --- T16: delete, prune ----------------------------------------------------------------------

    @pytest.mark.parametrize("status", FINAL)
    async def test_t16_delete_takes_result_and_history_along(self, status: TaskStatus) -> None:
        task_id = await self.end(status)
        await self.store.delete(task_id)
        assert await self.store.get_task(task_id) is None
        assert await self.store.get_result(task_id) is None
        assert await self.store.history(task_id) == []
        assert await self.store.list_tasks() == []
        assert await self.store.counts() == {}

    @pytest.mark.parametrize("running", [False, True])
    async def test_t16_delete_of_what_has_not_ended_is_a_conflict(self, running: bool) -> None:
        task_id = (await self.start()).id if running else await self.put()
        before = await self.snapshot()
        with pytest.raises(Conflict, match="cancel it first"):
            await self.store.delete(task_id)
        assert await self.snapshot() == before

    @pytest.mark.parametrize("verb", ["cancel", "retry", "delete"])
    async def test_a_verb_about_an_unknown_task_says_so(self, verb: str) -> None:
        with pytest.raises(NotFound, match="no task 'unknown'"):
            await getattr(self.store, verb)("unknown")
        with pytest.raises(NotFound, match="no task 'unknown'"):
            await self.store.reschedule("unknown", self.now())

    # --- all ways to an end ----------------------------------------------------------------------

    @pytest.mark.parametrize(
        "way", ["success", "failed", "poison", "cancelled waiting", "cancelled running", "expired"]
    )
    async def test_every_end_frees_the_unique_key(self, way: str) -> None:
        task_id = await self.put(unique_key="k", max_losses=1, expires_at=self.moment(2))
        claims = [] if way in ("cancelled waiting", "expired") else await self.claim()
        [refused] = await self.store.enqueue_many([Task(JOB, unique_key="k")])
        assert (refused, refused.created) == (task_id, False)
        match way:
            case "success":
                await self.succeed(claims[0])
            case "failed":
                await self.settle(Settlement.failed(claims[0], BOOM))
            case "poison":
                await self.store.release("ann")
            case "expired":
                await self.advance(2)
                await self.store.lapse()
            case _:
                await self.store.cancel(task_id)
                await self.store.settle([Settlement.give_back(claim) for claim in claims])
        assert (await self.look(task_id)).status.final
        [new] = await self.store.enqueue_many([Task(JOB, unique_key="k")])
        assert new.created
        assert new != task_id
