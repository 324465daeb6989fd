"""`omniq schedules`: list, add, pause, resume, run, remove."""

import json

from omniq.schedule import Schedule
from omniq.task import Task, TaskStatus
from tests.cli.site import Site, until, until_begun, until_status

URL = "sqlite:///jobs.db"


def fails(site: Site, *arguments: str, code: int = 2) -> str:
    """The one line that a command says when it refuses."""
    ended = site.run("schedules", *arguments, "--url", URL)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == ""
    [line] = ended.stderr.splitlines()
    return line


async def test_add_list_pause_resume_run_remove(site: Site) -> None:
    async with site.store() as store:
        added = site.run(
            *("schedules", "add", "nightly", "jobs.nap", "--cron", "0 2 * * *", "--tz", "Europe/Berlin"),
            *("--args", '["a"]', "--kwargs", '{"seconds": 0}', "--queue", "mail", "--overlap", "skip"),
            *("--url", URL),
        )
        assert (added.returncode, added.stderr) == (0, "")
        assert added.stdout.startswith("nightly: 0 2 * * * (Europe/Berlin), next in ")
        [kept] = await store.schedules()
        assert (kept.cron, kept.tz, kept.overlap, kept.call.queue) == (
            "0 2 * * *",
            "Europe/Berlin",
            "skip",
            "mail",
        )

        listed = site.run("schedules", "--url", URL)
        assert site.run("schedules", "list", "--url", URL).stdout == listed.stdout
        header, line = listed.stdout.splitlines()
        assert header.split() == ["NAME", "WHEN", "TASK", "QUEUE", "NEXT", "LAST", "NOTE"]
        assert line.split()[0] == "nightly"
        assert "0 2 * * * (Europe/Berlin)" in line
        assert "no overlap" in line

        paused = site.run("schedules", "--url", URL, "pause", "nightly")  # the URL may stand before the verb
        assert (paused.returncode, paused.stdout) == (0, "nightly: paused\n"), paused.stderr
        [as_json] = json.loads(site.run("schedules", "--json", OMNIQ_URL=URL).stdout)
        assert (as_json["paused"], as_json["next_at"], as_json["func_path"]) == (True, None, "jobs.nap")

        ran = site.run("schedules", "run", "nightly", "--url", URL)
        task = await store.get_task(ran.stdout.strip())
        assert task is not None
        assert (task.args, task.kwargs, task.queue) == (("a",), {"seconds": 0}, "mail")
        again = site.run("schedules", "run", "nightly", "--url", URL)
        assert again.stdout == f"{task.id} (has not ended yet, and must not overlap)\n"

        assert site.run("schedules", "resume", "nightly", "--url", URL).returncode == 0
        assert not (await store.schedules())[0].paused
        assert site.run("schedules", "remove", "nightly", "--url", URL).stdout == "nightly: removed\n"
        assert await store.schedules() == []


async def test_verbs_answer_in_json_too(site: Site) -> None:
    def said(*arguments: str, before: bool = False) -> object:
        options = ("--json", "--url", URL)
        words = (*options, *arguments) if before else (*arguments, *options)
        ended = site.run("schedules", *words)
        assert (ended.returncode, ended.stderr) == (0, "")
        return json.loads(ended.stdout)

    async with site.store() as store:
        await store.save_schedule(Schedule(name="tick", call=Task("jobs.nap"), every=3600))
        assert said("pause", "tick") == {"name": "tick", "paused": True}
        assert (await store.schedules())[0].paused
        assert said("resume", "tick", before=True) == {"name": "tick", "paused": False}
        assert not (await store.schedules())[0].paused
        assert said("remove", "tick") == {"name": "tick", "removed": True}
        assert await store.schedules() == []
        migrated = site.run("migrate", "--json", "--url", URL)
        assert json.loads(migrated.stdout)["up_to_date"] is True


async def test_what_is_refused_is_refused_in_one_line(site: Site) -> None:
    async with site.store() as store:
        assert "no schedule 'nobody'" in fails(site, "pause", "nobody", code=1)
        assert "no schedule 'nobody'" in fails(site, "remove", "nobody", code=1)
        assert "--every 60 or --cron" in fails(site, "add", "a", "jobs.nap")
        assert "not both" in fails(site, "add", "a", "jobs.nap", "--every", "5", "--cron", "* * * * *")
        assert "never fires" in fails(site, "add", "a", "jobs.nap", "--cron", "0 0 30 2 *")
        assert "no time zone" in fails(site, "add", "a", "jobs.nap", "--cron", "0 0 * * *", "--tz", "Nowhere")
        assert "'--args': is no JSON" in fails(site, "add", "a", "jobs.nap", "--every", "5", "--args", "[1")
        assert "'--args': must be a JSON list" in fails(
            site, "add", "a", "jobs.nap", "--every", "5", "--args", "1"
        )
        assert "'--kwargs': must be a JSON object" in fails(
            site, "add", "a", "jobs.nap", "--every", "5", "--kwargs", "[1]"
        )
        assert "func_path" in fails(site, "add", "a", "not a path", "--every", "5")
        assert await store.schedules() == []


async def test_workers_of_the_command_fire_and_an_unknown_task_is_named(site: Site) -> None:
    async with site.store() as store:
        with site.worker("--processes", "2") as worker:
            await worker.ready(store, 2)
            refused = fails(site, "add", "tick", "jobs.nip", "--every", "0.5", code=1)
            assert "no living worker serves a task named 'jobs.nip'; did you mean jobs.nap" in refused
            added = site.run(
                "schedules", "add", "tick", "jobs.nap", "--every", "0.5", "--args", '["tick"]',
                "--catch-up", "all", "--url", URL,
            )  # fmt: skip
            assert added.returncode == 0, added.stderr
            await until_begun(site, "tick", 4)
        tasks = await store.list_tasks()
        moments = [task.headers["tick"] for task in tasks]
        assert len(moments) == len(set(moments))


async def test_a_schedule_of_a_module_is_fired_by_whoever_imports_it(site: Site) -> None:
    with (site.folder / "jobs.py").open("a") as file:
        file.write('\nq.schedule("module", nap.call("module"), every=0.3)\n')
    async with site.store() as store:
        with site.worker() as worker:

            async def made() -> bool:
                return len(await store.list_tasks()) >= 2

            await until(made, lambda: f"two ticks; the log:\n{worker.log}")
            tasks = await store.list_tasks()
            await until_status(store, [tasks[-1].id], TaskStatus.SUCCESS)
        [schedule] = await store.schedules()
        assert schedule.name == "module"


async def test_names_cannot_steer_a_terminal(site: Site) -> None:
    async with site.store() as store:
        await store.save_schedule(Schedule(name="a\u00e9", call=Task("jobs.nap"), every=5))
    listed = site.run("schedules", "--url", URL)
    assert "a\u00e9" in listed.stdout
