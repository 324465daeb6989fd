"""How `omniq worker` ends: what runs may finish, the rest goes back, and nothing stays RUNNING."""

import os
import signal
import sqlite3
import time

from omniq.task import TaskStatus
from tests.cli.site import Site, call, is_alive, running, until, until_begun, until_logged, until_status

# What may pass after the grace time: cancelled bodies get two seconds, and two more for everything else.
SLACK_S = 4.0


async def test_it_runs_tasks_and_ends_cleanly(site: Site) -> None:
    async with site.store() as store:
        with site.worker("--processes", "2", "--queues", "default,mail") as worker:
            children = await worker.ready(store, 2)
            ids = [
                await store.enqueue(call("nap", "a")),
                await store.enqueue(call("doze", "b", queue="mail")),
            ]
            other = await store.enqueue(call("nap", "c", queue="other"))
            await until_status(store, ids, TaskStatus.SUCCESS)
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0
        assert [task.status for task in [await store.get_task(other)] if task] == [TaskStatus.PENDING]
        assert await store.workers() == []
        assert not any(is_alive(pid) for pid in children)
        assert not list(site.file.with_name("jobs.db-omniq").glob("*.alive"))


async def test_f29_sigterm_with_short_and_long_tasks(site: Site) -> None:
    """F29: short tasks end, long ones go back with nothing spent, the backlog is left alone."""
    async with site.store() as store:
        with site.worker("--concurrency", "20", "--grace", "3") as worker:
            await worker.ready(store)
            long = [await store.enqueue(call(kind, kind, 600.0)) for kind in ("nap", "nap", "doze", "doze")]
            short = [str(one) for one in await store.enqueue_many([call("hold", "hold") for _ in range(16)])]
            await until_begun(site, "doze", 2)
            await until_begun(site, "hold", 16)  # every slot is taken
            backlog = await store.enqueue_many([call("nap", "backlog") for _ in range(1000)])
            signalled_at = time.monotonic()
            worker.signal(signal.SIGTERM)
            await until_logged(worker, "signal again")
            (site.folder / "go").touch()
            assert await worker.ended() == 0
            assert time.monotonic() - signalled_at < 3 + SLACK_S
        assert await running(store) == []
        assert {t.status for t in await until_status(store, short, *TaskStatus)} == {TaskStatus.SUCCESS}
        for task in await until_status(store, long, *TaskStatus):
            assert (task.status, task.attempts, task.losses) == (TaskStatus.PENDING, 0, 0)
        left = await until_status(store, [str(one) for one in backlog], *TaskStatus)
        assert {(task.status, task.epoch) for task in left} == {(TaskStatus.PENDING, 0)}


async def test_f29_a_second_sigterm_gives_back_at_once(site: Site) -> None:
    async with site.store() as store:
        with site.worker("--grace", "600") as worker:
            await worker.ready(store)
            ids = [await store.enqueue(call(kind, kind, 600.0)) for kind in ("nap", "doze")]
            await until_begun(site, "nap")
            await until_begun(site, "doze")
            worker.signal(signal.SIGTERM)
            await until_logged(worker, "signal again")
            again_at = time.monotonic()
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0
            assert time.monotonic() - again_at < SLACK_S
        assert await running(store) == []
        for task in await until_status(store, ids, *TaskStatus):
            assert (task.status, task.attempts, task.losses) == (TaskStatus.PENDING, 0, 0)


async def test_f29_ctrl_c_reaches_the_supervisor_only(site: Site) -> None:
    """SIGINT to the whole process group, as a terminal sends it: what runs still ends."""
    async with site.store() as store:
        with site.worker("--grace", "20") as worker:
            await worker.ready(store)
            ids = [await store.enqueue(call(kind, kind, 1.0)) for kind in ("nap", "doze")]
            await until_begun(site, "nap")
            await until_begun(site, "doze")
            os.killpg(worker.pid, signal.SIGINT)
            assert await worker.ended() == 0
        assert {t.status for t in await until_status(store, ids, *TaskStatus)} == {TaskStatus.SUCCESS}
        assert {task.epoch for task in await until_status(store, ids, *TaskStatus)} == {1}


async def test_a_sigterm_to_everybody_keeps_the_grace_time(site: Site) -> None:
    """A service manager may signal the children as well; that is still the first signal."""
    async with site.store() as store:
        with site.worker("--grace", "20") as worker:
            [child] = await worker.ready(store)
            task_id = await store.enqueue(call("nap", "nap", 1.0))
            await until_begun(site, "nap")
            for pid in (child, worker.pid, child):
                os.kill(pid, signal.SIGTERM)
            assert await worker.ended() == 0
        [task] = await until_status(store, [task_id], *TaskStatus)
        assert (task.status, task.epoch) == (TaskStatus.SUCCESS, 1)


async def test_f29_with_the_store_away_the_end_is_still_bounded(site: Site) -> None:
    async with site.store() as store:
        with site.worker("--grace", "0.5") as worker:
            await worker.ready(store)
            await store.enqueue(call("nap", "nap", 600.0))
            await until_begun(site, "nap")
            locked = sqlite3.connect(site.file, isolation_level=None)
            locked.execute("BEGIN IMMEDIATE")
            try:
                worker.signal(signal.SIGTERM)
                signalled_at = time.monotonic()
                assert await worker.ended() == 0
                assert time.monotonic() - signalled_at < 0.5 + SLACK_S + 6.0  # SQLite waits 5 s for a lock
            finally:
                locked.close()


async def test_a_body_that_holds_the_loop_does_not_hold_up_the_end(site: Site) -> None:
    """It is killed, by us: its task goes back with nothing spent."""
    async with site.store() as store:
        with site.worker("--grace", "0.5") as worker:
            await worker.ready(store)
            task_id = await store.enqueue(call("block", "block", 600.0))
            await until_begun(site, "block")
            signalled_at = time.monotonic()
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0
            assert time.monotonic() - signalled_at < 0.5 + SLACK_S
        [task] = await until_status(store, [task_id], *TaskStatus)
        assert (task.status, task.attempts, task.losses) == (TaskStatus.PENDING, 0, 0)


async def test_a_stop_during_the_import_ends_at_once(site: Site) -> None:
    (site.folder / "slow.py").write_text("open('importing', 'w').close()\nimport time\ntime.sleep(600)\n")
    with site.worker(app="slow:q") as worker:

        async def importing() -> bool:
            return (site.folder / "importing").exists()

        await until(importing, "the import begins")
        signalled_at = time.monotonic()
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert time.monotonic() - signalled_at < SLACK_S
