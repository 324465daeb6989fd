"""The server crashes, connections are cut, answers get lost: no task does, and none is stuck or fails."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from omniq import AsyncWorkerPool, Task
from omniq.errors import StoreUnavailable
from omniq.storage.redis import RedisStorage
from omniq.storage.redis import address as address_module
from omniq.storage.redis import wire as wire_module
from omniq.storage.redis.wire import Wire
from omniq.task import Settlement, TaskError, TaskStatus
from tests.redis import bodies
from tests.redis.proxy import Proxy, where
from tests.redis.server import DURABLE, NO_FILE, private
from tests.redis.stores import wired

JOB = "tests.redis.bodies.count"
BOOM = TaskError("ValueError", "boom")
MANY = 3000
SLOTS = 60  # enough for two calls under way at a time
BLINK_S = 0.5
LOOK_EVERY_S = 0.02


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """The test's own bound is the bound."""
    while True:
        try:
            if await condition():
                return
        except StoreUnavailable:
            pass
        await asyncio.sleep(LOOK_EVERY_S)


async def counts(store: RedisStorage, *queues: str) -> dict[TaskStatus, int]:
    counted = await store.counts()
    found = [counted[queue] for queue in queues or ("default",) if queue in counted]
    return {status: sum(one[status] for one in found) for status in TaskStatus}


async def has_done(store: RedisStorage, many: int) -> bool:
    return (await counts(store))[TaskStatus.SUCCESS] >= many


@asynccontextmanager
async def draining(look_url: str, work_url: str, namespace: str) -> AsyncIterator[RedisStorage]:
    """A worker on a store full of tasks; the test has the store to look on."""
    bodies.RUNS.clear()
    async with RedisStorage(look_url, namespace=namespace) as store:
        await store.enqueue_many([Task(JOB, (number,), max_losses=99) for number in range(MANY)])
        worker = RedisStorage(work_url, namespace=namespace)
        async with AsyncWorkerPool(worker, concurrency=SLOTS, poll_interval=0.2, lease=3):
            yield store


async def check_drained(store: RedisStorage) -> None:
    await until(lambda: has_done(store, MANY))
    assert await counts(store) == {**dict.fromkeys(TaskStatus, 0), TaskStatus.SUCCESS: MANY}
    assert set(bodies.RUNS) == set(range(MANY))
    assert await store.verify() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_the_server_stops_and_starts_again_during_a_drain(how: int) -> None:
    """F5: with an append-only file nothing is lost, nothing has failed."""
    with private() as server:
        async with draining(server.url, server.url, "omniq") as store:
            for share in (0.2, 0.6):
                await until(lambda share=share: has_done(store, int(MANY * share)))  # type: ignore[misc]
                await asyncio.to_thread(server.stop, how)
                with pytest.raises(StoreUnavailable):
                    await store.enqueue(Task(JOB, (0,)))
                await asyncio.to_thread(server.start)
            await check_drained(store)


async def test_a_server_without_a_file_comes_back_empty_and_is_used_again() -> None:
    """F26: what it lost is lost, and told beforehand; workers and producers go on by themselves."""
    bodies.RUNS.clear()
    with private(NO_FILE) as server:
        async with RedisStorage(server.url, durability="relaxed") as store:
            await store.enqueue_many([Task(JOB, (number,), eta=None) for number in range(50)])
            async with AsyncWorkerPool(store.clone(), concurrency=5, poll_interval=0.2):
                await until(lambda: has_done(store, 10))
                await asyncio.to_thread(server.stop, signal.SIGKILL)
                await asyncio.to_thread(server.start)
                await until(lambda: _enqueued(store, 1000))
                await until(lambda: _has_run(1000))
                assert await store.verify() == []


async def _enqueued(store: RedisStorage, number: int) -> bool:
    await store.enqueue(Task(JOB, (number,), id="after"))
    return True


async def _has_run(number: int) -> bool:
    return number in bodies.RUNS


async def test_connections_are_cut_during_a_drain(redis_url: str, namespace: str, tmp_path: Path) -> None:
    """F6: every connection of the worker, again and again."""
    async with Proxy(redis_url) as proxy, draining(redis_url, proxy.url, namespace) as store:
        for share in (0.1, 0.3, 0.5, 0.7):
            await until(lambda share=share: has_done(store, int(MANY * share)))  # type: ignore[misc]
            proxy.reset()
        await check_drained(store)


async def test_answers_are_cut_off_during_a_drain(redis_url: str, namespace: str, tmp_path: Path) -> None:
    """F9: the scripts ran, their answers were lost: every body runs once all the same."""
    async with Proxy(redis_url) as proxy, draining(redis_url, proxy.url, namespace) as store:
        for share in (0.1, 0.3, 0.5, 0.7):
            await until(lambda share=share: has_done(store, int(MANY * share)))  # type: ignore[misc]
            proxy.lose_answers("EVALSHA", 3)
        await check_drained(store)
        assert proxy.losses == 0
        assert set(bodies.RUNS.values()) == {1}


