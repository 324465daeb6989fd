"""The body that every system runs, and the file in which it leaves its trace.

A task that does nothing appends 16 bytes (when it was enqueued, when it started) to a file in memory: one
write of about a microsecond. Every rate and every latency is computed from that file, so that all systems
are timed in the same way, whatever they count themselves. Knows the standard library only: peers import it.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

FOLDER_VARIABLE = "BENCHMARK_MARKS"
_PAIR = struct.Struct("dd")
_files: dict[str, int] = {}


def mark(enqueued_at: float) -> None:
    """The synchronous body."""
    _append("starts", enqueued_at)


async def amark(enqueued_at: float) -> None:
    """The asynchronous body."""
    _append("starts", enqueued_at)


BODIES = {"sync": mark, "async": amark}


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
