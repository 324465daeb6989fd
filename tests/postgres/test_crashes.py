"""Servers and machines that go away under load: a few times in `make test`, many times in `make soak`.

Judged by the ledger that producers and bodies write: nothing lost, nothing stuck, nothing FAILED, no run
beside another within a lease. In the long runs, which have the machine for themselves, work must also go on
within seconds of each repair.
"""

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from omniq import AsyncWorkerPool, Task
from omniq.errors import OmniqError, StoreUnavailable
from omniq.storage.postgres import PostgresStorage
from omniq.task import RunOutcome, Settlement, TaskStatus, replace
from tests.faults.processes import Child
from tests.postgres import bodies
from tests.postgres.field import BACK_WITHIN_S, LEASE_S, PATIENCE_S, Site, eventually
from tests.postgres.judged import judge
from tests.postgres.proxy import proxied
from tests.postgres.server import Cluster, NoServer, missing, private
from tests.postgres.stores import new_schema
from tests.postgres.test_faults import JOB, has_done, until

soak = pytest.mark.soak
FEW = 10
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


async def quit_all(children: list[Child]) -> None:
    for child in children:
        child.signal(signal.SIGTERM)
    for child in children:
        assert await asyncio.to_thread(child.wait) == 0, child.log.read_text()


# --- the server ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [2, pytest.param(50, marks=[soak, OFTEN])])
async def test_f5_the_server_crashes_under_load(tmp_path: Path, cluster: Cluster, times: int) -> None:
    """`stop -m immediate` whatever the two workers and the producer are in the middle of."""
    chance = random.Random(times)
    await PostgresStorage(cluster.dsn).migrate()
    with Site(tmp_path, cluster.dsn, "omniq") as site:
        workers = [site.on_postgres() for _ in range(2)]
        for worker in workers:
            worker.line("READY")
        async with site.storage() as store:
            async with site.steady(store):
                for _ in range(times):
                    await asyncio.sleep(chance.uniform(0.05, 0.6))
                    await crash(cluster)
                    await site.back_at_work(store, within_s=BACK_WITHIN_S if times > FEW else PATIENCE_S)
            await site.drained(store)
            await quit_all(workers)
            await judge(store, site.ledger, lease_s=LEASE_S)


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
    async with proxied(cluster.dsn) as network:
        with Site(tmp_path, cluster.dsn, "omniq") as site:
            worker = site.on_postgres(network.dsn)
            await asyncio.to_thread(worker.line, "READY")
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


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=[soak, OFTEN])])
async def test_a_machine_that_disappears_loses_nothing(
    tmp_path: Path, postgres_dsn: str, schema: str, times: int
) -> None:
    """Nobody says goodbye, its connections stay open: what it ran runs elsewhere within lease + 6 s."""
    with Site(tmp_path, postgres_dsn, schema) as site:
        async with site.storage() as store, proxied(postgres_dsn) as network:
            survivor = site.on_postgres(
                queues=["others"]
            )  # it serves other queues, and takes back all the same
            survivor.line("READY")
            for _ in range(times):
                gone = site.on_postgres(network.dsn)
                await asyncio.to_thread(gone.line, "READY")  # the network lives on this loop
                task_id = await site.put(store, "until_file", str(tmp_path / "go"))
                await eventually(lambda one=task_id: _began(site, one), "it has begun")  # type: ignore[misc]
                network.silence()
                gone.kill()
                site.ledger.write("KILL", "machine", gone.pid)
                within_s = LEASE_S + 6 if times > FEW else PATIENCE_S
                await eventually(lambda one=task_id: _waits(store, one), "taken back", within_s)  # type: ignore[misc]
                network.reset()
                network.heal()
                (tmp_path / "go").touch()
                heir = site.on_postgres()
                await site.ended(store, [task_id])
                (tmp_path / "go").unlink()
                await quit_all([heir])
            await quit_all([survivor])
            await judge(store, site.ledger, lease_s=LEASE_S)


