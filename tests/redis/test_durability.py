"""Durability is told, not assumed: what a server does with its data decides whether it may keep tasks."""

import asyncio
import os
import re
import signal

import pytest
from loguru import logger

from omniq import AsyncWorkerPool, Task
from omniq.errors import StoreUnavailable, Unsupported
from omniq.storage.redis import RedisStorage
from omniq.storage.redis.address import Address
from omniq.storage.redis.connections import Disk
from omniq.storage.redis.durability import Durability, Facts, Verdict, decide, life_of
from tests.redis import bodies
from tests.redis.server import NO_FILE, private
from tests.redis.stores import wired
from tests.redis.test_faults import JOB as COUNTING
from tests.redis.test_faults import has_done, until

JOB = "jobs.a"
EVERY_SECOND = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
GOOD = {"version": (7, 2), "policy": "noeviction", "aof": True, "appendfsync": "always"}


@pytest.mark.parametrize(
    ("facts", "durability", "waits"),
    [
        ({}, "fsync", False),
        ({"appendfsync": "everysec"}, "fsync", True),
        ({"appendfsync": None}, "fsync", True),  # a managed server that does not say
        ({"appendfsync": "everysec"}, "relaxed", False),
        ({"aof": False}, "relaxed", False),
        ({"appendfsync": "no"}, "relaxed", False),
        ({"version": (7, 0)}, "fsync", False),
    ],
)
def test_what_is_enough(facts: dict[str, object], durability: Durability, waits: bool) -> None:
    assert decide(Facts(**{**GOOD, **facts}), durability, "here").waits is waits  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "durability", "told"),
    [
        ({"aof": False}, "fsync", "appendonly yes"),
        ({"appendfsync": "no"}, "fsync", "appendfsync always"),
        ({"appendfsync": "everysec", "version": (7, 0)}, "fsync", "appendfsync always"),  # no WAITAOF there
        ({"version": (6, 2)}, "relaxed", "7.0 or newer"),
        *(
            ({"policy": policy}, durability, "noeviction")
            for policy in ("allkeys-lru", "volatile-ttl", "allkeys-random", "unknown")
            for durability in ("fsync", "relaxed")
        ),
    ],
)
def test_what_is_refused_says_what_to_set(
    facts: dict[str, object], durability: Durability, told: str
) -> None:
    with pytest.raises(Unsupported, match=told):
        decide(Facts(**{**GOOD, **facts}), durability, "here")  # type: ignore[arg-type]


def test_the_best_server_needs_no_word() -> None:
    assert decide(Facts(**GOOD), "fsync", "here") == Verdict(False, None)  # type: ignore[arg-type]
    assert decide(Facts(**GOOD), "relaxed", "here") == Verdict(False, None)  # type: ignore[arg-type]


async def test_a_server_without_a_file_is_refused_unless_relaxed_which_says_so() -> None:
    lines: list[str] = []
    with private(NO_FILE) as server:
        with pytest.raises(Unsupported, match="durability='relaxed'"):
            await RedisStorage(server.url).open()
        sink = logger.add(lambda line: lines.append(str(line)), level="WARNING")
        try:
            async with RedisStorage(server.url, durability="relaxed") as store:
                await store.enqueue(Task(JOB))
        finally:
            logger.remove(sink)
        async with wired(server.url) as wire:
            await wire.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        with pytest.raises(Unsupported, match="noeviction"):
            await RedisStorage(server.url, durability="relaxed").open()
    [told] = [line for line in lines if "append-only" in line]
    assert "lost" in told


