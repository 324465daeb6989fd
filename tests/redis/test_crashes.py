"""Servers and machines that go away under load: a few times in `make test`, many times in `make soak`.

Judged by the ledger that producers and bodies write: nothing lost, nothing stuck, nothing FAILED, no run
beside another within a lease. In the long runs, which have the machine for themselves, work must also go on
within seconds of each repair.
"""

import asyncio
import random
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from omniq import AsyncWorkerPool, Task
from omniq.errors import StoreUnavailable
from omniq.storage.redis import RedisStorage
from omniq.storage.redis.wire import Wire
from tests.faults import machines
from tests.faults.judged import all_tasks, judge
from tests.faults.machines import FEW
from tests.faults.site import BACK_WITHIN_S, LEASE_S, PATIENCE_S, Site, eventually, quit_all
from tests.redis import bodies
from tests.redis.proxy import Proxy, where
from tests.redis.server import DURABLE, NO_FILE, Private, private
from tests.redis.stores import wired
from tests.redis.test_durability import EVERY_SECOND
from tests.redis.test_faults import JOB, SLOTS, has_done, until

soak = pytest.mark.soak
OFTEN = pytest.mark.bound(1800)
HEAP = 1000
AT_ONCE = {**DURABLE, "repl-diskless-sync-delay": "0"}


async def crash(server: Private) -> None:
    await asyncio.to_thread(server.stop, signal.SIGKILL)
    await asyncio.to_thread(server.start)


def pauses_s(times: int) -> list[float]:
    chance = random.Random(times)
    return [chance.uniform(0.05, 0.6) for _ in range(times)]


# --- the server ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [2, pytest.param(50, marks=[soak, OFTEN])])
@pytest.mark.parametrize("settings", [DURABLE, EVERY_SECOND], ids=["always", "everysec"])
async def test_f5_the_server_crashes_under_load(tmp_path: Path, settings: dict[str, str], times: int) -> None:
    with private(settings) as server, Site(tmp_path, server.url) as site:
        await machines.server_crashes_under_load(site, lambda: crash(server), pauses_s(times))


@pytest.mark.parametrize("times", [2, pytest.param(30, marks=[soak, OFTEN])])
async def test_f26_a_server_without_a_file_crashes_under_load(tmp_path: Path, times: int) -> None:
    """It comes back empty, as was told beforehand; everybody goes on, and what came later is all there."""
    with private(NO_FILE) as server, Site(tmp_path, server.url, durability="relaxed") as site:
        within_s = BACK_WITHIN_S if times > FEW else PATIENCE_S
        workers = [await site.started() for _ in range(2)]
        async with site.storage() as store:
            before: set[str] = set()
            async with site.steady(store):
                for pause_s in pauses_s(times):
                    await asyncio.sleep(pause_s)
                    await asyncio.to_thread(server.stop, signal.SIGKILL)
                    before = set(site.ledger.enqueued())
                    await asyncio.to_thread(server.start)
                    await site.back_at_work(store, within_s)
            await site.drained(store)
            await quit_all(workers)
            tasks = await judge(store, site.ledger, may_be_gone=before, lost_ends=True)
            assert set(tasks) >= set(site.ledger.enqueued()) - before != set()


@pytest.mark.parametrize("times", [1, pytest.param(25, marks=[soak, OFTEN])])
async def test_f9_the_server_crashes_while_the_dead_are_taken_back(times: int) -> None:
    """250 records whose lease is over: all of them run, and every chore of the worker goes on."""
    bodies.RUNS.clear()
    with private() as server:
        async with RedisStorage(server.url) as store:
            for round_ in range(times):
                numbers = range(250 * round_, 250 * (round_ + 1))
                await store.enqueue_many([Task(JOB, (number,), max_losses=99) for number in numbers])
                assert len(await store.claim(f"dead {round_}", limit=250, lease=0.001)) == 250
                lapsing = asyncio.create_task(store.lapse(250))
                if round_ % 2:
                    await asyncio.sleep(0.002)
                await crash(server)
                with suppress(StoreUnavailable):
                    await lapsing
                async with AsyncWorkerPool(store.clone(), concurrency=20, poll_interval=0.1, lease=LEASE_S):
                    await until(lambda done=numbers.stop: has_done(store, done))  # type: ignore[misc]
            assert set(bodies.RUNS) == set(range(250 * times))
            assert await store.verify() == []


