"""What becomes of the tasks of a worker process that is certainly gone."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from loguru import logger

from omniq.errors import Conflict, NotFound, OmniqError
from omniq.storage.base import BaseStorage
from omniq.task import Held, Settlement, Task, TaskStatus

# A suspect that runs longer than this no longer holds up the next one.
ALONE_FOR_S: Final = 2.0
# If we die meanwhile, the suspects come up by themselves, one after the other.
HOLD_S: Final = 60.0
LOOK_EVERY_S: Final = 0.02


async def release(storage: BaseStorage, identity: str) -> list[Held]:
    """Its process died: what it ran was lost, and can run again at once. Says what that was."""
    held = await storage.held(identity)
    await storage.release(identity)
    await storage.leave(identity)
    return held


async def give_back(storage: BaseStorage, identity: str) -> list[Held]:
    """We killed it because it would not stop: nothing is spent for that."""
    held = await storage.held(identity)
    if held:
        await storage.settle([Settlement.give_back(one) for one in held])
    await storage.leave(identity)
    return held


class Quarantine:
    """Tasks that died together more than once, let out one at a time.

    One of them may be what kills the processes. Started together again, it would take the others along to
    `poison`; so those with one chance left wait here until the one before them has ended.
    """

    def __init__(self, is_served: Callable[[], bool]) -> None:
        self._is_served = is_served
        self._waiting: deque[tuple[BaseStorage, Task]] = deque()
        self._arrived = asyncio.Event()

    async def admit(self, storage: BaseStorage, held: list[Held]) -> None:
        """Keep back those of `held`, just released, that would not survive another death."""
        if len(held) < 2:
            return
        tasks = await asyncio.gather(*(storage.get_task(one.id) for one in held))
        suspects = [task for task in tasks if task is not None and _has_one_chance_left(task)]
        if suspects:
            logger.warning("{} tasks have one chance left; they run one at a time", len(suspects))
            free_at = datetime.now(UTC) + timedelta(seconds=HOLD_S)
            moments = (free_at + timedelta(seconds=n * ALONE_FOR_S) for n in range(len(suspects)))
            await asyncio.gather(*(_reschedule(storage, *one) for one in zip(suspects, moments, strict=True)))
            self._waiting += [(storage, task) for task in suspects]
            self._arrived.set()

    async def run(self) -> None:
        """Let them out, until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                if self._is_served():
                    await self._let_out(*self._waiting.popleft())
                await asyncio.sleep(LOOK_EVERY_S)

    async def _let_out(self, storage: BaseStorage, suspect: Task) -> None:
        try:
            await _reschedule(storage, suspect, datetime.now(UTC))
            await self._until_over(storage, suspect)
        except OmniqError as exc:
            logger.error("cannot let task {} run: {}", suspect.id, exc)

    async def _until_over(self, storage: BaseStorage, suspect: Task) -> None:
        give_up_at = time.monotonic() + ALONE_FOR_S
        while time.monotonic() < give_up_at:
            task = await storage.get_task(suspect.id)
            waits = task is not None and task.status is TaskStatus.PENDING and task.epoch == suspect.epoch
            if task is None or not (waits or task.status is TaskStatus.RUNNING):
                return
            await asyncio.sleep(LOOK_EVERY_S)


def _has_one_chance_left(task: Task) -> bool:
    return task.status is TaskStatus.PENDING and task.losses + 1 >= task.max_losses


async def _reschedule(storage: BaseStorage, task: Task, eta: datetime) -> None:
    try:
        await storage.reschedule(task.id, eta)
    except (Conflict, NotFound):
        return  # somebody runs, cancelled or deleted it already
