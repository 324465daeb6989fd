"""`omniq result delete queues pause resume purge workers health enqueue`: what they print and change."""

import json
import os
import pty
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omniq.storage import SQLiteStorage
from omniq.task import Settlement, Task, TaskError, TaskStatus, WorkerInfo
from tests.cli.site import OMNIQ, Site, call

URL = "sqlite:///jobs.db"


async def succeed(store: SQLiteStorage, value: object) -> str:
    task_id = await store.enqueue(call("nap", "a"))
    [claimed] = await store.claim("worker@test:1:abc", limit=1)
    await store.settle([Settlement.success(claimed, store.serializer.dumps(value))])
    return task_id


async def fail(store: SQLiteStorage, **options: str) -> str:
    task_id = await store.enqueue(call("nap", "a", **options))
    [claimed] = await store.claim("worker@test:1:abc", limit=1)
    await store.settle([Settlement.failed(claimed, TaskError("ValueError", "no\nway"))])
    return task_id


# --- what has ended ------------------------------------------------------------------------------


async def test_result(site: Site) -> None:
    async with site.store() as store:
        done = await succeed(store, {"pages": 3, "when": datetime(2030, 1, 2, tzinfo=UTC)})
        failed = await fail(store)
        waiting = await store.enqueue(call("nap", "later"))
        shown = site.run("result", done, "--url", URL)
        assert (shown.returncode, "'pages': 3" in shown.stdout) == (0, True)
        as_json = json.loads(site.run("result", done, "--json", "--url", URL).stdout)
        assert as_json["status"] == "SUCCESS"
        assert as_json["result"] == {"pages": 3, "when": "2030-01-02T00:00:00Z"}
        broken = site.run("result", failed, "--url", URL)
        assert (broken.returncode, broken.stdout) == (1, "")
        assert f"task {failed} is FAILED: ValueError: no\\nway" in broken.stderr
        as_json = json.loads(site.run("result", failed, "--json", "--url", URL).stdout)
        assert as_json["error"]["type"] == "ValueError"
        not_yet = site.run("result", waiting, "--timeout", "0.1", "--url", URL)
        assert (not_yet.returncode, "has not ended" in not_yet.stderr) == (1, True)
        unknown = site.run("result", "nobody", "--url", URL)
        assert (unknown.returncode, "no task 'nobody'" in unknown.stderr) == (1, True)


async def test_delete(site: Site) -> None:
    async with site.store() as store:
        done = await succeed(store, 1)
        waiting = await store.enqueue(call("nap", "later"))
        ran = site.run("delete", waiting, done, "nobody", "--url", URL)
        assert ran.returncode == 1
        assert ran.stdout == f"{done} deleted\n"
        assert len(ran.stderr.splitlines()) == 2
        assert await store.get_task(done) is None
        assert await store.get_task(waiting) is not None


async def test_purge_deletes_what_has_ended_and_nothing_else(site: Site) -> None:
    async with site.store() as store:
        done, failed = await succeed(store, 1), await fail(store, queue="mail")
        waiting = await store.enqueue(call("nap", "later"))
        for options, deleted in (
            (["--older-than", "1h"], 0),
            (["--queue", "nowhere"], 0),
            (["--status", "failed", "--queue", "mail", "--older-than", "0"], 1),
        ):
            ran = site.run("purge", *options, "--url", URL)
            assert ran.stdout == f"deleted {deleted} tasks\n", ran.stderr
        assert [await store.get_task(one) is None for one in (done, failed, waiting)] == [False, True, False]
        assert json.loads(site.run("purge", "--json", "--url", URL).stdout) == {"deleted": 1}
        assert [await store.get_task(one) is None for one in (done, failed, waiting)] == [True, True, False]
    bad = site.run("purge", "--older-than", "yesterday", "--url", URL)
    assert (bad.returncode, "such as 90s, 30m, 12h, 7d or 2w" in bad.stderr) == (2, True)
    assert "Invalid value" in site.run("purge", "--status", "running", "--url", URL).stderr


# --- queues and workers --------------------------------------------------------------------------