# --- the network, and what people do to a server -------------------------------------------------------


async def reset(network: Proxy, server: Private) -> None:
    network.reset()


async def half_open(network: Proxy, server: Private) -> None:
    network.half_open()
    await asyncio.sleep(2)
    network.heal()


async def black_hole(network: Proxy, server: Private) -> None:
    network.silence()
    await asyncio.sleep(5)
    network.heal()


async def dead_connections(network: Proxy, server: Private) -> None:
    """Nobody repairs these: whoever has one must find out."""
    network.kill()


async def refused(network: Proxy, server: Private) -> None:
    network.refuses = True
    network.reset()
    await asyncio.sleep(2)
    network.refuses = False


async def lost_answers(network: Proxy, server: Private) -> None:
    network.lose_answers("EVALSHA", 10)
    await eventually(lambda: _all_lost(network), "ten answers were lost")


async def _all_lost(network: Proxy) -> bool:
    return network.losses == 0


async def stop_and_start(network: Proxy, server: Private) -> None:
    await asyncio.to_thread(server.stop, signal.SIGTERM)
    await asyncio.to_thread(server.start)


async def crash_and_start(network: Proxy, server: Private) -> None:
    await crash(server)


async def forgotten_scripts(network: Proxy, server: Private) -> None:
    async with wired(server.url) as wire:
        await wire.call("SCRIPT", "FLUSH", "SYNC")


