"""F5, F6, F17: the network between a store and its server, through a proxy of the tests' own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg
import pytest

from omniq import AsyncWorkerPool, Task
from omniq.errors import StoreUnavailable
from omniq.storage.postgres import PostgresStorage, connections
from omniq.task import Settlement, TaskStatus, WorkerInfo
from tests.faults import verbs
from tests.faults.verbs import VERBS
from tests.postgres import bodies
from tests.postgres.proxy import Proxy
from tests.postgres.server import NoServer, missing, private
from tests.postgres.stores import empty_schema
from tests.postgres.test_faults import JOB, counts, has_done, until

MANY = 300
BLINK_S = 0.3
SOON_S = 0.2


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is answered here is answered at once, so silence is noticed sooner than it should be elsewhere."""
    monkeypatch.setattr(connections, "FIRST_ANSWER_S", SOON_S)


async def blink(network: Proxy) -> None:
    await asyncio.sleep(BLINK_S)
    network.heal()


async def reset(network: Proxy) -> None:
    network.reset()


async def half_open(network: Proxy) -> None:
    network.half_open()
    await blink(network)


async def black_hole(network: Proxy) -> None:
    network.silence()
    await blink(network)


async def dead_connections(network: Proxy) -> None:
    network.kill()


async def refused(network: Proxy) -> None:
    network.refuses = True
    network.reset()
    await blink(network)
    network.refuses = False


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", [reset, half_open, black_hole, dead_connections, refused])
async def test_f5_work_goes_on_after_every_kind_of_cut(
    postgres_dsn: str, emptied: str, fault: Callable[[Proxy], Awaitable[None]]
) -> None:
    bodies.RUNS.clear()
    async with PostgresStorage(postgres_dsn, schema=emptied) as store, Proxy(postgres_dsn) as network:
        await store.enqueue_many([Task(JOB, (number,), max_losses=99) for number in range(MANY)])
        through = PostgresStorage(network.dsn, schema=emptied)
        async with AsyncWorkerPool(through, concurrency=5, poll_interval=0.2, lease=3):
            for share in (0.2, 0.6):
                await until(lambda share=share: has_done(store, int(MANY * share)))  # type: ignore[misc]
                await fault(network)
            await until(lambda: has_done(store, MANY))
        assert await counts(store) == {**dict.fromkeys(TaskStatus, 0), TaskStatus.SUCCESS: MANY}
        assert set(bodies.RUNS) == set(range(MANY))
        assert await store.verify() == []


async def test_f5_a_server_without_a_free_connection_is_waited_for() -> None:
    """Somebody else has taken all of them, and gives them back."""
    bodies.RUNS.clear()
    try:
        with private("max_connections=12", "superuser_reserved_connections=0") as cluster:
            await PostgresStorage(cluster.dsn).migrate()
            async with PostgresStorage(cluster.dsn) as store:
                await store.enqueue_many([Task(JOB, (number,)) for number in range(20)])
                greedy = await _all_connections(cluster.dsn)
                async with AsyncWorkerPool(
                    PostgresStorage(cluster.dsn), concurrency=5, poll_interval=0.2, lease=3
                ):
                    with pytest.raises(StoreUnavailable, match="too many"):
                        await PostgresStorage(cluster.dsn).open()
                    for conn in greedy:
                        await conn.close()
                    await until(lambda: has_done(store, 20))
                assert set(bodies.RUNS) == set(range(20))
    except NoServer as why:
        missing(why)


async def _all_connections(dsn: str) -> list[asyncpg.Connection]:
    taken: list[asyncpg.Connection] = []
    while True:
        try:
            taken.append(await asyncpg.connect(dsn))
        except asyncpg.TooManyConnectionsError:
            return taken


async def test_f6_a_dead_notification_costs_the_poll_interval(postgres_dsn: str, emptied: str) -> None:
    async with PostgresStorage(postgres_dsn, schema=emptied) as store, Proxy(postgres_dsn) as network:
        through = PostgresStorage(network.dsn, schema=emptied)
        async with AsyncWorkerPool(through, poll_interval=0.2):
            await until(lambda: _listens(through))
            network.kill(b"omniq listen")
            # Nobody would notice the silence within half a minute; polling does not wait for that.
            result = await store.wait_result(await store.enqueue(Task(JOB, (1,))), timeout=20)
        assert result is not None
        assert result.status is TaskStatus.SUCCESS


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("statement", ["fold", "leave"])
async def test_f6_what_a_worker_says_beside_its_work_is_given_up_soon(
    postgres_dsn: str, emptied: str, statement: str
) -> None:
    """Its beats put tallies together, and its stop waits for both."""
    async with Proxy(postgres_dsn) as network, PostgresStorage(network.dsn, schema=emptied) as store:
        network.kill()
        async with asyncio.timeout(20):
            with pytest.raises(StoreUnavailable, match="no answer in time"):
                await store._ask(statement, 5 if statement == "fold" else "ann")


