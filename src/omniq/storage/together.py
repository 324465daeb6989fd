"""Enqueues that come while another is under way go with the next one: one round trip and commit for all.

    enqueue ──> nothing under way: sent at once
            └─> otherwise it waits ──> all that wait are sent together, as soon as the one before is back

Nothing waits for a timer, and nobody for long: one that is held up, such as by a lock that somebody's
transaction has, lets the others pass. What one is refused for concerns no other: then each is sent by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import groupby
from typing import Final

from msgspec import Struct

from omniq.errors import StoreUnavailable
from omniq.task import Enqueued, OnConflict, StoredTask

Send = Callable[[list[StoredTask], OnConflict], Awaitable[list[Enqueued]]]

# A call with more is worth a round trip of its own, and nobody should wait for it.
MOST_TASKS_OF_ONE: Final = 20
MOST_BYTES_OF_ONE: Final = 1 << 16
MOST_CALLS: Final = 200
HELD_UP_S: Final = 0.05


class _Call(Struct, eq=False):
    tasks: list[StoredTask]
    on_conflict: OnConflict
    placed: asyncio.Future[list[Enqueued]]


class Together:
    """The enqueues of one storage, on its loop, until it is closed."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: list[_Call] = []
        self._under_way: object | None = None  # the one that the others wait for
        self._bell: asyncio.TimerHandle | None = None
        self._senders: set[asyncio.Task[None]] = set()

    async def enqueue(self, tasks: list[StoredTask], on_conflict: OnConflict) -> list[Enqueued]:
        if len(tasks) > MOST_TASKS_OF_ONE or sum(len(task.payload) for task in tasks) > MOST_BYTES_OF_ONE:
            return await self._send(tasks, on_conflict)
        if self._under_way is not None:
            loop = asyncio.get_running_loop()
            call = _Call(tasks, on_conflict, loop.create_future())
            self._waiting.append(call)
            if self._bell is None:
                self._bell = loop.call_later(HELD_UP_S, self._go_on)
            return await call.placed
        mine = self._under_way = object()
        try:
            return await self._send(tasks, on_conflict)
        finally:
            if self._under_way is mine:
                self._go_on()

    def close(self) -> None:
        waiting, self._waiting = self._waiting, []
        _refuse(waiting, StoreUnavailable("the storage was closed; repeat the call"))
        for sender in self._senders:
            sender.cancel()

    def _go_on(self) -> None:
        """The one under way is back, or held up."""
        if self._bell is not None:
            self._bell.cancel()
            self._bell = None
        self._under_way = None
        if self._waiting:
            self._under_way = mine = object()
            calls, self._waiting = self._waiting[:MOST_CALLS], self._waiting[MOST_CALLS:]
            sender = asyncio.get_running_loop().create_task(self._send_all(calls, mine))
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        if self._waiting:
            self._bell = asyncio.get_running_loop().call_later(HELD_UP_S, self._go_on)

    async def _send_all(self, calls: list[_Call], mine: object) -> None:
        try:
            for on_conflict, alike in groupby(calls, _rule):
                await self._send_together([call for call in alike if not call.placed.done()], on_conflict)
        finally:
            _refuse(calls, StoreUnavailable("the storage was closed; repeat the call"))  # those that are left
            if self._under_way is mine:
                self._go_on()

    async def _send_together(self, calls: list[_Call], on_conflict: OnConflict) -> None:
        if not calls:
            return
        try:
            placed = iter(await self._send([task for call in calls for task in call.tasks], on_conflict))
        except Exception as exc:
            if len(calls) == 1 or isinstance(exc, StoreUnavailable):
                _refuse(calls, exc)
                return
            for call in calls:
                await self._send_together([call], on_conflict)
            return
        for call in calls:
            mine = [next(placed) for _ in call.tasks]
            if not call.placed.done():
                call.placed.set_result(mine)


def _rule(call: _Call) -> OnConflict:
    return call.on_conflict


def _refuse(calls: list[_Call], exc: Exception) -> None:
    for call in calls:
        if not call.placed.done():
            call.placed.set_exception(exc)
