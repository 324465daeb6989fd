"""The network of tests/faults/network.py before PostgreSQL: which statement, which answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.faults.network import Link, Network

PORT = 5432
# The last message of every answer: ReadyForQuery, five bytes and the state of the transaction.
READY = b"Z\x00\x00\x00\x05"


class PostgresLink(Link):
    def __init__(self, network: Network, ours: asyncio.StreamWriter, theirs: asyncio.StreamWriter) -> None:
        super().__init__(network, ours, theirs)
        self.started = False
        self.rest = b""
        self.watched: set[bytes] = set()  # names of prepared statements whose answers are to be lost
        self.armed = False
        self.held = b""

    def lets_through(self, data: bytes) -> bool:
        if not self.armed:
            return True
        self.held += data
        if self.held[-6:-1] == READY:
            self.lose_answer()
        return False

    def look_at_calls(self, data: bytes) -> None:
        """Frames of the client: a type, a length, a body. The very first has no type."""
        if not self.started:
            self.started = True
            return
        self.rest += data
        while len(self.rest) >= 5:
            size = 1 + int.from_bytes(self.rest[1:5], "big")
            if len(self.rest) < size:
                return
            kind, body, self.rest = self.rest[:1], self.rest[5:size], self.rest[size:]
            self._note(kind, body)

    def _note(self, kind: bytes, body: bytes) -> None:
        matches = self.network.pattern is not None and self.network.pattern in body
        if kind == b"P" and matches:
            self.watched.add(body.split(b"\x00", 1)[0])
        elif kind in (b"B", b"Q"):
            meant = matches if kind == b"Q" else body.split(b"\x00", 2)[1] in self.watched
            self.armed = self.network.losses > 0 and meant
            if self.armed and self.network.unheard:
                self.lose_unheard()


class Proxy(Network):
    kind = PostgresLink

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        [folder] = parse_qs(self._parts.query).get("host", [""])
        host, port = self._parts.hostname or "localhost", self._parts.port or PORT
        super().__init__(Path(folder) / f".s.PGSQL.{PORT}" if folder else (host, port))

    @property
    def dsn(self) -> str:
        user = f"{self._parts.username}@" if self._parts.username else ""
        return f"postgresql://{user}127.0.0.1:{self.port}{self._parts.path}?sslmode=disable"
