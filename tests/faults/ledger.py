"""What really happened, written down by producers, bodies and workers while it happens.

One line per event, appended with a single write, so that several processes share the file and a process that
is killed a moment later has still said what it did:

    <monotonic seconds> WORD field field ...

    ENQ id              a producer was told that the task is stored
    RUN id epoch pid    a body has begun          END id epoch pid    a body is about to return
    CUT id epoch pid    a body was cancelled
    RENEW pid           a worker asks for more time
    STALE id epoch pid  a worker was told that its report came too late
    KILL point pid      a worker is about to kill itself at a named point
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LEDGER = "FAULTS_LEDGER"  # the variable that tells a child where its ledger is


class Entry(NamedTuple):
    at: float
    word: str
    fields: tuple[str, ...]


class Begun(NamedTuple):
    """A body that began, and when it ended or died (None: never, as far as anybody knows)."""

    task_id: str
    epoch: int
    pid: int
    at: float
    until: float | None


class Ledger:
    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def write(self, word: str, *fields: object) -> None:
        line = " ".join([f"{time.monotonic():.6f}", word, *map(str, fields)])
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, line.encode() + b"\n")
        finally:
            os.close(fd)

    def entries(self, word: str | None = None) -> list[Entry]:
        return [entry for entry in self._read() if word in (None, entry.word)]

    def _read(self) -> Iterator[Entry]:
        if not self.path.exists():
            return
        for line in self.path.read_text().splitlines():
            at, word, *fields = line.split(" ")
            yield Entry(float(at), word, tuple(fields))

    def enqueued(self) -> list[str]:
        return [task_id for entry in self.entries("ENQ") for task_id in entry.fields]

    def runs(self, task_id: str | None = None) -> list[Begun]:
        """Every body that began, in order of beginning."""
        ends = {entry.fields: entry.at for word in ("END", "CUT") for entry in self.entries(word)}
        deaths = {entry.fields[-1]: entry.at for entry in self.entries("KILL")}
        begun: list[Begun] = []
        for entry in self.entries("RUN"):
            found, epoch, pid = entry.fields
            if task_id in (None, found):
                until = ends.get(entry.fields, deaths.get(pid))
                begun.append(Begun(found, int(epoch), int(pid), entry.at, until))
        return begun

    def ended(self, task_id: str) -> bool:
        return any(entry.fields[0] == task_id for entry in self.entries("END"))


def own_ledger() -> Ledger:
    """The ledger of the process that this runs in."""
    return Ledger(os.environ[LEDGER])
