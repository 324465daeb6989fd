"""The fence: only the newest claim may say anything, and whatever is said twice counts once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from omniq.errors import Conflict, IdConflict, NotFound
from omniq.task import Action, Answer, Claim, Held, Settlement, StoredTask, Task, TaskStatus, WorkerInfo
from omniq.testing.conformance.case import BOOM, JOB, FullCase

RACES = 20


class Fence(FullCase):
    """Stale reports change nothing."""

    async def lost_and_claimed_again(self) -> tuple[StoredTask, StoredTask]:
        """A zombie's claim of a task, and the claim of who has it now."""
        zombie = await self.start("a.png", max_losses=9, interval=5 * self.tick_s)
        await self.advance(3)
        assert await self.store.lapse() == 1
        return zombie, await self.restart("bob")

    @pytest.mark.parametrize("action", Action)
    async def test_a_zombies_report_is_stale_and_changes_nothing(self, action: Action) -> None:
        """F3: completes, fails, gives back; then the true owner's report holds."""
        zombie, current = await self.lost_and_claimed_again()
        before = await self.snapshot()
        assert await self.settle(self.settlement(zombie, action)) is Answer.STALE
        assert await self.snapshot() == before
        assert await self.succeed(current, "bob's") is Answer.HELD
        result = await self.store.get_result(current.id)
        assert result is not None
        assert result.result == "bob's"

    @pytest.mark.parametrize("action", Action)
    async def test_a_zombies_report_is_stale_also_while_nobody_runs_the_task(self, action: Action) -> None:
        zombie = await self.start(interval=5 * self.tick_s)
        await self.advance(3)
        await self.store.lapse()
        before = await self.snapshot()
        assert await self.settle(self.settlement(zombie, action)) is Answer.STALE
        assert await self.snapshot() == before

    async def test_a_zombies_renewal_says_what_it_lost(self) -> None:
        """F3."""
        zombie, current = await self.lost_and_claimed_again()
        renewal = await self.store.renew("ann", 3 * self.tick_s, [Held(zombie.id, zombie.epoch)])
        assert renewal.lost == {zombie.id}
        assert renewal.held == {}
        await self.advance(3)
        assert await self.store.lapse() == 1, "the zombie's renewal extended somebody else's lease"
        assert await self.succeed(current) is Answer.STALE

    async def test_a_worker_that_got_its_own_task_again_has_lost_the_older_run(self) -> None:
        zombie = await self.start()
        await self.store.release("ann")
        again = await self.restart("ann")
        renewal = await self.store.renew("ann", 3 * self.tick_s, [Held(zombie.id, zombie.epoch)])
        assert renewal.lost == {zombie.id}
        assert renewal.held[again.id].epoch == again.epoch
        assert await self.succeed(zombie) is Answer.STALE

    async def test_a_zombies_progress_is_refused(self) -> None:
        zombie, current = await self.lost_and_claimed_again()
        before = await self.snapshot()
        assert not await self.store.progress(zombie.id, zombie.epoch, 1, 2)
        assert await self.snapshot() == before
        assert await self.store.progress(current.id, current.epoch, 1, 2)

    @pytest.mark.parametrize("action", Action)
    async def test_a_report_after_a_give_back_is_stale(self, action: Action) -> None:
        """The epoch is not the attempt: with one number this would be accepted."""
        claimed = await self.start(interval=5 * self.tick_s)
        await self.settle(Settlement.give_back(claimed))
        current = await self.restart("bob")
        before = await self.snapshot()
        told = Answer.ALREADY if action is Action.GIVE_BACK else Answer.STALE
        assert await self.settle(self.settlement(claimed, action)) is told
        assert await self.snapshot() == before
        assert await self.succeed(current) is Answer.HELD

    async def test_a_report_from_before_a_retry_by_hand_is_stale(self) -> None:
        claimed = await self.start()
        await self.settle(Settlement.failed(claimed, BOOM))
        await self.store.retry(claimed.id)
        await self.restart("bob")
        before = await self.snapshot()
        assert await self.succeed(claimed) is Answer.STALE
        assert await self.snapshot() == before

    @pytest.mark.parametrize("action", Action)
    async def test_a_zombies_report_after_another_run_has_ended_it_is_stale(self, action: Action) -> None:
        """F3: however the later run ended, it was not this one."""
        zombie, current = await self.lost_and_claimed_again()
        assert await self.succeed(current, "bob's") is Answer.HELD
        before = await self.snapshot()
        assert await self.settle(self.settlement(zombie, action)) is Answer.STALE
        assert await self.snapshot() == before

    async def test_a_success_told_of_a_run_that_was_cancelled_is_stale(self) -> None:
        """Who hears "already" believes that the result is there."""
        claimed = await self.start()
        await self.store.cancel(claimed.id)
        await self.settle(Settlement.give_back(claimed))
        before = await self.snapshot()
        assert await self.succeed(claimed) is Answer.STALE
        assert await self.snapshot() == before

    async def test_a_report_about_a_deleted_task_is_stale(self) -> None:
        claimed = await self.start()
        await self.succeed(claimed)
        await self.store.delete(claimed.id)
        assert await self.succeed(claimed) is Answer.STALE
        assert await self.store.list_tasks() == []

    @pytest.mark.parametrize("epoch", [0, 1, 3, 2**31 - 1])
    async def test_a_report_with_any_other_epoch_is_stale(self, epoch: int) -> None:
        claimed = await self.start()
        await self.settle(Settlement.give_back(claimed))
        assert (await self.restart()).epoch == 2
        before = await self.snapshot()
        assert await self.settle(Settlement.success(Held(claimed.id, epoch), b"")) is Answer.STALE
        assert not await self.store.progress(claimed.id, epoch, 1)
        assert await self.snapshot() == before

    # --- told twice ------------------------------------------------------------------------------

    @pytest.mark.parametrize("cancel_asked", [False, True])
    @pytest.mark.parametrize("action", Action)
    async def test_settle_told_twice_is_already_there(self, action: Action, cancel_asked: bool) -> None:
        claimed = await self.start(interval=5 * self.tick_s)
        if cancel_asked:
            await self.store.cancel(claimed.id)
        settlement = self.settlement(claimed, action)
        assert await self.settle(settlement) is Answer.HELD
        before = await self.snapshot()
        await self.advance(1)
        assert await self.settle(settlement) is Answer.ALREADY
        assert await self.snapshot() == before

    @pytest.mark.parametrize("action", [Action.REPEAT, Action.RETRY, Action.CONTINUE, Action.GIVE_BACK])
    async def test_settle_told_again_while_the_next_run_goes_on_is_already_there(
        self, action: Action
    ) -> None:
        claimed = await self.start(interval=5 * self.tick_s)
        settlement = self.settlement(claimed, action, 0)
        await self.settle(settlement)
        current = await self.restart("bob")
        assert await self.settle(settlement) is Answer.ALREADY
        assert await self.succeed(current) is Answer.HELD

    async def test_settle_with_another_outcome_than_before_is_stale(self) -> None:
        claimed = await self.start()
        await self.succeed(claimed, "done")
        before = await self.snapshot()
        for action in (Action.RETRY, Action.FAIL, Action.GIVE_BACK):
            assert await self.settle(self.settlement(claimed, action)) is Answer.STALE
        assert await self.snapshot() == before

    async def test_settle_answers_each_in_order(self) -> None:
        await self.store.enqueue_many([Task(JOB, (number,)) for number in range(4)])
        held, twice, given_back, gone = await self.claim(limit=4)
        await self.settle(Settlement.give_back(given_back, 9 * self.tick_s))
        await self.succeed(gone)
        await self.store.delete(gone.id)
        reports = (held, twice, given_back, twice, gone)
        answers = await self.store.settle([self.settlement(one, Action.SUCCEED) for one in reports])
        assert answers == ["held", "held", "stale", "already", "stale"]

    async def test_exchange_settles_before_it_claims(self) -> None:
        """What was just given back without a delay is due."""
        claimed = await self.start()
        wish = Claim("ann", limit=2, lease=3 * self.tick_s)
        answers, claims = await self.store.exchange([Settlement.give_back(claimed)], wish)
        assert answers == [Answer.HELD]
        assert [(task.id, task.epoch) for task in claims] == [(claimed.id, 2)]

    # --- two at once -----------------------------------------------------------------------------

    async def test_a_report_that_races_the_end_of_its_lease_has_one_winner(self) -> None:
        """F18."""
        other = await self.another()
        await self.store.enqueue_many([Task(JOB, (number,)) for number in range(RACES)])
        claims = await self.claim(limit=RACES)
        await self.advance(3)
        reports = [self.store.settle([self.settlement(one, Action.SUCCEED)]) for one in claims]
        answers, lapsed = await asyncio.gather(
            asyncio.gather(*reports), asyncio.gather(*(other.lapse(2) for _ in range(RACES)))
        )
        told = [answer for [answer] in answers]
        assert set(told) <= {Answer.HELD, Answer.STALE}
        assert told.count(Answer.HELD) + sum(lapsed) == RACES
        for claimed, answer in zip(claims, told, strict=True):
            succeeded = (await self.look(claimed.id)).status is TaskStatus.SUCCESS
            assert succeeded == (answer is Answer.HELD)

    async def test_two_that_lapse_at_once_close_each_run_once(self) -> None:
        """F11."""
        other = await self.another()
        await self.store.enqueue_many([Task(JOB, (number,)) for number in range(RACES)])
        await self.claim(limit=RACES)
        await self.advance(3)
        ended = await asyncio.gather(*(storage.lapse(5) for storage in (self.store, other) * RACES))
        assert sum(ended) == RACES
        assert {task.losses for task in await self.store.list_tasks()} == {1}


