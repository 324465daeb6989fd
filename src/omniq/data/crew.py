"""The two kinds of workers behind one face: processes of `omniq.pool`, or threads of this process.

crew.call(fn)             in any thread: what may not travel is an error here
await crew.hire(events)   a worker; it tells its events on the loop
crew.give(worker, ...)    on the loop, never waits
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from msgspec.structs import replace

from omniq.data import inside
from omniq.pool import calls
from omniq.pool.calls import EncodedCall, Message
from omniq.pool.process import Child, ChildGone, Events, Template
from omniq.pool.reserved import ReservedArena


class Hand(Protocol):
    """A worker as the pool speaks to it: `omniq.pool.peer.Child`, or a thread that looks like one."""

    received_bytes: int

    @property
    def pid(self) -> int: ...
    @property
    def running(self) -> int: ...
    def withdraw(self, call_ids: range) -> bool: ...
    def interrupt(self, call_id: int) -> None: ...
    def ask_to_stop(self) -> None: ...
    def kill(self) -> None: ...


class Crew(Protocol):
    def call(self, fn: Callable[[], Any]) -> Any: ...
    def chunks(self, fn: Callable[[Any], Any]) -> Callable[[list[Any]], Any]: ...
    async def start(self) -> None: ...
    async def hire(self, events: Events) -> Hand: ...
    def prepare(self, hand: Hand, call_id: int) -> None: ...
    def give(self, hand: Hand, base: int, work: Any, done: int) -> None: ...
    async def close(self) -> None: ...
    def grow(self, arena_bytes: int) -> int: ...
    @property
    def used_bytes(self) -> int: ...


class ProcessCrew:
    """Workers are children of a template process; results come through an arena."""

    def __init__(
        self,
        arena_bytes: int,
        preload: Sequence[str],
        init: Callable[[], Any] | None,
        *,
        preload_required: bool = True,
        read_only: bool = True,
        most_arena_bytes: int = 0,
    ) -> None:
        self._arena_bytes = arena_bytes
        self._most_arena_bytes = most_arena_bytes
        self._preload_required = preload_required
        self._read_only = read_only
        self._preload = (inside.__name__, *preload)
        self._prepare = calls.encode(0, inside.prepare, (init,))
        self._arena: ReservedArena | None = None
        self._template: Template | None = None

    def call(self, fn: Callable[[], Any]) -> EncodedCall:
        return calls.encode(0, fn)

    def chunks(self, fn: Callable[[Any], Any]) -> Callable[[list[Any]], EncodedCall]:
        first: EncodedCall | None = None

        def chunk(items: list[Any]) -> EncodedCall:
            nonlocal first
            first = calls.encode_range(0, fn, items, first)
            return first

        return chunk

    async def start(self) -> None:
        self._arena = ReservedArena(self._arena_bytes, self._most_arena_bytes)
        self._template = Template(
            preload=self._preload,
            preload_required=self._preload_required,
            arena=self._arena,
            read_only=self._read_only,
        )
        starting = asyncio.ensure_future(self._template.start())
        await asyncio.sleep(0)  # its program is on its way; beside filling the arena that would take longer
        with ThreadPoolExecutor(1) as beside:
            try:
                await asyncio.get_running_loop().run_in_executor(beside, self._arena.reserve)
            finally:
                await starting

    async def hire(self, events: Events) -> Child:
        assert self._template is not None
        return await self._template.spawn(events)

    def prepare(self, hand: Hand, call_id: int) -> None:
        self._send(hand, replace(self._prepare, id=call_id))

    def give(self, hand: Hand, base: int, work: EncodedCall, done: int) -> None:
        call = replace(work, id=base)
        self._send(hand, call.after(done) if done else call)

    def _send(self, hand: Hand, call: EncodedCall) -> None:
        assert isinstance(hand, Child)
        try:
            hand.send(Message(call.id, (call,)))
        except ChildGone:
            return  # its end has been told, or will be in a moment

    async def close(self) -> None:
        if self._template is not None:
            await self._template.close()
        if self._arena is not None:
            self._arena.close()

    def grow(self, arena_bytes: int) -> int:
        """Enlarge the arena as far as may be; says how large it is."""
        assert self._arena is not None
        self._arena.grow(arena_bytes)
        return self._arena.limit_bytes

    @property
    def used_bytes(self) -> int:
        return 0 if self._arena is None else self._arena.used_bytes
