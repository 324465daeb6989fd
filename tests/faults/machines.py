"""Machines that disappear, freeze, have a wrong clock or are replaced: the same stories for every server.

Each is a whole test on a site; the tests of a store say where it is, and how often.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from omniq import Task
from omniq.storage import BaseStorage
from omniq.storage.batched import BatchedStorage
from omniq.task import RunOutcome, TaskStatus, replace
from tests.faults.judged import judge
from tests.faults.network import Network
from tests.faults.site import BACK_WITHIN_S, LEASE_S, PATIENCE_S, Site, eventually, quit_all

# So often at most in `make test`, beside other tests; more often is a run that has the machine for itself.
FEW = 10


async def machine_disappears(site: Site, network: Network, through: str, times: int) -> None:
    """Nobody says goodbye, its connections stay open: what it ran runs elsewhere within lease + 6 s."""
    go = site.folder / "go"
    async with site.storage() as store:
        # It serves other queues, and takes back all the same.
        survivor = await site.started(queues=["others"])
        for _ in range(times):
            gone = await site.started(through)
            task_id = await site.put(store, "until_file", str(go))
            await eventually(lambda one=task_id: _began(site, one), "it has begun")  # type: ignore[misc]
            network.silence()
            gone.kill()
            site.ledger.write("KILL", "machine", gone.pid)
            within_s = LEASE_S + 6 if times > FEW else PATIENCE_S
            await eventually(lambda one=task_id: _waits(store, one), "taken back", within_s)  # type: ignore[misc]
            network.reset()
            network.heal()
            go.touch()
            heir = site.start()
            await site.ended(store, [task_id])
            go.unlink()
            await quit_all([heir])
        await quit_all([survivor])
        await judge(store, site.ledger, lease_s=LEASE_S)


async def _began(site: Site, task_id: str) -> bool:
    return bool(site.ledger.runs(task_id))


async def _waits(store: BaseStorage, task_id: str) -> bool:
    task = await store.get_task(task_id)
    return task is not None and task.status is TaskStatus.PENDING and task.losses == 1


async def zombie_reports(site: Site, times: int = 1) -> None:
    """F3: stopped for three leases, then it goes on and is first to end its body: refused."""
    go = site.folder / "go"
    async with site.storage() as store:
        for _ in range(times):
            zombie = await site.started(concurrency=1)
            task_id = await site.put(store, "until_file", str(go))
            await eventually(lambda one=task_id: _began(site, one), "it has begun")  # type: ignore[misc]
            zombie.signal(signal.SIGSTOP)
            heir = site.start(concurrency=1)
            await eventually(lambda one=task_id: _began_twice(site, one), "somebody else runs it")  # type: ignore[misc]
            go.touch()
            zombie.signal(signal.SIGCONT)
            await site.ended(store, [task_id])
            result = await store.get_result(task_id)
            assert result is not None
            assert result.result == heir.pid
            await quit_all([zombie, heir])
            assert [run.outcome for run in await store.history(task_id)] == [RunOutcome.LOST]
            go.unlink()
        await judge(store, site.ledger, lease_s=LEASE_S)


async def _began_twice(site: Site, task_id: str) -> bool:
    return len(site.ledger.runs(task_id)) == 2


async def clocks_ten_minutes_apart(site: Site, many: int) -> None:
    """One clock counts, the server's: no lease is cut short, no delay is longer or shorter."""
    async with site.storage() as store:
        hosts = [await site.started(skew_s=skew_s) for skew_s in (300, -300)]
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


async def _delayed(site: Site, store: BaseStorage, delay_s: float) -> str:
    assert isinstance(store, BatchedStorage)
    task = store.encode(Task("tests.faults.bodies.nap", (0.01,)))
    await store.enqueue(replace(task, delay_s=delay_s))
    site.ledger.write("ENQ", task.id)
    return task.id


async def rolling_restarts(site: Site, restarts: int) -> None:
    """Workers are replaced one by one: nothing runs twice."""
    async with site.storage() as store:
        workers = [await site.started() for _ in range(2)]
        async with site.steady(store):
            for _ in range(restarts):
                workers.append(await site.started())
                await quit_all([workers.pop(0)])
        await site.drained(store)
        await quit_all(workers)
        tasks = await judge(store, site.ledger)
        runs = [run.task_id for run in site.ledger.runs()]
        assert len(runs) == len(set(runs)) == len(tasks), "a task ran twice"
        assert {task.losses + task.attempts for task in tasks.values()} == {0}


async def server_crashes_under_load(
    site: Site, crash: Callable[[], Awaitable[None]], pauses_s: list[float]
) -> None:
    """Whatever two workers and a producer are in the middle of; each time it is back at work soon."""
    within_s = BACK_WITHIN_S if len(pauses_s) > FEW else PATIENCE_S
    workers = [await site.started() for _ in range(2)]
    async with site.storage() as store:
        async with site.steady(store):
            for pause_s in pauses_s:
                await asyncio.sleep(pause_s)
                await crash()
                await site.back_at_work(store, within_s)
        await site.drained(store)
        await quit_all(workers)
        await judge(store, site.ledger, lease_s=LEASE_S)
