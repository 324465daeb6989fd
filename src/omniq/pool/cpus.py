"""How many CPUs this process may really use: its affinity, and the quota of its control group."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")


def usable_cpus(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """At least one. A quota of one and a half CPUs can keep two processes busy."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min(_quotas(cgroups, membership), default=math.inf)
    return allowed if quota >= allowed else max(1, math.ceil(quota))


def _quotas(cgroups: Path, membership: Path) -> Iterator[float]:
    """Every quota from the group of this process up to the root: each of them binds."""
    for line in _text(membership).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            for folder in _upwards(cgroups, path):
                yield from _quota_v2(folder)
            for folder in _upwards(cgroups / "unified", path):
                yield from _quota_v2(folder)
        elif "cpu" in controllers.split(","):
            for name in {"cpu", controllers}:
                for folder in _upwards(cgroups / name, path):
                    yield from _quota_v1(folder)


def _upwards(root: Path, path: str) -> Iterator[Path]:
    # In a container the path may be the host's, and not exist here; then the mounted root is our own group.
    group = root / path.lstrip("/")
    while group != root and root in group.parents:
        yield group
        group = group.parent
    yield root


def _quota_v2(folder: Path) -> Iterator[float]:
    quota, period = (*_text(folder / "cpu.max").split(), "", "")[:2]
    if quota.isdigit() and period.isdigit() and int(period):
        yield int(quota) / int(period)


def _quota_v1(folder: Path) -> Iterator[float]:
    quota = _text(folder / "cpu.cfs_quota_us").strip()
    period = _text(folder / "cpu.cfs_period_us").strip()
    if quota.isdigit() and period.isdigit() and int(period):  # -1 is no quota
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
