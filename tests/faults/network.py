"""A network of the tests' own between a store and its server: it resets, falls silent, and swallows answers.

    store <── TCP on loopback ──> Network <── the server's socket ──> server

Which answer belongs to which call only the protocol tells: a `Link` for each server knows just enough of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Self

CHUNK = 1 << 16
FIRST_WORDS = 1000
Where = Path | tuple[str, int]


class Cut(Exception):
    """This connection is no more."""


class Link:
    """One connection through the network."""

    def __init__(self, network: Network, ours: asyncio.StreamWriter, theirs: asyncio.StreamWriter) -> None:
        self.network = network
        self.ours = ours  # to the client
        self.theirs = theirs  # to the server
        self.says = b""  # the client's first words: who it is
        self.dead = False

    def look_at_calls(self, data: bytes) -> None:
        """What the client says. `lose_unheard` or nothing is to be done where it is what is looked for."""
        raise NotImplementedError

    def lets_through(self, data: bytes) -> bool:
        """What the server says. `lose_answer`, and False, where it answers what is looked for."""
        raise NotImplementedError

    def lose_unheard(self) -> None:
        """It does not even get there."""
        self.network.count_loss()
        self.cut()
        raise Cut

    def lose_answer(self) -> None:
        """It has been done; only the answer is missing."""
        self.network.count_loss()
        self.cut()

    async def upward(self, client: asyncio.StreamReader) -> None:
        while data := await client.read(CHUNK):
            await self.network.until_heard()
            if len(self.says) < FIRST_WORDS:
                self.says += data
            self.look_at_calls(data)
            if self.dead:
                continue
            self.theirs.write(data)
            await self.theirs.drain()

    async def downward(self, server: asyncio.StreamReader) -> None:
        while data := await server.read(CHUNK):
            if not self.lets_through(data):
                continue
            await self.network.until_answered()
            if self.dead:
                continue
            self.ours.write(data)
            await self.ours.drain()

    def cut(self) -> None:
        """A reset: no goodbye in either direction."""
        for writer in (self.ours, self.theirs):
            with contextlib.suppress(RuntimeError):
                writer.transport.abort()


class Network:
    """What each server's own one adds: the kind of its links, and its address as a URL."""

    kind: type[Link] = Link

    def __init__(self, where: Where) -> None:
        self._where = where
        self._links: set[Link] = set()
        self._heard, self._answered = asyncio.Event(), asyncio.Event()
        self._heard.set()
        self._answered.set()
        self.refuses = False
        self.pattern: bytes | None = None
        self.losses = 0  # answers to calls with the pattern in them that are still to be lost
        self.lost = 0
        self.unheard = False  # lose the calls themselves instead

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.heal()
        self.reset()

    # --- what can go wrong -----------------------------------------------------------------------

    def lose_answers(self, pattern: str, times: int, *, unheard: bool = False) -> None:
        """To calls with this text in them. `unheard`: cut off before they arrive."""
        self.pattern, self.losses, self.lost, self.unheard = pattern.encode(), times, 0, unheard

    def count_loss(self) -> None:
        self.losses -= 1
        self.lost += 1

    def reset(self) -> None:
        """Every connection is cut."""
        for link in list(self._links):
            link.cut()

    def silence(self) -> None:
        """A black hole: nothing goes through, nobody is told, new connections stay unanswered."""
        self._heard.clear()
        self._answered.clear()

    def half_open(self) -> None:
        """What clients say arrives; what the server says does not."""
        self._answered.clear()

    def kill(self, who: bytes = b"") -> None:
        """What is connected now stays so, and never hears anything again; `who` is among its first words."""
        for link in self._links:
            link.dead = link.dead or who in link.says

    def heal(self) -> None:
        self._heard.set()
        self._answered.set()

    async def until_heard(self) -> None:
        await self._heard.wait()

    async def until_answered(self) -> None:
        await self._answered.wait()

    def lead_to(self, where: Where) -> None:
        """From now on new connections go there."""
        self._where = where

    # --- passing on ------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        try:
            if isinstance(self._where, Path):
                server, to_server = await asyncio.open_unix_connection(str(self._where))
            else:
                server, to_server = await asyncio.open_connection(*self._where)
        except OSError:  # the server is away
            writer.transport.abort()
            return
        link = self.kind(self, writer, to_server)
        self._links.add(link)
        ways = [asyncio.create_task(link.upward(reader)), asyncio.create_task(link.downward(server))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            link.cut()
            self._links.discard(link)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
