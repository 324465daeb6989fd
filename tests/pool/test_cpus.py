"""How many CPUs may be used: a folder as the kernel shows it in, and a number out."""

import os
from pathlib import Path

import pytest

from omniq.pool import WorkerPool
from omniq.pool.cpus import usable_cpus

MINE = len(os.sched_getaffinity(0))


def kernel(folder: Path, membership: str, files: dict[str, str]) -> dict[str, Path]:
    for name, text in files.items():
        (folder / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup" / name).write_text(text)
    (folder / "membership").write_text(membership)
    return {"cgroups": folder / "cgroup", "membership": folder / "membership"}


@pytest.mark.parametrize(
    ("membership", "files", "cpus"),
    [
        ("0::/\n", {}, MINE),
        ("0::/app\n", {"app/cpu.max": "max 100000\n"}, MINE),
        ("0::/app\n", {"app/cpu.max": "100000 100000\n"}, 1),
        ("0::/app\n", {"app/cpu.max": "150000 100000\n"}, min(2, MINE)),  # keeps two processes busy
        ("0::/app\n", {"app/cpu.max": "20000 100000\n"}, 1),  # at least one
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 1),  # of its parent
        ("0::/../host/path\n", {"cpu.max": "100000 100000\n"}, 1),  # a container that sees its host's path
        ("3:cpu,cpuacct:/x\n", {"cpu,cpuacct/x/cpu.cfs_quota_us": "100000\n",
                                "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"}, 1),
        ("3:cpu:/x\n", {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ("3:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, MINE),
        ("nonsense\n", {"cpu.max": "nonsense"}, MINE),
        ("0::/\n", {"cpu.max": "1 0"}, MINE),
    ],
)  # fmt: skip
def test_usable_cpus(membership: str, files: dict[str, str], cpus: int, tmp_path: Path) -> None:
    assert usable_cpus(**kernel(tmp_path, membership, files)) == cpus


def test_where_there_is_nothing_to_read(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path / "nowhere", tmp_path / "nothing") == MINE


def test_it_is_the_default_of_a_pool() -> None:
    assert WorkerPool().status().limits.max_workers == usable_cpus()
    assert WorkerPool(min_workers=50).status().limits.max_workers == 50
