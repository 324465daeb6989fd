"""Through a real PgBouncer: a session of the server for every transaction, or one for every client."""

import asyncio
from collections.abc import Iterator

import pytest

from omniq import AsyncWorkerPool, Context, OmniQ, Task
from omniq.cli.examine_postgres import examine_server
from omniq.errors import DuplicateTask
from omniq.storage.postgres import PostgresStorage
from omniq.task import Settlement, TaskStatus
from tests.postgres import bodies
from tests.postgres.pooler import pooled
from tests.postgres.test_faults import JOB, has_done, until

SESSIONS = 3  # fewer than a store has connections, so that calls meet one another's sessions
LONG_S = 30.0


@pytest.fixture
def by_transaction(postgres_dsn: str) -> Iterator[str]:
    with pooled(postgres_dsn, "transaction", SESSIONS) as dsn:
        yield dsn


@pytest.fixture
def by_session(postgres_dsn: str) -> Iterator[str]:
    with pooled(postgres_dsn, "session", 20) as dsn:
        yield dsn


async def test_calls_that_share_sessions_do_not_meet_each_others_statements(
    by_transaction: str, schema: str
) -> None:
    """Forty at a time over three sessions, of two stores: what one prepared, another must not run."""
    async with PostgresStorage(by_transaction, schema=schema) as store, store.clone() as other:

        async def live(number: int) -> None:
            mine = (store, other)[number % 2]
            queue = f"q{number}"
            task_id = await mine.enqueue(Task(JOB, (number,), queue=queue))
            [claim] = await mine.claim(f"worker {number}", queues=(queue,))
            assert claim.id == task_id
            assert await mine.progress(task_id, claim.epoch, 1, 2)
            assert set((await mine.renew(f"worker {number}", 30.0)).held) == {task_id}
            assert await mine.settle([Settlement.success(claim, b"\xc0")]) == ["held"]
            found = await mine.get_task(task_id)
            assert found is not None
            assert (found.status, found.queue) == (TaskStatus.SUCCESS, queue)

        await asyncio.gather(*map(live, range(40)))
        assert await store.verify() == []


async def test_what_the_server_refuses_leaves_the_connection_usable(by_transaction: str, schema: str) -> None:
    async with PostgresStorage(by_transaction, schema=schema) as store:
        await store.enqueue(Task(JOB, (1,), unique_key="one"))
        for _ in range(2 * SESSIONS):
            with pytest.raises(DuplicateTask):
                await store.enqueue_many([Task(JOB, (1,), unique_key="one")], on_conflict="raise")
        assert len(await store.list_tasks()) == 1


async def test_migrate_and_relaxed_durability_through_a_pooler(by_transaction: str, schema: str) -> None:
    await PostgresStorage(by_transaction, schema=schema).migrate()
    async with PostgresStorage(by_transaction, schema=schema, durability="relaxed") as store:
        await store.enqueue(Task(JOB, (1,)))
        # The setting ended with its transaction: whoever is lent the session next does not have it.
        assert (await store.vitals()).synchronous_commit is False
    async with PostgresStorage(by_transaction, schema=schema) as store:
        for _ in range(2 * SESSIONS):
            assert (await store.vitals()).synchronous_commit is True


async def test_a_transaction_of_a_body_is_one_session(by_transaction: str, schema: str) -> None:
    q = OmniQ(PostgresStorage(by_transaction, schema=schema))

    @q.task(name="tests.book")
    async def book(ctx: Context, number: int) -> int:
        async with ctx.transaction() as conn:
            await conn.execute("CREATE TEMP TABLE IF NOT EXISTS seen (n int) ON COMMIT DROP")
            await conn.execute("INSERT INTO seen VALUES ($1)", number)
            return int(await conn.fetchval("SELECT sum(n) FROM seen"))

    async with q:
        handles = [await book.aenqueue(number) for number in range(10)]
        async with q.async_worker(poll_interval=0.1):
            results = [await handle.aresult(timeout=LONG_S) for handle in handles]
    assert results == list(range(10))


async def test_without_a_session_workers_poll_and_doctor_says_so(by_transaction: str, schema: str) -> None:
    bodies.RUNS.clear()
    async with PostgresStorage(by_transaction, schema=schema) as store:
        vitals = await store.vitals()
        assert (vitals.pooled, vitals.wakes) == (True, False)
        [finding] = [one for one in examine_server(vitals) if one.about == "wake-ups"]
        assert finding.level == "warning"
        assert "poll_interval" in finding.text
        async with AsyncWorkerPool(PostgresStorage(by_transaction, schema=schema), poll_interval=0.1):
            await store.enqueue_many([Task(JOB, (number,)) for number in range(50)])
            await until(lambda: has_done(store, 50))
        assert set(bodies.RUNS) == set(range(50))


async def test_with_a_session_workers_are_woken(by_session: str, schema: str) -> None:
    async with PostgresStorage(by_session, schema=schema) as store:
        vitals = await store.vitals()
        assert (vitals.pooled, vitals.wakes) == (True, True)
        [finding] = [one for one in examine_server(vitals) if one.about == "wake-ups"]
        assert finding.level == "ok"
        async with AsyncWorkerPool(PostgresStorage(by_session, schema=schema), poll_interval=LONG_S * 10):
            await asyncio.sleep(0.5)  # it has looked, and sleeps until it is woken
            result = await store.wait_result(await store.enqueue(Task(JOB, (1,))), timeout=LONG_S)
        assert result is not None
        assert result.status is TaskStatus.SUCCESS
