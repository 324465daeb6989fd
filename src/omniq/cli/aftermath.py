"""What becomes of the tasks of a worker process that is certainly gone."""

from __future__ import annotations

from omniq.storage.base import BaseStorage
from omniq.task import Held, Settlement


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