async def _began(site: Site, task_id: str) -> bool:
    return bool(site.ledger.runs(task_id))


async def _waits(store: PostgresStorage, task_id: str) -> bool:
    task = await store.get_task(task_id)
    return task is not None and task.status is TaskStatus.PENDING and task.losses == 1


async def test_a_zombie_that_reports_is_refused(tmp_path: Path, postgres_dsn: str, schema: str) -> None:
    """F3: stopped for three leases, then it goes on and is first to end its body."""
    with Site(tmp_path, postgres_dsn, schema) as site:
        async with site.storage() as store:
            zombie = site.on_postgres(concurrency=1)
            zombie.line("READY")
            task_id = await site.put(store, "until_file", str(tmp_path / "go"))
            await eventually(lambda: _began(site, task_id), "it has begun")
            zombie.signal(signal.SIGSTOP)
            heir = site.on_postgres(concurrency=1)
            await eventually(lambda: _began_twice(site, task_id), "somebody else runs it")
            (tmp_path / "go").touch()
            zombie.signal(signal.SIGCONT)
            await site.ended(store, [task_id])
            result = await store.get_result(task_id)
            assert result is not None
            assert result.result == heir.pid
            await quit_all([zombie, heir])
            assert [run.outcome for run in await store.history(task_id)] == [RunOutcome.LOST]
            await judge(store, site.ledger, lease_s=LEASE_S)


async def _began_twice(site: Site, task_id: str) -> bool:
    return len(site.ledger.runs(task_id)) == 2


@pytest.mark.parametrize("many", [20, pytest.param(500, marks=[soak, OFTEN])])
async def test_two_hosts_whose_clocks_are_ten_minutes_apart(
    tmp_path: Path, postgres_dsn: str, schema: str, many: int
) -> None:
    """One clock counts, the server's: no lease is cut short, no delay is longer or shorter."""
    with Site(tmp_path, postgres_dsn, schema) as site:
        async with site.storage() as store:
            hosts = [site.on_postgres(skew_s=skew_s) for skew_s in (300, -300)]
            for host in hosts:
                host.line("READY")
            began_at = datetime.now(UTC)
            later = [await _delayed(site, store, 1.0) for _ in range(many)]
            long = await site.put(store, "nap", 2.5 * LEASE_S)
            await site.ended(store, [*later, long])
            await quit_all(hosts)
            tasks = await judge(store, site.ledger)
            assert {tasks[one].epoch for one in (*later, long)} == {1}
            for one in later:
                started_at = tasks[one].started_at
                assert started_at is not None
                assert started_at >= began_at + timedelta(seconds=1)


async def _delayed(site: Site, store: PostgresStorage, delay_s: float) -> str:
    task = store.encode(Task("tests.faults.bodies.nap", (0.01,)))
    await store.enqueue(replace(task, delay_s=delay_s))
    site.ledger.write("ENQ", task.id)
    return task.id


@pytest.mark.parametrize("restarts", [3, pytest.param(200, marks=[soak, OFTEN])])
async def test_rolling_restarts_run_nothing_twice(
    tmp_path: Path, postgres_dsn: str, schema: str, restarts: int
) -> None:
    with Site(tmp_path, postgres_dsn, schema) as site:
        async with site.storage() as store:
            workers = [site.on_postgres() for _ in range(2)]
            for worker in workers:
                worker.line("READY")
            async with site.steady(store):
                for _ in range(restarts):
                    workers.append(site.on_postgres())
                    await asyncio.to_thread(workers[-1].line, "READY")
                    await quit_all([workers.pop(0)])
            await site.drained(store)
            await quit_all(workers)
            tasks = await judge(store, site.ledger)
            runs = [run.task_id for run in site.ledger.runs()]
            assert len(runs) == len(set(runs)) == len(tasks), "a task ran twice"
            assert {task.losses + task.attempts for task in tasks.values()} == {0}


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
