"""Servers and machines that go away under load: a few times in `make test`, many times in `make soak`.

Judged by the ledger that producers and bodies write: nothing lost, nothing stuck, nothing FAILED, no run
beside another within a lease. In the long runs, which have the machine for themselves, work must also go on
within seconds of each repair.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from omniq import AsyncWorkerPool, Task
from omniq.errors import OmniqError, StoreUnavailable
from omniq.storage.postgres import PostgresStorage
from omniq.task import Settlement
from tests.faults import machines
from tests.faults.judged import judge
from tests.faults.site import BACK_WITHIN_S, LEASE_S, Site, quit_all
from tests.postgres import bodies
from tests.postgres.proxy import Proxy
from tests.postgres.server import Cluster, NoServer, missing, private
from tests.postgres.stores import new_schema
from tests.postgres.test_faults import JOB, has_done, until

soak = pytest.mark.soak
OFTEN = pytest.mark.bound(1800)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    try:
        with private() as cluster:
            yield cluster
    except NoServer as why:
        missing(why)


async def crash(cluster: Cluster) -> None:
    await asyncio.to_thread(cluster.stop, "immediate")
    await asyncio.to_thread(cluster.start)


# --- the server ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [2, pytest.param(50, marks=[soak, OFTEN])])
async def test_f5_the_server_crashes_under_load(tmp_path: Path, cluster: Cluster, times: int) -> None:
    """`stop -m immediate` whatever the two workers and the producer are in the middle of."""
    chance = random.Random(times)
    pauses_s = [chance.uniform(0.05, 0.6) for _ in range(times)]
    await PostgresStorage(cluster.dsn).migrate()
    with Site(tmp_path, cluster.dsn) as site:
        await machines.server_crashes_under_load(site, lambda: crash(cluster), pauses_s)


@pytest.mark.parametrize("times", [1, pytest.param(25, marks=[soak, OFTEN])])
async def test_f9_the_server_crashes_while_the_dead_are_taken_back(cluster: Cluster, times: int) -> None:
    """250 rows whose lease is over: all of them run, and every chore of the worker goes on."""
    bodies.RUNS.clear()
    await PostgresStorage(cluster.dsn).migrate()
    async with PostgresStorage(cluster.dsn) as store:
        for round_ in range(times):
            await store.enqueue_many([Task(JOB, (250 * round_ + n,), max_losses=99) for n in range(250)])
            assert len(await store.claim(f"dead {round_}", limit=250, lease=0.001)) == 250
            lapsing = asyncio.create_task(store.lapse(250))
            if round_ % 2:
                await asyncio.sleep(0.002)
            await crash(cluster)
            with suppress(StoreUnavailable):
                await lapsing
            async with AsyncWorkerPool(store.clone(), concurrency=20, poll_interval=0.1, lease=LEASE_S):
                await until(lambda done=250 * (round_ + 1): has_done(store, done))  # type: ignore[misc]
        assert set(bodies.RUNS) == set(range(250 * times))
        assert await store.verify() == []


@pytest.mark.parametrize("times", [1, pytest.param(25, marks=[soak, OFTEN])])
async def test_the_server_crashes_during_a_migration(cluster: Cluster, times: int) -> None:
    chance = random.Random(times)
    for _ in range(times):
        store = PostgresStorage(cluster.dsn, schema=new_schema())
        migrating = asyncio.create_task(store.migrate())
        await asyncio.sleep(chance.uniform(0.0, 0.08))
        await crash(cluster)
        with suppress(OmniqError):
            await migrating
        await store.migrate()
        async with store:
            await store.enqueue(Task(JOB, (1,)))
            assert await store.verify() == []


@soak
@OFTEN
async def test_f5_thirty_cycles_of_every_fault_of_the_network(tmp_path: Path, cluster: Cluster) -> None:
    await PostgresStorage(cluster.dsn).migrate()
    async with Proxy(cluster.dsn) as network:
        with Site(tmp_path, cluster.dsn) as site:
            worker = await site.started(network.dsn)
            async with site.storage() as store:
                async with site.steady(store):
                    for number in range(30):
                        match number % 5:
                            case 0:
                                network.reset()
                            case 1:
                                network.half_open()
                                await asyncio.sleep(2)
                                network.heal()
                            case 2:
                                network.silence()
                                await asyncio.sleep(5)
                                network.heal()
                            case 3:
                                network.kill()
                                await asyncio.sleep(5)
                            case _:
                                await crash(cluster)
                        await site.back_at_work(store, within_s=BACK_WITHIN_S)
                        await site.caught_up(store)
                await site.drained(store)
                await quit_all([worker])
                await judge(store, site.ledger, lease_s=LEASE_S)


# --- machines -----------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, postgres_dsn: str, schema: str) -> Iterator[Site]:
    with Site(tmp_path, PostgresStorage(postgres_dsn, schema=schema).url) as site:
        yield site


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=[soak, OFTEN])])
async def test_a_machine_that_disappears_loses_nothing(
    site: Site, postgres_dsn: str, schema: str, times: int
) -> None:
    async with Proxy(postgres_dsn) as network:
        through = PostgresStorage(network.dsn, schema=schema).url
        await machines.machine_disappears(site, network, through, times)


async def test_a_zombie_that_reports_is_refused(site: Site) -> None:
    await machines.zombie_reports(site)


@pytest.mark.parametrize("many", [20, pytest.param(500, marks=[soak, OFTEN])])
async def test_two_hosts_whose_clocks_are_ten_minutes_apart(site: Site, many: int) -> None:
    await machines.clocks_ten_minutes_apart(site, many)


@pytest.mark.parametrize("restarts", [3, pytest.param(200, marks=[soak, OFTEN])])
async def test_rolling_restarts_run_nothing_twice(site: Site, restarts: int) -> None:
    await machines.rolling_restarts(site, restarts)


# --- an old snapshot ----------------------------------------------------------------------------------


@soak
@OFTEN
async def test_f30_a_million_tasks_while_somebody_holds_an_old_snapshot(cluster: Cluster) -> None:
    """The last tenth is claimed nearly as fast as the first: nothing walks over what has died meanwhile."""
    many, batch = 1_000_000, 10_000
    await PostgresStorage(cluster.dsn).migrate()
    holder = await asyncpg.connect(cluster.dsn)
    async with PostgresStorage(cluster.dsn) as store:
        await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM omniq.task")
        for first in range(0, many, batch):
            await store.enqueue_many([Task(JOB, (1,), id=f"{first + n:08}") for n in range(batch)])
        slices: list[float] = []
        for _ in range(10):
            begun = time.monotonic()
            for _ in range(many // 10 // 500):
                claims = await store.claim("ann", limit=500)
                assert len(claims) == 500
                await store.settle([Settlement.success(one, b"\xc0") for one in claims])
            slices.append(time.monotonic() - begun)
        assert max(slices[1:]) < 5 * slices[0], slices
        await holder.close()
