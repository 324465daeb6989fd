"""`omniq worker` and the processes of its tasks: how many there are, and when one is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from omniq.task import TaskStatus
from tests.cli.site import Site, call, until, until_begun, until_status

APP = """
import os, time
from omniq import OmniQ

q = OmniQ("sqlite:///jobs.db")
ledger = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@q.task(executor="process")
def stay(name):
    os.write(ledger, f"BEGUN {name} {os.getpid()} {time.monotonic()}\\n".encode())
    while not os.path.exists("go"):
        time.sleep(0.01)
    return os.getpid()

@q.task(executor="process")
def grow(name, mib):
    os.write(ledger, f"BEGUN {name} {os.getpid()} {time.monotonic()}\\n".encode())
    held = bytearray(os.urandom(1 << 20)) * mib
    while not os.path.exists("go"):
        time.sleep(0.01)
    return len(held)
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    (tmp_path / "jobs.py").write_text(APP, encoding="utf-8")
    return made


async def test_there_are_as_many_as_asked_for_and_none_does_more_than_it_may(site: Site) -> None:
    async with site.store() as storage:
        with site.worker("--task-processes", "3", "--max-tasks-per-process", "1") as worker:
            await worker.ready(storage)
            ids = await storage.enqueue_many([call("stay", f"n{n}") for n in range(4)])
            for name in ("n0", "n1", "n2"):
                await until_begun(site, name)
            assert len({note.pid for note in site.notes("BEGUN")}) == 3

            async def told() -> bool:  # with its next heartbeat
                pools = [pool for one in await storage.workers() for pool in one.pools]
                return [(pool.most, pool.free) for pool in pools] == [(3, 0)]

            await until(told, "3 processes, none of them free")
            assert site.notes("BEGUN", "n3") == []
            (site.folder / "go").touch()
            await until_status(storage, ids, TaskStatus.SUCCESS)
            assert len({note.pid for note in site.notes("BEGUN")}) == 4, "each task had a new one"


async def test_one_that_holds_too_much_memory_is_replaced_and_its_task_says_why(site: Site) -> None:
    async with site.store() as storage:
        with site.worker("--task-processes", "1", "--max-memory-per-process", "150M") as worker:
            await worker.ready(storage)
            [large] = await storage.enqueue_many([call("grow", "large", 300, max_losses=1)])
            [task] = await until_status(storage, [large], TaskStatus.FAILED)
            assert task.error is not None
            assert "of memory, more than 150 MiB" in str(task.error)
            [small] = await storage.enqueue_many([call("grow", "small", 1)])
            await until_begun(site, "small")
            (site.folder / "go").touch()
            await until_status(storage, [small], TaskStatus.SUCCESS)


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--max-memory-per-process", "0", "is no size"),
        ("--max-memory-per-process", "lots", "is no size"),
        ("--max-memory-per-process", "-1G", "is no size"),
        ("--task-processes", "0", "1<=x<=512"),
        ("--max-tasks-per-process", "0", "x>=1"),
    ],
)
def test_what_makes_no_sense_is_refused(site: Site, option: str, value: str, why: str) -> None:
    ended = site.run("worker", "jobs:q", f"{option}={value}")
    assert ended.returncode == 2
    assert why in ended.stderr