async def test_a_script_flush_and_killed_clients_during_a_drain() -> None:
    """On a server of its own: others would not like it."""
    with private() as server:
        async with wired(server.url) as wire, draining(server.url, server.url, "omniq") as store:
            for share in (0.1, 0.4, 0.7):
                await until(lambda share=share: has_done(store, int(MANY * share)))  # type: ignore[misc]
                await wire.call("SCRIPT", "FLUSH", "SYNC")
                await wire.call("CLIENT", "KILL", "TYPE", "PUBSUB")
                for number in await _clients(wire, b"omniq-work"):
                    await wire.call("CLIENT", "KILL", "ID", number)
            await check_drained(store)


async def _clients(wire: Wire, name: bytes) -> list[bytes]:
    lines = (await wire.call("CLIENT", "LIST")).splitlines()
    return [line.split()[0].removeprefix(b"id=") for line in lines if b"name=" + name in line]


async def test_a_call_that_connects_while_the_storage_is_closed_leaves_no_connection() -> None:
    with private() as server:
        async with wired(server.url) as wire:
            store = RedisStorage(server.url)
            await store.open()
            assert store._server is not None
            connections = store._server
            connections._drop()
            call = asyncio.create_task(store.get_task("anything"))
            await asyncio.sleep(0)
            assert connections._connecting.locked()
            await store.close()
            with pytest.raises(StoreUnavailable, match="was closed"):
                await call

            async def are_gone() -> bool:
                return not await _clients(wire, b"omniq-work")

            await until(are_gone)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is answered here is answered at once, so silence is noticed sooner than it should be elsewhere."""
    monkeypatch.setattr(wire_module, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(wire_module, "LATE_S", 0.2)
    monkeypatch.setattr(wire_module, "ANSWER_TIMEOUT_S", 1000.0)  # that is not what helps


async def half_open(network: Proxy) -> None:
    network.half_open()
    await blink(network)


async def black_hole(network: Proxy) -> None:
    network.silence()
    await blink(network)


async def dead_connections(network: Proxy) -> None:
    network.kill()


async def refused(network: Proxy) -> None:
    network.refuses = True
    network.reset()
    await blink(network)
    network.refuses = False


async def blink(network: Proxy) -> None:
    await asyncio.sleep(BLINK_S)
    network.heal()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", [half_open, black_hole, dead_connections, refused])
async def test_f5_work_goes_on_after_every_kind_of_cut(
    redis_url: str, namespace: str, fault: Callable[[Proxy], Awaitable[None]]
) -> None:
    """Also where no connection ends and nobody is told."""
    async with Proxy(redis_url) as network, draining(redis_url, network.url, namespace) as store:
        for share in (0.2, 0.6):
            await until(lambda share=share: has_done(store, int(MANY * share)))  # type: ignore[misc]
            await fault(network)
        await check_drained(store)


@pytest.mark.usefixtures("impatient")
async def test_a_server_that_is_only_slow_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is late, and a new connection gets none either: nobody gives up."""
    monkeypatch.setattr(address_module, "CONNECT_TIMEOUT_S", 0.3)
    with private(port=True) as server:
        async with RedisStorage(server.url) as store:
            await store.enqueue(Task(JOB, (1,)))
            assert store._server is not None
            before = store._server._wire
            os.kill(server.pid, signal.SIGSTOP)
            asking = asyncio.create_task(store.counts())
            await asyncio.sleep(1.0)
            os.kill(server.pid, signal.SIGCONT)
            assert (await asking)["default"][TaskStatus.PENDING] == 1
            assert store._server._wire is before


