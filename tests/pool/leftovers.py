"""What this process has: children and theirs, threads, descriptors, shared memory."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import NamedTuple


def family(root: int | None = None) -> set[int]:
    """Every living process below `root`, this one by default. Those that wait to be reaped count, too."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue  # it has gone meanwhile
            if "(postgres" in stat:
                continue  # of a server that other tests share, with processes that come and go
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found, ahead = set[int](), [root or os.getpid()]
    while ahead:
        here = ahead.pop()
        below = [pid for pid, parent in parents.items() if parent == here]
        found.update(below)
        ahead += below
    return found


def children() -> set[int]:
    """The processes that this one has started itself."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def put_to_sleep(pid: int, bound_s: float = 20.0) -> None:
    """Stop a process, and wait until it has really stopped."""
    os.kill(pid, signal.SIGSTOP)
    ends_at = time.monotonic() + bound_s
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < ends_at, f"{pid} does not stop"
        time.sleep(0.001)


class Having(NamedTuple):
    """To be compared by `beyond`: what an earlier test that failed had left may go at any moment."""

    processes: set[int]
    threads: int
    descriptors: int
    segments: int

    @classmethod
    def now(cls) -> Having:
        maps = Path("/proc/self/maps").read_text().splitlines()
        # Others have files there, too: PostgreSQL, or a browser.
        named = sum(1 for _ in Path("/dev/shm").glob("*omniq*"))
        mapped = sum("memfd:" in line for line in maps)
        descriptors = len(os.listdir("/proc/self/fd"))
        return cls(family(), threading.active_count(), descriptors, named + mapped)

    def beyond(self, before: Having) -> list[str]:
        """What there is more of than before, in words."""
        new = [f"process {pid}" for pid in self.processes - before.processes]
        for name in ("threads", "descriptors", "segments"):
            more = getattr(self, name) - getattr(before, name)
            new += [f"{more} {name}"] if more > 0 else []
        return new
