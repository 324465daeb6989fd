"""Two calls to a store under way: never more than the slots, each for its share, nothing twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from omniq import AsyncWorkerPool, StoreUnavailable, Task, TaskStatus
from omniq.clock import REAL_CLOCK, Clock
from omniq.exchanges import LONGEST_PAUSE_S
from omniq.lanes import LEAST_BESIDE
from omniq.storage import MemoryStorage
from omniq.storage.base import Capabilities, Claimed
from omniq.task import Answer, Claim, Held, Settlement, StoredTask
from omniq.testing import VirtualClock
from tests.worker.scene import QUICK, Bodies, ended, running, turns, until
from tests.worker.stores import statuses, task_of

SLOTS = 2 * LEAST_BESIDE


class Wide(MemoryStorage):
    """Says that two calls at once gain; every call can be held up before it arrives, or after it was done."""

    capabilities: ClassVar[Capabilities] = Capabilities(batched=True, leases=True, wakes=True, lanes=2)

    def __init__(self, clock: Clock = REAL_CLOCK) -> None:
        super().__init__(clock=clock)
        self.away_at: list[float] | None = None  # while it is away: when it was called
        self.seen: list[tuple[int, int | None]] = []
        self.under_way = self.most_under_way = 0
        self.arrives, self.answers = asyncio.Event(), asyncio.Event()  # a call waits for them, on its way
        self.arrives.set()
        self.answers.set()
        self.refused: list[int] = []  # the calls with these numbers fail after they were done
        self.random: random.Random | None = None

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Answer], list[Claimed]]:
        if self.away_at is not None:
            self.away_at.append(self.clock.monotonic())
            if len(self.away_at) % 4 == 2:  # now and then the second one hears of it while the first pauses
                await turns()
            raise StoreUnavailable("nobody listens there")
        number = len(self.seen)
        self.seen.append((len(settlements), None if claim is None else claim.limit))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self._wait()
            await self.arrives.wait()
            answer = await super().exchange(settlements, claim)
            await self._wait()
            await self.answers.wait()
        finally:
            self.under_way -= 1
        if number in self.refused:
            raise StoreUnavailable("the answer was lost")
        return answer

    async def _wait(self) -> None:
        if self.random is not None:
            for _ in range(self.random.randrange(6)):
                await asyncio.sleep(0)


async def many(store: Wide, path: str, how_many: int) -> list[str]:
    return await store.enqueue_many([Task(path, (n,)) for n in range(how_many)])


@pytest.mark.parametrize("seed", range(8))
async def test_never_more_than_the_slots(bodies: Bodies, seed: int) -> None:
    """Whatever the order of answers: what runs and what one call moves stays within bounds."""
    chance, inside, most_inside, most_rows, runs = random.Random(seed), 0, 0, 0, list[int]()
    async with Wide() as store:
        store.random = chance
        store.refused = [n for n in range(200) if chance.random() < 0.1]

        async def body(n: int) -> None:
            nonlocal inside, most_inside, most_rows
            inside += 1
            runs.append(n)
            most_inside = max(most_inside, inside)
            most_rows = max(most_rows, (await store.counts())["default"][TaskStatus.RUNNING])
            for _ in range(chance.randrange(20)):
                await asyncio.sleep(0)
            inside -= 1

        ids = await many(store, bodies(body), 10 * SLOTS)
        async with running(store, SLOTS, **QUICK):
            for task_id in ids:
                await ended(store, task_id)
        assert await store.verify() == []
        assert {t.epoch for t in await store.list_tasks(limit=1000)} == {1}
    assert sorted(runs) == list(range(10 * SLOTS))
    assert most_inside <= SLOTS
    assert most_rows <= SLOTS
    assert store.most_under_way == 2
    assert max(told for told, _ in store.seen) <= LEAST_BESIDE
    assert max(limit or 0 for _, limit in store.seen) == LEAST_BESIDE


async def test_a_second_call_goes_when_it_is_worth_one(bodies: Bodies) -> None:
    goes = [asyncio.Event() for _ in range(4 * SLOTS)]
    begun: list[int] = []

    async def body(n: int) -> None:
        begun.append(n)
        await goes[n].wait()

    async with Wide() as store:
        await many(store, bodies(body), len(goes))
        async with running(store, SLOTS):
            await until(lambda: len(begun) == SLOTS)
            assert store.seen == [(0, LEAST_BESIDE), (0, LEAST_BESIDE)]
            store.answers.clear()
            goes[0].set()  # nobody is under way: it goes at once, alone
            await until(lambda: store.seen[2:] == [(1, 1)])
            for one in goes[1:LEAST_BESIDE]:  # one too few for a commit of their own
                one.set()
            await turns()
            assert store.seen[2:] == [(1, 1)]
            goes[LEAST_BESIDE].set()
            await until(lambda: store.seen[3:] == [(LEAST_BESIDE, LEAST_BESIDE)])
            for one in goes:  # two are under way, and there is no third
                one.set()
            await turns()
            assert len(store.seen) == 4
            store.answers.set()
            await until(lambda: len(begun) == len(goes))


async def test_who_finds_little_looks_once(bodies: Bodies) -> None:
    """An idle worker, or one with little to do, pays for one call where one would do."""
    async with Wide() as store, running(store, SLOTS, poll_interval=60):
        await turns()
        assert store.seen == [(0, LEAST_BESIDE)]

        async def body(n: int) -> int:
            return n

        [task_id] = await many(store, bodies(body), 1)
        assert (await ended(store, task_id)).result == 0
        await turns()
        assert store.seen[1:] == [(0, LEAST_BESIDE), (1, LEAST_BESIDE)]


async def test_lost_answers_of_both_are_asked_for_again(bodies: Bodies) -> None:
    runs: list[int] = []

    async def body(n: int) -> None:
        runs.append(n)

    async with Wide() as store:
        store.refused = [0, 1, 2, 4, 5]
        ids = await many(store, bodies(body), SLOTS)
        async with running(store, SLOTS, **QUICK):
            for task_id in ids:
                await ended(store, task_id)
        assert {t.epoch for t in await store.list_tasks(limit=1000)} == {1}
    assert sorted(runs) == list(range(SLOTS))


async def test_a_stranger_that_is_on_its_way_is_none(bodies: Bodies) -> None:
    """What a call under way has claimed is known when it is answered, and is not given back before."""
    begun: list[int] = []
    goes = asyncio.Event()

    async def body(n: int) -> None:
        begun.append(n)
        await goes.wait()

    async with Wide() as store:
        store.answers.clear()
        store.refused = [0]
        await many(store, bodies(body), 2)
        async with running(store, SLOTS, poll_interval=60) as pool:
            exchanges = pool._exchanges
            await until(store.held, pool.id)
            unknown = [*await store.held(pool.id), Held("nobody-knows-it", 1)]
            exchanges.give_back([Settlement.give_back(one) for one in unknown])
            assert exchanges._known_strangers() == []  # the answer may still come
            store.answers.set()
            await until(lambda: exchanges._unanswered)
            assert exchanges._known_strangers() == []  # it was lost, and is asked for again
            await until(lambda: len(begun) == 2)
            await until(lambda: len(store.seen) == 3)
            assert store.seen[1:] == [(0, LEAST_BESIDE), (1, LEAST_BESIDE)]  # only the one that never came
            assert len(await store.held(pool.id)) == 2
            goes.set()


async def test_what_was_being_told_when_the_loop_broke_is_told_at_the_end(bodies: Bodies) -> None:
    goes, arrives = asyncio.Event(), asyncio.Event()

    async def body(n: int) -> int:
        await goes.wait()
        return n

    async with Wide() as store:
        ids = await many(store, bodies(body), LEAST_BESIDE)
        pool = AsyncWorkerPool(store, SLOTS)
        await pool.start()
        await until(lambda: pool.in_flight == LEAST_BESIDE)
        await until(lambda: not store.under_way)
        store.arrives = arrives
        goes.set()
        await until(lambda: store.under_way)
        assert pool._loop_task is not None
        pool._loop_task.cancel()
        await turns()
        arrives.set()
        await pool.stop()
        assert statuses([await task_of(store, one) for one in ids]) == [TaskStatus.SUCCESS] * LEAST_BESIDE


@pytest.mark.parametrize("timeout", [None, 0])
async def test_a_stop_waits_for_both(bodies: Bodies, timeout: Any) -> None:
    """Claims that were on their way go back, ends that were being told stay told."""
    goes = asyncio.Event()

    async def body(n: int) -> None:
        await goes.wait()

    async with Wide() as store:
        ids = await many(store, bodies(body), 3 * SLOTS)
        async with running(store, SLOTS) as pool:
            await until(lambda: pool.in_flight == SLOTS)
            store.answers.clear()
            goes.set()
            await until(lambda: store.under_way == 2)
            stop = asyncio.create_task(pool.stop(timeout=timeout))
            await turns()
            store.answers.set()
            await stop
        tasks = [await store.get_task(task_id) for task_id in ids]
        ends = statuses([task for task in tasks if task is not None])
        assert ends.count(TaskStatus.SUCCESS) == SLOTS
        assert ends.count(TaskStatus.PENDING) == 2 * SLOTS
        assert {(t.attempts, t.losses) for t in tasks if t is not None} == {(0, 0)}
        assert await store.verify() == []


async def test_a_look_that_was_made_before_does_not_decide() -> None:
    """Its answer comes late and empty, but the one that was made after it has found plenty."""
    async with Wide() as store, running(store, SLOTS, poll_interval=60, wake=False) as pool:
        await until(lambda: store.seen == [(0, LEAST_BESIDE)])
        exchanges, claim = pool._exchanges, Claim(pool.id, None, 1, 30.0, "x")
        exchanges._plan_next_look(9, claim, [StoredTask("m.f", b"")])
        assert exchanges._look_at == 0.0
        exchanges._plan_next_look(8, claim, [])
        assert exchanges._look_at == 0.0
        assert not exchanges._found_nothing
        exchanges._plan_next_look(10, claim, [])
        assert exchanges._look_at > 0.0
        assert exchanges._found_nothing


async def test_an_outage_that_meets_both_is_one_pause(bodies: Bodies) -> None:
    """Two calls that fail together are made again together: a pause after each would be twice as long."""
    clock, goes = VirtualClock(), asyncio.Event()

    async def body(n: int) -> None:
        await goes.wait()

    async with Wide(clock) as store:
        ids = await many(store, bodies(body), 2 * SLOTS)
        pool = AsyncWorkerPool(store, SLOTS, poll_interval=5, clock=clock)
        await pool.start()
        await until(lambda: pool.in_flight == SLOTS)
        await turns()
        away_at: list[float] = []
        store.away_at = away_at
        goes.set()
        await until(lambda: len(away_at) == 2)
        for _ in range(120):
            await clock.advance(0.5)
        gaps = [after - before for before, after in pairwise(away_at)]
        assert max(gaps) <= LONGEST_PAUSE_S
        assert len(gaps) > 2 * 60 / LONGEST_PAUSE_S - 5  # still both of them each time
        store.away_at = None
        await clock.advance(LONGEST_PAUSE_S)
        for task_id in ids:
            await ended(store, task_id)
        await pool.stop()
        assert {t.epoch for t in await store.list_tasks(limit=1000)} == {1}


async def test_a_claim_that_is_repeated_looks_again(bodies: Bodies) -> None:
    """It is made after the one that came back empty, whatever its number: it decides when to look next."""
    goes = [asyncio.Event() for _ in range(SLOTS)]
    begun: list[int] = []

    async def body(n: int) -> None:
        begun.append(n)
        if n < SLOTS:
            await goes[n].wait()

    async with Wide() as store:
        path = bodies(body)
        await many(store, path, SLOTS + LEAST_BESIDE)
        async with running(store, SLOTS, poll_interval=60, wake=False):
            await until(lambda: len(begun) == SLOTS)
            await until(lambda: not store.under_way)
            store.answers.clear()
            store.refused = [2]
            for first in (0, LEAST_BESIDE):
                for one in goes[first : first + LEAST_BESIDE]:
                    one.set()
                await turns()
            assert store.seen[2:] == [(LEAST_BESIDE, LEAST_BESIDE)] * 2
            store.answers.set()
            await until(lambda: not store.under_way)
            late = [Task(path, (SLOTS + LEAST_BESIDE + n,)) for n in range(LEAST_BESIDE)]
            for task_id in await store.enqueue_many(late):
                await ended(store, task_id)