async def killed_clients(network: Proxy, server: Private) -> None:
    async with wired(server.url) as wire:
        for kind in ("NORMAL", "PUBSUB"):
            await wire.call("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


FAULTS = (
    reset,
    half_open,
    black_hole,
    dead_connections,
    refused,
    lost_answers,
    stop_and_start,
    crash_and_start,
    forgotten_scripts,
    killed_clients,
)


@soak
@OFTEN
async def test_f5_four_rounds_of_every_fault(tmp_path: Path) -> None:
    """Under a steady load, on one server: back at work within five seconds of each, and nothing piles up.

    With a heap of tasks and enough slots, so that two calls are under way when it happens.
    """
    with private() as server:
        async with Proxy(server.url) as network:
            with Site(tmp_path, server.url) as site:
                worker = await site.started(network.url, concurrency=SLOTS)
                async with site.storage() as store:
                    async with site.steady(store):
                        for fault in FAULTS * 4:
                            await site.heap(store, HEAP)
                            await fault(network, server)
                            await site.back_at_work(store, within_s=BACK_WITHIN_S)
                            await site.caught_up(store)
                    await site.drained(store)
                    await quit_all([worker])
                    await judge(store, site.ledger, lease_s=LEASE_S)


# --- memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, pytest.param(15, marks=[soak, OFTEN])])
async def test_f26_memory_is_full_under_load(tmp_path: Path, times: int) -> None:
    """Producers are told so in clear words and workers go on; when there is room again, so does everybody."""
    settings = {**DURABLE, "maxmemory-policy": "noeviction"}
    with private(settings) as server, Site(tmp_path, server.url) as site:
        within_s = BACK_WITHIN_S if times > FEW else PATIENCE_S
        workers = [await site.started() for _ in range(2)]
        async with site.storage() as store, wired(server.url) as wire:
            async with site.steady(store):
                for _ in range(times):
                    waiting = [await site.put(store, "nap", 0.05) for _ in range(40)]
                    await wire.call("CONFIG", "SET", "maxmemory", 1)
                    with pytest.raises(StoreUnavailable, match="memory is full"):
                        await store.enqueue(Task(JOB, (1,)))
                    await site.ended(store, waiting)
                    await wire.call("CONFIG", "SET", "maxmemory", 0)
                    await site.back_at_work(store, within_s)
            await site.drained(store)
            await quit_all(workers)
            await judge(store, site.ledger, lease_s=LEASE_S)


# --- failover -----------------------------------------------------------------------------------------


async def _says(wire: Wire, what: bytes) -> bool:
    return what in await wire.call("INFO", "replication")


async def _offset(wire: Wire) -> int:
    """How far the history of its writes goes, whoever made them."""
    told = await wire.call("INFO", "replication")
    return int(re.findall(rb"master_repl_offset:(\d+)", told)[0])


@pytest.mark.parametrize("times", [1, pytest.param(12, marks=[soak, OFTEN])])
async def test_f26_replicas_are_promoted_under_load(tmp_path: Path, times: int) -> None:
    """What the replica had is all there and ends; what it had not may be gone, and nothing else."""
    within_s = BACK_WITHIN_S if times > FEW else PATIENCE_S
    with ExitStack() as servers:
        primary = servers.enter_context(private(AT_ONCE, port=True))
        async with Proxy(primary.url) as network:
            site = servers.enter_context(Site(tmp_path, network.url))
            worker = await site.started()
            may_be_gone: set[str] = set()
            async with site.storage() as store:
                async with site.steady(store):
                    for _ in range(times):
                        replica = servers.enter_context(private(AT_ONCE, port=True))
                        may_be_gone |= await fail_over(site, primary, replica)
                        network.lead_to(where(replica.url))
                        network.reset()
                        await site.back_at_work(store, within_s)
                        primary = replica
                await site.drained(store)
                await quit_all([worker])
                await judge(store, site.ledger, may_be_gone=may_be_gone, lost_ends=True)
                assert len(await all_tasks(store)) > len(may_be_gone)


async def fail_over(site: Site, primary: Private, replica: Private) -> set[str]:
    """The primary dies without a word, and its replica, which lags a little, takes over: what may be gone."""
    async with wired(replica.url) as wire, wired(primary.url) as other:
        await wire.call("REPLICAOF", "127.0.0.1", primary.port)
        await eventually(lambda: _says(wire, b"master_link_status:up"), "the replica follows")
        await asyncio.sleep(0.3)
        safe, offset = set(site.ledger.enqueued()), await _offset(other)
        await eventually(lambda: _has(wire, offset), "the replica has what was enqueued")
        await asyncio.to_thread(primary.stop, signal.SIGKILL)
        await wire.call("REPLICAOF", "NO", "ONE")
        return set(site.ledger.enqueued()) - safe


async def _has(wire: Wire, offset: int) -> bool:
    return await _offset(wire) >= offset


# --- machines -----------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, redis_url: str, namespace: str) -> Iterator[Site]:
    with Site(tmp_path, RedisStorage(redis_url, namespace=namespace).url) as site:
        yield site


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=[soak, OFTEN])])
async def test_a_machine_that_disappears_loses_nothing(
    site: Site, redis_url: str, namespace: str, times: int
) -> None:
    async with Proxy(redis_url) as network:
        through = RedisStorage(network.url, namespace=namespace).url
        await machines.machine_disappears(site, network, through, times)


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=[soak, OFTEN])])
async def test_a_zombie_that_reports_is_refused(site: Site, times: int) -> None:
    await machines.zombie_reports(site, times)


@pytest.mark.parametrize("many", [20, pytest.param(500, marks=[soak, OFTEN])])
async def test_two_hosts_whose_clocks_are_ten_minutes_apart(site: Site, many: int) -> None:
    await machines.clocks_ten_minutes_apart(site, many)


@pytest.mark.parametrize("restarts", [3, pytest.param(100, marks=[soak, OFTEN])])
async def test_rolling_restarts_run_nothing_twice(site: Site, restarts: int) -> None:
    await machines.rolling_restarts(site, restarts)
