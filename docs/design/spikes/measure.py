"""Timings of the spike: for orientation only, on whatever machine this is, with one client."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from statistics import median
from time import perf_counter
from typing import Any

from stores import Got, PostgresSpike, RedisSpike

from omniq.task import Claim, Settlement, StoredTask

Say = Callable[[str, str], None]
Spike = PostgresSpike | RedisSpike
LOAD_BATCH, MANY = 5_000, 50_000


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
    done, began = 0, perf_counter()
    while done < number:
        settlements = [Settlement.success(one, b"result") for one in claims]
        _, claims = await store.exchange(settlements, Claim("w", ("default",), limit, 30.0))
        done += len(settlements)
    say(name, f"drain of {number:,} by exchanges of {limit}: {number / (perf_counter() - began):,.0f} tasks/s")


async def claim_beside(name: str, store: Spike, say: Say, what: str, **fields: Any) -> None:
    """The time of a claim of 10, without and with many tasks that cannot run."""
    await store.create()
    await store.pause("still", True)
    times = {}
    for many in (0, MANY):
        await _load(store, _tasks(many, "many", **fields))
        await store.enqueue_many(_tasks(300, f"go{many}-"))
        spent = []
        for _ in range(30):
            began = perf_counter()
            _, got = await store.exchange([], Claim("w", None, 10, 30.0))
            spent.append(perf_counter() - began)
            assert len(got) == 10
        times[many] = median(spent) * 1000
    say(name, f"claim of 10 beside {MANY:,} {what}: {times[MANY]:.2f} ms, alone {times[0]:.2f} ms")


async def big_batch(name: str, store: Spike, say: Say, number: int) -> None:
    await store.create()
    batch = _tasks(number, "b")
    began = perf_counter()
    await store.enqueue_many(batch)
    say(name, f"enqueue_many of {number:,}: {perf_counter() - began:.2f} s")


async def renew_many(name: str, store: Spike, say: Say, number: int = 500) -> None:
    await store.create()
    await _load(store, _tasks(number, "r"))
    await store.exchange([], Claim("w", ("default",), number, 30.0))
    spent = []
    for _ in range(20):
        began = perf_counter()
        assert len(await store.renew("w", 30.0)) == number
        spent.append(perf_counter() - began)
    say(name, f"renew of {number} held tasks: {median(spent) * 1000:.1f} ms")


async def everything(name: str, store: Spike, say: Say) -> None:
    await drain(name, store, say)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    await claim_beside(name, store, say, "of top priority due tomorrow", priority=9, eta=tomorrow)
    await claim_beside(name, store, say, "of top priority in a paused queue", priority=9, queue="still")
    await renew_many(name, store, say)
    for number in (1_000, 10_000, 50_000):
        await big_batch(name, store, say, number)

