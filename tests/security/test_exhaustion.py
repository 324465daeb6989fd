"""S20: a producer without measure fills neither the memory of its own process nor that of the workers."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from omniq import Task
from omniq.errors import InvalidOption
from omniq.storage import MemoryStorage, SQLiteStorage, batched
from omniq.storage.batched import BatchedStorage
from tests.faults.processes import Field


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_s20_a_batch_without_end_is_refused_before_it_is_read(
    database: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched, "MAX_BATCH", 1000)
    storage: BatchedStorage = MemoryStorage() if kind == "memory" else SQLiteStorage(database)
    taken = 0

    def endless() -> Iterator[Task]:
        nonlocal taken
        for number in itertools.count():
            taken += 1
            assert taken <= 1001, "it goes on reading"
            yield Task("a.b", (number,))

    async with storage:
        with pytest.raises(InvalidOption, match="1,000"):
            await storage.enqueue_many(endless())
        assert await storage.counts() == {}
        with pytest.raises(InvalidOption):
            await storage.list_tasks(limit=10**9)


FLOOD = """
import asyncio, resource, sys
from omniq import Task
from omniq.storage import SQLiteStorage

async def main(path, many):
    async with SQLiteStorage(path, durability="relaxed") as storage:
        await storage.enqueue_many([Task("a.b") for _ in range(2000)])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(many // 2000):
            await storage.enqueue_many([Task("a.b") for _ in range(2000)])
        print("GREW", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, flush=True)
        claims = await storage.claim("ann", limit=10)
        print("CLAIMED", len(claims), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def flood(tmp_path: Path, many: int) -> None:
    with Field(tmp_path) as field:
        child = field.script(FLOOD, field.database, many)
        assert int(child.line("GREW", within_s=300)) < 48 * 1024, "memory grows with what is enqueued"
        claimed, grown = child.line("CLAIMED").split()
        assert claimed == "10"
        assert int(grown) < 48 * 1024
        assert child.wait() == 0


def test_s20_a_flood_stays_on_the_disk(tmp_path: Path) -> None:
    flood(tmp_path, 20_000)


@pytest.mark.soak
@pytest.mark.bound(600)
def test_s20_a_flood_of_a_million_stays_on_the_disk(tmp_path: Path) -> None:
    flood(tmp_path, 1_000_000)
