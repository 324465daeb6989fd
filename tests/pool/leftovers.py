"""What this process has: children and theirs, threads, descriptors, shared memory."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
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
    """Each thing by what tells it from all others, never a count.

    What a failed test had left may go while a later one looks, and as much would not be missed in a count.
    """

    processes: set[int]
    threads: set[int]
    descriptors: set[str]
    segments: set[str]

    @classmethod
    def now(cls) -> Having:
        # Others have files there, too: PostgreSQL, or a browser.
        named = {str(path) for path in Path("/dev/shm").glob("*omniq*")}
        threads = {thread.native_id or 0 for thread in threading.enumerate()}
        return cls(family(), threads, descriptors(), named | mappings())

    def beyond(self, before: Having) -> list[str]:
        """What there is that was not there before, in words."""
        return [
            f"{kind}: {one}" for kind in self._fields for one in getattr(self, kind) - getattr(before, kind)
        ]


def descriptors() -> set[str]:
    """Number, kind and inode of each."""
    found = set[str]()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that listed the folder
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')} {os.fstat(int(number)).st_ino}")
    return found


def mappings() -> set[str]:
    """Place and inode of all memory without a name."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {f"{line.split()[0]} {line.split()[4]}" for line in lines if "memfd:" in line}
