"""Two exchanges under way at once on one connection: each has its own answer, come what may."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from omniq import Task
from omniq.errors import StoreUnavailable
from omniq.storage.base import Claimed
from omniq.storage.redis import RedisStorage, connections
from omniq.storage.redis import wire as wire_module
from omniq.task import Answer, Claim, Settlement, TaskStatus
from tests.redis.proxy import Proxy
from tests.redis.server import find_programs, private
from tests.redis.stores import wired
from tests.redis.test_cluster import ask, cluster_of
from tests.redis.test_durability import EVERY_SECOND
from tests.redis.test_faults import until

JOB = "jobs.a"
WORKER = "ann"
LANES = ("left", "right")
LIMIT = 10


class Lane:
    """One of two who exchange on the same storage, and repeat what was not answered as it was."""

    def __init__(self, name: str, store: RedisStorage) -> None:
        self.name, self._store = name, store
        self.held: list[Claimed] = []
        self.had: list[str] = []
        self.failures = 0
        self._turn = 0

    async def exchange(self) -> None:
        said = [Settlement.success(task, self.name.encode()) for task in self.held]
        claim = Claim(WORKER, ["default"], LIMIT, 30.0, f"{self.name}{self._turn}")
        answers, claims = await self._repeated(said, claim)
        assert set(answers) <= {Answer.HELD, Answer.ALREADY}
        assert len(answers) == len(said)
        self._turn += 1
        self.held = claims
        self.had += [task.id for task in claims]

    async def _repeated(self, said: Sequence[Settlement], claim: Claim) -> tuple[list[Answer], list[Claimed]]:
        while True:
            try:
                return await self._store.exchange(said, claim)
            except StoreUnavailable:
                self.failures += 1
                await asyncio.sleep(0.02)

    async def drain(self) -> None:
        await self.exchange()
        while self.held:
            await self.exchange()


async def filled(store: RedisStorage, many: int) -> set[str]:
    return {str(one) for one in await store.enqueue_many([Task(JOB, (n,)) for n in range(many)])}


async def check_all_done_once(store: RedisStorage, lanes: Sequence[Lane], ids: set[str]) -> None:
    assert sorted(lanes[0].had + lanes[1].had) == sorted(ids)
    for lane in lanes:
        for task_id in lane.had:
            task = await store._get(task_id)
            assert task is not None
            assert (task.status, task.result) == (TaskStatus.SUCCESS, lane.name.encode())
    assert await store.held(WORKER) == []
    assert await store.verify() == []


@asynccontextmanager
async def two_through(
    redis_url: str, namespace: str
) -> AsyncIterator[tuple[RedisStorage, Proxy, list[Lane]]]:
    """Two lanes on one storage behind a network, each with ten tasks in its hands."""
    async with Proxy(redis_url) as network, RedisStorage(network.url, namespace=namespace) as store:
        lanes = [Lane(name, store) for name in LANES]
        await filled(store, 400)
        for lane in lanes:
            await lane.exchange()
        yield store, network, lanes


async def both(lanes: Sequence[Lane]) -> None:
    await asyncio.gather(*(lane.exchange() for lane in lanes))


async def test_each_gets_its_own(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        ids, lanes = await filled(store, 1_000), [Lane(name, store) for name in LANES]
        await asyncio.gather(*(lane.drain() for lane in lanes))
        assert all(len(lane.had) > LIMIT for lane in lanes)
        await check_all_done_once(store, lanes, ids)


@pytest.mark.parametrize("losses", [1, 2, 3])
async def test_an_answer_that_is_cut_off_takes_the_other_with_it_and_both_repeat(
    redis_url: str, namespace: str, losses: int
) -> None:
    """Both scripts ran: repeated, they answer the same tasks, and what was told was told."""
    async with two_through(redis_url, namespace) as (store, network, lanes):
        network.lose_answers("EVALSHA", losses)
        await both(lanes)
        assert network.losses == 0
        assert all(lane.failures for lane in lanes)
        await asyncio.gather(*(lane.drain() for lane in lanes))
        await check_all_done_once(store, lanes, {task.id for task in await store.list_tasks(limit=500)})


async def test_a_reset_while_both_are_under_way(redis_url: str, namespace: str) -> None:
    async with two_through(redis_url, namespace) as (store, network, lanes):
        draining = [asyncio.create_task(lane.drain()) for lane in lanes]
        for _ in range(5):
            await asyncio.sleep(0.01)
            network.reset()
        await asyncio.gather(*draining)
        await check_all_done_once(store, lanes, {task.id for task in await store.list_tasks(limit=500)})


async def test_no_answer_in_time_is_told_to_both(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_module, "LOOK_EVERY_S", 0.05)
    async with two_through(redis_url, namespace) as (store, network, lanes):
        network.silence()
        with monkeypatch.context() as impatient:  # only here: a busy machine may answer later than that
            impatient.setattr(wire_module, "ANSWER_TIMEOUT_S", 0.3)
            exchanging = asyncio.create_task(both(lanes))
            await until(lambda: _both_failed(lanes))
        network.heal()
        await exchanging
        await asyncio.gather(*(lane.drain() for lane in lanes))
        await check_all_done_once(store, lanes, {task.id for task in await store.list_tasks(limit=500)})


async def _both_failed(lanes: Sequence[Lane]) -> bool:
    return all(lane.failures for lane in lanes)


async def test_whoever_gives_up_leaves_the_other_its_answer(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        ids, lanes = await filled(store, 40), [Lane(name, store) for name in LANES]
        gone = asyncio.create_task(store.exchange([], Claim(WORKER, ["default"], LIMIT, 30.0, "left0")))
        stays = asyncio.create_task(lanes[1].exchange())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, stays, return_exceptions=True)
        assert gone.cancelled()
        await lanes[0].exchange()  # asks again, with the same claim id
        await asyncio.gather(*(lane.drain() for lane in lanes))
        await check_all_done_once(store, lanes, ids)


async def test_scripts_that_were_forgotten_are_told_again_for_both() -> None:
    with private() as server:
        async with RedisStorage(server.url) as store, wired(server.url) as wire:
            ids, lanes = await filled(store, 200), [Lane(name, store) for name in LANES]
            while not all(lane.had and not lane.held for lane in lanes):
                await wire.call("SCRIPT", "FLUSH", "SYNC")
                await both(lanes)
            assert [lane.failures for lane in lanes] == [0, 0]
            await check_all_done_once(store, lanes, ids)


async def test_both_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `exchange` has answered is on disk; two that wait at once share the wait."""
    waited: list[int] = []
    sync = connections.Disk._sync

    async def noted(disk: connections.Disk) -> None:
        waited.append(1)
        await sync(disk)

    monkeypatch.setattr(connections.Disk, "_sync", noted)
    with private(EVERY_SECOND) as server:
        async with RedisStorage(server.url) as store:
            ids, lanes = await filled(store, 40), [Lane(name, store) for name in LANES]
            del waited[:]
            await both(lanes)
            assert 1 <= len(waited) <= 2
            await asyncio.gather(*(lane.drain() for lane in lanes))
            await asyncio.to_thread(server.stop, 9)
            await asyncio.to_thread(server.start)
            await asyncio.gather(*(lane._repeated([], None) for lane in lanes))  # type: ignore[arg-type]
            await check_all_done_once(store, lanes, ids)


async def test_both_follow_a_slot_to_another_node() -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(cluster_of(find_programs()[0]))
        source = await cluster.owner("jobs")
        target = cluster.other(source)
        names = {node: await ask(node, "CLUSTER", "MYID") for node in (source, target)}
        slot = await ask(source, "CLUSTER", "KEYSLOT", "{jobs}:")
        store = await stack.enter_async_context(RedisStorage(source.url, namespace="jobs"))
        ids, lanes = await filled(store, 100), [Lane(name, store) for name in LANES]
        await both(lanes)
        await ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
        await ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
        while keys := await ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            await ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "KEYS", *keys)
        for node in (target, source):
            await ask(node, "CLUSTER", "SETSLOT", slot, "NODE", names[target])
        await asyncio.gather(*(lane.drain() for lane in lanes))
        await check_all_done_once(store, lanes, ids)
