"""The raw limit of the Redis store: its own scripts, back to back, with nothing around them.

One connection, one call under way, each script with the arguments that the store gives it, made before the
clock starts where they do not depend on the answer before. No worker, no bodies, no records read as tasks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import Limit, Reached, address_in
from omniq import OmniQ
from omniq.serializer import MsgpackSerializer
from omniq.storage import MemoryStorage, RedisStorage
from omniq.storage.redis import claim_arguments, records
from omniq.storage.redis.address import Address
from omniq.storage.redis.scripts import Scripts
from omniq.storage.redis.wire import Argument, Wire
from omniq.task import Claim, Held, Settlement, StoredTask

FILL_CHUNK = 10_000
TOKEN = b"raw"
DAY_US = 86_400_000_000
HEAD = 5  # in front of the tasks, an exchange answers what it says of the call as a whole


class RawRedis(Limit):
    name = "raw-redis"
    store = "redis"
    server = "redis"
    promise = "the store's scripts alone, everything lost with the server"
    faces = ("blocking", "in-flight", "bulk")

    def drain(self, folder: Path, tasks: int, batch: int, limit_s: float, payload_bytes: int) -> Reached:
        return asyncio.run(_drain(address_in(folder), tasks, batch, limit_s, payload_bytes))

    def insert(self, folder: Path, tasks: int, batch: int, limit_s: float, payload_bytes: int) -> Reached:
        return asyncio.run(_insert(address_in(folder), tasks, batch, limit_s, payload_bytes))


def _tasks(count: int, payload_bytes: int) -> list[StoredTask]:
    call = OmniQ(MemoryStorage()).task(marks.mark).call
    return [call(marks.stamp(payload_bytes)).task for _ in range(count)]


async def _drain(url: str, tasks: int, batch: int, limit_s: float, payload_bytes: int) -> Reached:
    async with RedisStorage(url, durability="relaxed") as storage:
        for first in range(0, tasks, FILL_CHUNK):
            await storage.enqueue_many(_tasks(min(FILL_CHUNK, tasks - first), payload_bytes))
    scripts = await Loaded.at(url, "exchange")
    # Every task is run once, so what is said of its end is the same for all of them but for its id.
    end = Settlement.success(Held("", 1), MsgpackSerializer().dumps(None))
    _, head, result = records.settle_arguments([end])
    held: list[bytes] = []
    done = number = 0
    start, cpu_start = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < limit_s:
        said = [part for task_id in held for part in (task_id, head, result)]
        wish = claim_arguments(Claim("raw", None, batch, claim_id=f"{number:x}"))
        reply = await scripts.call(TOKEN, DAY_US, DAY_US, len(held), *said, *wish)
        assert not any(reply[0]), "a script refused what it had handed out"
        done, number, held = done + len(held), number + 1, reply[HEAD::3]
        if not held:
            break
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    scripts.wire.close()
    return Reached(done, seconds, cpu_s)


async def _insert(url: str, tasks: int, batch: int, limit_s: float, payload_bytes: int) -> Reached:
    scripts = await Loaded.at(url, "enqueue_one" if batch == 1 else "enqueue")
    waiting, done = _tasks(tasks, payload_bytes), 0
    calls = [_enqueue_arguments(waiting[first : first + batch]) for first in range(0, tasks, batch)]
    start, cpu_start = time.perf_counter(), time.process_time()
    for arguments in calls:
        await scripts.call(TOKEN, *arguments)
        done += batch
        if time.perf_counter() - start > limit_s:
            break
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    scripts.wire.close()
    return Reached(done, seconds, cpu_s)


def _enqueue_arguments(tasks: list[StoredTask]) -> Sequence[Argument]:
    """As the store has them: a single task goes the short way."""
    return records.enqueue_one_arguments(tasks) or ("skip", *records.enqueue_arguments(tasks))


class Loaded:
    """One script on one connection."""

    def __init__(self, wire: Wire, prefix: bytes, sha: bytes) -> None:
        self.wire, self._prefix, self._sha = wire, prefix, sha

    @classmethod
    async def at(cls, url: str, name: str) -> Loaded:
        address = Address(url, None)
        wire = await address.connect("raw")
        return cls(wire, address.prefix, await wire.call("SCRIPT", "LOAD", Scripts()[name].text))

    async def call(self, *arguments: Argument) -> Any:
        reply = await self.wire.call(b"EVALSHA", self._sha, 1, self._prefix, *arguments)
        if isinstance(reply, Exception):
            raise reply
        return reply
