"""The raw limit of the PostgreSQL store: its own statements, back to back, with nothing around them.

One connection, each statement as the store sends it, its arguments made before the clock starts where they do
not depend on the answer before. No worker, no bodies, no conversion of rows to tasks.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import Limit, Reached, address_in
from omniq import OmniQ
from omniq.serializer import MsgpackSerializer
from omniq.storage import MemoryStorage, PostgresStorage
from omniq.storage.postgres import NO_PLACES, records
from omniq.storage.postgres.records import HEAD_COLUMNS
from omniq.storage.postgres.schema import Statements
from omniq.task import StoredTask

FILL_CHUNK = 10_000
DAY_S = 86400.0


class RawPostgres(Limit):
    name = "raw-postgres"
    store = "postgres"
    server = "postgres"
    promise = "the store's statements alone, every commit synced to the disk"
    faces = ("blocking", "in-flight", "bulk")

    def drain(self, folder: Path, tasks: int, batch: int, limit_s: float, payload_bytes: int) -> Reached:
        return asyncio.run(_drain(address_in(folder), tasks, batch, limit_s, payload_bytes))

    def insert(self, folder: Path, tasks: int, batch: int, limit_s: float, payload_bytes: int) -> Reached:
        return asyncio.run(_insert(address_in(folder), tasks, batch, limit_s, payload_bytes))


def _tasks(count: int, payload_bytes: int) -> list[StoredTask]:
    call = OmniQ(MemoryStorage()).task(marks.mark).call
    return [call(marks.stamp(payload_bytes)).task for _ in range(count)]


async def _drain(address: str, tasks: int, batch: int, limit_s: float, payload_bytes: int) -> Reached:
    storage = PostgresStorage(address)
    await storage.migrate()
    async with storage:
        for first in range(0, tasks, FILL_CHUNK):
            await storage.enqueue_many(_tasks(min(FILL_CHUNK, tasks - first), payload_bytes))
    conn, sql = await _connect(address), Statements("omniq")["exchange"]
    result, done, number = MsgpackSerializer().dumps(None), 0, 0
    held: list[Any] = []
    start, cpu_start = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < limit_s:
        many, number = len(held), number + 1
        ids = sorted(row[HEAD_COLUMNS + 1] for row in held)
        said = (ids, [1] * many, (), [result] * many, (), (), ())
        wish = ("raw", None, batch, 30.0, f"{number:x}", False, (), 0)
        held = (await conn.fetch(sql, *said, DAY_S, DAY_S, *wish, *NO_PLACES))[:-1]
        done += many
        if not held:
            break
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    await conn.close()
    return Reached(done, seconds, cpu_s)


async def _insert(address: str, tasks: int, batch: int, limit_s: float, payload_bytes: int) -> Reached:
    await PostgresStorage(address).migrate()
    conn, sql = await _connect(address), Statements("omniq")["enqueue"]
    waiting, done = _tasks(tasks, payload_bytes), 0
    calls = [
        records.enqueue_arguments(waiting[first : first + batch], "skip") for first in range(0, tasks, batch)
    ]
    start, cpu_start = time.perf_counter(), time.process_time()
    for arguments in calls:
        await conn.fetch(sql, *arguments)
        done += len(arguments[0])
        if time.perf_counter() - start > limit_s:
            break
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    await conn.close()
    return Reached(done, seconds, cpu_s)


async def _connect(address: str) -> Any:
    import asyncpg

    return await asyncpg.connect(address)
