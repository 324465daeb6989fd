"""asyncpg or psycopg 3: the store's own statements back to back, on one connection of each, in turn.

    pip install -e '.[dev,postgres]'
    python docs/design/spikes/drivers.py            # under a minute; needs no server of yours

Rate is by the clock and suffers from whatever else the machine does; processor time of the client does not.
What follows from it is in ../decisions/0017-postgres-functions-and-asyncpg.md.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg

sys.path.insert(0, str(Path(__file__).parents[3]))

from omniq.storage.postgres import NO_PLACES, PostgresStorage
from omniq.storage.postgres.records import enqueue_arguments, read_claimed, settle_arguments
from omniq.storage.postgres.schema import Statements
from omniq.task import Claim, Settlement, StoredTask
from tests.postgres import server
from tests.postgres.stores import fresh_schema

ROUNDS, TASKS, AT_ONCE, SINGLES = 6, 4000, 100, 300
Fetch = Callable[..., Awaitable[list[Any]]]


async def drain(fetch: Fetch, sql: Statements, payload: bytes) -> dict[str, tuple[float, float]]:
    """Enqueue in bulk and one by one, settle and claim until nothing is left: tasks/s, client us a task."""
    found: dict[str, tuple[float, float]] = {}

    async def measured(name: str, many: int, work: Awaitable[None]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        await work
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        found[name] = (many / wall, cpu / many * 1e6)

    async def bulk() -> None:
        tasks = [StoredTask("jobs.resize", payload) for _ in range(TASKS)]
        for at in range(0, TASKS, 1000):
            await fetch(sql["enqueue"], *enqueue_arguments(tasks[at : at + 1000], "skip"))

    async def singles() -> None:
        for _ in range(SINGLES):
            await fetch(sql["enqueue"], *enqueue_arguments([StoredTask("jobs.resize", payload)], "skip"))

    async def exchanges() -> None:
        held: list[StoredTask] = []
        for number in range((TASKS + SINGLES) // AT_ONCE + 1):
            claim = Claim("ann", None, AT_ONCE, 30.0, f"{number:x}")
            said = settle_arguments([Settlement.success(one, b"\x01m\xc0") for one in held])
            wish = (claim.worker, None, AT_ONCE, claim.lease, claim.claim_id, False, [], 0)
            rows = await fetch(sql["exchange"], *said, 86400.0, 86400.0, *wish, *map(list, NO_PLACES))
            held = [read_claimed(row[5:], claim) for row in rows[:-1]]

    await measured("enqueue 1000 a call", TASKS, bulk())
    await measured("enqueue one by one", SINGLES, singles())
    await measured("settle and claim 100", TASKS + SINGLES, exchanges())
    return found


async def on_asyncpg(dsn: str, sql: Statements, payload: bytes) -> dict[str, tuple[float, float]]:
    conn = await asyncpg.connect(dsn)
    try:
        return await drain(conn.fetch, sql, payload)
    finally:
        await conn.close()


async def on_psycopg(dsn: str, sql: Statements, payload: bytes) -> dict[str, tuple[float, float]]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=0) as conn:

        async def fetch(text: str, *arguments: Any) -> list[Any]:
            cursor = conn.cursor(binary=True)
            await cursor.execute(re.sub(r"\$\d+", "%s", text), arguments)
            return await cursor.fetchall()

        return await drain(fetch, sql, payload)


def main() -> None:
    payload = PostgresStorage("postgresql://x").serializer.dump_call(
        None, (1, "a.png", [1, 2, 3]), {"fit": True}
    )
    seen: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with server.private("shared_buffers=128MB") as cluster:
        for _ in range(ROUNDS):
            for name, run in (("asyncpg", on_asyncpg), ("psycopg", on_psycopg)):
                with fresh_schema(cluster.dsn) as schema:
                    for what, figures in asyncio.run(run(cluster.dsn, Statements(schema), payload)).items():
                        seen.setdefault((what, name), []).append(figures)
    for (what, name), figures in sorted(seen.items()):
        rates, cpus = zip(*figures, strict=True)
        rate = f"{statistics.median(rates):,.0f}/s ({min(rates):,.0f}-{max(rates):,.0f})"
        cpu = f"{statistics.median(cpus):.0f} us a task ({min(cpus):.0f}-{max(cpus):.0f})"
        print(f"{what:<22} {name:<8} {rate:<28} client {cpu}")


if __name__ == "__main__":
    main()
