"""Stores for tests: each in a namespace of its own, on the server's clock or on one that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import Any

from omniq.storage.redis import RedisStorage
from omniq.storage.redis.address import Address
from omniq.storage.redis.connections import Server
from omniq.storage.redis.records import microseconds
from omniq.storage.redis.scripts import Scripts
from omniq.storage.redis.wire import Argument, Wire
from omniq.task import new_id
from omniq.testing import VirtualClock

# What the server's clock is exchanged for: a moment that is written before each call.
VIRTUAL = "local now = tonumber(redis.call('GET', KEYS[1] .. 'test-clock'))"


class VirtualServer(Server):
    """Before each call the server is told what time it is."""

    def __init__(self, address: Address, durability: Any, clock: VirtualClock, follows_wall: bool) -> None:
        super().__init__(address, durability, Scripts(VIRTUAL))
        self._clock = clock
        self._told: datetime | None = None
        # The server's clock is a wall, set only where a test says so: moments follow the steady count.
        self._began = clock.now() - timedelta(seconds=clock.monotonic())
        self._follows_wall = follows_wall

    def now(self) -> datetime:
        if self._follows_wall:
            return self._clock.now()
        return self._began + timedelta(seconds=self._clock.monotonic())

    async def _call(self, command: tuple[Argument, ...]) -> Any:
        now = self.now()
        if self._wire is None or not self._wire.is_open:
            await self._connect()
        assert self._wire is not None
        if now != self._told:  # each of these is a write that the server syncs
            self._told = now
            await self._wire.call("SET", self.address.prefix + b"test-clock", microseconds(now))
        return await super()._call(command)


class VirtualRedis(RedisStorage):
    late_s = 0.0
    follows_wall = False

    def _make_server(self, address: Address) -> Server:
        assert isinstance(self.clock, VirtualClock)
        return VirtualServer(address, self.durability, self.clock, self.follows_wall)


def new_namespace() -> str:
    return f"test-{new_id()}"


@contextlib.asynccontextmanager
async def wired(url: str) -> AsyncIterator[Wire]:
    """A bare connection, for what a test does behind a store's back."""
    wire = await Address(url, None).connect("test")
    try:
        yield wire
    finally:
        wire.close()
        await wire.lost.wait()


async def empty_namespace(url: str, name: str) -> None:
    async with wired(url) as wire:
        cursor = b"0"
        while True:
            cursor, keys = await wire.call("SCAN", cursor, "MATCH", f"{{{name}}}:*", "COUNT", 1000)
            if keys:
                await wire.call("DEL", *keys)
            if cursor == b"0":
                return


@contextlib.contextmanager
def fresh_namespace(url: str) -> Iterator[str]:
    name = new_namespace()
    try:
        yield name
    finally:
        asyncio.run(empty_namespace(url, name))
