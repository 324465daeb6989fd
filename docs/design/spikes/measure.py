"""What the spikes cost their server: processor time, which other work on the machine changes little.

For orientation. The time on the wall is longer: disk, sockets and the client come on top.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from stores import Got, PostgresSpike, RedisSpike

from omniq.task import Claim, Settlement, StoredTask

Say = Callable[[str, str], None]
Spike = PostgresSpike | RedisSpike
LOAD_BATCH, MANY, CLAIMS = 5_000, 50_000, 30


async def _cpu_ms(store: Spike) -> float:
    """Milliseconds that the server has computed for us: our backend, or the whole of Valkey's main thread."""
    pid = (
        await store.conn.fetchval("SELECT pg_backend_pid()")
        if isinstance(store, PostgresSpike)
        else (await store.client.info("server"))["process_id"]
    )
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def _tasks(number: int, prefix: str, **fields: Any) -> list[StoredTask]:
    return [StoredTask("m.f", b"x" * 60, id=f"{prefix}{i:07}", **fields) for i in range(number)]


async def _load(store: Spike, tasks: list[StoredTask]) -> None:
    for first in range(0, len(tasks), LOAD_BATCH):
        await store.enqueue_many(tasks[first : first + LOAD_BATCH])


async def drain(name: str, store: Spike, say: Say, number: int = 10_000, limit: int = 100) -> None:
    """Exchange after exchange with nothing around them."""
    await store.create()
    await _load(store, _tasks(number, "d"))
    claims: list[Got] = []
    done, began = 0, await _cpu_ms(store)
    while done < number:
        settlements = [Settlement.success(one, b"result") for one in claims]
        _, claims = await store.exchange(settlements, Claim("w", ("default",), limit, 30.0))
        done += len(settlements)
    spent = await _cpu_ms(store) - began
    say(name, f"drain of {number:,} by exchanges of {limit}: {spent * 1000 / number:.0f} us of server a task")


async def claim_beside(name: str, store: Spike, say: Say, what: str, **fields: Any) -> None:
    """A claim of 10 from all queues, without and with many tasks that cannot run."""
    await store.create()
    await store.pause("still", True)
    spent = {}
    for many in (0, MANY):
        await _load(store, _tasks(many, "many", **fields))
        await store.enqueue_many(_tasks(10 * CLAIMS, f"go{many}-"))
        began = await _cpu_ms(store)
        for _ in range(CLAIMS):
            _, got = await store.exchange([], Claim("w", None, 10, 30.0))
            assert len(got) == 10
        spent[many] = (await _cpu_ms(store) - began) / CLAIMS
    say(name, f"claim of 10 beside {MANY:,} {what}: {spent[MANY]:.2f} ms of server, alone {spent[0]:.2f}")


async def batch(name: str, store: Spike, say: Say, number: int, **fields: Any) -> None:
    await store.create()
    tasks = _tasks(number, "b", **fields)
    began = await _cpu_ms(store)
    await store.enqueue_many(tasks)
    say(name, f"enqueue_many of {number:,}: {await _cpu_ms(store) - began:,.0f} ms of server in one piece")


async def renewal(name: str, store: Spike, say: Say, number: int = 500, rounds: int = 10) -> None:
    await store.create()
    await _load(store, _tasks(number, "r"))
    await store.exchange([], Claim("w", ("default",), number, 30.0))
    began = await _cpu_ms(store)
    for _ in range(rounds):
        assert len(await store.renew("w", 30.0)) == number
    say(name, f"renew of {number} held tasks: {(await _cpu_ms(store) - began) / rounds:.1f} ms of server")


async def everything(name: str, store: Spike, say: Say) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for _ in range(2):
        await drain(name, store, say)
    await claim_beside(name, store, say, "of top priority due tomorrow", priority=9, eta=tomorrow)
    await claim_beside(name, store, say, "of top priority in a paused queue", priority=9, queue="still")
    await renewal(name, store, say)
    for number in (1_000, 10_000, 50_000):
        await batch(name, store, say, number)