async def test_queues_pause_resume(site: Site) -> None:
    async with site.store() as store:
        await store.enqueue_many([call("nap", "a", queue="mail"), call("nap", "b", queue="mail")])
        await fail(store)
        paused = site.run("pause", "mail", "empty", "--url", URL)
        assert (paused.stdout, paused.stderr) == ("mail paused\nempty paused\n", "queue empty has no tasks\n")
        assert await store.paused() == {"mail", "empty"}
        listed = {one["queue"]: one for one in json.loads(site.run("queues", "--json", "--url", URL).stdout)}
        assert listed["mail"] | {"x": 0} == {
            "queue": "mail", "paused": True, "pending": 2 - listed["mail"]["failed"], "running": 0,
            "success": 0, "failed": listed["mail"]["failed"], "cancelled": 0, "x": 0,
        }  # fmt: skip
        header, *lines = site.run("queues", "--url", URL).stdout.splitlines()
        assert header.split() == ["QUEUE", "STATE", "PENDING", "RUNNING", "SUCCESS", "FAILED", "CANCELLED"]
        assert [line.split()[:2] for line in lines] == [
            ["default", "open"], ["empty", "paused"], ["mail", "paused"],
        ]  # fmt: skip
        typo = site.run("resume", "mial", "--url", URL)
        assert (typo.stdout, typo.stderr) == ("mial open\n", "queue mial has no tasks; did you mean mail?\n")
        assert site.run("resume", "mail", "--url", URL).stderr == ""
        assert await store.paused() == {"empty"}
        bad = site.run("pause", "default", "no such name", "--url", URL)
        assert (bad.returncode, len(bad.stderr.splitlines())) == (2, 1)
        assert await store.paused() == {"empty"}, "a bad name changes nothing"


async def test_workers(site: Site) -> None:
    async with site.store() as store:
        await store.beat(
            WorkerInfo("w@host:1:abc", "w", "host", 1, ("mail", "sms"), 5, 2, started_at=datetime.now(UTC))
        )
        header, line = site.run("workers", "--url", URL).stdout.splitlines()
        assert header.split() == ["WORKER", "SEEN", "BUSY", "OF", "QUEUES", "STARTED"]
        assert "w@host:1:abc" in line
        assert "mail,sms" in line
        [one] = json.loads(site.run("workers", "--json", "--url", URL).stdout)
        assert (one["id"], one["in_flight"], one["queues"]) == ("w@host:1:abc", 2, ["mail", "sms"])


# --- health --------------------------------------------------------------------------------------


async def test_health_by_progress(site: Site) -> None:
    """Green while nothing is late or work moves; red when due work stands still for longer than a lease."""
    async with site.store() as store:
        await store.enqueue(call("nap", "later", eta=datetime.now(UTC) + timedelta(hours=1)))
        await store.enqueue(call("nap", "just now", queue="fresh"))
        idle = site.run("health", "--url", URL)
        assert (idle.returncode, idle.stdout) == (0, "ok nothing due is late\n")
        overdue = datetime.now(UTC) - timedelta(minutes=5)
        for word in ("due", "due as well"):
            await store.enqueue(call("nap", word, eta=overdue))
        red = site.run("health", "--url", URL)
        assert red.returncode == 1
        assert red.stdout.startswith("red queue default: no living worker serves it")
        assert site.run("health", "--lease", "600", "--url", URL).returncode == 0
        await store.beat(WorkerInfo("w@host:1:abc", "w", "host", 1, concurrency=5, in_flight=1))
        found = json.loads(site.run("health", "--json", "--url", URL).stdout)
        assert found["healthy"] is False
        assert "nothing ends" in found["problems"][0]
        [claimed] = await store.claim("w@host:1:abc", ["default"], 1)
        await store.settle([Settlement.success(claimed, store.serializer.dumps(1))])
        moving = json.loads(site.run("health", "--json", "--url", URL).stdout)
        assert (moving["healthy"], "but it moves" in moving["notes"][0]) == (True, True)
        await store.pause("default")
        assert "is paused" in site.run("health", "--url", URL).stdout


def test_health_of_a_store_that_does_not_answer(site: Site) -> None:
    away = site.run("health", "--url", "postgresql://localhost:1/nowhere", "--lease", "3")
    assert away.returncode == 1
    assert len(away.stdout.splitlines()) == 1, away.stderr
    assert away.stdout.startswith("red the store ")


# --- enqueue -------------------------------------------------------------------------------------


