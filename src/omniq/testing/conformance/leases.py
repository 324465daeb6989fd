"""Leases: renewed they hold, over they lapse, and no change of the wall clock matters: section 3."""

from __future__ import annotations

from datetime import timedelta

import pytest

from omniq.logic.lifecycle import MAX_SUSPICIONS
from omniq.task import Action, Answer, Claim, Held, RunOutcome, Settlement, StoredTask, Task, TaskStatus
from omniq.testing.conformance.case import BOOM, JOB, FullCase


class Leases(FullCase):
    """Renew, release, lapse."""

    # --- renew -----------------------------------------------------------------------------------

    async def test_a_renewed_lease_outlives_its_first_end_many_times(self) -> None:
        """F2: a task that runs ten times longer than its lease runs once."""
        claimed = await self.start()
        for _ in range(15):
            await self.advance(2)
            renewal = await self.store.renew("ann", 3 * self.tick_s, [Held(claimed.id, 1)])
            assert (set(renewal.held), renewal.lost) == ({claimed.id}, frozenset())
            assert await self.store.lapse() == 0
        assert await self.succeed(claimed) is Answer.HELD

    async def test_renew_counts_from_now(self) -> None:
        """A long lease can be made shorter, and a short one is not added to what is left."""
        await self.store.enqueue(Task(JOB))
        await self.claim(lease_ticks=9)
        await self.store.renew("ann", 2 * self.tick_s)
        await self.advance(1)
        assert await self.store.lapse() == 0
        await self.advance(1)
        assert await self.store.lapse() == 1

    async def test_renew_is_for_everything_that_one_worker_holds_and_nothing_else(self) -> None:
        await self.store.enqueue_many([Task(JOB, (number,)) for number in range(4)])
        anns = {task.id for task in await self.claim("ann", 2)}
        bobs = {task.id for task in await self.claim("bob", 2)}
        await self.advance(2)
        assert set((await self.store.renew("ann", 3 * self.tick_s)).held) == anns
        await self.advance(1)
        assert await self.store.lapse() == 2
        lost = {task.id for task in await self.store.list_tasks() if task.losses}
        assert lost == bobs

    async def test_renew_names_what_it_did_not_know_of(self) -> None:
        """A claim whose answer was lost: the worker learns of it here, and can give it back."""
        claimed = await self.start("a.png")
        renewal = await self.store.renew("ann", 3 * self.tick_s, [])
        held = renewal.held[claimed.id]
        assert (held.epoch, held.cancel_requested) == (1, False)
        assert await self.settle(Settlement.give_back(held)) is Answer.HELD
        assert (await self.look(claimed.id)).status is TaskStatus.PENDING

    async def test_renew_says_what_was_lost_and_what_is_to_be_cancelled(self) -> None:
        await self.store.enqueue_many([Task(JOB, (number,)) for number in range(4)])
        kept, cancelled, done, gone = await self.claim(limit=4)
        await self.store.cancel(cancelled.id)
        await self.succeed(done)
        await self.succeed(gone)
        await self.store.delete(gone.id)
        holding = [Held(task.id, task.epoch) for task in (kept, cancelled, done, gone)]
        renewal = await self.store.renew("ann", 3 * self.tick_s, [*holding, Held("unknown", 1)])
        assert set(renewal.held) == {kept.id, cancelled.id}
        assert renewal.lost == {done.id, gone.id, "unknown"}
        assert renewal.cancel == {cancelled.id}

    async def test_renew_of_a_worker_that_holds_nothing_is_empty(self) -> None:
        renewal = await self.store.renew("nobody", 3 * self.tick_s)
        assert (renewal.held, renewal.lost, renewal.cancel) == ({}, frozenset(), frozenset())

    async def test_a_lease_that_is_over_can_be_renewed_until_somebody_ends_it(self) -> None:
        """After an outage the living renew first, and it costs no task a loss."""
        claimed = await self.start()
        await self.advance(5)
        assert set((await self.store.renew("ann", 3 * self.tick_s)).held) == {claimed.id}
        assert await self.store.lapse() == 0
        assert await self.succeed(claimed) is Answer.HELD

    async def test_held_looks_and_extends_nothing(self) -> None:
        claimed = await self.start()
        await self.advance(2)
        assert [(one.id, one.epoch) for one in await self.store.held("ann")] == [(claimed.id, 1)]
        assert await self.store.held("bob") == []
        await self.advance(1)
        assert await self.store.lapse() == 1
        assert await self.store.held("ann") == []

    # --- lapse -----------------------------------------------------------------------------------

    async def test_lapse_leaves_alone_what_is_still_leased(self) -> None:
        claimed = await self.start()
        await self.advance(2.9)
        assert await self.store.lapse() == 0
        assert (await self.look(claimed.id)).status is TaskStatus.RUNNING

    async def test_lapse_is_by_each_tasks_own_lease(self) -> None:
        await self.store.enqueue_many([Task(JOB, (number,)) for number in range(2)])
        [short] = await self.claim(lease_ticks=1)
        [long] = await self.claim(lease_ticks=5)
        await self.advance(2)
        assert await self.store.lapse() == 1
        assert (await self.look(short.id)).status is TaskStatus.PENDING
        assert (await self.look(long.id)).status is TaskStatus.RUNNING

    async def test_lapse_takes_back_from_every_queue_also_from_paused_ones(self) -> None:
        """F7: whatever queues the caller serves."""
        await self.store.enqueue_many([Task(JOB, queue=queue) for queue in ("a", "b", "c")])
        await self.claim(limit=3)
        await self.store.pause("b")
        await self.advance(3)
        assert await self.store.lapse() == 3
        assert {task.status for task in await self.store.list_tasks()} == {TaskStatus.PENDING}

    async def test_lapse_is_done_by_anybody(self) -> None:
        await self.start()
        other = await self.another()
        await self.advance(3)
        assert await other.lapse() == 1

    async def test_lapse_pages_through_everything(self) -> None:
        await self.store.enqueue_many([Task(JOB, (number,)) for number in range(25)])
        await self.claim(limit=25)
        await self.advance(3)
        pages: list[int] = []
        while ended := await self.store.lapse(10):
            pages.append(ended)
        assert pages == [10, 10, 5]
        assert {task.losses for task in await self.store.list_tasks()} == {1}

    async def test_lapse_is_not_held_up_by_what_cannot_lapse(self) -> None:
        """F8."""
        await self.store.enqueue_many([Task(JOB, (number,)) for number in range(70)])
        await self.claim(limit=60, lease_ticks=99)
        await self.claim(limit=10, lease_ticks=1)
        await self.advance(1)
        assert await self.store.lapse(50) == 10

    async def test_lapse_ends_what_expired_beside_what_was_lost(self) -> None:
        await self.start()
        await self.store.enqueue_many([Task(JOB, (n,), expires_at=self.moment(2)) for n in range(5)])
        await self.advance(3)
        total = 0
        while ended := await self.store.lapse(2):
            total += ended
        assert total == 6
        statuses = [task.status for task in await self.store.list_tasks()]
        assert sorted(statuses) == ["FAILED"] * 5 + ["PENDING"]

    async def test_lapse_writes_who_lost_it_and_when(self) -> None:
        claimed = await self.start()
        started_at = (await self.look(claimed.id)).started_at
        await self.advance(3)
        await self.store.lapse()
        [run] = await self.store.history(claimed.id)
        assert (run.epoch, run.owner, run.started_at) == (1, "ann", started_at)
        assert (run.outcome, run.error) == (RunOutcome.LOST, None)
        assert self.is_about(run.finished_at, self.now())

    async def test_losses_and_attempts_are_counted_apart(self) -> None:
        claimed = await self.start(max_losses=9)
        await self.settle(self.settlement(claimed, Action.RETRY, 0))
        await self.restart("ann")
        await self.store.release("ann")
        await self.advance(1)
        claimed = await self.restart()
        assert (claimed.attempts, claimed.losses, claimed.epoch) == (1, 1, 3)
        await self.settle(Settlement.failed(claimed, BOOM))
        task = await self.look(claimed.id)
        assert (task.attempts, task.losses) == (2, 1)

    # --- suspects --------------------------------------------------------------------------------

    async def suspect(self, **options: object) -> str:
        """A task whose worker died, and would have run it alone next."""
        task_id = await self.put(**options)
        await self.take_isolating(task_id)
        assert await self.store.release("ann") == 1
        return task_id

    async def take_isolating(self, task_id: str) -> StoredTask:
        _, claims = await self.store.exchange((), Claim("ann", None, 1, 3 * self.tick_s, isolates=True))
        [claimed] = claims
        assert isinstance(claimed, StoredTask)
        assert claimed.id == task_id
        return claimed

    async def test_who_died_beside_others_is_suspected_and_spends_no_loss(self) -> None:
        task_id = await self.suspect(max_losses=1)
        task = await self.look(task_id)
        assert (task.status, task.suspicions, task.losses) == (TaskStatus.PENDING, 1, 0)
        [run] = await self.store.history(task_id)
        assert run.outcome is RunOutcome.LOST
        claimed = await self.take_isolating(task_id)  # at once, the first time
        assert claimed.suspicions == 1

    async def test_a_death_alone_counts(self) -> None:
        task_id = await self.suspect(max_losses=2)
        claimed = await self.take_isolating(task_id)
        assert await self.settle(Settlement.lost(claimed, BOOM)) is Answer.HELD
        task = await self.look(task_id)
        assert (task.status, task.suspicions, task.losses) == (TaskStatus.PENDING, 1, 1)
        claimed = await self.take_isolating(task_id)
        assert await self.settle(Settlement.lost(claimed, BOOM)) is Answer.HELD
        task = await self.look(task_id)
        assert (task.status, task.losses) == (TaskStatus.FAILED, 2)
        assert task.error is not None
        assert task.error.kind == "poison"
        assert [run.outcome for run in await self.store.history(task_id)] == ["lost", "died", "died"]

    async def test_a_lease_that_ends_makes_a_suspect_too(self) -> None:
        task_id = await self.put()
        await self.take_isolating(task_id)
        await self.advance(3)
        assert await self.store.lapse() == 1
        assert (await self.look(task_id)).suspicions == 1

    async def test_a_worker_that_does_not_isolate_counts_every_death(self) -> None:
        task_id = await self.suspect(max_losses=1)
        [claimed] = await self.claim("bob")
        assert await self.store.release("bob") == 1
        task = await self.look(task_id)
        assert (claimed.suspicions, task.status, task.losses) == (1, TaskStatus.FAILED, 1)

    async def test_a_suspect_waits_longer_each_further_time(self) -> None:
        self.needs_virtual_time()
        task_id = await self.suspect()
        pauses: list[float] = []
        for _ in range(3):
            await self.take_isolating(task_id)
            await self.store.release("ann")
            eta = (await self.look(task_id)).eta
            assert eta is not None
            pauses.append((eta - self.now()) / timedelta(seconds=1))
            await self.clock.advance(pauses[-1])
        assert pauses == [1, 2, 4]

    async def test_nobody_is_innocent_for_ever(self) -> None:
        task_id = await self.suspect(max_losses=1)
        for _ in range(MAX_SUSPICIONS):
            assert (await self.look(task_id)).status is TaskStatus.PENDING
            await self.store.reschedule(task_id, self.now())
            await self.take_isolating(task_id)
            await self.store.release("ann")
        task = await self.look(task_id)
        assert (task.status, task.suspicions, task.losses) == (TaskStatus.FAILED, MAX_SUSPICIONS, 1)

    async def test_a_success_clears_the_suspicion_of_an_interval_task(self) -> None:
        task_id = await self.suspect(interval=5 * self.tick_s)
        await self.settle(self.settlement(await self.restart(), Action.REPEAT))
        assert (await self.look(task_id)).suspicions == 0

    async def test_a_new_start_clears_the_suspicion(self) -> None:
        task_id = await self.suspect(max_losses=1)
        await self.settle(Settlement.lost(await self.take_isolating(task_id), BOOM))
        await self.store.retry(task_id)
        assert (await self.look(task_id)).suspicions == 0

    # --- release ---------------------------------------------------------------------------------

    async def test_release_takes_everything_from_one_worker_at_once(self) -> None:
        """Where death is certain nobody waits for a lease."""
        await self.store.enqueue_many([Task(JOB, (number,), queue="ab"[number % 2]) for number in range(6)])
        anns = {task.id for task in await self.claim("ann", 4)}
        bobs = {task.id for task in await self.claim("bob", 2)}
        assert await self.store.release("ann") == 4
        statuses = {task.id: (task.status, task.losses) for task in await self.store.list_tasks()}
        assert {task_id for task_id, state in statuses.items() if state == ("PENDING", 1)} == anns
        assert {task_id for task_id, state in statuses.items() if state == ("RUNNING", 0)} == bobs
        assert {task.id for task in await self.claim("eve", 9)} == anns

    async def test_release_of_a_worker_that_holds_nothing_is_nothing(self) -> None:
        await self.start()
        before = await self.snapshot()
        assert await self.store.release("nobody") == 0
        assert await self.snapshot() == before

    # --- the wall clock --------------------------------------------------------------------------

    @pytest.mark.parametrize("hours", [-48, -1, 1, 48])
    async def test_a_change_of_the_wall_clock_neither_ends_nor_keeps_a_lease(self, hours: int) -> None:
        self.needs_virtual_time()
        claimed = await self.start()
        await self.advance(1)
        self.clock.set_wall(self.now() + timedelta(hours=hours))
        assert await self.store.lapse() == 0, "it ended a living lease"
        await self.advance(1)
        assert set((await self.store.renew("ann", 3 * self.tick_s)).held) == {claimed.id}
        self.clock.set_wall(self.now() - timedelta(hours=hours))
        await self.advance(2)
        assert await self.store.lapse() == 0
        await self.advance(1)
        assert await self.store.lapse() == 1, "it kept a dead one"

    async def test_an_eta_follows_the_wall_clock(self) -> None:
        """A moment that a person named means that moment, whatever was done to the clock."""
        self.needs_virtual_time()
        await self.put(eta=self.now() + timedelta(hours=2))
        assert await self.claim() == []
        self.clock.set_wall(self.now() + timedelta(hours=2))
        assert len(await self.claim()) == 1

    async def test_what_is_due_later_again_hides_nobody(self) -> None:
        """The wall is set back: one task is ahead again, and one that is still due is handed out."""
        self.needs_virtual_time()
        ahead = [Task(JOB, (number,), priority=9, eta=self.now()) for number in range(2)]
        await self.store.enqueue_many(ahead)
        due = await self.put(eta=self.now() - timedelta(hours=3))
        assert len(await self.claim()) == 1
        self.clock.set_wall(self.now() - timedelta(hours=2))
        assert [task.id for task in await self.claim(limit=5)] == [due]
        await self.clock.advance(hours=2)
        assert len(await self.claim(limit=5)) == 1

    async def test_a_task_without_an_eta_is_due_whatever_the_clock_says(self) -> None:
        """The wall is set back: it waits for nothing, also behind one that waits for its moment."""
        self.needs_virtual_time()
        ahead = await self.put(eta=self.now() - timedelta(minutes=1))
        first, second = await self.put(), await self.put()
        urgent = await self.put(priority=9)
        other = await self.put(queue="other")
        self.clock.set_wall(self.now() - timedelta(hours=2))
        later = await self.put()
        assert [task.id for task in await self.claim(limit=2)] == [urgent, later]
        assert [task.id for task in await self.claim(limit=9)] == [first, second, other]
        await self.clock.advance(hours=2)
        assert [task.id for task in await self.claim(limit=9)] == [ahead]
