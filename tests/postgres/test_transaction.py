"""`ctx.transaction()`: what a body writes and the success of its task are one, or neither is there."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest

from omniq import AsyncWorkerPool, Context, Snooze, Task, inchild
from omniq.errors import Unsupported
from omniq.inchild import Body
from omniq.pool import WorkerPool as ProcessPool
from omniq.serializer import MsgpackSerializer
from omniq.storage.base import BaseStorage
from omniq.storage.postgres import PostgresStorage
from omniq.storage.postgres.schema import quoted
from omniq.task import Answer, Failed, Settlement, TaskStatus
from tests.postgres.proxy import Proxy
from tests.postgres.test_faults import until

HERE = "tests.postgres.test_transaction"
GO: dict[str, asyncio.Event] = {}
RUNS: list[int] = []
PIDS: list[int] = []


async def write(ctx: Context, table: str, number: int) -> int:
    RUNS.append(ctx.attempt)
    async with ctx.transaction() as conn:
        PIDS.append(conn.get_server_pid())
        await conn.execute(f"INSERT INTO {table} VALUES ($1)", number)
    if table in GO:
        GO[f"{table} is written"].set()
        await GO[table].wait()
    return number


async def fail_first(ctx: Context, table: str) -> None:
    async with ctx.transaction() as conn:
        await conn.execute(f"INSERT INTO {table} VALUES ($1)", ctx.attempt)
    if ctx.attempt == 1:
        raise ValueError("boom")


async def snooze_first(ctx: Context, table: str) -> None:
    RUNS.append(ctx.epoch)
    async with ctx.transaction() as conn:
        await conn.execute(f"INSERT INTO {table} VALUES ($1)", ctx.epoch)
    if ctx.epoch == 1:
        raise Snooze(0)


async def catch_in_the_middle(ctx: Context, table: str) -> str:
    async with ctx.transaction() as conn:
        await conn.execute(f"INSERT INTO {table} VALUES (1)")
    try:
        async with ctx.transaction() as conn:
            await conn.execute(f"INSERT INTO {table} VALUES (2)")
            await conn.execute(f"INSERT INTO {table} VALUES (1)")  # the key is taken
    except asyncpg.UniqueViolationError:
        async with ctx.transaction() as conn:
            await conn.execute(f"INSERT INTO {table} VALUES (3)")
    return "done"


async def swallow(ctx: Context, table: str) -> None:
    async with ctx.transaction() as conn:
        await conn.execute(f"INSERT INTO {table} VALUES (1)")
        with suppress(asyncpg.PostgresError):
            await conn.execute("SELECT nonsense")


async def commit_by_hand(ctx: Context, table: str) -> None:
    async with ctx.transaction() as conn:
        pass
    await conn.execute("COMMIT")


async def break_at_commit(ctx: Context, table: str) -> None:
    async with ctx.transaction() as conn:
        await conn.execute(f"INSERT INTO {table} VALUES (7, 8)")  # refers to nobody, and that is checked late


async def leave_things_behind(ctx: Context, table: str) -> list[Any]:
    async with ctx.transaction() as conn:
        found = [
            await conn.fetchval("SHOW work_mem"),
            await conn.fetchval("SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()"),
        ]
        await conn.execute("CREATE TEMP TABLE mine (n integer); SET work_mem = '99MB'")
    return found


def blocking(ctx: Context, table: str) -> None:
    ctx.transaction()


@asynccontextmanager
async def table_in(dsn: str, schema: str) -> AsyncIterator[tuple[asyncpg.Connection, str]]:
    conn = await asyncpg.connect(dsn)
    name = f"{quoted(schema)}.mine"
    await conn.execute(
        f"CREATE TABLE {name} (n integer PRIMARY KEY, "
        f"parent integer REFERENCES {name} DEFERRABLE INITIALLY DEFERRED)"
    )
    RUNS.clear()
    PIDS.clear()
    GO.clear()
    try:
        yield conn, name
    finally:
        await conn.execute(f"DROP TABLE {name}")
        await conn.close()


async def numbers(conn: asyncpg.Connection, table: str) -> list[int]:
    return [row[0] for row in await conn.fetch(f"SELECT n FROM {table} ORDER BY n")]


def pool(store: BaseStorage, **options: Any) -> AsyncWorkerPool:
    return AsyncWorkerPool(
        store, **{"concurrency": 4, "poll_interval": 0.1, "base_retry_delay": 0.01, **options}
    )


async def outcome(
    dsn: str, schema: str, body: Callable[..., Any], *more: int, retries: int = 2, **options: Any
) -> tuple[Any, list[int]]:
    """How the task ended, and what is in the table then."""
    async with table_in(dsn, schema) as (conn, table), PostgresStorage(dsn, schema=schema) as store:
        task_id = await store.enqueue(Task(f"{HERE}.{body.__name__}", (table, *more), max_retries=retries))
        async with pool(store.clone(), **options):
            result = await store.wait_result(task_id)
        assert result is not None
        assert await store.verify() == []
        return result, await numbers(conn, table)


async def test_success_commits_what_was_written(postgres_dsn: str, emptied: str) -> None:
    result, found = await outcome(postgres_dsn, emptied, write, 5)
    assert (result.status, result.result, found) == (TaskStatus.SUCCESS, 5, [5])


async def test_nobody_sees_it_before_the_task_has_ended(postgres_dsn: str, emptied: str) -> None:
    async with (
        table_in(postgres_dsn, emptied) as (conn, table),
        PostgresStorage(postgres_dsn, schema=emptied) as store,
    ):
        GO[table], GO[f"{table} is written"] = asyncio.Event(), asyncio.Event()
        async with pool(store.clone()):
            task_id = await store.enqueue(Task(f"{HERE}.write", (table, 1)))
            await GO[f"{table} is written"].wait()
            assert await numbers(conn, table) == []
            GO[table].set()
            await store.wait_result(task_id)
        assert await numbers(conn, table) == [1]


async def test_an_exception_undoes_it_and_the_next_attempt_counts(postgres_dsn: str, emptied: str) -> None:
    result, found = await outcome(postgres_dsn, emptied, fail_first)
    assert (result.status, found) == (TaskStatus.SUCCESS, [2])


async def test_a_snooze_undoes_it(postgres_dsn: str, emptied: str) -> None:
    result, found = await outcome(postgres_dsn, emptied, snooze_first)
    assert (result.status, found, RUNS) == (TaskStatus.SUCCESS, [2], [1, 2])


async def test_a_block_that_raises_is_undone_alone(postgres_dsn: str, emptied: str) -> None:
    result, found = await outcome(postgres_dsn, emptied, catch_in_the_middle)
    assert (result.result, found) == ("done", [1, 3])


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        (swallow, "InFailedSQLTransactionError", "aborted"),
        (commit_by_hand, "InvalidOption", "do not commit"),
        (break_at_commit, "ForeignKeyViolationError", "violates foreign key"),
        (blocking, "Unsupported", "async def"),
    ],
)
async def test_what_cannot_be_committed_is_a_failure_of_the_run(
    postgres_dsn: str, emptied: str, body: Callable[..., Any], kind: str, says: str
) -> None:
    result, found = await outcome(postgres_dsn, emptied, body, retries=0)
    assert (result.status, result.error.type, found) == (TaskStatus.FAILED, kind, [])
    assert says in result.error.message


async def test_a_stale_lease_undoes_it(postgres_dsn: str, emptied: str) -> None:
    """F3: the zombie's own writes are refused together with its report."""
    async with (
        table_in(postgres_dsn, emptied) as (conn, table),
        PostgresStorage(postgres_dsn, schema=emptied) as store,
    ):
        await store.enqueue(Task(f"{HERE}.write", (table, 1)))
        [zombie] = await store.claim("zombie")
        transaction = await store.begin()
        async with transaction.block() as theirs:
            await theirs.execute(f"INSERT INTO {table} VALUES (666)")
        assert await store.release("zombie") == 1
        assert await transaction.settle(Settlement.success(zombie, b"")) is Answer.STALE
        async with pool(store.clone()):
            await until(lambda: _has(conn, table, [1]))
        assert await store.verify() == []


