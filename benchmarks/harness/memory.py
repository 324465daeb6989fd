"""What a process and everybody that it has started hold together: each page once (PSS)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def family_mib() -> float:
    return sum(_pss_kib(pid) for pid in _family()) / 1024


def _family() -> set[int]:
    """Ours, and all descendants: also those whose parent is a process that we have started."""
    parents: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError, IndexError):
                parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _pss_kib(pid: int) -> int:
    with suppress(OSError):  # it has ended meanwhile
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
