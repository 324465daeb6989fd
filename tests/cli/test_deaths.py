"""Worker processes that die, hang or are stopped from outside, and what their supervisor makes of it."""

import asyncio
import os
import signal
import time
from itertools import pairwise

import pytest

from omniq.cli.supervisor import next_pause_s
from omniq.task import TaskStatus
from tests.cli.site import Site, call, is_alive, running, until, until_begun, until_logged, until_status


@pytest.mark.quiet
async def test_the_tasks_of_a_killed_process_run_again_within_a_second(site: Site) -> None:
    async with site.store() as store:
        with site.worker("--processes", "2", "--concurrency", "4") as worker:
            await worker.ready(store, 2)
            ids = [await store.enqueue(call("nap", f"n{n}", 1.5)) for n in range(8)]

            async def all_begun() -> bool:
                return len(site.notes("BEGUN")) == 8

            await until(all_begun, "both processes are full")
            victim = site.notes("BEGUN", "n0")[0].pid
            lost = {note.name for note in site.notes("BEGUN") if note.pid == victim}
            killed_at = time.monotonic()
            os.kill(victim, signal.SIGKILL)

            async def back() -> bool:
                return not [t for t in await running(store) if t.owner and f":{victim}:" in t.owner]

            await until(back, "its tasks are taken back")
            assert time.monotonic() - killed_at < 1.0
            await until_status(store, ids, TaskStatus.SUCCESS)
            assert len(await worker.ready(store, 2)) == 2
        for task, name in zip(
            await until_status(store, ids, *TaskStatus), (f"n{n}" for n in range(8)), strict=True
        ):
            assert (task.epoch, task.suspicions, task.losses) == ((2, 1, 0) if name in lost else (1, 0, 0))
            assert site.notes("ENDED", name)[-1].pid != victim


@pytest.mark.quiet
async def test_an_idle_neighbour_takes_over_at_once(site: Site) -> None:
    async with site.store() as store:
        with site.worker("--processes", "2") as worker:
            await worker.ready(store, 2)
            task_id = await store.enqueue(call("nap", "nap", 600.0))
            await until_begun(site, "nap")
            killed_at = time.monotonic()
            os.kill(site.notes("BEGUN", "nap")[0].pid, signal.SIGKILL)
            await until_begun(site, "nap", 2)
            assert site.notes("BEGUN", "nap")[1].at_s - killed_at < 1.0
            [task] = await until_status(store, [task_id], TaskStatus.RUNNING)
            assert (task.epoch, task.suspicions, task.losses) == (2, 1, 0)


async def test_the_only_process_is_replaced(site: Site) -> None:
    async with site.store() as store:
        with site.worker() as worker:
            [first] = await worker.ready(store)
            task_id = await store.enqueue(call("doze", "doze", 1.0))
            await until_begun(site, "doze")
            os.kill(first, signal.SIGKILL)
            await until_status(store, [task_id], TaskStatus.SUCCESS)
            [second] = await worker.ready(store)
            assert second != first
            assert "killed by SIGKILL" in worker.log
            assert [info.pid for info in await store.workers()] == [second]
            assert len(list(site.file.with_name("jobs.db-omniq").glob("*.alive"))) == 1


async def test_a_body_that_cancels_all_tasks_runs_once_and_its_process_is_replaced(site: Site) -> None:
    async with site.store() as store:
        with site.worker() as worker:
            [first] = await worker.ready(store)
            task_id = await store.enqueue(call("cancel_all", "all"))
            [task] = await until_status(store, [task_id], TaskStatus.SUCCESS)
            assert (task.epoch, task.suspicions, task.losses) == (1, 0, 0)
            await until_status(store, [await store.enqueue(call("nap", "next"))], TaskStatus.SUCCESS)
            assert site.notes("BEGUN", "next")[0].pid != first


async def test_without_a_supervisor_the_children_end_in_good_order(site: Site) -> None:
    async with site.store() as store:
        with site.worker("--processes", "2", "--lease", "1.5") as worker:
            children = await worker.ready(store, 2)
            ids = [await store.enqueue(call(kind, kind, 2.5)) for kind in ("nap", "doze", "nap", "doze")]
            await until_begun(site, "nap", 2)
            await until_begun(site, "doze", 2)
            worker.signal(signal.SIGKILL)

            async def gone() -> bool:
                return not any(is_alive(pid) for pid in children)

            await until(gone, "the children end")
        tasks = await until_status(store, ids, *TaskStatus)
        # Longer than a lease: somebody went on renewing.
        assert {(task.status, task.epoch) for task in tasks} == {(TaskStatus.SUCCESS, 1)}
        assert await store.workers() == []


