"""The long versions of test_pool_faults.py. Only `make soak` runs them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from omniq.errors import WorkerDied
from omniq.pool import WorkerPool
from tests.pool import bodies
from tests.pool.test_pool_faults import cycles, killing, resized, survive_kills

pytestmark = [pytest.mark.soak]


@pytest.mark.bound(900)
async def test_a_thousand_kills_with_every_call_accounted_for() -> None:
    chance, ends = random.Random(3), Counter[str]()
    given = 0

    async def call(pool: WorkerPool, n: int) -> None:
        try:
            value: Any = await pool.options(retries=n % 3).submit(bodies.nap, chance.choice([0, 0.001, 0.01]))
        except WorkerDied:
            ends["died"] += 1
        else:
            assert isinstance(value, int | float)
            ends["returned"] += 1

    # Workers that first have to import the bodies are mostly killed before they have done anything, and the
    # pauses between those add up to a quarter of an hour.
    new = WorkerPool(2, 4, preload=[bodies.__name__])
    async with new as pool, killing(pool, 0.02, chance) as killed:
        while len(killed) < 1000:
            batch = 50
            given += batch
            await asyncio.gather(*(call(pool, n) for n in range(batch)))
        assert pool.calls() == []
    assert sum(ends.values()) == given
    assert ends["returned"] > 0 and ends["died"] > 0


@pytest.mark.bound(900)
async def test_d1_in_full() -> None:
    await survive_kills(items=10_000, kills=200, every_s=0.2, seed=2)


@pytest.mark.bound(900)
async def test_five_hundred_cycles_leave_nothing_behind() -> None:
    await cycles(500)


@pytest.mark.bound(300)
async def test_a_minute_of_resizing() -> None:
    await resized(seconds=60.0, items=200)
