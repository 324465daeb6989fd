"""How long failed tasks wait, seen from outside."""

from __future__ import annotations

from typing import Any

from omniq import Task
from omniq.testing import VirtualClock
from tests.worker.scene import Bodies, running, turns
from tests.worker.stores import Memory


async def delays_of_first_retries(bodies: Bodies, base: float, **options: Any) -> list[float]:
    """The seconds until the second run of twenty tasks that failed once, at the same moment."""
    clock = VirtualClock()

    async def body() -> None:
        raise ValueError

    async with Memory(clock=clock) as store:
        for _ in range(20):
            await store.enqueue(Task(bodies(body)))
        async with running(store, 20, clock=clock, base_retry_delay=base, **options):
            await turns()
        tasks = await store.list_tasks()
    return [(task.eta - clock.now()).total_seconds() for task in tasks if task.eta is not None]
