"""Why a task stands where it stands: each reason, brought about with the verbs of the store itself."""

from __future__ import annotations

from datetime import UTC, datetime

from omniq.logic.why import Because, why
from omniq.reports import PoolInfo, ProcessInfo, Scaling
from omniq.storage.facts import facts_about
from omniq.task import Action, Claim, Settlement, WorkerInfo, replace
from omniq.testing.conformance.case import BOOM, JOB, FullCase

BOB = WorkerInfo("bob-1", "bob", "host", 43, concurrency=2)
POOL = PoolInfo(
    "tasks",
    0,
    2,
    free=0,
    queues=("default",),
    reason="1 waiting, 2 busy, at most 2",
    processes=(ProcessInfo(77, "busy", datetime(2026, 1, 1, tzinfo=UTC), 3, "t1", JOB),),
    scalings=(Scaling(datetime(2026, 1, 1, tzinfo=UTC), 1, 2, "1 waiting, 1 busy"),),
)


class Reasons(FullCase):
    """By the facts that a store tells, `why` says what keeps a claim from handing a task out."""

    async def reasons(self, task_id: str) -> list[Because]:
        return [one.because for one in why(await facts_about(self.store, task_id))]

    async def says(self, task_id: str) -> str:
        return " / ".join(one.text for one in why(await facts_about(self.store, task_id)))

    async def test_why_it_is_over(self) -> None:
        claimed = await self.start()
        await self.settle(Settlement.failed(claimed, BOOM))
        assert await self.reasons(claimed.id) == [Because.ENDED]
        assert BOOM.message in await self.says(claimed.id)

    async def test_why_it_waits_for_who_holds_it(self) -> None:
        await self.store.beat(BOB)
        claimed = await self.start(worker=BOB.id)
        assert await self.reasons(claimed.id) == [Because.RUNNING]
        assert "worker bob-1 holds it since" in await self.says(claimed.id)

    async def test_why_it_is_about_to_stop(self) -> None:
        await self.store.beat(BOB)
        claimed = await self.start(worker=BOB.id)
        await self.store.cancel(claimed.id)
        assert await self.reasons(claimed.id) == [Because.CANCELLING, Because.RUNNING]

    async def test_why_nobody_is_heard_of_it(self) -> None:
        claimed = await self.start(worker="gone-1")
        assert await self.reasons(claimed.id) == [Because.SILENT, Because.RUNNING]

    async def test_why_its_time_is_over(self) -> None:
        await self.store.beat(BOB)
        task_id = await self.put(expires_at=self.moment(1))
        await self.advance(2)
        assert (await self.reasons(task_id))[0] is Because.EXPIRED

    async def test_why_its_queue_is_paused(self) -> None:
        await self.store.beat(BOB)
        task_id = await self.put(queue="mail")
        await self.store.pause("mail")
        assert await self.reasons(task_id) == [Because.PAUSED]
        assert await self.claim("eve") == []
        await self.store.resume("mail")
        assert await self.reasons(task_id) == [Because.NEXT]
        assert len(await self.claim("eve")) == 1

    async def test_why_nobody_serves_it(self) -> None:
        await self.store.beat(replace(BOB, queues=("video",)))
        task_id = await self.put(queue="mail")
        assert await self.reasons(task_id) == [Because.UNSERVED_QUEUE]

    async def test_why_nobody_knows_it(self) -> None:
        await self.store.beat(replace(BOB, functions=("jobs.other",)))
        task_id = await self.put()
        assert await self.reasons(task_id) == [Because.UNKNOWN_FUNCTION]
        await self.store.beat(replace(BOB, functions=("jobs.other", JOB)))
        assert await self.reasons(task_id) == [Because.NEXT]

    async def test_why_its_eta_is_ahead(self) -> None:
        await self.store.beat(BOB)
        task_id = await self.put(eta=self.moment(5))
        assert await self.reasons(task_id) == [Because.SCHEDULED]
        assert await self.claim("eve") == []

    async def test_why_it_waits_after_an_error(self) -> None:
        await self.store.beat(BOB)
        claimed = await self.start()
        await self.settle(self.settlement(claimed, Action.RETRY, 5))
        assert await self.reasons(claimed.id) == [Because.BACKOFF]
        assert f"after {BOOM}" in await self.says(claimed.id)

    async def test_why_it_waits_after_a_death(self) -> None:
        await self.store.beat(BOB)
        task_id = await self.put(max_losses=9)
        for _ in range(3):  # the first time it runs again at once, then pauses grow
            while not (claimed := await self.claim()):
                await self.advance(1)
            await self.settle(Settlement.lost(claimed[0], BOOM))
        assert await self.reasons(task_id) == [Because.AFTER_LOSS]

    async def test_why_it_was_given_back(self) -> None:
        await self.store.beat(BOB)
        claimed = await self.start()
        await self.settle(Settlement.give_back(claimed, 5 * self.tick_s))
        assert await self.reasons(claimed.id) == [Because.GIVEN_BACK]

    async def test_why_a_suspect_waits_for_a_process(self) -> None:
        await self.store.beat(BOB)
        task_id = await self.put()
        await self.store.exchange((), Claim("ann", None, 1, 3 * self.tick_s, isolates=True))
        assert await self.store.release("ann") == 1
        assert await self.reasons(task_id) == [Because.SUSPECT]

    async def test_why_every_slot_is_taken(self) -> None:
        """By the store's own account of what is held: the beat said that all were free."""
        await self.store.beat(BOB)
        task_id = await self.put("last", priority=0)
        await self.put(priority=9)
        await self.claim(BOB.id)
        assert await self.reasons(task_id) == [Because.NEXT]
        await self.put(priority=9)
        await self.claim(BOB.id)
        assert await self.reasons(task_id) == [Because.FULL]

    async def test_why_every_process_is_taken(self) -> None:
        await self.store.beat(replace(BOB, pools=(POOL,)))
        assert "all 2 processes" in await self.says(await self.put())
        assert await self.reasons(await self.put(queue="other")) == [Because.NEXT]

    async def test_why_others_come_first(self) -> None:
        await self.store.beat(BOB)
        await self.put(priority=9)
        await self.put()
        task_id = await self.put()
        assert await self.reasons(task_id) == [Because.BEHIND]
        assert "behind 2 others" in await self.says(task_id)

    async def test_what_a_worker_says_of_its_processes_is_kept(self) -> None:
        said = replace(BOB, pools=(POOL,), blocked_s=1.5, unserved=(("mail", "jobs.other"),))
        await self.store.beat(said)
        [told] = await self.store.workers()
        assert replace(told, seen_at=None) == said
