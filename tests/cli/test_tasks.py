"""`omniq tasks`, `show`, `retry`, `cancel`: what they print, in both forms, and what they change."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from omniq.storage import SQLiteStorage
from omniq.task import Settlement, TaskError, TaskStatus
from tests.cli.site import Site, call

URL = "sqlite:///jobs.db"
FIELDS = {
    "id", "func_path", "status", "queue", "priority", "eta", "expires_at", "interval", "timeout", "attempts",
    "max_retries", "losses", "max_losses", "epoch", "owner", "cancel_requested", "unique_key", "progress",
    "enqueued_at", "started_at", "finished_at", "error",
}  # fmt: skip


async def fail(store: SQLiteStorage, task_id: str, message: str) -> None:
    [claimed] = await store.claim("worker@test:1:abc", limit=1)
    assert claimed.id == task_id
    await store.progress(task_id, claimed.epoch, 3, 10)
    await store.settle([Settlement.failed(claimed, TaskError("ValueError", message, "Traceback ..."))])


async def test_tasks_lists_the_newest_first(site: Site) -> None:
    async with site.store() as store:
        failed = await store.enqueue(call("nap", "a"))
        await fail(store, failed, "no\nway")
        later = await store.enqueue(
            call("nap", "b", queue="mail", eta=datetime.now(UTC) + timedelta(hours=5))
        )
        table = site.run("tasks", "--url", URL)
        header, *lines = table.stdout.splitlines()
        assert header.split() == ["ID", "STATUS", "QUEUE", "TASK", "RUNS", "ENQUEUED", "NOTE"]
        assert [line.split()[0] for line in lines] == [later, failed]
        assert "PENDING (scheduled)" in lines[0]
        assert "due in 5 h" in lines[0]
        assert "error: ValueError: no\\nway" in lines[1]
        listed = json.loads(site.run("tasks", "--json", OMNIQ_URL=URL).stdout)
        assert [task["id"] for task in listed] == [later, failed]
        assert all(set(task) == FIELDS for task in listed)
        for options, ids in (
            (["--status", "failed", "--queue", "default"], [failed]),
            (["--queue", "mail"], [later]),
            (["--limit", "1"], [later]),
        ):
            found = json.loads(site.run("tasks", "--json", "--url", URL, *options).stdout)
            assert [task["id"] for task in found] == ids


async def test_show_hides_the_arguments(site: Site) -> None:
    async with site.store() as store:
        task_id = await store.enqueue(call("nap", "TREASURE", headers={"trace": "HEADER"}))
        await fail(store, task_id, "no way")
        shown = site.run("show", task_id, "--url", URL).stdout
        assert {"task", "function", "status", "error", "arguments"} <= {
            line.split()[0] for line in shown.splitlines()
        }
        assert "ValueError: no way (error)" in shown
        assert "run 1" in shown
        assert "worker@test:1:abc" in shown
        assert "TREASURE" not in shown
        with_args = site.run("show", task_id, "--args", "--url", URL).stdout
        assert "'TREASURE'" in with_args
        assert "HEADER" in with_args


async def test_show_as_json(site: Site) -> None:
    async with site.store() as store:
        secret = {"when": datetime(2026, 1, 2, tzinfo=UTC), "raw": b"\xff", "set": frozenset({1})}
        task_id = await store.enqueue(call("nap", secret))
        await fail(store, task_id, "no way")
        plain = json.loads(site.run("show", task_id, "--json", "--url", URL).stdout)
        assert set(plain) == FIELDS | {"history"}
        assert plain["error"] == {
            "type": "ValueError",
            "message": "no way",
            "kind": "error",
            "traceback": "Traceback ...",
        }
        [run] = plain["history"]
        assert set(run) == {"epoch", "owner", "started_at", "finished_at", "outcome", "error"}
        assert (run["epoch"], run["outcome"]) == (1, "failed")
        full = json.loads(site.run("show", task_id, "--json", "--args", "--url", URL).stdout)
        assert set(full) == FIELDS | {"history", "args", "kwargs", "headers"}
        assert full["args"][0]["when"].startswith("2026-01-02")


async def test_retry_and_cancel(site: Site) -> None:
    async with site.store() as store:
        failed = await store.enqueue(call("nap", "a"))
        await fail(store, failed, "no way")
        waiting = await store.enqueue(call("nap", "b", eta=datetime.now(UTC) + timedelta(hours=5)))

        again = site.run("retry", failed, waiting, "unknown", "--url", URL)
        assert again.returncode == 1
        assert again.stdout == f"{failed} PENDING\n"
        conflict, unknown = again.stderr.splitlines()
        assert "only FAILED and CANCELLED" in conflict
        assert "no task 'unknown'" in unknown

        [running] = await store.claim("worker@test:1:abc", limit=1)
        assert running.id == failed
        cancelled = site.run("cancel", failed, waiting, "--url", URL)
        assert cancelled.returncode == 0
        assert cancelled.stdout == f"{failed} RUNNING, asked to stop\n{waiting} CANCELLED\n"
        statuses = [task.status for task in [await store.get_task(i) for i in (failed, waiting)] if task]
        assert statuses == [TaskStatus.RUNNING, TaskStatus.CANCELLED]
        assert "RUNNING (cancelling)" in site.run("tasks", "--url", URL).stdout


def test_an_unknown_id(site: Site) -> None:
    site.file.touch()
    ended = site.run("show", "nobody\x1b[31m", "--url", URL)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert "\x1b" not in ended.stderr


@pytest.mark.parametrize("where", ["environment", "pyproject"])
async def test_the_store_is_found_where_it_is_configured(site: Site, where: str) -> None:
    async with site.store() as store:
        task_id = await store.enqueue(call("nap", "a"))
        environment = {"OMNIQ_URL": URL} if where == "environment" else {}
        if where == "pyproject":
            (site.folder / "pyproject.toml").write_text(f"[tool.omniq]\nurl = '{URL}'\n")
        assert task_id in site.run("tasks", **environment).stdout