async def test_enqueue(site: Site) -> None:
    ran = site.run("enqueue", "jobs:q", "nap", "--args", '["x"]', "--kwargs", '{"seconds": 0.5}')
    assert ran.returncode == 0, ran.stderr
    task_id = ran.stdout.strip()
    async with site.store() as store:
        task = await store.get_task(task_id)
        assert task is not None
        assert (task.func_path, task.args, task.kwargs) == ("jobs.nap", ("x",), {"seconds": 0.5})
        assert task.status is TaskStatus.PENDING
    as_json = json.loads(site.run("enqueue", "jobs:q", "jobs.nap", "--args", '["y"]', "--json").stdout)
    assert as_json["created"] is True


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["jobs:q", "nap", "--args", "[1"], "is no JSON"),
        (["jobs:q", "nap", "--args", "[NaN]"], "is no JSON"),
        (["jobs:q", "nap", "--args", '{"a": 1}'], "must be a JSON list"),
        (["jobs:q", "nap", "--kwargs", "[1]"], "must be a JSON object"),
        (
            ["jobs:q", "nap", "--args", "[]"],
            "cannot be called like this: missing a required argument: 'name'",
        ),
        (["jobs:q", "nap", "--args", "[1, 2, 3]"], "cannot be called like this: too many"),
        (["jobs:q", "nip"], "has no task 'nip'; did you mean nap?"),
        (["jobs:q", "xyzzy"], "has no task 'xyzzy'; it has jobs.block"),
        (["jobs:nobody", "nap"], "has no nobody; there is jobs:q"),
        (["nowhere:q", "nap"], "No module named 'nowhere'; looked in"),
        (["jobs", "nap"], "no module and name, such as jobs:q"),
        (["twice:q", "nap"], "two tasks are called 'same'; give one of them name='...'"),
    ],
)
def test_bad_input_is_one_clear_line(site: Site, arguments: list[str], says: str) -> None:
    (site.folder / "twice.py").write_text(
        "from omniq import OmniQ\nq = OmniQ('memory://')\n"
        "@q.task(name='same')\ndef one(): ...\n@q.task(name='same')\ndef other(): ...\n"
    )
    ran = site.run("enqueue", *arguments)
    assert ran.returncode == 2
    assert ran.stdout == ""
    [line] = ran.stderr.splitlines()
    assert says in line


# --- tables for people ---------------------------------------------------------------------------


async def test_a_terminal_gets_a_coloured_table(site: Site) -> None:
    async with site.store() as store:
        failed = await fail(store)
        await store.enqueue(Task("jobs.nap", ("[bold]a[/bold]",), queue="q1"))
    terminal, theirs = pty.openpty()
    try:
        ran = subprocess.Popen(
            [*OMNIQ, "tasks", "--url", URL],
            cwd=site.folder,
            env=site.environment | {"COLUMNS": "120", "TERM": "xterm-256color"},
            stdout=theirs,
        )
        os.close(theirs)
        seen = b""
        try:
            while chunk := os.read(terminal, 65536):
                seen += chunk
        except OSError:  # the other end is closed
            pass
        assert ran.wait(30) == 0
    finally:
        os.close(terminal)
    lines = seen.decode().splitlines()
    assert any(failed in line and "\x1b[31mFAILED" in line for line in lines), "an id can be copied"
    assert all(len(line) < 300 for line in lines)


async def test_what_acts_answers_in_json_too(site: Site) -> None:
    async with site.store() as store:
        waits = str(await store.enqueue(Task("jobs.nap", ("a",))))

        def answer(*arguments: str, code: int = 0) -> Any:
            ended = site.run(*arguments, "--json", "--url", URL)
            assert ended.returncode == code, ended.stderr
            return json.loads(ended.stdout)

        found, missing = answer("cancel", waits, "nobody", code=1)
        assert found == {"id": waits, "status": "CANCELLED"}
        assert (missing["id"], "no task 'nobody'" in missing["error"]) == ("nobody", True)
        assert answer("retry", waits) == [{"id": waits, "status": "PENDING"}]
        assert answer("pause", "mail", "news") == [
            {"queue": "mail", "paused": True},
            {"queue": "news", "paused": True},
        ]
        assert answer("resume", "mail") == [{"queue": "mail", "paused": False}]
        added = answer("schedules", "add", "hourly", "jobs.nap", "--every", "3600", "--args", '["b"]')
        assert (added["name"], added["every"], added["paused"]) == ("hourly", 3600.0, False)
        made = answer("schedules", "run", "hourly")
        assert made["created"] is True
        assert await store.get_task(made["id"]) is not None
        await store.cancel(made["id"])
        assert answer("delete", made["id"]) == [{"id": made["id"], "status": "deleted"}]


def test_the_health_of_a_store_that_is_not_there_is_red_in_json_too(site: Site) -> None:
    ended = site.run("health", "--json", "--url", "sqlite:///none.db")
    assert ended.returncode == 1
    told = json.loads(ended.stdout)
    assert told["healthy"] is False
    assert "there is no store" in told["problems"][0]
