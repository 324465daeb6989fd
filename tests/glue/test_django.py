"""Django's own tasks on OmniQ: what Django's documentation promises of a backend, where it applies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import django
import pytest
from django.test import override_settings
from django.utils import timezone

from omniq import InvalidOption, OmniQ, Task
from omniq.contrib import django as glue
from omniq.testing import drain
from tests.cli.site import Site, until
from tests.glue.tasks_of_django import BUILT_IN, exceptions, signals, tasks
from tests.worker.scene import omniq_threads

django.setup()
from tests.glue.shop import tasks as shop  # noqa: E402 - after the set-up

# Django 6.0 called it InvalidTask; the package before it InvalidTaskError.
INVALID = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError


def settings_for(url: str, **options: Any) -> Any:
    backend = {
        "BACKEND": "omniq.contrib.django.OmniQBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"url": url} | options,
    }
    return override_settings(TASKS={"default": backend})


@pytest.fixture
def q(tmp_path: Path) -> Iterator[OmniQ]:
    """The application of a fresh store, as a worker gets it."""
    shop.runs.clear()
    before = omniq_threads()
    with settings_for(f"sqlite:///{tmp_path / 'jobs.db'}"):
        app = glue.q
        yield app
        app.close()
    assert omniq_threads() == before


def test_from_enqueue_to_result(q: OmniQ) -> None:
    result = shop.add.enqueue(2, b=3)
    assert result.status == tasks.TaskResultStatus.READY
    assert (result.args, result.kwargs, result.attempts) == ([2], {"b": 3}, 0)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    assert drain(q) == 1
    result.refresh()
    assert result.status == tasks.TaskResultStatus.SUCCESSFUL
    assert result.return_value == 5
    assert result.is_finished
    assert result.attempts == 1
    assert result.enqueued_at <= result.started_at <= result.finished_at
    again = shop.add.get_result(result.id)
    assert (again.return_value, again.args, again.kwargs) == (5, [2], {"b": 3})


async def test_inside_a_loop(q: OmniQ) -> None:
    result = await shop.greet.aenqueue("ann")
    async with q.async_worker():
        async with asyncio.timeout(30):
            while not result.is_finished:
                await asyncio.sleep(0.02)
                await result.arefresh()
    assert result.return_value == "hello ann"
    assert (await shop.greet.aget_result(result.id)).return_value == "hello ann"
    await q.aclose()


def test_a_task_is_stored_under_its_own_path(q: OmniQ) -> None:
    result = shop.note.enqueue("a")
    row = q.run(lambda storage: storage.get_task(result.id), "")
    assert row is not None
    assert (row.func_path, row.queue, row.priority) == ("tests.glue.shop.tasks.note", "mail", 6)


def test_priority_and_run_after(q: OmniQ) -> None:
    for priority, word in ((-100, "last"), (100, "first"), (0, "middle")):
        shop.note.using(priority=priority).enqueue(word)
    later = shop.note.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("later")
    assert drain(q) == 3
    assert shop.runs == ["first", "middle", "last"]
    found = shop.note.get_result(later.id)
    assert found.status == tasks.TaskResultStatus.READY
    assert abs(found.task.run_after - later.task.run_after) < timedelta(seconds=1)
    assert shop.note.get_result(later.id).task.priority == 50


def test_failures_are_kept_with_their_class(q: OmniQ) -> None:
    own, plain = shop.fails.enqueue(), shop.fails_plainly.enqueue()
    drain(q)
    for result, kind in ((own, shop.OutOfStock), (plain, ValueError)):
        result.refresh()
        assert result.status == tasks.TaskResultStatus.FAILED
        [error] = result.errors
        assert error.exception_class is kind
        assert "Traceback" in error.traceback
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value


def test_retries_by_choice(tmp_path: Path) -> None:
    with settings_for(f"sqlite:///{tmp_path / 'jobs.db'}", max_retries=2):
        app = glue.q
        result = shop.fails.enqueue()
        with app.worker(base_retry_delay=0.01, poll_interval=0.05):
            app.handle(result.id).wait(30)
        result.refresh()
        assert (result.attempts, len(result.errors)) == (3, 3)
        app.close()


def test_context(q: OmniQ) -> None:
    result = shop.with_context.enqueue("x")
    drain(q)
    result.refresh()
    assert result.return_value == ["x", 1, result.id]


def test_signals(q: OmniQ) -> None:
    seen: list[tuple[str, str]] = []
    receivers = {
        name: partial(lambda word, task_result, **_: seen.append((word, str(task_result.status))), name)
        for name in ("task_enqueued", "task_started", "task_finished")
    }
    for name, receiver in receivers.items():
        getattr(signals, name).connect(receiver, weak=False)
    try:
        shop.add.enqueue(1)
        shop.fails.enqueue()
        drain(q)
    finally:
        for name, receiver in receivers.items():
            getattr(signals, name).disconnect(receiver)
    assert seen == [
        ("task_enqueued", "READY"), ("task_enqueued", "READY"),
        ("task_started", "RUNNING"), ("task_finished", "SUCCESSFUL"),
        ("task_started", "RUNNING"), ("task_finished", "FAILED"),
    ]  # fmt: skip


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_result_that_is_looked_up_equals_the_one_that_was_returned(q: OmniQ, use_tz: bool) -> None:
    """To the microsecond, whatever the clock of the store says; `run_after` also once the task has run."""
    with override_settings(USE_TZ=use_tz):
        soon = timezone.now() - timedelta(seconds=1, microseconds=7)
        for task in (shop.add, shop.add.using(priority=-33, queue_name="mail", run_after=soon)):
            result = task.enqueue(1, b=2)
            assert shop.add.get_result(result.id) == result
        drain(q)
        ran = shop.add.get_result(result.id)
        assert (ran.task, ran.enqueued_at) == (result.task, result.enqueued_at)
        assert ran.is_finished


def test_a_body_that_interrupts_itself_has_failed(q: OmniQ) -> None:
    """A Ctrl-C at the worker never reaches a body, so this is the body's own doing; the worker goes on."""
    results = [shop.interrupts.enqueue(), shop.add.enqueue(1)]
    drain(q)
    for result in results:
        result.refresh()
    assert [str(result.status) for result in results] == ["FAILED", "SUCCESSFUL"]
    assert results[0].errors[0].exception_class is KeyboardInterrupt


