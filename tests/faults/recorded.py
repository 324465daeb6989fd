"""A program that works on a database while everything it sends to the disk is recorded.

python -m tests.faults.recorded CONFIG, where CONFIG names the database, the durability, how many rounds, and
the file for the recording: a list of operations, with an `ack` wherever a caller was told that it is done.
"""

import asyncio
import json
import os
import sys
from typing import Any

import msgspec

from omniq.storage import SQLiteStorage
from omniq.storage.sqlite import engine
from omniq.task import Settlement, StoredTask, Task
from tests.faults.recorder import Op, Recorder

CHECKPOINT_COMMITS = 15  # the log must begin again several times, or half of the danger is left out


async def work(storage: SQLiteStorage, rounds: int, ops: list[Op]) -> None:
    for number in range(rounds):
        size = 3000 if number % 7 == 0 else 10
        tasks = [Task("a.b", ("x" * size, n), id=f"{number}-{n}") for n in range(3)]
        await asyncio.gather(*(enqueue(storage, task, ops) for task in tasks))
        claims = await storage.claim("ann", limit=2)
        done = storage.serializer.dumps(number)
        await storage.settle([Settlement.success(claim, done) for claim in claims])
        for claim in claims:
            assert isinstance(claim, StoredTask)
            ops.append(Op("ack", "SUCCESS", 0, claim.id.encode()))


async def enqueue(storage: SQLiteStorage, task: Task, ops: list[Op]) -> None:
    await storage.enqueue(task)
    ops.append(Op("ack", "ENQUEUED", 0, task.id.encode()))


async def main(config: dict[str, Any]) -> None:
    engine.CHECKPOINT_COMMITS = CHECKPOINT_COMMITS  # type: ignore[misc]
    recorder = Recorder()
    recorder.begin()
    storage = SQLiteStorage(config["database"], durability=config["durability"])
    await storage.open()
    await work(storage, config["rounds"], recorder.ops)
    # Copied before the end: closing is orderly, and no power fails in an orderly way.
    with open(config["recording"], "wb") as file:
        file.write(msgspec.msgpack.encode(list(recorder.ops)))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
    print("DONE", flush=True)
    os._exit(0)
