"""What really happened, written down by those who did it: an append-only file beside the store.

The producer writes after the store has answered, bodies write when they begin and end. At the close, the
store is held against this, so that it cannot be right by itself.
"""

from __future__ import annotations

import os
import time
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

ENVIRONMENT: Final = "OMNIQ_DEMO_LEDGER"


class Word(StrEnum):
    ENQUEUED = "enqueued"  # the store has it; the time is from before it was asked
    BEGUN = "begun"
    ENDED = "ended"
    FAILED = "failed"
    CUT = "cut"  # the body was cancelled


class Entry(Struct, frozen=True):
    word: Word
    at_s: float  # monotonic, the same clock for every process of one host
    kind: str
    task_id: str
    epoch: int
    pid: int


class Ledger:
    """Lines are appended whole, by any number of processes."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, word: Word, kind: str, task_id: str, epoch: int = 0, at_s: float | None = None) -> None:
        self.write_many(word, [(kind, task_id)], epoch, at_s)

    def write_many(
        self, word: Word, tasks: list[tuple[str, str]], epoch: int = 0, at_s: float | None = None
    ) -> None:
        at_s = time.monotonic() if at_s is None else at_s
        lines = [f"{word} {at_s:.6f} {kind} {task_id} {epoch} {os.getpid()}\n" for kind, task_id in tasks]
        os.write(self._fd, "".join(lines).encode())

    def close(self) -> None:
        os.close(self._fd)


class Reader:
    """Follows a ledger as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.entries: list[Entry] = []

    def read(self) -> list[Entry]:
        """What was written since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        fresh = [_entry(line) for line in whole.decode().splitlines()]
        self.entries += fresh
        return fresh


def _entry(line: str) -> Entry:
    word, at_s, kind, task_id, epoch, pid = line.split()
    return Entry(Word(word), float(at_s), kind, task_id, int(epoch), int(pid))