async def test_a_run_that_is_given_back_has_not_finished(q: OmniQ) -> None:
    finished: list[Any] = []

    def receive(task_result: Any, **_: Any) -> None:
        finished.append(task_result)

    async def begun() -> bool:
        return shop.runs == ["waiting"]

    signals.task_finished.connect(receive)
    try:
        result = await shop.waits.aenqueue()
        async with q.async_worker() as pool:
            await until(begun, "the body")
            await pool.stop(timeout=0)
    finally:
        signals.task_finished.disconnect(receive)
    await result.arefresh()
    assert (str(result.status), finished) == ("READY", [])
    await q.aclose()


def test_what_json_cannot_say_is_refused(q: OmniQ) -> None:
    with pytest.raises(TypeError):
        shop.add.enqueue(object())
    result = shop.returns_a_set.enqueue()
    drain(q)
    result.refresh()
    assert result.status == tasks.TaskResultStatus.FAILED


def test_results_of_others_do_not_exist(q: OmniQ) -> None:
    result = shop.add.enqueue(1)
    with pytest.raises(exceptions.TaskResultMismatch):
        shop.fails.get_result(result.id)
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        shop.add.get_result("nobody")


def test_a_row_imports_nothing(q: OmniQ, tmp_path: Path) -> None:
    """S1: only tasks of installed applications run; any other path goes back and is not even imported."""
    trap = "tests.glue.shop.tasks.not_a_task"
    ids = [
        q.run(lambda storage, path=path: storage.enqueue(Task(path)), "")
        for path in ("os.getcwd", trap, "tests.glue.trap.sprung")
    ]
    assert drain(q) == 3
    for task_id in ids:
        row = q.run(lambda storage, one=task_id: storage.get_task(one), "")
        assert row is not None
        assert row.status == "PENDING"
        with pytest.raises(exceptions.TaskResultDoesNotExist):
            shop.add.get_result(task_id)


def test_bad_settings_say_so(tmp_path: Path) -> None:
    with (
        settings_for("memory://", retries=3),
        pytest.raises(InvalidOption, match="did you mean 'max_retries'"),
    ):
        shop.add.enqueue(1)
    with settings_for("memory://"), pytest.raises(INVALID, match="Queue 'nowhere'"):
        shop.add.using(queue_name="nowhere")
    other = override_settings(TASKS={"other": {"BACKEND": "omniq.contrib.django.OmniQBackend"}})
    with other, pytest.raises(AttributeError, match="no backend 'default'"):
        _ = glue.q
    with settings_for("memory://"), pytest.raises(INVALID):
        shop.add.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point


def test_the_worker_command(site: Site) -> None:
    """`omniq worker omniq.contrib.django:q` finds the settings and the tasks of installed applications."""
    (site.folder / "till").mkdir()
    package = "django.tasks" if BUILT_IN else "django_tasks"
    (site.folder / "till" / "__init__.py").write_text("")
    (site.folder / "till" / "tasks.py").write_text(
        f"from {package} import task\n@task\ndef double(n): return n * 2\n"
    )
    (site.folder / "site_settings.py").write_text(
        "INSTALLED_APPS = ['till']\nUSE_TZ = True\n"
        "TASKS = {'default': {'BACKEND': 'omniq.contrib.django.OmniQBackend', "
        "'OPTIONS': {'url': 'sqlite:///jobs.db'}}}\n"
    )
    (site.folder / "enqueue.py").write_text(
        "import django; django.setup()\nfrom till.tasks import double\nprint(double.enqueue(21).id)\n"
    )
    settings = {"DJANGO_SETTINGS_MODULE": "site_settings", "PYTHONPATH": str(site.folder)}
    with site.worker(app="omniq.contrib.django:q", **settings):
        ran = subprocess.run(
            [sys.executable, "enqueue.py"],
            cwd=site.folder,
            env=site.environment | settings,
            capture_output=True,
            text=True,
            timeout=40,
            check=True,
        )
        shown = site.run("result", ran.stdout.strip(), "--timeout", "30", "--url", "sqlite:///jobs.db")
        assert shown.stdout.strip() == "42", shown.stderr
