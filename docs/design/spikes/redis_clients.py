"""What a Redis client costs the worker's process: the store's own exchange of 100 tasks.

    python docs/design/spikes/redis_clients.py unix:///run/valkey.sock redis://127.0.0.1:6379 [rounds]

Both addresses lead to the same empty server, which is flushed. Prints for each client, alternating over the
rounds, microseconds of this process's CPU per task, and tasks per second with one and two calls under way.
Needs `redis`, `hiredis` and `valkey-glide`, which knows no unix sockets.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from omniq import Task
from omniq.storage.redis import RedisStorage
from omniq.storage.redis.address import Address
from omniq.storage.redis.scripts import Scripts

BATCH = 100
CALLS = 60
SCRIPT = Scripts()["exchange"]
Call = Callable[[list[bytes]], Awaitable[Any]]
HEAD = [b"token", b"1000", b"1000"]


def wish(number: int) -> list[bytes]:
    return [b"ann", b"c%d" % number, b"%d" % BATCH, b"30000000", b"0", b"0", b"0", b"1", b"default"]


async def drain(call: Call, lanes: int) -> None:
    """Claim and give success, as a worker does; the answers are decoded by the client only."""
    numbers = iter(range(CALLS))

    async def lane() -> None:
        said: list[bytes] = [b"0"]
        for number in numbers:
            reply = await call([*HEAD, *said, *wish(number)])
            ids = reply[5::3]
            said = [b"%d" % len(ids)]
            for task_id in ids:
                said += [bytes(task_id), b"\x3f\xf0" + bytes(15) + b"\0\0\0\1", b"\xc0"]
                # epoch 1 as a double, action 0, delay 0.0, one byte of result
        await call([*HEAD, *said])

    await asyncio.gather(*(lane() for _ in range(lanes)))


async def own(address: Address) -> tuple[Call, Callable[[], Awaitable[None]]]:
    wire = await address.connect("spike")
    await wire.call("SCRIPT", "LOAD", SCRIPT.text)

    async def call(arguments: list[bytes]) -> Any:
        return await wire.call(b"EVALSHA", SCRIPT.sha, 1, address.prefix, *arguments)

    async def close() -> None:
        wire.close()
        await wire.lost.wait()

    return call, close


async def redis_py(address: Address) -> tuple[Call, Callable[[], Awaitable[None]]]:
    import redis.asyncio

    client = redis.asyncio.Redis(unix_socket_path=address.path)

    async def call(arguments: list[bytes]) -> Any:
        return await client.evalsha(SCRIPT.sha, 1, address.prefix, *arguments)  # type: ignore[misc]

    return call, client.aclose


async def glide(address: Address) -> tuple[Call, Callable[[], Awaitable[None]]]:
    import glide

    config = glide.GlideClientConfiguration([glide.NodeAddress(address.host, address.port)])
    client = await glide.GlideClient.create(config)

    async def call(arguments: list[bytes]) -> Any:
        return await client.custom_command(
            [b"EVALSHA", SCRIPT.sha.encode(), b"1", address.prefix, *arguments]
        )

    return call, client.close


async def one(url: str, tcp: str, client: Any, lanes: int) -> tuple[float, float]:
    address = Address(tcp if client is glide else url, "spike")
    async with RedisStorage(url, namespace="spike", durability="relaxed") as store:
        await store.enqueue_many([Task("jobs.a", (n,)) for n in range(BATCH * CALLS)])
        call, close = await client(address)
        cpu, wall = time.process_time(), time.perf_counter()
        await drain(call, lanes)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        await close()
        store.keep_results(0, 0)
        left = await store.counts()
        assert left["default"]["SUCCESS"] == BATCH * CALLS, left
        while await store.prune(10_000):
            pass
        wire = await address.connect("spike")
        await wire.call("FLUSHDB")
        wire.close()
    return 1e6 * cpu / (BATCH * CALLS), BATCH * CALLS / wall


def main(url: str, tcp: str, rounds: int) -> None:
    seen: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for client in (own, redis_py, glide):
            for lanes in (1, 2):
                seen.setdefault((client.__name__, lanes), []).append(
                    asyncio.run(one(url, tcp, client, lanes))
                )
    for (name, lanes), figures in seen.items():
        cpu, rate = zip(*figures, strict=True)
        print(
            f"{name:9} {lanes} under way: "
            f"CPU {statistics.median(cpu):5.1f} us/task ({min(cpu):.1f}-{max(cpu):.1f}), "
            f"{statistics.median(rate):7,.0f} tasks/s ({min(rate):,.0f}-{max(rate):,.0f})"
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 5)
