"""What becomes of the tasks of a worker process that is certainly gone."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from omniq.errors import Conflict, NotFound
from omniq.storage.base import BaseStorage
from omniq.task import Held, Settlement, Task, TaskStatus

# Far enough apart for most tasks to have ended before the next one starts.
APART_S: Final = 0.05


async def release(storage: BaseStorage, identity: str) -> int:
    """Its process died: what it ran was lost, and can run again at once. How many tasks that were."""
    held = await storage.held(identity)
    released = await storage.release(identity)
    await storage.leave(identity)
    if len(held) > 1:
        await _separate(storage, held)
    return released


async def give_back(storage: BaseStorage, identity: str) -> int:
    """We killed it because it would not stop: nothing is spent for that."""
    held = await storage.held(identity)
    if held:
        await storage.settle([Settlement.give_back(one) for one in held])
    await storage.leave(identity)
    return len(held)


async def _separate(storage: BaseStorage, held: list[Held]) -> None:
    """One of them may have killed the process. Those with one chance left start one by one.

    Started together again, a task that kills its worker would take its neighbours along to `poison`.
    """
    tasks = await asyncio.gather(*(storage.get_task(one.id) for one in held))
    suspects = [task for task in tasks if task is not None and _has_one_chance_left(task)]
    later = (_delay(storage, task, place * APART_S) for place, task in enumerate(suspects))
    await asyncio.gather(*later)


def _has_one_chance_left(task: Task) -> bool:
    return task.status is TaskStatus.PENDING and task.losses + 1 >= task.max_losses


async def _delay(storage: BaseStorage, task: Task, delay_s: float) -> None:
    assert task.eta is not None, "a lost task has one"
    try:
        await storage.reschedule(task.id, task.eta + timedelta(seconds=delay_s))
    except (Conflict, NotFound):
        return  # somebody runs, cancelled or deleted it already