async def _has(conn: asyncpg.Connection, table: str, expected: list[int]) -> bool:
    return await numbers(conn, table) == expected


async def test_a_lease_that_is_lost_while_it_runs_undoes_it(postgres_dsn: str, emptied: str) -> None:
    async with (
        table_in(postgres_dsn, emptied) as (conn, table),
        PostgresStorage(postgres_dsn, schema=emptied) as store,
    ):
        GO[table], GO[f"{table} is written"] = asyncio.Event(), asyncio.Event()
        worker = pool(store.clone())
        async with worker:
            task_id = await store.enqueue(Task(f"{HERE}.write", (table, 1)))
            await GO[f"{table} is written"].wait()
            GO[f"{table} is written"].clear()
            assert await store.release(worker.id) == 1
            await GO[f"{table} is written"].wait()  # the next run, beside which the first was given up
            GO[table].set()
            result = await store.wait_result(task_id)
        assert result is not None
        assert (result.status, await numbers(conn, table)) == (TaskStatus.SUCCESS, [1])
        assert len(RUNS) == 2


async def test_a_commit_whose_answer_is_lost_happened_once(postgres_dsn: str, emptied: str) -> None:
    """F9: the worker cannot tell, gives back, and is told that this is stale: the body does not run again."""
    async with (
        table_in(postgres_dsn, emptied) as (conn, table),
        PostgresStorage(postgres_dsn, schema=emptied) as store,
        Proxy(postgres_dsn) as network,
    ):
        network.lose_answers("COMMIT;", 1)
        through = PostgresStorage(network.dsn, schema=emptied)
        worker = pool(through)
        async with worker:
            task_id = await store.enqueue(Task(f"{HERE}.write", (table, 1)))
            result = await store.wait_result(task_id)
            await until(lambda: _stale(worker, 1))
        assert result is not None
        assert (network.lost, result.status, RUNS) == (1, TaskStatus.SUCCESS, [1])
        assert await numbers(conn, table) == [1]


