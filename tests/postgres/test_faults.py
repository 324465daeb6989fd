"""The server crashes, connections are cut, answers get lost: no task does, and none is stuck or fails."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from omniq import AsyncWorkerPool, Task
from omniq.errors import NotFound, StoreUnavailable
from omniq.storage.postgres import NO_PLACES, PostgresStorage, _wish
from omniq.storage.postgres.connections import Connections
from omniq.storage.postgres.records import HEAD_COLUMNS, settle_arguments
from omniq.task import Claim, Settlement, TaskError, TaskStatus
from tests.postgres import bodies
from tests.postgres.server import Cluster, NoServer, missing, private

JOB = "tests.postgres.bodies.count"
BOOM = TaskError("ValueError", "boom")
MANY = 400
LOOK_EVERY_S = 0.02


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A server of this test's own, which it may crash."""
    try:
        with private() as cluster:
            yield cluster
    except NoServer as why:
        missing(why)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """The test's own bound is the bound."""
    while True:
        try:
            if await condition():
                return
        except StoreUnavailable:
            pass
        await asyncio.sleep(LOOK_EVERY_S)


async def counts(store: PostgresStorage, *queues: str) -> dict[TaskStatus, int]:
    counted = await store.counts()
    found = [counted[queue] for queue in queues or ("default",)]
    return {status: sum(one[status] for one in found) for status in TaskStatus}


async def has_done(store: PostgresStorage, many: int) -> bool:
    return (await counts(store))[TaskStatus.SUCCESS] >= many


@asynccontextmanager
async def draining(dsn: str, schema: str) -> AsyncIterator[PostgresStorage]:
    """A worker on a store full of tasks; the test has the store to look on."""
    bodies.RUNS.clear()
    async with PostgresStorage(dsn, schema=schema) as store:
        await store.enqueue_many([Task(JOB, (number,), max_losses=99) for number in range(MANY)])
        async with AsyncWorkerPool(store.clone(), concurrency=10, poll_interval=0.2, lease=3):
            yield store


async def check_drained(store: PostgresStorage) -> None:
    await until(lambda: has_done(store, MANY))
    assert await counts(store) == {**dict.fromkeys(TaskStatus, 0), TaskStatus.SUCCESS: MANY}
    assert set(bodies.RUNS) == set(range(MANY))
    assert await store.verify() == []


@pytest.mark.parametrize("how", ["immediate", "fast"])
async def test_f5_the_server_stops_and_starts_again_during_a_drain(cluster: Cluster, how: str) -> None:
    """F5: nothing is lost, nothing has failed."""
    await PostgresStorage(cluster.dsn).migrate()
    async with draining(cluster.dsn, "omniq") as store:
        for share in (0.2, 0.6):
            await until(lambda share=share: has_done(store, int(MANY * share)))  # type: ignore[misc]
            await asyncio.to_thread(cluster.stop, how)
            with pytest.raises(StoreUnavailable):
                await store.enqueue(Task(JOB, (0,)))
            await asyncio.to_thread(cluster.start)
        await check_drained(store)


async def test_f6_connections_are_cut_during_a_drain(postgres_dsn: str, schema: str) -> None:
    """F6: every connection of the store, again and again."""
    conn = await asyncpg.connect(postgres_dsn)
    async with draining(postgres_dsn, schema) as store:
        for share in (0.1, 0.3, 0.5, 0.7):
            await until(lambda share=share: has_done(store, int(MANY * share)))  # type: ignore[misc]
            await conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE 'omniq %' AND query LIKE '%' || $1 || '%'",
                schema,
            )
        await check_drained(store)
    await conn.close()


async def test_wake_ups_come_back(postgres_dsn: str, schema: str) -> None:
    conn = await asyncpg.connect(postgres_dsn)
    async with PostgresStorage(postgres_dsn, schema=schema) as store, store.clone() as producer:
        assert await store.claim("ann") == []
        listening = store._listening._conn
        assert listening is not None
        await conn.execute("SELECT pg_terminate_backend($1)", listening.get_server_pid())
        await conn.close()
        # It looks once when it is back, for what it may have missed.
        assert await store.wait(30) is True
        assert await store.claim("ann") == []
        sleeper = asyncio.create_task(store.wait(30))
        await producer.enqueue(Task(JOB, (1,)))
        assert await sleeper is True
        assert len(await store.claim("ann")) == 1


