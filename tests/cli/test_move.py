"""`omniq move`: everything to another store, and when it refuses."""

import json

from omniq.schedule import Schedule
from omniq.storage import SQLiteStorage
from omniq.task import Settlement, Task, TaskError, TaskStatus, WorkerInfo
from tests.cli.site import Site

OLD, NEW = "sqlite:///jobs.db", "sqlite:///new.db"


def new_store(site: Site) -> SQLiteStorage:
    return SQLiteStorage(site.folder / "new.db")


async def test_everything_arrives_in_the_other_store(site: Site) -> None:
    async with site.store() as old:
        failed = await old.enqueue(Task("jobs.nap", ("a",), max_retries=0))
        [claimed] = await old.claim("ann")
        await old.settle([Settlement.failed(claimed, TaskError("E", "no way"))])
        waiting = await old.enqueue(Task("jobs.nap", ("b",), queue="mail", priority=3))
        schedule = await old.save_schedule(Schedule(name="tidy", call=Task("jobs.nap"), every=60))
        await old.pause("mail")
        before = [await old.get_task(failed), await old.get_task(waiting), await old.history(failed)]
    moved = site.run("move", OLD, NEW)
    assert (moved.returncode, moved.stderr) == (0, "")
    assert moved.stdout == "moved 2 tasks and 1 schedule\n"
    async with new_store(site) as new, site.store() as old:
        assert [await new.get_task(failed), await new.get_task(waiting), await new.history(failed)] == before
        assert (await new.schedules(), await new.paused()) == ([schedule], {"mail"})
        assert (await old.list_tasks(), await old.schedules()) == ([], [])
    again = site.run("move", OLD, NEW, "--json")
    assert json.loads(again.stdout) == {
        "tasks": 0, "schedules": 0, "known": 0, "blocked": 0, "running": 0,
    }  # fmt: skip


async def test_it_refuses_while_somebody_works_there(site: Site) -> None:
    async with site.store() as old:
        await old.enqueue_many([Task("jobs.nap", (n,)) for n in range(3)])
        [claimed] = await old.claim("ann", lease=600)
        refused = site.run("move", OLD, NEW)
        assert refused.returncode == 1
        [line] = refused.stderr.splitlines()
        assert "running: 1 task; live: no worker" in line
        assert len(await old.list_tasks()) == 3

        asked = site.run("move", OLD, NEW, "--while-running")
        assert asked.returncode == 0
        assert "moved 2 tasks" in asked.stdout
        assert "running in the source, so move again afterwards: 1 task" in asked.stdout
        await old.settle([Settlement.success(claimed, old.serializer.dumps(1))])

        await old.beat(WorkerInfo("bob", "bob", "host", 1))
        refused = site.run("move", OLD, NEW)
        assert "live: 1 worker (bob)" in refused.stderr
        await old.leave("bob")
    assert "moved 1 task" in site.run("move", OLD, NEW).stdout
    async with new_store(site) as new:
        task = await new.get_task(claimed.id)
        assert task is not None
        assert (task.status, task.epoch) == (TaskStatus.SUCCESS, 1)


async def test_addresses_that_make_no_sense(site: Site) -> None:
    async with site.store() as old:
        task_id = await old.enqueue(Task("jobs.nap", ("a",)))
    (site.folder / "link.db").symlink_to(site.file)
    for source, target, words in (
        (OLD, OLD, "the same store"),
        (OLD, "sqlite:///link.db", "the same store"),
        ("sqlite:///nowhere.db", NEW, "there is no store at"),
        ("memory://", NEW, "memory://"),
        (OLD, "memory://", "memory://"),
        (OLD, "ftp://x", "ftp"),
        (OLD, "postgresql://nobody:secret@127.0.0.1:1/x", "127.0.0.1"),
    ):
        ended = site.run("move", source, target)
        assert ended.returncode in (1, 2), (source, target)
        [line] = ended.stderr.splitlines()
        assert words in line
        assert "secret" not in line
    async with site.store() as old:
        assert [task.id for task in await old.list_tasks()] == [task_id]


async def test_an_id_that_means_something_else_there_stops_it_and_nothing_is_in_between(site: Site) -> None:
    async with site.store() as old, new_store(site) as new:
        await old.enqueue(Task("jobs.nap", ("a",), id="same"))
        await new.enqueue(Task("jobs.nap", ("b",), id="same"))
        refused = site.run("move", OLD, NEW)
        assert refused.returncode == 1
        assert "id 'same' belongs to another call" in refused.stderr
        assert [task.id for task in await old.list_tasks()] == ["same"]
        await old.cancel("same")
        await old.delete("same")
    assert site.run("move", OLD, NEW).returncode == 0