async def _stale(worker: AsyncWorkerPool, times: int) -> bool:
    return worker.stale_reports == times


async def test_a_connection_that_is_cut_before_the_end_costs_no_attempt(
    postgres_dsn: str, emptied: str
) -> None:
    async with (
        table_in(postgres_dsn, emptied) as (conn, table),
        PostgresStorage(postgres_dsn, schema=emptied) as store,
    ):
        GO[table], GO[f"{table} is written"] = asyncio.Event(), asyncio.Event()
        async with pool(store.clone()):
            task_id = await store.enqueue(Task(f"{HERE}.write", (table, 1), max_retries=0))
            await GO[f"{table} is written"].wait()
            await conn.execute("SELECT pg_terminate_backend($1)", PIDS[0])
            GO[table].set()
            result = await store.wait_result(task_id)
        assert result is not None
        assert (result.status, await numbers(conn, table), RUNS) == (TaskStatus.SUCCESS, [1], [1, 1])


async def test_a_store_that_is_away_when_it_begins_costs_no_attempt(postgres_dsn: str, emptied: str) -> None:
    async with (
        table_in(postgres_dsn, emptied) as (conn, table),
        PostgresStorage(postgres_dsn, schema=emptied) as store,
        Proxy(postgres_dsn) as network,
    ):
        network.lose_answers("BEGIN ISOLATION", 3)
        async with pool(PostgresStorage(network.dsn, schema=emptied)):
            task_id = await store.enqueue(Task(f"{HERE}.write", (table, 1), max_retries=0))
            result = await store.wait_result(task_id)
        assert result is not None
        assert (network.lost, result.status, RUNS) == (3, TaskStatus.SUCCESS, [1, 1, 1, 1])
        assert await numbers(conn, table) == [1]


async def test_more_bodies_than_connections_all_end(postgres_dsn: str, emptied: str) -> None:
    async with (
        table_in(postgres_dsn, emptied) as (conn, table),
        PostgresStorage(postgres_dsn, schema=emptied) as store,
    ):
        await store.enqueue_many([Task(f"{HERE}.write", (table, number)) for number in range(60)])
        async with pool(store.clone(), concurrency=40):
            await until(lambda: _has(conn, table, list(range(60))))
        assert len(set(PIDS)) <= 16


async def test_what_a_body_leaves_on_its_connection_meets_nobody(postgres_dsn: str, emptied: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=emptied) as store:
        async with pool(store.clone(), concurrency=1):
            first, second = [
                await store.wait_result(await store.enqueue(Task(f"{HERE}.leave_things_behind", ("x",))))
                for _ in range(2)
            ]
        assert first is not None
        assert second is not None
        assert first.result == second.result
        assert first.result[1] == 0


async def test_a_stop_waits_for_the_commit_and_nothing_is_left_open(postgres_dsn: str, emptied: str) -> None:
    async with (
        table_in(postgres_dsn, emptied) as (conn, table),
        PostgresStorage(postgres_dsn, schema=emptied) as store,
    ):
        await store.enqueue_many([Task(f"{HERE}.write", (table, number)) for number in range(8)])
        worker = pool(store.clone(), concurrency=8)
        await worker.start()
        await until(lambda: _began(8))
        await worker.stop()
        assert await numbers(conn, table) == list(range(8))
        left = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1::int[])"
        await until(lambda: _nothing(conn, left))


async def _began(many: int) -> bool:
    return len(RUNS) == many


async def _nothing(conn: asyncpg.Connection, query: str) -> bool:
    return await conn.fetchval(query, PIDS) == 0


async def test_other_stores_say_so() -> None:
    context = Context("id", 1, 1, lambda *_: None)
    with pytest.raises(Unsupported, match="PostgreSQL"):
        context.transaction()


async def test_a_suspect_that_asks_for_it_runs_in_its_worker_after_all(
    postgres_dsn: str, emptied: str
) -> None:
    """What survived the death of its worker runs in a process of its own, where no connection is."""
    async with (
        table_in(postgres_dsn, emptied) as (conn, table),
        PostgresStorage(postgres_dsn, schema=emptied) as store,
    ):
        task_id = await store.enqueue(Task(f"{HERE}.write", (table, 1), max_retries=0, timeout=30))
        await conn.execute(f"UPDATE {quoted(emptied)}.task SET suspicions = 1")
        async with pool(store.clone(), process_pool=ProcessPool(0, 1)):
            result = await store.wait_result(task_id)
        assert result is not None
        assert (result.status, RUNS, await numbers(conn, table)) == (TaskStatus.SUCCESS, [1], [1])


def test_a_process_says_that_it_is_not_there() -> None:
    def body(suspect: bool) -> Body:
        call = (("x", 1), {})
        return Body("id", 1, 1, f"{HERE}:write".encode(), call, MsgpackSerializer(), None, suspect)

    refused = inchild.run(body(suspect=False))
    assert isinstance(refused, Failed)
    assert (refused.error.type, "executor='process'" in refused.error.message) == ("Unsupported", True)
    assert inchild.run(body(suspect=True)) is None
