"""Who gets what, and in which order: claims, paused queues, expired tasks."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime

import pytest

from omniq.task import Answer, Claim, Settlement, StoredTask, Task, TaskStatus, new_id
from omniq.testing.conformance.case import BOOM, JOB, FullCase, promptly


class Claims(FullCase):
    """Section 5: priority, then eta, then order of enqueueing, within the queues asked for."""

    async def labels(self, limit: int = 50, **options: object) -> list[str]:
        """The first argument of each task that a claim hands out."""
        claims = await self.claim(limit=limit, **options)  # type: ignore[arg-type]
        return [self.store.serializer.decode_call(task.payload)[1][0] for task in claims]

    # --- order -----------------------------------------------------------------------------------

    async def test_higher_priorities_come_first(self) -> None:
        for priority in (3, 9, 0, 5):
            await self.put(str(priority), priority=priority)
        assert await self.labels() == ["9", "5", "3", "0"]

    async def test_within_a_priority_the_earlier_eta_comes_first(self) -> None:
        await self.put("three", eta=self.moment(-1))
        await self.put("one", eta=self.moment(-3))
        await self.put("two", eta=self.moment(-2))
        assert await self.labels() == ["one", "two", "three"]

    async def test_within_an_eta_the_order_of_enqueueing_decides(self) -> None:
        eta = self.moment(-1)
        await self.store.enqueue_many([Task(JOB, (f"{number:02}",), eta=eta) for number in range(30)])
        assert await self.labels() == [f"{number:02}" for number in range(30)]

    async def test_a_task_without_eta_counts_from_when_it_was_enqueued(self) -> None:
        await self.put("first")
        await self.advance(1)
        await self.put("between", eta=self.moment(-0.5))
        await self.put("last")
        assert await self.labels() == ["first", "between", "last"]

    async def test_priority_comes_before_eta_and_eta_before_order(self) -> None:
        etas = {ticks: self.moment(ticks) for ticks in (-3, -2, -1)}
        rows = [(priority, ticks) for priority in (0, 4, 9) for ticks in etas] * 2
        random.Random(7).shuffle(rows)
        await self.store.enqueue_many(
            [
                Task(JOB, (f"{priority} {ticks} {number}",), priority=priority, eta=etas[ticks])
                for number, (priority, ticks) in enumerate(rows)
            ]
        )
        found = [tuple(map(int, label.split())) for label in await self.labels()]
        assert found == sorted(found, key=lambda row: (-row[0], row[1], row[2]))

    async def test_small_claims_take_the_same_order_as_one_large_one(self) -> None:
        for number, priority in enumerate((2, 7, 2, 9, 7, 0)):
            await self.put(f"{priority} {number}", priority=priority)
        found = [label for _ in range(6) for label in await self.labels(1)]
        assert found == ["9 3", "7 1", "7 4", "2 0", "2 2", "0 5"]

    @pytest.mark.parametrize("limit", [1, 3, 50])
    async def test_the_order_holds_over_many_queues(self, limit: int) -> None:
        etas = [self.moment(ticks) for ticks in (-3, -2, -1)]
        chance = random.Random(11)
        rows = [(chance.choice((0, 4, 9)), chance.randrange(3)) for _ in range(60)]
        await self.store.enqueue_many(
            [
                Task(JOB, (f"{priority} {eta} {n}",), priority=priority, eta=etas[eta], queue=f"q{n % 13}")
                for n, (priority, eta) in enumerate(rows)
            ]
        )
        await self.store.pause("q7")
        found: list[tuple[int, ...]] = []
        while labels := await self.labels(limit):
            found += [tuple(map(int, label.split())) for label in labels]
        waiting = [(*row, n) for n, row in enumerate(rows) if n % 13 != 7]
        assert found == sorted(waiting, key=lambda row: (-row[0], row[1], row[2]))

    async def test_no_more_comes_from_scarce_queues_than_asked_for(self) -> None:
        for n in range(6):
            await self.put(f"{n}", queue="cpu" if n % 2 == 0 else "mail", priority=int(n == 4))

        async def claimed(limit: int, scarce_limit: int) -> list[str]:
            wish = Claim("ann", None, limit, 9.0, new_id(), ("cpu",), scarce_limit)
            _, claims = await self.store.exchange((), wish)
            assert all(isinstance(claim, StoredTask) for claim in claims)
            return [self.store.serializer.decode_call(task.payload)[1][0] for task in claims]  # type: ignore[union-attr]

        assert await claimed(3, 1) == ["4", "1", "3"]
        assert await claimed(9, 0) == ["5"]
        assert await claimed(9, 0) == []
        assert await claimed(1, 5) == ["0"]
        assert await claimed(9, 9) == ["2"]

    async def test_expired_tasks_take_no_place_of_scarce_ones(self) -> None:
        await self.store.enqueue_many(
            [Task(JOB, (n,), queue="cpu", priority=9, expires_at=self.moment(1)) for n in range(3)]
        )
        ids = [await self.put(queue="cpu") for _ in range(3)]
        await self.advance(2)
        _, claims = await self.store.exchange((), Claim("ann", None, 9, 9.0, new_id(), ("cpu",), 2))
        assert [claim.id for claim in claims] == ids[:2]

    async def test_a_scarce_one_behind_an_expired_one_keeps_its_place(self) -> None:
        ids = [await self.put(queue=queue) for queue in ("cpu", "mail", "mail")]
        await self.store.enqueue(Task(JOB, queue="cpu", priority=5, expires_at=self.moment(1)))
        await self.advance(2)
        _, claims = await self.store.exchange((), Claim("ann", None, 3, 9.0, new_id(), ("cpu",), 1))
        assert [claim.id for claim in claims] == ids

    async def test_a_retried_task_stands_behind_by_its_new_eta(self) -> None:
        claimed = await self.start("retried")
        await self.advance(1)
        await self.put("new")
        await self.settle(Settlement.retry(claimed, 2 * self.tick_s, BOOM))
        await self.advance(3)
        assert await self.labels() == ["new", "retried"]

    async def test_what_is_due_later_stands_in_nobodys_way(self) -> None:
        await self.store.enqueue_many(
            [Task(JOB, ("later",), priority=9, eta=self.moment(5)) for _ in range(200)]
        )
        await self.put("now")
        assert await self.labels() == ["now"]

    # --- queues ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("queues", [None, ["default"], ["default", "mail"]])
    async def test_the_first_and_the_last_moment_stand_in_nobodys_way(self, queues: list[str] | None) -> None:
        """Whatever a store takes them for: they can be claimed, waited for, and looked at."""
        last = await self.put(eta=datetime.max.replace(tzinfo=UTC), priority=9)
        await self.put(eta=datetime.max.replace(tzinfo=UTC), queue="mail")
        first = await self.put(eta=datetime.min.replace(tzinfo=UTC), unique_key="first")
        now = await self.put(expires_at=datetime.max.replace(tzinfo=UTC))
        late = await self.put(expires_at=datetime.min.replace(tzinfo=UTC))
        claims = await self.claim(limit=9, queues=queues)
        assert [claimed.id for claimed in claims] == [first, now]
        assert await self.claim(queues=queues) == []
        assert await self.store.wait(0) is False
        await self.store.lapse()
        assert (await self.look(late)).status is TaskStatus.FAILED
        for claimed in claims:
            assert await self.succeed(claimed) is Answer.HELD
        assert [one.wait_s >= 0 for one in await self.store.timings()] == [True, True]
        assert await self.store.heads() == []
        assert await self.store.ahead(last) == 0
        assert (await self.look(first)).eta == datetime.min.replace(tzinfo=UTC)
        await self.store.reschedule(last, self.now())
        assert [claimed.id for claimed in await self.claim(limit=9, queues=queues)] == [last]

    async def test_only_the_queues_asked_for(self) -> None:
        for queue in ("default", "mail", "video"):
            await self.put(queue, queue=queue)
        assert await self.labels(queues=["mail"]) == ["mail"]
        assert await self.labels(queues=["mail", "nothing-here"]) == []
        assert await self.labels(queues=[]) == []
        assert sorted(await self.labels()) == ["default", "video"]

    async def test_several_queues_are_one_order(self) -> None:
        for number, (queue, priority) in enumerate((("a", 1), ("b", 9), ("a", 5), ("b", 1), ("c", 7))):
            await self.put(f"{queue}{number}", queue=queue, priority=priority)
        assert await self.labels(queues=["b", "a"]) == ["b1", "a2", "a0", "b3"]
        assert await self.labels() == ["c4"]

    async def test_several_queues_are_one_order_also_by_eta(self) -> None:
        for queue, ticks in (("a", -1), ("b", -3), ("a", -4), ("b", -2)):
            await self.put(f"{queue} {ticks}", queue=queue, eta=self.moment(ticks))
        assert await self.labels() == ["a -4", "b -3", "b -2", "a -1"]

    async def test_a_queue_named_twice_gives_its_tasks_once(self) -> None:
        await self.put("one")
        await self.put("two")
        assert await self.labels(queues=["default", "default"]) == ["one", "two"]

    # --- pause -----------------------------------------------------------------------------------

    async def test_a_paused_queue_hands_out_nothing_and_what_runs_goes_on(self) -> None:
        running = await self.start("running", queue="mail")
        await self.put("waiting", queue="mail")
        await self.put("other")
        await self.store.pause("mail")
        assert await self.store.paused() == {"mail"}
        assert await self.labels() == ["other"]
        assert await self.labels(queues=["mail"]) == []
        assert await self.succeed(running) == "held"
        await self.store.resume("mail")
        assert await self.store.paused() == set()
        assert await self.labels() == ["waiting"]

    async def test_a_queue_can_be_paused_before_it_has_tasks(self) -> None:
        await self.store.pause("mail")
        await self.put("waiting", queue="mail", priority=9)
        await self.put("due later", queue="mail", eta=self.moment(1))
        await self.advance(1)
        assert await self.labels() == []
        await self.store.resume("mail")
        assert await self.labels() == ["waiting", "due later"]

    async def test_a_pause_is_seen_by_every_storage(self) -> None:
        other = await self.another()
        await self.put("waiting")
        await other.pause("default")
        assert await self.labels() == []
        await self.store.resume("default")
        assert await self.labels(store=other) == ["waiting"]

    async def test_a_given_back_task_of_a_paused_queue_waits(self) -> None:
        claimed = await self.start()
        await self.store.pause("default")
        await self.settle(Settlement.give_back(claimed))
        assert await self.claim() == []

    # --- expired ---------------------------------------------------------------------------------

    async def test_an_expired_task_is_never_handed_out(self) -> None:
        expired = await self.put("expired", priority=9, expires_at=self.moment(1))
        await self.put("in time", expires_at=self.moment(9))
        await self.advance(1)
        assert await self.labels(1) == ["in time"]
        assert await self.labels() == []
        await self.store.lapse()
        assert (await self.look(expired)).status is TaskStatus.FAILED

    async def test_many_expired_tasks_do_not_keep_a_due_one_waiting(self) -> None:
        """A claim that met only expired ones is told at once to look again."""
        expires_at = self.moment(1)
        await self.store.enqueue_many(
            [Task(JOB, ("expired",), priority=9, expires_at=expires_at) for _ in range(60)]
        )
        await self.put("due")
        await self.advance(1)
        found = await self.labels(1)
        while not found:
            assert await promptly(self.store.wait(9 * self.tick_s))
            found = await self.labels(1)
        assert found == ["due"]

    # --- several claimers ------------------------------------------------------------------------

    @pytest.mark.parametrize("limit", [1, 7])
    async def test_many_claimers_share_everything_and_nothing_twice(self, limit: int) -> None:
        await self.store.enqueue_many([Task(JOB, (number,)) for number in range(60)])
        storages = [self.store, await self.another(), await self.another()]

        async def drain(number: int) -> list[str]:
            taken: list[str] = []
            while batch := await self.claim(f"worker-{number}", limit, store=storages[number % 3]):
                assert len(batch) <= limit
                taken += [task.id for task in batch]
            return taken

        taken = await asyncio.gather(*(drain(number) for number in range(6)))
        ids = [task_id for one in taken for task_id in one]
        assert len(ids) == len(set(ids)) == 60
        assert {task.epoch for task in await self.store.list_tasks()} == {1}

    async def test_a_claim_is_bounded_by_its_limit(self) -> None:
        await self.store.enqueue_many([Task(JOB, ("x",), queue=queue) for queue in "abc" for _ in range(3)])
        assert len(await self.claim(limit=4)) == 4
        assert len(await self.claim(limit=0)) == 0
        assert len(await self.claim(limit=100)) == 5
