"""S5: what is too large or too deep is refused, at the producer and at the worker, in little memory."""

import os
import sys
from pathlib import Path

import pytest

from omniq import AsyncWorkerPool, Task, TaskStatus
from omniq.errors import InvalidOption, PayloadTooLarge, UnserializableArgument
from omniq.storage import SQLiteStorage
from tests.faults.processes import Field
from tests.security.planting import plant

BOMBS = {
    "lists in lists": b"\x01m\x00" + b"\x91" * 1_000_000,
    "a list that says it is long": b"\x01m\x00" + b"\xdd\xff\xff\xff\xff" * 100_000,
    "a map that says it is long": b"\x01m\x00" + b"\xdf\xff\xff\xff\xff" * 100_000,
    "brackets": b"\x01j\x00" + b"[" * 1_000_000,
    "digits": b"\x01j\x00[[" + b"9" * 1_000_000 + b"],{}]",
    "tags in tags": b"\x01j\x00" + b'{"$omniq":["tuple",[' * 50_000,
    "over the limit": b"\x01m\x00" + b"\x90" * (3 << 20),
}


async def test_s5_bombs_in_the_store_fail_and_hurt_nobody(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        ids = {name: await plant(storage, payload=bomb) for name, bomb in BOMBS.items()}
        after = await storage.enqueue(Task("builtins.len", ("abc",)))
        async with AsyncWorkerPool(storage):
            for name, task_id in ids.items():
                result = await storage.wait_result(task_id, 20)
                assert result is not None, name
                assert result.error is not None, name
                assert (result.status, result.error.kind) == (TaskStatus.FAILED, "undecodable"), name
                assert len(result.error.message) < 2000, name
            result = await storage.wait_result(after, 20)
            assert result is not None
            assert result.result == 3
        await storage.list_tasks()  # showing them hurts nobody either


async def test_s5_a_payload_over_the_limit_is_not_opened(database: Path) -> None:
    """It is in order, and would run; but no producer of ours was allowed to write it."""
    async with SQLiteStorage(database) as storage:
        large = storage.serializer.dump_call(None, ("x" * (2 << 20),), {})
        task_id = await plant(storage, payload=large)
        async with AsyncWorkerPool(storage):
            result = await storage.wait_result(task_id, 20)
        assert result is not None
        assert result.error is not None
        assert (result.status, result.error.kind) == (TaskStatus.FAILED, "undecodable")


MEASURED = """
import asyncio, resource, sys
from omniq import AsyncWorkerPool, Task
from omniq.storage import SQLiteStorage
from tests.security.planting import plant
from tests.security.test_sizes import BOMBS

async def main(path):
    async with SQLiteStorage(path) as storage:
        first = await storage.enqueue(Task("builtins.len", ("abc",)))
        async with AsyncWorkerPool(storage):
            await storage.wait_result(first, 20)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for bomb in BOMBS.values():
                await storage.wait_result(await plant(storage, payload=bomb), 20)
            print("GREW", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts in other units elsewhere")
def test_s5_bombs_cost_little_memory(tmp_path: Path) -> None:
    with Field(tmp_path) as field:
        child = field.script(MEASURED, field.database)
        assert int(child.line("GREW")) < 64 * 1024
        assert child.wait() == 0


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


async def test_s5_the_producer_is_told(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        for args, kind in (
            (("x" * (1 << 20),), PayloadTooLarge),
            ((nested(100),), UnserializableArgument),
            ((nested(100_000),), UnserializableArgument),
        ):
            with pytest.raises(kind):
                await storage.enqueue(Task("a.b", args))
        with pytest.raises(InvalidOption):
            await storage.enqueue(Task("a.b", headers={"x": "y" * (64 << 20)}))
        assert await storage.counts() == {}
        assert os.path.getsize(database) < 1 << 20