async def test_f12_two_commands_of_the_same_name_are_two_workers(site: Site) -> None:
    """F12: a rolling restart; the draining one claims nothing more, and leaves nothing behind."""
    async with site.store() as store:
        with site.worker("--concurrency", "4") as old, site.worker("--concurrency", "4") as new:
            [old_child] = await old.ready(store)
            [new_child] = await new.ready(store)
            workers = await store.workers()
            assert {worker.name for worker in workers} == {"worker"}
            assert len({worker.id for worker in workers}) == 2
            first = [await store.enqueue(call("hold", "first")) for _ in range(8)]
            await until_begun(site, "first", 8)  # both are full
            old.signal(signal.SIGTERM)
            await until_logged(old, "signal again")
            second = [await store.enqueue(call("nap", "second", 0.05)) for _ in range(30)]
            (site.folder / "go").touch()
            assert await old.ended() == 0
            tasks = await until_status(store, [*first, *second], TaskStatus.SUCCESS)
            assert {note.pid for note in site.notes("BEGUN", "second")} == {new_child}
            assert {note.pid for note in site.notes("BEGUN")} <= {old_child, new_child}
            assert {task.losses for task in tasks} == {0}
            assert [worker.pid for worker in await store.workers()] == [new_child]
        assert await running(store) == []


async def test_f13_a_poison_pill_ends_alone(site: Site) -> None:
    """F13: it kills one worker and three processes of its own; those who died with it still succeed."""
    async with site.store() as store:
        pill = await store.enqueue(call("die", "pill"))
        neighbours = await store.enqueue_many([call("nap", "neighbour") for _ in range(100)])
        with site.worker("--concurrency", "20") as worker:
            [poisoned] = await until_status(store, [pill], TaskStatus.FAILED)
            tasks = await until_status(store, [str(one) for one in neighbours], TaskStatus.SUCCESS)
            assert poisoned.error is not None
            assert (poisoned.error.kind, poisoned.losses) == ("poison", 3)
            assert max(task.suspicions for task in tasks) > 0, "nobody was in flight beside the pill"
            assert {task.losses for task in tasks} == {0}
            assert poisoned.suspicions == 1
            assert len(site.notes("BEGUN", "pill")) == 4
            assert worker.log.count("ended: killed by SIGKILL") == 1  # of worker processes
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0


@pytest.mark.bound(120)
async def test_one_that_ends_its_process_takes_nobody_of_two_hundred_along(site: Site) -> None:
    """Suspects: those in flight beside it run alone next, and only its own deaths count."""
    calls = [call("doze", f"n{n}", 1.0) for n in range(199)]
    calls.insert(50, call("leave", "leaves"))
    async with site.store() as store:
        ids = [str(one) for one in await store.enqueue_many(calls)]
        with site.worker("--concurrency", "100"):
            [poisoned] = await until_status(store, [ids[50]], TaskStatus.FAILED, within_s=60)
            others = await until_status(store, ids[:50] + ids[51:], TaskStatus.SUCCESS, within_s=60)
    assert poisoned.error is not None
    assert (poisoned.error.kind, poisoned.losses) == ("poison", 3)
    assert {task.losses for task in others} == {0}
    assert sum(task.suspicions for task in others) == 99
    assert {task.suspicions for task in others} == {0, 1}


async def test_f16_stuck_threads_end_the_process_and_others_then_run(site: Site) -> None:
    """F16: four threads that never return hold all four slots; the process is replaced."""
    async with site.store() as store:
        with site.worker("--concurrency", "4") as worker:
            [first] = await worker.ready(store)
            stuck = [await store.enqueue(call("hang", "hang", max_retries=0, timeout=0.3)) for _ in range(4)]
            healthy = await store.enqueue(call("nap", "healthy"))
            await until_status(store, stuck, TaskStatus.FAILED)
            await until_status(store, [healthy], TaskStatus.SUCCESS)
            assert site.notes("BEGUN", "healthy")[0].pid != first
            assert len(site.notes("BEGUN", "hang")) == 4
            assert "exit code 3" in worker.log
            for task in await until_status(store, stuck, *TaskStatus):
                assert task.error is not None
                assert (task.error.kind, task.losses) == ("timeout", 0)


