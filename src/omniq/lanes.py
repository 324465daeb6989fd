"""The calls of one worker to its storage that are under way, and what they hold until they are answered.

Knows nothing of what is told or taken: it counts slots, and rings when a call has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from msgspec import Struct

from omniq.task import Claim, Settlement

# Beside a call that is under way, another one has to be worth its commit: with fewer, it waits for the first.
LEAST_BESIDE: Final = 25


class Sent(Struct, eq=False):
    """One call: what ended, and what is asked for."""

    number: int
    settlements: list[Settlement]
    claim: Claim | None
    look: int = 0

    @property
    def slots(self) -> int:
        """Those of what it settles are taken until the answer, those that it asks for are from then on."""
        return max(len(self.settlements), 0 if self.claim is None else self.claim.limit)


class Lanes:
    """As many calls at once as the storage gains by, each of them for its share of the slots."""

    def __init__(self, gainful: int, slots: int, ended: Callable[[], None]) -> None:
        self._many = gainful if slots >= gainful * LEAST_BESIDE else 1
        self.share = -(-slots // self._many)
        self._tell_end = ended
        self._under_way: dict[asyncio.Task[None], Sent] = {}
        self._failed: list[tuple[Sent, BaseException]] = []

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    @property
    def full(self) -> bool:
        return len(self._under_way) >= self._many

    @property
    def slots(self) -> int:
        return sum(sent.slots for sent in self._under_way.values())

    @property
    def scarce_slots(self) -> int:
        return sum(sent.claim.scarce_limit for sent in self._under_way.values() if sent.claim is not None)

    @property
    def oldest(self) -> int | None:
        """The number of the first call that is not answered."""
        return min((sent.number for sent in self._under_way.values()), default=None)

    def send(self, sent: Sent, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(call, name="omniq-exchange")
        self._under_way[task] = sent
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        sent = self._under_way.pop(task)
        if task.cancelled():
            self._failed.append((sent, asyncio.CancelledError()))
        elif (exc := task.exception()) is not None:
            self._failed.append((sent, exc))
        self._tell_end()

    def take_failed(self) -> tuple[Sent, BaseException] | None:
        return self._failed.pop(0) if self._failed else None

    async def call_off(self) -> list[Settlement]:
        """End all of them; what they were to tell may not have been heard."""
        for task in self._under_way:
            task.cancel()
        while self._under_way:
            await asyncio.wait(self._under_way)
        return [one for sent, _ in self._failed for one in sent.settlements]
