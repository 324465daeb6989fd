"""The body that every system runs, and the file in which it leaves its trace.

A task that does nothing appends 16 bytes (when it was enqueued, when it started) to a file in memory: one
write of about a microsecond. Every rate and every latency is computed from that file, so that all systems
are timed in the same way, whatever they count themselves. By an environment variable the same body also waits
or computes, so that no adapter needs another one. Knows the standard library only: peers import it.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from pathlib import Path

FOLDER_VARIABLE = "BENCHMARK_MARKS"
AWAIT_VARIABLE = "BENCHMARK_AWAIT_S"
SPIN_VARIABLE = "BENCHMARK_SPINS"

# When it was enqueued; with a payload that moment as text, a blank, and so many letters.
Stamp = float | str

AWAIT_S = float(os.environ.get(AWAIT_VARIABLE, "0"))
SPINS = int(os.environ.get(SPIN_VARIABLE, "0"))
_PAIR = struct.Struct("dd")
_files: dict[str, int] = {}


def stamp(payload_bytes: int = 0) -> Stamp:
    now = time.time()
    return f"{now} {'x' * payload_bytes}" if payload_bytes else now


def mark(stamped: Stamp) -> None:
    """The synchronous body."""
    _append("starts", _moment(stamped))
    if SPINS:
        spin()


async def amark(stamped: Stamp) -> None:
    """The asynchronous body."""
    _append("starts", _moment(stamped))
    if AWAIT_S:
        await asyncio.sleep(AWAIT_S)
    elif SPINS:
        spin()


def spin() -> None:
    """Keep one core busy, holding the interpreter's lock."""
    for _ in range(SPINS):
        pass


def _moment(stamped: Stamp) -> float:
    return stamped if isinstance(stamped, float) else float(stamped.partition(" ")[0])


def settled(tasks: int) -> None:
    """Note that the store has just confirmed the end of `tasks` tasks."""
    _append("settles", float(tasks))


def _append(name: str, value: float) -> None:
    file = _files.get(name)
    if file is None:
        path = Path(os.environ[FOLDER_VARIABLE], name)
        file = _files[name] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, _PAIR.pack(value, time.time()))


class Marks:
    """The same files, for the process that measures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clear()

    def clear(self) -> None:
        for name in ("starts", "settles"):
            (self.folder / name).write_bytes(b"")

    def started(self) -> int:
        """How many bodies have started; costs one look at the size of a file."""
        return os.stat(self.folder / "starts").st_size // _PAIR.size

    def starts(self) -> list[tuple[float, float]]:
        """(enqueued at, started at) of every body that has started."""
        return self._read("starts")

    def settles(self) -> list[tuple[float, float]]:
        """(how many tasks, when) of every confirmation by the store."""
        return self._read("settles")

    def _read(self, name: str) -> list[tuple[float, float]]:
        data = (self.folder / name).read_bytes()
        return list(_PAIR.iter_unpack(data[: len(data) // _PAIR.size * _PAIR.size]))