async def test_wake_ups_come_back(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store, store.clone() as producer:
        assert await store.claim("ann") == []
        listening = store._listening._wire
        assert listening is not None
        listening.close()
        # It looks once when it is back, for what it may have missed.
        assert await store.wait(30) is True
        assert await store.claim("ann") == []
        sleeper = asyncio.create_task(store.wait(30))
        await producer.enqueue(Task(JOB, (1,)))
        assert await sleeper is True
        assert len(await store.claim("ann")) == 1


async def test_a_result_is_told_after_the_connection_came_back(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store, store.clone() as waiter:
        task_id = await store.enqueue(Task(JOB, (1,)))
        waiting = asyncio.create_task(waiter.wait_result(task_id, 30))
        await until(lambda: _listens(waiter))
        assert waiter._listening._wire is not None
        waiter._listening._wire.close()
        [claimed] = await store.claim("ann")
        await store.settle([Settlement.success(claimed, store.serializer.dumps(7))])
        result = await waiting
        assert result is not None
        assert result.result == 7


async def _listens(store: RedisStorage) -> bool:
    return store._listening._wire is not None and store._listening._wire.is_open


async def test_without_wake_ups_a_wait_is_over_in_time(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await store.claim("ann")
        await store._listening.stop()
        assert await store.wait(0.05) is False


async def test_a_full_memory_refuses_new_tasks_and_lets_workers_make_room(tmp_path: Path) -> None:
    """F26: a clear error for the producer; what is there runs; then it goes on by itself."""
    with private({**NO_FILE, "maxmemory": "6mb", "maxmemory-policy": "noeviction"}) as server:
        async with RedisStorage(server.url, durability="relaxed") as store:
            store.keep_results(0.0, 0.0)
            sent = 0
            with pytest.raises(StoreUnavailable, match="memory is full"):
                while True:
                    await store.enqueue_many([Task(JOB, ("x" * 10_000,)) for _ in range(20)])
                    sent += 20
            assert (await counts(store))[TaskStatus.PENDING] == sent
            while claims := await store.claim("ann", limit=50):
                told = await store.settle([Settlement.success(one, b"\xc0") for one in claims])
                assert set(told) == {"held"}
                await store.prune()
            assert await store.enqueue(Task(JOB, (1,)))
            assert await store.verify() == []


async def test_a_replica_is_promoted(tmp_path: Path) -> None:
    """F26: the old primary is gone; the address leads to its replica, and the worker goes on there."""
    at_once = {**DURABLE, "repl-diskless-sync-delay": "0"}
    with private(at_once, port=True) as primary, private(port=True) as replica:
        async with wired(replica.url) as wire:
            await wire.call("REPLICAOF", "127.0.0.1", primary.port)
            await until(lambda: _is_linked(wire))
            async with (
                Proxy(primary.url) as proxy,
                draining(primary.url, proxy.url, "omniq") as store,
            ):
                await until(lambda: has_done(store, 50))
                await until(lambda: _has_everything(wire))
                await asyncio.to_thread(primary.stop, signal.SIGKILL)
                await wire.call("REPLICAOF", "NO", "ONE")
                proxy.lead_to(where(replica.url))
                proxy.reset()
                async with RedisStorage(replica.url) as survivor:
                    await until(lambda: has_done(survivor, MANY))
                    assert set(bodies.RUNS) == set(range(MANY))
                    assert await survivor.verify() == []


async def _is_linked(wire: Wire) -> bool:
    return b"master_link_status:up" in await wire.call("INFO", "replication")


async def _has_everything(wire: Wire) -> bool:
    """What was enqueued must be there; how far the drain is may differ: that is what a failover loses."""
    return int(await wire.call("HLEN", "{omniq}:body")) == MANY


# --- who is told what -----------------------------------------------------------------------------


async def test_a_zombie_that_reports_changes_nothing(redis_url: str, namespace: str) -> None:
    """F3: its lease ran out, another has the task: what it says is stale, also twice."""
    async with RedisStorage(redis_url, namespace=namespace) as store, store.clone() as other:
        await store.enqueue(Task(JOB, (1,)))
        [zombie] = await store.claim("ann", lease=0.05)
        await until(lambda: _lapsed(other))
        [claimed] = await other.claim("bob")
        for said in (
            Settlement.success(zombie, b"\xc0"),
            Settlement.failed(zombie, BOOM),
            Settlement.give_back(zombie),
        ):
            assert await store.settle([said, said]) == ["stale", "stale"]
        assert not await store.progress(zombie.id, zombie.epoch, 1)
        assert (await store.renew("ann", 30, [zombie])).lost == {zombie.id}  # type: ignore[list-item]
        assert await other.settle([Settlement.success(claimed, b"\xc0")]) == ["held"]
        assert await store.verify() == []


async def _lapsed(store: RedisStorage) -> bool:
    return await store.lapse() == 1


async def test_a_claim_repeated_while_the_first_is_under_way_gives_the_same(
    redis_url: str, namespace: str
) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store, store.clone() as other:
        await store.enqueue_many([Task(JOB, (number,)) for number in range(40)])
        claims = await asyncio.gather(
            *((store, other)[n % 2].claim("ann", limit=2, claim_id="c") for n in range(10))
        )
        assert len({tuple(task.id for task in one) for one in claims}) == 1
        assert len(await store.held("ann")) == 2


async def test_whoever_gives_up_on_an_answer_disturbs_nobody(redis_url: str, namespace: str) -> None:
    """Calls share a connection: a cancelled one leaves its answer to nobody, not to the next."""
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await store.enqueue_many([Task(JOB, (n,), id=f"t{n}") for n in range(50)])
        calls = [asyncio.create_task(store.get_task(f"t{n}")) for n in range(50)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        found = await asyncio.gather(*calls, return_exceptions=True)
        kept = [one.id for one in found if isinstance(one, Task)]
        assert kept == [f"t{n}" for n in range(1, 50, 2)]
        assert await store.verify() == []