async def test_f15_the_supervisor_renews_while_the_loop_stands_still(site: Site) -> None:
    async with site.store() as store:
        with site.worker("--processes", "2", "--lease", "2") as worker:
            await worker.ready(store, 2)
            task_id = await store.enqueue(call("block", "block", 4.0))
            [task] = await until_status(store, [task_id], TaskStatus.SUCCESS)
            assert (task.epoch, task.losses) == (1, 0)
            assert len(site.notes("BEGUN", "block")) == 1


async def test_a_loop_that_does_not_move_is_killed(site: Site) -> None:
    async with site.store() as store:
        with site.worker("--stall-limit", "1") as worker:
            [first] = await worker.ready(store)
            blocking = await store.enqueue(call("block", "block", 600.0))
            await until_begun(site, "block")
            other = await store.enqueue(call("nap", "nap"))
            await until_status(store, [other], TaskStatus.SUCCESS)
            assert f"worker process {first} has not moved for 1 s" in worker.log
            await until_begun(site, "block", 2)  # alone now, where it stands in nobody's way
            await until_status(store, [await store.enqueue(call("nap", "another"))], TaskStatus.SUCCESS)
            await store.cancel(blocking)
            [task] = await until_status(store, [blocking], TaskStatus.CANCELLED)
            assert (task.suspicions, task.losses) == (1, 0)


async def test_a_stopped_supervisor_does_not_blame_its_children(site: Site) -> None:
    """What it did not hear while it stood still itself is no silence of theirs."""
    async with site.store() as store:
        with site.worker("--stall-limit", "1") as worker:
            [child] = await worker.ready(store)
            worker.signal(signal.SIGSTOP)
            await asyncio.sleep(1.5)  # longer than the limit: this is the fault, not a wait for something
            worker.signal(signal.SIGCONT)
            task_id = await store.enqueue(call("nap", "nap", 0.5))
            await until_status(store, [task_id], TaskStatus.SUCCESS)
            assert worker.children() == [child]
            assert "has not moved" not in worker.log


async def test_children_that_die_at_once_are_started_with_growing_pauses(site: Site) -> None:
    (site.folder / "fatal.py").write_text(
        "import os, time\n"
        "with open('starts', 'a') as file:\n"
        "    file.write(f'{time.monotonic()}\\n')\n"
        "os._exit(7)\n"
    )
    starts = site.folder / "starts"
    with site.worker(app="fatal:q") as worker:

        async def five() -> bool:
            return starts.exists() and len(starts.read_text().splitlines()) >= 5

        await until(five, "five starts")
        moments = [float(line) for line in starts.read_text().splitlines()]
        gaps = [after - before for before, after in pairwise(moments[:5])]
        for gap, pause in zip(gaps, (0.1, 0.2, 0.4, 0.8), strict=True):
            assert gap >= pause
        assert "exit code 7" in worker.log
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0


@pytest.mark.parametrize(
    ("pause_s", "lived_s", "next_s"),
    [
        (0.0, 0.0, 0.1),  # the first death
        (0.1, 9.9, 0.2),
        (12.8, 0.5, 25.6),
        (25.6, 0.5, 30.0),  # never longer
        (30.0, 0.5, 30.0),
        (30.0, 10.0, 0.1),  # it has worked in between
    ],
)
def test_pauses_grow_while_children_die_soon(pause_s: float, lived_s: float, next_s: float) -> None:
    assert next_pause_s(pause_s, lived_s) == next_s


async def test_a_memory_store_needs_one_process_and_works_there(site: Site) -> None:
    """Its module enqueues while it is imported, with a blocking call, as scripts do."""
    (site.folder / "inside.py").write_text(
        "from omniq import OmniQ\n"
        "q = OmniQ('memory://')\n"
        "@q.task\n"
        "def leave_a_trace():\n"
        "    open('trace', 'w').close()\n"
        "leave_a_trace.enqueue()\n"
    )
    with site.worker(app="inside:q") as worker:

        async def traced() -> bool:
            return (site.folder / "trace").exists()

        await until(traced, "the task runs")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0
    refused = site.run("worker", "inside:q", "--processes", "2")
    assert refused.returncode == 2
    assert "in memory" in refused.stderr