async def test_a_setting_that_changed_is_noticed_at_the_next_connection() -> None:
    """After a failover it may be another server, with other settings."""
    with private() as server:
        async with RedisStorage(server.url) as store, wired(server.url) as wire:
            await store.enqueue(Task(JOB))
            await wire.call("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
            assert store._server is not None
            assert store._server._wire is not None
            store._server._wire.close()
            with pytest.raises(Unsupported, match="noeviction"):
                await store.enqueue(Task(JOB))


async def test_where_the_file_is_synced_once_a_second_writes_wait_for_it_together() -> None:
    """WAITAOF: what returned is on disk when the server is killed right after; waits are shared."""
    with private(EVERY_SECOND) as server:
        async with RedisStorage(server.url) as store:
            await asyncio.gather(*(store.enqueue(Task(JOB, (n,))) for n in range(100)))
            async with wired(server.url) as wire:
                [waits] = re.findall(rb"cmdstat_waitaof:calls=(\d+)", await wire.call("INFO", "commandstats"))
            assert 1 <= int(waits) <= 10  # one after the other it would be a hundred
            await asyncio.to_thread(server.stop, signal.SIGKILL)
            await asyncio.to_thread(server.start)
            assert len(await store.list_tasks(limit=1000)) == 100
            assert await store.verify() == []


async def life_at(url: str) -> str:
    async with wired(url) as wire:
        return await life_of(wire)


async def test_another_server_never_answers_for_the_disk_of_the_one_that_was_written_to() -> None:
    """Between a write and the wait for its disk the server went away and the address leads to another, or it
    was started again: it may have forgotten the write, so nobody is told that it is safe."""
    with private(EVERY_SECOND, port=True) as old, private(EVERY_SECOND, port=True) as new:
        address = Address(old.url, "lives")
        disk = Disk(address)
        try:
            life = await life_at(old.url)
            await disk.has_it(life)
            await asyncio.to_thread(old.stop, signal.SIGKILL)
            address.move_to(address.host, new.port)
            assert disk._wire is not None
            await disk._wire.lost.wait()
            with pytest.raises(StoreUnavailable, match="may be lost"):
                await disk.has_it(life)
            life = await life_at(new.url)
            await disk.has_it(life)
            await asyncio.to_thread(new.stop, signal.SIGKILL)
            await asyncio.to_thread(new.start)
            await disk._wire.lost.wait()
            with pytest.raises(StoreUnavailable, match="may be lost"):
                await disk.has_it(life)
        finally:
            await disk.stop()


async def test_the_disk_is_waited_for_also_where_memory_is_full() -> None:
    """F26: settlements go on then. A mark that is refused would have nothing to wait for."""
    with private(EVERY_SECOND) as server:
        disk = Disk(Address(server.url, "full"))
        try:
            async with wired(server.url) as wire:
                life = await life_of(wire)
                await wire.call("CONFIG", "SET", "maxmemory", 1)
                await disk.has_it(life)
                assert await wire.call("EXISTS", "{full}:disk") == 1
        finally:
            await disk.stop()


async def test_a_file_that_is_switched_off_stops_nobody_for_good() -> None:
    """Whoever works meanwhile waits, as in every outage, and goes on once there is a file again."""
    bodies.RUNS.clear()
    with private(EVERY_SECOND) as server:
        async with RedisStorage(server.url) as store, wired(server.url) as wire:
            await store.enqueue_many([Task(COUNTING, (n,)) for n in range(5)])
            assert await wire.call("CONFIG", "SET", "appendonly", "no") == b"OK"
            with pytest.raises(StoreUnavailable, match="set appendonly yes"):
                await store.enqueue(Task(COUNTING, (5,), id="five"))
            async with AsyncWorkerPool(store, concurrency=5, poll_interval=0.1):
                await asyncio.sleep(0.3)
                assert await wire.call("CONFIG", "SET", "appendonly", "yes") == b"OK"
                await store.enqueue(Task(COUNTING, (5,), id="five"))
                await until(lambda: has_done(store, 6))
            assert sorted(bodies.RUNS) == list(range(6))


async def test_after_a_failover_the_disk_of_the_new_primary_is_waited_for() -> None:
    with private(EVERY_SECOND, port=True) as old, private(EVERY_SECOND, port=True) as new:
        address = Address(old.url, "moved")
        disk = Disk(address)
        try:
            life = await life_at(old.url)
            await disk.has_it(life)
            async with wired(old.url) as wire:
                await wire.call("REPLICAOF", "127.0.0.1", new.port)
            address.move_to(address.host, new.port)
            with pytest.raises(StoreUnavailable, match="replica"):
                await disk.has_it(life)
            await disk.has_it(await life_at(new.url))
            async with wired(new.url) as wire:
                assert await wire.call("EXISTS", "{moved}:disk") == 1
        finally:
            await disk.stop()


@pytest.mark.parametrize("how", ["cut", "stopped"])
async def test_whoever_waits_for_a_disk_that_is_gone_is_told_so(how: str) -> None:
    """The next connection may lead to a server that has forgotten the last second."""
    with private(EVERY_SECOND) as server:
        disk, life = Disk(Address(server.url, "cut")), await life_at(server.url)
        try:
            await disk.has_it(life)
            os.kill(server.pid, signal.SIGSTOP)
            first = asyncio.create_task(disk.has_it(life))
            await asyncio.sleep(0.01)
            second = asyncio.create_task(disk.has_it(life))
            await asyncio.sleep(0.01)
            assert disk._wire is not None
            if how == "cut":
                disk._wire.close()
            else:
                await disk.stop()
            os.kill(server.pid, signal.SIGCONT)
            async with asyncio.timeout(30):
                told = await asyncio.gather(first, second, return_exceptions=True)
            assert [type(one) for one in told] == [StoreUnavailable, StoreUnavailable]
        finally:
            await disk.stop()


async def test_nobody_waits_for_the_disk_of_a_closed_store() -> None:
    """A write whose answer came just before the close; a new connection would stay open for ever."""
    with private(EVERY_SECOND) as server:
        disk = Disk(Address(server.url, "closed"))
        await disk.stop()
        with pytest.raises(StoreUnavailable, match="closed"):
            await disk.has_it("any")
        assert disk._wire is None
