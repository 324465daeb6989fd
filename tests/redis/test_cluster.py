"""A real Cluster of three nodes: everything of a namespace is in one slot, and a store finds who has it."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from omniq import AsyncWorkerPool, Task
from omniq.errors import StoreError, StoreUnavailable
from omniq.storage.redis import RedisStorage
from omniq.storage.redis.wire import Argument
from tests.faults.site import eventually
from tests.redis import bodies
from tests.redis.server import DURABLE, Private, _free_port, find_programs, private
from tests.redis.stores import wired
from tests.redis.test_faults import JOB, has_done, until

SLOTS = 16384


class Cluster:
    """Three nodes with a third of the slots each, and a replica of any of them on demand."""

    def __init__(self, servers: ExitStack, program: Path) -> None:
        self._servers, self._program = servers, program
        self.nodes: list[Private] = []

    def start_node(self) -> Private:
        settings = {
            **DURABLE,
            "cluster-enabled": "yes",
            "cluster-port": str(_free_port()),
            "cluster-node-timeout": "1000",
            "repl-diskless-sync-delay": "0",
        }
        node = self._servers.enter_context(private(settings, program=self._program, port=True))
        self.nodes.append(node)
        return node

    async def join(self, node: Private) -> None:
        first = self.nodes[0]
        await ask(node, "CLUSTER", "MEET", "127.0.0.1", first.port, int(first.settings["cluster-port"]))

    async def is_ready(self) -> bool:
        told = [await ask(node, "CLUSTER", "INFO") for node in self.nodes]
        known = b"cluster_known_nodes:%d\r" % len(self.nodes)
        return all(b"cluster_state:ok" in one and known in one for one in told)

    async def owner(self, namespace: str) -> Private:
        """Who has the slot of a namespace."""
        slot = await ask(self.nodes[0], "CLUSTER", "KEYSLOT", f"{{{namespace}}}:")
        return self.nodes[slot * 3 // SLOTS]

    def other(self, node: Private) -> Private:
        return next(one for one in self.nodes[:3] if one is not node)


async def ask(node: Private, *command: Argument) -> Any:
    async with wired(node.url) as wire:
        reply = await wire.call(*command)
    if isinstance(reply, Exception):
        raise reply
    return reply


@asynccontextmanager
async def cluster_of(program: Path) -> AsyncIterator[Cluster]:
    with ExitStack() as servers:
        cluster = Cluster(servers, program)
        for number in range(3):
            node = cluster.start_node()
            first, last = -(-SLOTS * number // 3), -(-SLOTS * (number + 1) // 3) - 1
            await ask(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
            if number:
                await cluster.join(node)
        await eventually(cluster.is_ready, "the nodes know each other")
        yield cluster


@pytest.mark.parametrize("program", find_programs(), ids=lambda program: program.parent.name)
async def test_a_store_finds_its_node_and_keeps_everything_there(program: Path) -> None:
    """Whichever node the address names: calls, wake-ups and results reach the one that has the slot."""
    bodies.RUNS.clear()
    async with cluster_of(program) as cluster:
        with pytest.raises(StoreError, match="no such database; write /0"):
            await RedisStorage(cluster.nodes[0].url.replace("/0", "/3")).open()
        owner = await cluster.owner("jobs")
        for node in cluster.nodes:
            async with RedisStorage(node.url, namespace="jobs") as store:
                async with AsyncWorkerPool(store.clone(), concurrency=5, poll_interval=30):
                    await store.enqueue_many([Task(JOB, (n,), unique_key=f"{n}") for n in range(50)])
                    result = await store.wait_result(await store.enqueue(Task(JOB, (1,))), 30)
                    assert result is not None
                assert await store.verify() == []
        sizes = {node.port: await ask(node, "DBSIZE") for node in cluster.nodes}
        assert [port for port, size in sizes.items() if size] == [owner.port]
        async with wired(owner.url) as wire:
            _, keys = await wire.call("SCAN", 0, "COUNT", 100_000)
            assert {await wire.call("CLUSTER", "KEYSLOT", key) for key in keys} == {
                await wire.call("CLUSTER", "KEYSLOT", "{jobs}:")
            }


async def test_a_slot_moves_to_another_node_under_load() -> None:
    """While its keys are on their way calls are refused, not answered by half of them; then work goes on."""
    bodies.RUNS.clear()
    async with cluster_of(find_programs()[0]) as cluster:
        source = await cluster.owner("jobs")
        target = cluster.other(source)
        ids = {node: (await ask(node, "CLUSTER", "MYID")) for node in (source, target)}
        slot = await ask(source, "CLUSTER", "KEYSLOT", "{jobs}:")
        async with RedisStorage(source.url, namespace="jobs") as store:
            await store.enqueue_many([Task(JOB, (n,)) for n in range(300)])
            async with AsyncWorkerPool(store.clone(), concurrency=5, poll_interval=0.2):
                await until(lambda: has_done(store, 50))
                await ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
                await ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
                with pytest.raises(StoreUnavailable, match="moving these keys"):
                    await store.enqueue(Task(JOB, (1,)))
                while keys := await ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
                    await ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "KEYS", *keys)
                for node in (target, source):
                    await ask(node, "CLUSTER", "SETSLOT", slot, "NODE", ids[target])
                await until(lambda: has_done(store, 300))
            assert set(bodies.RUNS) == set(range(300))
            assert await store.verify() == []
        assert await ask(source, "DBSIZE") == 0


async def test_the_node_that_has_the_slot_dies_and_its_replica_takes_over() -> None:
    """A store that was sent there asks the node that it was given who has the slot now."""
    bodies.RUNS.clear()
    async with cluster_of(find_programs()[0]) as cluster:
        owner = await cluster.owner("jobs")
        replica = cluster.start_node()
        await cluster.join(replica)
        await eventually(cluster.is_ready, "the replica is known")
        await ask(replica, "CLUSTER", "REPLICATE", await ask(owner, "CLUSTER", "MYID"))
        async with RedisStorage(cluster.other(owner).url, namespace="jobs") as store:
            await store.enqueue_many([Task(JOB, (n,)) for n in range(100)])
            await eventually(lambda: _has_keys(replica), "the replica has them")
            await asyncio.to_thread(owner.stop, signal.SIGKILL)
            async with AsyncWorkerPool(store.clone(), concurrency=5, poll_interval=0.2):
                await until(lambda: has_done(store, 100))
            assert set(bodies.RUNS) == set(range(100))
            assert await store.verify() == []


async def _has_keys(node: Private) -> bool:
    return bool(await ask(node, "DBSIZE")) and b"master_link_status:up" in await ask(
        node, "INFO", "replication"
    )