async def test_without_wake_ups_a_wait_is_over_in_time(postgres_dsn: str, schema: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.claim("ann")
        await store._listening.stop()
        assert await store.wait(0.05) is False


# --- answers that never come ----------------------------------------------------------------------


class Lossy(Connections):
    """The server does what it is told, and commits; the first answers are lost on their way back."""

    def __init__(self, inner: Connections, losses: int) -> None:
        super().__init__(inner.address)
        self.losses = losses

    async def _run(self, conn: Any, sql: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        rows = await super()._run(conn, sql, arguments, timeout_s)
        if self.losses > 0:
            self.losses -= 1
            raise ConnectionResetError("the answer was lost")
        return rows


LOSSES = 10


@asynccontextmanager
async def lossy(dsn: str, schema: str) -> AsyncIterator[tuple[PostgresStorage, Lossy]]:
    async with PostgresStorage(dsn, schema=schema) as store:
        assert store._connections is not None
        before, store._connections = store._connections, Lossy(store._connections, 0)
        await before.close()
        yield store, store._connections


async def repeated(connections: Lossy, call: Callable[[], Awaitable[Any]]) -> Any:
    """The call, made again as it is until its answer arrives."""
    connections.losses = LOSSES
    for _ in range(LOSSES):
        with pytest.raises(StoreUnavailable):
            await call()
    return await call()


async def test_f9_every_write_whose_answer_was_lost_can_be_repeated(postgres_dsn: str, schema: str) -> None:
    """F9: ten times in a row, on the same tasks."""
    async with lossy(postgres_dsn, schema) as (store, connections):
        tasks = [Task(JOB, (number,)) for number in range(4)]
        enqueued = await repeated(connections, lambda: store.enqueue_many(tasks))
        assert [str(one) for one in enqueued] == [task.id for task in tasks]
        assert (await counts(store))[TaskStatus.PENDING] == 4

        claims = await repeated(connections, lambda: store.claim("ann", limit=3, claim_id="c"))
        assert [claim.id for claim in claims] == [task.id for task in tasks[:3]]
        assert {claim.epoch for claim in claims} == {1}
        assert (await counts(store))[TaskStatus.RUNNING] == 3

        done, again, failed = claims
        said = [
            Settlement.success(done, b""),
            Settlement.retry(again, 60.0, BOOM),
            Settlement.failed(failed, BOOM),
        ]
        wish = Claim("ann", None, 5, 30.0, "d")
        answers, more = await repeated(connections, lambda: store.exchange(said, wish))
        assert set(answers) == {"already"}
        assert [claim.id for claim in more] == [tasks[3].id]
        shown = {task.id: (task.status, task.attempts, task.epoch) for task in await store.list_tasks()}
        assert [shown[task.id] for task in tasks] == [
            ("SUCCESS", 0, 1),
            ("PENDING", 1, 1),
            ("FAILED", 1, 1),
            ("RUNNING", 0, 1),
        ]
        renewal = await repeated(connections, lambda: store.renew("ann", 30.0))
        assert set(renewal.held) == {tasks[3].id}
        assert await repeated(connections, lambda: store.cancel(tasks[3].id)) is TaskStatus.RUNNING
        assert (
            await repeated(connections, lambda: store.release("ann")) == 0
        )  # it had happened the first time
        assert (await counts(store))[TaskStatus.CANCELLED] == 1
        with pytest.raises(NotFound):
            await repeated(connections, lambda: store.delete(done.id))
        assert len(await store.list_tasks()) == 3
        assert await store.verify() == []


async def test_a_worker_whose_answers_are_lost_loses_no_task(postgres_dsn: str, schema: str) -> None:
    bodies.RUNS.clear()
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.enqueue_many([Task(JOB, (number,)) for number in range(40)])
        async with (
            lossy(postgres_dsn, schema) as (deaf, connections),
            AsyncWorkerPool(deaf, concurrency=10, poll_interval=0.2),
        ):
            for done in (5, 20):
                await until(lambda done=done: has_done(store, done))  # type: ignore[misc]
                connections.losses = 3
            await until(lambda: has_done(store, 40))
        assert (len(bodies.RUNS), set(bodies.RUNS.values())) == (40, {1})
        assert await store.verify() == []


async def test_a_claim_repeated_while_the_first_is_under_way_gives_the_same(
    postgres_dsn: str, schema: str
) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        await store.enqueue_many([Task(JOB, (number,)) for number in range(40)])
        claim = Claim("ann", None, 2, 30.0, "c")
        nothing = settle_arguments([])
        conn, watch = await asyncpg.connect(postgres_dsn), await asyncpg.connect(postgres_dsn)
        async with conn.transaction():  # the first, before its commit
            rows = await conn.fetch(store._sql["exchange"], *nothing, 60.0, 60.0, *_wish(claim), *NO_PLACES)
            again = asyncio.create_task(store.exchange([], claim))
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while not again.done() and not await watch.fetchval(waits):
                await watch.execute("SELECT pg_sleep(0.01)")
        _, claims = await again
        assert {row[HEAD_COLUMNS + 1] for row in rows[:-1]} == {claimed.id for claimed in claims}
        assert len(await store.held("ann")) == 2
        await conn.close()
        await watch.close()


@pytest.mark.parametrize("scarce", [(), ("b",)])
async def test_many_claimers_over_several_queues_share_everything_and_nothing_twice(
    postgres_dsn: str, schema: str, scarce: tuple[str, ...]
) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store, store.clone() as other:
        await store.enqueue_many([Task(JOB, (n,), queue="abc"[n % 3]) for n in range(600)])

        async def drain(number: int) -> list[str]:
            taken: list[str] = []
            while len(taken) < 600:
                wish = Claim(f"worker-{number}", ("a", "b", "c"), 7, 30.0, scarce=scarce, scarce_limit=2)
                _, claims = await (store, other)[number % 2].exchange((), wish)
                taken += [claim.id for claim in claims]
                if not claims and not (await counts(store, "a", "b", "c"))[TaskStatus.PENDING]:
                    break
            return taken

        taken = [task_id for one in await asyncio.gather(*map(drain, range(6))) for task_id in one]
        assert len(taken) == len(set(taken)) == 600
        assert {task.epoch for task in await store.list_tasks(limit=1000)} == {1}


async def test_renewals_and_settles_do_not_wait_for_each_other(postgres_dsn: str, schema: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=schema) as store, store.clone() as other:
        await store.enqueue_many([Task(JOB, (number,)) for number in range(100)][::-1])
        held = await store.claim("ann", limit=100)
        stopped = False

        async def renew() -> None:
            while not stopped:
                await other.renew("ann", 30.0)

        renewing = asyncio.create_task(renew())
        for _ in range(20):
            assert set(await store.settle([Settlement.give_back(one) for one in held])) == {"held"}
            held = await store.claim("ann", limit=100)
            while len(held) < 100:  # a renewal that came too late may hold a lock on what it no longer renews
                assert await store.wait(9) is True
                held += await store.claim("ann", limit=100 - len(held))
        stopped = True
        await renewing


async def test_more_calls_than_connections_all_end(postgres_dsn: str, schema: str) -> None:
    """F5: whoever finds all of them lent waits for one."""
    async with PostgresStorage(postgres_dsn, schema=schema) as store:
        ids = await asyncio.gather(*(store.enqueue(Task(JOB, (number,))) for number in range(100)))
        assert len(set(ids)) == 100
        conn = await asyncpg.connect(postgres_dsn)
        used = await conn.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%' || $1 || '%' "
            "AND application_name = 'omniq work'",
            schema,
        )
        await conn.close()
        assert used <= 8


async def _waiters(looking: "asyncpg.Connection[Any]", schema: str) -> set[int]:
    """The processes of those who wait for a lock on the table of tasks."""
    return {
        row[0]
        for row in await looking.fetch(
            f"SELECT pid FROM pg_locks WHERE relation = '\"{schema}\".task'::regclass AND NOT granted"
        )
    }


@pytest.mark.parametrize("how", ["answered", "cut off"])
async def test_a_call_under_way_while_the_storage_is_closed_leaves_no_connection(
    postgres_dsn: str, schema: str, how: str
) -> None:
    """Its connection goes when the call has ended, however it ends."""
    store = PostgresStorage(postgres_dsn, schema=schema)
    await store.open()
    other, looking = await asyncpg.connect(postgres_dsn), await asyncpg.connect(postgres_dsn)
    held = other.transaction()
    await held.start()
    await other.execute(f'LOCK TABLE "{schema}".task IN ACCESS EXCLUSIVE MODE')
    call = asyncio.create_task(store.get_task("anything"))
    pids: set[int] = set()

    async def waits() -> bool:
        pids.update(await _waiters(looking, schema))
        return bool(pids)

    async def are_gone() -> bool:
        return not pids & {row[0] for row in await looking.fetch("SELECT pid FROM pg_stat_activity")}

    await until(waits)
    await store.close()
    if how == "cut off":
        await looking.execute(
            "SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS w (pid)", list(pids)
        )
        with pytest.raises(StoreUnavailable):
            await call
    await held.rollback()
    if how == "answered":
        assert await call is None
    await until(are_gone)
    await other.close()
    await looking.close()