class Repeats(FullCase):
    """Every write may be repeated: section 4."""

    async def test_the_same_id_and_call_again_is_already_there(self) -> None:
        task = Task(JOB, ("a.png",), {"fit": True})
        [first] = await self.store.enqueue_many([task])
        before = await self.snapshot()
        [second] = await self.store.enqueue_many([task])
        assert (first, first.created, second, second.created) == (task.id, True, task.id, False)
        assert await self.snapshot() == before
        assert len(await self.claim(limit=5)) == 1

    @pytest.mark.parametrize("state", ["running", "ended", "deleted", "pruned"])
    async def test_an_enqueue_told_again_never_runs_it_again(self, state: str) -> None:
        """An id is remembered for ten minutes, also when the task is gone already."""
        task = Task(JOB, ("a.png",), result_ttl=0)
        await self.store.enqueue(task)
        [claimed] = await self.claim()
        if state != "running":
            await self.succeed(claimed)
        if state == "deleted":
            await self.store.delete(task.id)
        if state == "pruned":
            assert await self.store.prune() == 1
        await self.advance(1)
        before = await self.snapshot()
        [again] = await self.store.enqueue_many([task])
        assert (again, again.created) == (task.id, False)
        assert await self.snapshot() == before
        assert await self.claim() == []

    async def test_an_id_is_remembered_for_ten_minutes(self) -> None:
        self.needs_virtual_time()
        task = Task(JOB, result_ttl=0)
        await self.store.enqueue(task)
        await self.succeed(*await self.claim())
        await self.store.prune()
        await self.clock.advance(minutes=9.9)
        assert [one.created for one in await self.store.enqueue_many([task])] == [False]

    @pytest.mark.parametrize(
        "other",
        [
            Task("jobs.other", ("a.png",), id="t"),
            Task(JOB, ("b.png",), id="t"),
            Task(JOB, (), {"name": "a.png"}, id="t"),
            Task(JOB, ("a.png",), id="t", queue="mail"),
        ],
        ids=["function", "arguments", "keywords", "queue"],
    )
    @pytest.mark.parametrize("deleted", [False, True])
    async def test_the_same_id_with_another_call_is_a_conflict(self, other: Task, deleted: bool) -> None:
        await self.store.enqueue(Task(JOB, ("a.png",), id="t"))
        if deleted:
            await self.succeed(*await self.claim())
            await self.store.delete("t")
        before = await self.snapshot()
        with pytest.raises(IdConflict, match="'t' already belongs to another call"):
            await self.store.enqueue(other)
        assert await self.snapshot() == before

    async def test_a_batch_told_again_is_already_there(self) -> None:
        tasks = [Task(JOB, (number,)) for number in range(3)]
        await self.store.enqueue_many(tasks[:2])
        again = await self.store.enqueue_many(tasks)
        assert again == [task.id for task in tasks]
        assert [one.created for one in again] == [False, False, True]
        assert len(await self.store.list_tasks()) == 3

    async def test_an_id_twice_in_a_batch_is_one_task(self) -> None:
        task = Task(JOB)
        enqueued = await self.store.enqueue_many([task, task])
        assert [one.created for one in enqueued] == [True, False]
        assert len(await self.store.list_tasks()) == 1

    # --- claims ----------------------------------------------------------------------------------

    async def test_a_claim_told_again_gives_the_same_tasks(self) -> None:
        await self.store.enqueue_many([Task(JOB, (number,), priority=number) for number in range(5)])
        first = await self.claim(limit=3, claim_id="lost answer")
        before = await self.snapshot()
        again = await self.claim(limit=3, claim_id="lost answer")
        assert [(task.id, task.epoch) for task in again] == [(task.id, task.epoch) for task in first]
        assert [task.payload for task in again] == [task.payload for task in first]
        assert await self.snapshot() == before
        rest = await self.claim(limit=5, claim_id="another claim")
        assert len(rest) == 2

    async def test_a_claim_told_again_gives_only_what_still_runs(self) -> None:
        await self.store.enqueue_many([Task(JOB, (number,)) for number in range(3)])
        first, second, _ = await self.claim(limit=3, claim_id="c")
        await self.succeed(first)
        await self.settle(Settlement.give_back(second))
        [other] = await self.claim("bob")
        assert other.id == second.id
        again = await self.claim(limit=3, claim_id="c")
        assert [task.epoch for task in again] == [1]
        assert {task.id for task in again}.isdisjoint({first.id, second.id})

    async def test_a_claim_id_of_somebody_else_gives_nothing_of_theirs(self) -> None:
        await self.store.enqueue_many([Task(JOB, (number,)) for number in range(2)])
        [anns] = await self.claim("ann", claim_id="c")
        [bobs] = await self.claim("bob", claim_id="c")
        assert anns.id != bobs.id

    # --- everything else -------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "verb", ["cancel", "retry", "reschedule", "delete", "pause", "resume", "release", "lapse", "prune"]
    )
    async def test_a_verb_told_twice_leaves_the_state_of_once(self, verb: str) -> None:
        task_id = await self.end(TaskStatus.FAILED, result_ttl=0)
        if verb in ("cancel", "reschedule"):
            task_id = await self.put(eta=self.moment(5))
        await self.put(expires_at=self.moment(-1))
        running = await self.start(priority=9)
        repeat: dict[str, Callable[[], Awaitable[Any]]] = {
            "reschedule": lambda: self.store.reschedule(task_id, eta),
            "pause": lambda: self.store.pause("default"),
            "resume": lambda: self.store.resume("default"),
            "release": lambda: self.store.release("ann"),
            "lapse": self.store.lapse,
            "prune": self.store.prune,
        }
        eta = self.moment(7)
        call = repeat.get(verb) or (lambda: getattr(self.store, verb)(task_id))
        await call()
        before = await self.snapshot()
        try:
            await call()
        except (Conflict, NotFound):
            # Told what it is now; that is an answer, and no change.
            assert verb in ("retry", "delete")
        assert await self.snapshot() == before
        assert running.id in before

    async def test_cancel_of_a_running_task_told_twice_is_one_request(self) -> None:
        claimed = await self.start()
        assert await self.store.cancel(claimed.id) is TaskStatus.RUNNING
        before = await self.snapshot()
        assert await self.store.cancel(claimed.id) is TaskStatus.RUNNING
        assert await self.snapshot() == before

    async def test_beat_and_leave_may_be_repeated(self) -> None:
        info = WorkerInfo("ann-1", "ann", "host", 42)
        for _ in range(2):
            await self.store.beat(info)
        assert [worker.id for worker in await self.store.workers()] == ["ann-1"]
        for _ in range(2):
            await self.store.leave("ann-1")
        assert await self.store.workers() == []
