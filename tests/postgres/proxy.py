"""A network of the tests' own between a store and its server: it resets, falls silent, and swallows answers.

    store <── TCP on loopback ──> Proxy <── the server's socket ──> PostgreSQL

It knows just enough of the protocol to tell which statement a client sends, and when its answer is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PORT = 5432
CHUNK = 1 << 16
# The last message of every answer: ReadyForQuery, five bytes and the state of the transaction.
READY = b"Z\x00\x00\x00\x05"


class Cut(Exception):
    """This connection is no more."""


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, ours: asyncio.StreamWriter, theirs: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.ours = ours  # to the client
        self.theirs = theirs  # to the server
        self.started = False
        self.says = b""  # the client's first words: who it is
        self.dead = False
        self.rest = b""
        self.watched: set[bytes] = set()  # names of prepared statements whose answers are to be lost
        self.armed = False
        self.held = b""

    async def upward(self, client: asyncio.StreamReader) -> None:
        while data := await client.read(CHUNK):
            await self.proxy.until_heard()
            self._look(data)
            if self.dead:
                continue
            self.theirs.write(data)
            await self.theirs.drain()

    async def downward(self, server: asyncio.StreamReader) -> None:
        while data := await server.read(CHUNK):
            if self.armed:  # it has been done; only the answer is missing
                self.held += data
                if self.held[-6:-1] != READY:
                    continue
                self.proxy.count_loss()
                self.cut()
                return
            await self.proxy.until_answered()
            if self.dead:
                continue
            self.ours.write(data)
            await self.ours.drain()

    def _look(self, data: bytes) -> None:
        """Frames of the client: a type, a length, a body. The very first has no type."""
        if not self.started:
            self.started = True
            self.says = data
            return
        self.rest += data
        while len(self.rest) >= 5:
            size = 1 + int.from_bytes(self.rest[1:5], "big")
            if len(self.rest) < size:
                return
            kind, body, self.rest = self.rest[:1], self.rest[5:size], self.rest[size:]
            self._note(kind, body)

    def _note(self, kind: bytes, body: bytes) -> None:
        matches = self.proxy.pattern is not None and self.proxy.pattern in body
        if kind == b"P" and matches:
            self.watched.add(body.split(b"\x00", 1)[0])
        elif kind in (b"B", b"Q"):
            meant = matches if kind == b"Q" else body.split(b"\x00", 2)[1] in self.watched
            self.armed = self.proxy.losses > 0 and meant
            if self.armed and self.proxy.unheard:  # it does not even get there
                self.proxy.count_loss()
                self.cut()
                raise Cut

    def cut(self) -> None:
        """A reset: no goodbye in either direction."""
        for writer in (self.ours, self.theirs):
            with contextlib.suppress(RuntimeError):
                writer.transport.abort()


class Proxy:
    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        [folder] = parse_qs(parts.query).get("host", [""])
        self._socket = Path(folder) / f".s.PGSQL.{PORT}" if folder else None
        self._host, self._port = parts.hostname or "localhost", parts.port or PORT
        self._parts = parts
        self._links: set[Link] = set()
        self._heard, self._answered = asyncio.Event(), asyncio.Event()
        self._heard.set()
        self._answered.set()
        self.refuses = False
        self.pattern: bytes | None = None
        self.losses = 0  # answers to statements with the pattern in them that are still to be lost
        self.lost = 0
        self.unheard = False  # lose the statements themselves instead

    @property
    def dsn(self) -> str:
        user = f"{self._parts.username}@" if self._parts.username else ""
        return f"postgresql://{user}127.0.0.1:{self._listens_on}{self._parts.path}?sslmode=disable"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._listens_on = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        self.heal()
        self.reset()

    # --- what can go wrong -----------------------------------------------------------------------

    def lose_answers(self, statement: str, times: int, *, unheard: bool = False) -> None:
        """To statements with this text in them. `unheard`: cut off before they arrive."""
        self.pattern, self.losses, self.lost, self.unheard = statement.encode(), times, 0, unheard

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

    # --- passing on ------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        try:
            if self._socket is not None:
                server, to_server = await asyncio.open_unix_connection(str(self._socket))
            else:
                server, to_server = await asyncio.open_connection(self._host, self._port)
        except OSError:  # the server is away
            writer.transport.abort()
            return
        link = Link(self, writer, to_server)
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


@contextlib.asynccontextmanager
async def proxied(dsn: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(dsn)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
