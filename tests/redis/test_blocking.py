"""Enqueueing by a caller that blocks has a connection of its own: it breaks and comes back like the other."""

import asyncio
import signal

import pytest

from omniq import Task
from omniq.errors import BlockingCallInHandler, StoreUnavailable, Unsupported
from omniq.storage.redis import RedisStorage
from tests.redis.proxy import Proxy
from tests.redis.server import DURABLE, private
from tests.redis.stores import wired
from tests.redis.test_durability import EVERY_SECOND

JOB = "jobs.a"


async def put(store: RedisStorage, task: Task) -> str:
    [enqueued] = await asyncio.to_thread(store.enqueue_here, [task])
    return enqueued


async def test_whoever_sleeps_in_the_same_process_is_woken(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        assert await store.claim("ann") == []
        sleeper = asyncio.create_task(store.wait(30))
        await put(store, Task(JOB))
        assert await sleeper is True
        assert len(await store.claim("ann")) == 1


async def test_an_answer_that_was_lost_may_be_asked_for_again(redis_url: str, namespace: str) -> None:
    async with Proxy(redis_url) as network, RedisStorage(network.url, namespace=namespace) as store:
        task = Task(JOB, (1,))
        await put(store, Task(JOB, (0,)))
        network.lose_answers("EVALSHA", 3)
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await put(store, task)
        assert await put(store, task) == task.id
        assert len(await store.list_tasks()) == 2


async def test_a_server_that_came_back_without_its_scripts() -> None:
    with private() as server:
        async with RedisStorage(server.url) as store:
            await put(store, Task(JOB))
            await asyncio.to_thread(server.stop, signal.SIGKILL)
            with pytest.raises(StoreUnavailable):
                await put(store, Task(JOB))
            await asyncio.to_thread(server.start)
            await put(store, Task(JOB))
            assert len(await store.list_tasks()) == 2


async def test_another_connection_examines_the_server_again() -> None:
    with private() as server:
        async with RedisStorage(server.url) as store, wired(server.url) as wire:
            await put(store, Task(JOB))
            await wire.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            await wire.call("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "yes")
            with pytest.raises(StoreUnavailable):
                await put(store, Task(JOB))
            with pytest.raises(Unsupported, match="noeviction"):
                await put(store, Task(JOB))


async def test_where_the_disk_is_waited_for_blocking_callers_wait_too() -> None:
    with private(EVERY_SECOND) as server:
        async with RedisStorage(server.url) as store, wired(server.url) as wire:
            await asyncio.gather(*(put(store, Task(JOB)) for _ in range(5)))
            assert b"cmdstat_waitaof" in await wire.call("INFO", "commandstats")
            assert len(await store.list_tasks()) == 5


async def test_a_connection_that_died_without_a_word_is_left(redis_url: str, namespace: str) -> None:
    async with Proxy(redis_url) as network, RedisStorage(network.url, namespace=namespace) as store:
        task = Task(JOB)
        await put(store, Task(JOB))
        network.kill(b"omniq-blocking")
        with pytest.raises(StoreUnavailable):
            await put(store, task)
        assert await put(store, task) == task.id


async def test_a_server_that_syncs_less_than_the_one_before_is_waited_for() -> None:
    """The loop has not met it yet: whoever blocks sees it first, and must not trust what was true before."""
    with private(DURABLE) as server:
        async with RedisStorage(server.url) as store, wired(server.url) as wire:
            await put(store, Task(JOB))
            await wire.call("CONFIG", "SET", "appendfsync", "everysec")
            await wire.call("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "yes")
            with pytest.raises(StoreUnavailable):
                await put(store, Task(JOB))
            await put(store, Task(JOB))
            assert b"cmdstat_waitaof" in await wire.call("INFO", "commandstats")


async def test_a_handler_that_interrupted_a_call_is_refused(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await put(store, Task(JOB))
        blocking = store._blocking
        assert blocking is not None
        blocking._is_calling = True  # this thread is in the middle of one
        with pytest.raises(BlockingCallInHandler, match="set a flag"):
            store.enqueue_here([Task(JOB)])
        blocking._is_calling = False
        await put(store, Task(JOB))


async def test_nothing_is_written_after_the_close(redis_url: str, namespace: str) -> None:
    async with RedisStorage(redis_url, namespace=namespace) as store:
        await put(store, Task(JOB))
        blocking, server = store._blocking, store._server
    assert blocking is not None and server is not None
    with pytest.raises(StoreUnavailable, match="closed"):
        blocking.write(server.script("enqueue"))
