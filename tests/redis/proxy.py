"""Stands between a store and its server, and breaks what a network breaks, on real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from omniq.storage.redis.address import Address

Mode = Literal["pass", "cut answers", "black hole", "refuse"]


class Proxy:
    """Listens on a unix socket of its own. `mode` may change at any time.

    - `cut answers`: what the client sends reaches the server; the connection ends before the answer does.
    - `black hole`: bytes of the client are read and go nowhere.
    - `refuse`: connections are closed at once.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._address = Address(url, None)
        self._path = folder / "proxy"
        self.mode: Mode = "pass"
        self.cuts_left = 0
        self.cut_after = b""  # cut only answers to what contains this
        self._lines: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_unix_server(self._accept, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reset(self) -> None:
        """Every connection ends at once, whatever is on its way."""
        for line in list(self._lines):
            line.transport.abort()

    def lead_to(self, url: str) -> None:
        """From now on new connections go there."""
        self._address = Address(url, None)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self.mode == "refuse":
                writer.transport.abort()
                return
            await self._join(reader, writer)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._address.path is not None:
            back, forth = await asyncio.open_unix_connection(self._address.path)
        else:
            back, forth = await asyncio.open_connection(self._address.host, self._address.port)
        self._lines |= {writer, forth}
        asked = bytearray()
        try:
            await asyncio.gather(self._there(reader, forth, asked), self._and_back(back, writer, asked))
        finally:
            for line in (writer, forth):
                line.transport.abort()
                self._lines.discard(line)

    async def _there(
        self, reader: asyncio.StreamReader, forth: asyncio.StreamWriter, asked: bytearray
    ) -> None:
        while data := await reader.read(1 << 16):
            if self.mode != "black hole":
                asked[:] = data
                forth.write(data)
                await forth.drain()
        forth.transport.abort()

    async def _and_back(
        self, back: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: bytearray
    ) -> None:
        while data := await back.read(1 << 16):
            if self.mode == "cut answers" and self.cuts_left > 0 and self.cut_after in asked:
                self.cuts_left -= 1
                break
            if self.mode != "black hole":
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