@pytest.mark.usefixtures("impatient")
async def test_f6_a_worker_is_heard_of_also_where_tallies_cannot_be_put_together(
    postgres_dsn: str, emptied: str
) -> None:
    async with PostgresStorage(postgres_dsn, schema=emptied) as store:
        other = await asyncpg.connect(postgres_dsn)
        async with other.transaction():
            await other.execute(f'LOCK TABLE "{emptied}".tally')
            await store.beat(WorkerInfo("ann", "ann", "host", 1))
        await other.close()
        assert [one.id for one in await store.workers()] == ["ann"]


async def test_f6_who_begins_to_listen_on_a_dead_connection_goes_on_without_it(
    postgres_dsn: str, emptied: str
) -> None:
    """Who waited for tasks so far, and now waits for a result too."""
    async with (
        PostgresStorage(postgres_dsn, schema=emptied) as direct,
        Proxy(postgres_dsn) as network,
        PostgresStorage(network.dsn, schema=emptied) as store,
    ):
        await store.wait(0.0)
        assert await _listens(store)
        task_id = await store.enqueue(Task(JOB, (1,)))
        network.kill(b"omniq listen")
        waiting = asyncio.create_task(store.wait_result(task_id, timeout=20))
        await until(lambda: _looks_for_results(store))
        [claimed] = await direct.claim("ann")
        await direct.settle([Settlement.success(claimed, direct.serializer.dumps(7))])
        result = await waiting
        assert result is not None
        assert result.result == 7


async def _looks_for_results(store: PostgresStorage) -> bool:
    return store._results._watcher is not None


async def _listens(store: PostgresStorage) -> bool:
    return store.is_open and store._listening._conn is not None


# --- every write, cut off before it arrives or before its answer does --------------------------------


@asynccontextmanager
async def through_a_network(dsn: str, schema: str) -> AsyncIterator[tuple[PostgresStorage, Proxy]]:
    async with Proxy(dsn) as network, PostgresStorage(network.dsn, schema=schema) as store:
        yield store, network


# What the proxy looks for.
STATEMENTS = {
    "enqueue": ".enqueue(",
    "enqueue with a key": ".enqueue(",
    "claim": ".exchange(",
    "settle": ".exchange(",
    "retry later": ".exchange(",
    "give back": ".exchange(",
    "settle and claim": ".exchange(",
    "renew": ".renew(",
    "release": ".release(",
    "lapse": ".lapse(",
    "progress": ".task t SET progress",
    "cancel": ".cancel(",
    "cancel a run": ".cancel(",
    "retry by hand": ".retry(",
    "reschedule": ".reschedule(",
    "delete": ".remove(",
    "prune": ".prune(",
    "pause": ".paused VALUES",
    "resume": "DELETE FROM",
    "beat": ".worker VALUES",
    "leave": ".worker WHERE",
}


async def prepare(store: PostgresStorage, name: str, dsn: str, schema: str) -> None:
    before = VERBS[name][0]
    await verbs.prepare(store, before)
    if before == "failed long ago":
        conn = await asyncpg.connect(dsn)
        await conn.execute(f"UPDATE \"{schema}\".task SET prune_at = now() - interval '1 day'")
        await conn.close()


async def facts(dsn: str, schema: str) -> list[Any]:
    """Everything that is stored, but for the moments."""
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute(f'SET search_path = "{schema}"')
        task = (
            "SELECT id, status, epoch, attempts, losses, owner, claim_id, cancel_requested, progress, "
            "result, result_status, eta IS NULL, eta < now() + interval '30 s', error FROM task ORDER BY id"
        )
        run = "SELECT epoch, owner, outcome FROM run ORDER BY epoch"
        rest = (
            "SELECT (SELECT count(*) FROM paused), (SELECT count(*) FROM gone), (SELECT count(*) FROM worker)"
        )
        return [[tuple(row) for row in await conn.fetch(query)] for query in (task, run, rest)]
    finally:
        await conn.close()


async def after_one_call(dsn: str, schema: str, name: str) -> list[Any]:
    """What one call makes of it, with nothing in its way; everything is as before afterwards."""
    async with PostgresStorage(dsn, schema=schema) as store:
        await prepare(store, name, dsn, schema)
        await VERBS[name][1](store)
        found = await facts(dsn, schema)
        await empty_schema(dsn, schema)
        await prepare(store, name, dsn, schema)
    return found


@pytest.mark.parametrize("name", VERBS)
async def test_f17_a_write_that_is_cut_off_may_be_repeated(
    postgres_dsn: str, emptied: str, name: str
) -> None:
    """Before it arrives, then ten times before its answer does: the state is as before, then of one call."""
    expected = await after_one_call(postgres_dsn, emptied, name)
    async with through_a_network(postgres_dsn, emptied) as (store, network):
        look = partial(facts, postgres_dsn, emptied)
        await verbs.cut_off_and_repeat(store, network, name, STATEMENTS[name], look, expected)
        assert await store.verify() == []
