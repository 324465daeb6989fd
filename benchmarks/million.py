"""A store with as many tasks as wanted, made by SQL from a real one: enqueueing them takes minutes."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from omniq import Task
from omniq.storage import PostgresStorage, SQLiteStorage
from omniq.storage.sqlite.records import micros

SECOND = 1_000_000
ERROR = '{"type":"ValueError","message":"cannot identify image file","traceback":"","kind":"error"}'
# status, queue, function, share of all: what a store looks like after a busy day.
KINDS = [
    (2, "mail", "shop.mail.send", 0.50),
    (2, "images", "shop.images.resize", 0.30),
    (3, "images", "shop.images.resize", 0.0005),
    (0, "reports", "shop.reports.render", 0.1995),
]


def fill_sqlite(database: Path, how_many: int) -> None:
    """`how_many` tasks, most of them done, some failed, a fifth waiting in a queue that nobody serves."""
    asyncio.run(_first(database))
    now = micros(datetime.now(UTC))
    with closing(sqlite3.connect(database, isolation_level=None)) as conn:
        conn.execute("PRAGMA synchronous = OFF")
        conn.execute("PRAGMA cache_size = -200000")
        indexes = conn.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'omniq_task' "
            "AND sql IS NOT NULL"
        ).fetchall()
        conn.execute("BEGIN")
        for name, _ in indexes:
            conn.execute(f"DROP INDEX {name}")
        columns = [name for _, name, *_ in conn.execute("PRAGMA table_info(omniq_task)")]
        seq = 2
        for status, queue, func_path, share in KINDS:
            many = round(how_many * share)
            _pile(conn, columns, seq, many, status, queue, func_path, now)
            seq += many
        conn.execute("DELETE FROM omniq_task WHERE seq = 1")
        conn.execute("DELETE FROM omniq_tally")
        _count(conn, now)
        for _, sql in indexes:
            conn.execute(sql)
        conn.execute("COMMIT")


async def _first(database: Path) -> None:
    async with SQLiteStorage(database, durability="relaxed") as storage:
        await storage.enqueue(Task("shop.mail.send", (1,), id="pattern"))


def _pile(
    conn: sqlite3.Connection,
    columns: list[str],
    first: int,
    many: int,
    status: int,
    queue: str,
    func_path: str,
    now: int,
) -> None:
    at = f"({now - 3600 * SECOND} + (n.value * {3600 * SECOND - 5 * SECOND} / {max(1, many)}))"
    ended = status >= 2
    values = {
        "seq": f"{first} + n.value",
        "id": f"printf('%08x-0000-7000-8000-%012x', {first}, n.value)",
        "queue": f"'{queue}'",
        "func_path": f"'{func_path}'",
        "status": str(status),
        "enqueued_at": at,
        "due": at,
        "started_at": f"{at} + 20000 + (n.value * 7919 % 900000)" if ended else "NULL",
        "finished_at": f"{at} + 60000 + (n.value * 7919 % 4100000)" if ended else "NULL",
        "prune_at": f"{at} + 86400000000" if ended else "NULL",
        "result_status": str(status) if ended else "NULL",
        "result_at": at if ended else "NULL",
        "error": f"'{ERROR}'" if status == 3 else "NULL",
        "epoch": "1" if ended else "0",
        "result": "payload" if status == 2 else "NULL",
    }
    selected = ", ".join(values.get(name, name) for name in columns)
    conn.execute(
        "WITH RECURSIVE n(value) AS (VALUES (0) UNION ALL SELECT value + 1 FROM n WHERE value < ?) "
        f"INSERT INTO omniq_task SELECT {selected} FROM omniq_task t, n WHERE t.seq = 1",
        (many - 1,),
    )


def _count(conn: sqlite3.Connection, now: int) -> None:
    """The tallies that the store would have kept meanwhile: spread over the last hour."""
    minute = now // (60 * SECOND)
    for status, queue, _, _ in KINDS:
        [many] = conn.execute(
            "SELECT count(*) FROM omniq_task WHERE status = ? AND queue = ?", (status, queue)
        ).fetchone()
        for n in range(60):
            part = many * (n + 1) // 60 - many * n // 60
            numbers = [0] * 11
            numbers[status] = numbers[5] = part
            if status == 2:
                numbers[6] = part
            if status == 3:
                numbers[7] = part
            conn.execute(
                "INSERT INTO omniq_tally VALUES (?, ?, ?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET "
                "success = success + excluded.success, failed = failed + excluded.failed, "
                "enqueued = enqueued + excluded.enqueued, succeeded = succeeded + excluded.succeeded, "
                "given_up = given_up + excluded.given_up",
                (minute - 59 + n, queue, *numbers),
            )


# --- the same on PostgreSQL ----------------------------------------------------------------------

PUT = """
INSERT INTO omniq.task ({columns})
SELECT {values} FROM (SELECT * FROM omniq.task WHERE id = 'pattern') AS t,
    generate_series(1, $1::bigint) AS n,
    LATERAL (SELECT now() - interval '1 hour' + n * interval '3595 s' / $1 AS at) AS m
"""
TALLY = """
INSERT INTO omniq.tally (minute, queue, enqueued, {counted}, {held})
SELECT date_trunc('minute', now()) - n * interval '1 minute', $1, part, {ended}, part
FROM generate_series(0, 59) AS n, LATERAL (SELECT ($2 * (n + 1)) / 60 - ($2 * n) / 60 AS part) AS p
"""
NAMES = {0: ("retried", "pending"), 2: ("succeeded", "success"), 3: ("given_up", "failed")}


async def fill_postgres(url: str, how_many: int) -> None:
    import asyncpg

    await PostgresStorage(url).migrate()
    async with PostgresStorage(url) as storage:
        await storage.enqueue(Task("shop.mail.send", (1,), id="pattern"))
    conn = await asyncpg.connect(url)
    try:
        async with conn.transaction():
            await conn.execute("DELETE FROM omniq.tally")
            for status, queue, func_path, share in KINDS:
                many = round(how_many * share)
                await conn.execute(_put(status, queue, func_path), many)
                counted, held = NAMES[status]
                ended = "part" if status else "0"
                await conn.execute(TALLY.format(counted=counted, held=held, ended=ended), queue, many)
                await conn.execute("INSERT INTO omniq.queue VALUES ($1)", queue)
            await conn.execute("DELETE FROM omniq.task WHERE id = 'pattern'")
        await conn.execute("VACUUM ANALYZE omniq.task")
    finally:
        await conn.close()


def _put(status: int, queue: str, func_path: str) -> str:
    ended = status >= 2
    values = {
        "id": f"'{queue}-{status}-' || lpad(n::text, 12, '0')",
        "queue": f"'{queue}'",
        "func_path": f"'{func_path}'",
        "status": str(status),
        "enqueued_at": "at",
        "due": "at",
        "started_at": "at + (20 + n * 7919 % 900) * interval '1 ms'" if ended else "NULL",
        "finished_at": "at + (1000 + n * 7919 % 4100) * interval '1 ms'" if ended else "NULL",
        "prune_at": "at + interval '1 day'" if ended else "NULL",
        "result_status": str(status) if ended else "NULL",
        "result_at": "at" if ended else "NULL",
        "error": f"'{ERROR}'" if status == 3 else "NULL",
        "epoch": "1" if ended else "0",
        "result": "payload" if status == 2 else "NULL",
    }
    kept = ("digest", "payload", "rank", "max_retries", "max_losses", "on_failure")
    columns = [*kept, *values]
    return PUT.format(columns=", ".join(columns), values=", ".join([*kept, *values.values()]))
