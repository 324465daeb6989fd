"""What the supervisor and a worker process say to each other: one JSON object per line, over a socket pair.

supervisor ── Start, Stop ──> child         child ── Found, Ready, Beat, Refused ──> supervisor

An end that is gone closes the socket: that is how each learns of the other's death.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T")
MAX_MESSAGE_CHARS: Final = 2000
_NAME: Final = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
APP_PATH: Final = re.compile(f"({_NAME}):({_NAME})")


class Plan(Struct, frozen=True, kw_only=True):
    """What `omniq worker` was asked for."""

    app: str
    processes: int = 1
    concurrency: int = 100
    task_processes: int | None = None
    max_tasks_per_process: int | None = None
    max_memory_per_process: int | None = None
    queues: tuple[str, ...] | None = None
    lease: float = 30.0
    grace: float = 25.0
    poll_interval: float = 1.0
    allow: tuple[str, ...] = ()
    url: str | None = None
    log_level: str = "info"
    log_format: str = "text"
    reload: bool = False
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    stall_limit: float = 600.0
    debug: bool = False

    @property
    def beat_every_s(self) -> float:
        return min(1.0, self.stall_limit / 4)


class Start(Struct, frozen=True, tag="start"):
    plan: Plan
    identity: str
    metrics_fd: int | None = None  # a socket that listens, for its metrics


class Stop(Struct, frozen=True, tag="stop"):
    """End in good order: within the grace time, or `now`."""

    now: bool = False


class Found(Struct, frozen=True, tag="found"):
    """The application is there; `url` is its store, None where only the child itself can reach it."""

    url: str | None
    result_ttl_s: float
    failed_ttl_s: float


class Ready(Struct, frozen=True, tag="ready"):
    """Tasks are being claimed."""


class Beat(Struct, frozen=True, tag="beat"):
    """The loop moves."""


class Refused(Struct, frozen=True, tag="refused"):
    """It cannot start, and no other try would help."""

    message: str
    code: int


Order: TypeAlias = Start | Stop
Report: TypeAlias = Found | Ready | Beat | Refused


class Link(Generic[T]):
    """One end of the socket pair. Sending never blocks; `receive` is None once the other end is gone."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decode: Callable[[bytes], T]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decode = decode

    def send(self, message: Order | Report) -> None:
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(message) + b"\n")

    async def receive(self) -> T | None:
        try:
            line = await self._reader.readline()
        except OSError:
            return None
        return self._decode(line) if line.endswith(b"\n") else None

    async def close(self) -> None:
        """Send what is on its way, then hang up."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return


async def to_supervisor(end: socket.socket) -> Link[Order]:
    reader, writer = await asyncio.open_connection(sock=end)
    return Link(reader, writer, lambda line: msgspec.json.decode(line, type=Order))


async def to_child(end: socket.socket) -> Link[Report]:
    reader, writer = await asyncio.open_connection(sock=end)
    return Link(reader, writer, lambda line: msgspec.json.decode(line, type=Report))
