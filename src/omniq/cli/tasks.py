"""`omniq tasks`, `show`, `retry`, `cancel`: a look at tasks, and a hand on them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import click

from omniq.cli.errors import EXIT_FAILED
from omniq.cli.group import OmniqCommand
from omniq.cli.options import QUEUE, Whole, each_json_option
from omniq.cli.store import url_option, with_store

if TYPE_CHECKING:
    from omniq.storage.base import BaseStorage
    from omniq.task import Task

STATUSES: Final = ("PENDING", "RUNNING", "SUCCESS", "FAILED", "CANCELLED")


@click.command(cls=OmniqCommand)
@click.option("--status", type=click.Choice(STATUSES, case_sensitive=False))
@click.option("--queue", type=QUEUE, metavar="NAME")
@click.option("--limit", type=Whole(1, 10_000), default=50, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="A list of objects instead of a table.")
@url_option
def tasks(status: str | None, queue: str | None, limit: int, as_json: bool, url: str | None) -> None:
    """List tasks, newest first."""
    from omniq.cli.output import ago, print_json, print_table
    from omniq.cli.shape import as_dict, state_of
    from omniq.task import TaskFilter, TaskStatus

    wanted = TaskFilter(status=None if status is None else TaskStatus(status.upper()), queue=queue)
    found = with_store(url, lambda storage: storage.list_tasks(wanted, limit=limit))
    if as_json:
        print_json([as_dict(task) for task in found])
        return
    print_table(
        ("ID", "STATUS", "QUEUE", "TASK", "RUNS", "ENQUEUED", "NOTE"),
        (
            (t.id, state_of(t), t.queue, t.func_path, t.epoch, ago(t.enqueued_at), _note(t))
            for t in found
        ),
    )  # fmt: skip


def _note(task: Task) -> str:
    from omniq.cli.output import ago

    if task.owner is not None:
        return task.owner
    if not task.status.final and task.eta is not None:
        return f"due {ago(task.eta)}"
    return "" if task.error is None else f"{task.error.kind}: {task.error}"


@click.command(cls=OmniqCommand)
@click.argument("task_id", metavar="ID")
@click.option("--args", "with_args", is_flag=True, help="Show the arguments and headers as well.")
@click.option("--json", "as_json", is_flag=True, help="One object instead of lines.")
@url_option
def show(task_id: str, with_args: bool, as_json: bool, url: str | None) -> None:
    """Show one task: how it stands, what happened to it, and why. Arguments stay hidden without --args."""
    from omniq.cli import shape
    from omniq.cli.output import print_json, print_pairs

    task, runs = with_store(url, lambda storage: _task_and_runs(storage, task_id))
    if as_json:
        runs_as_dicts = [shape.run_as_dict(run) for run in runs]
        print_json(shape.as_dict(task, with_args=with_args) | {"history": runs_as_dicts})
        return
    print_pairs(shape.as_pairs(task, with_args=with_args))
    for run in runs:
        print_pairs(shape.run_as_pairs(run))
    if task.error is not None and task.error.traceback:
        for line in task.error.traceback.splitlines():
            print_pairs([("", line)])


async def _task_and_runs(storage: BaseStorage, task_id: str) -> tuple[Task, list[Any]]:
    from omniq.errors import NotFound

    task = await storage.get_task(task_id)
    if task is None:
        raise NotFound(f"no task {task_id!r} in this store: never enqueued here, deleted, or pruned")
    return task, await storage.history(task_id)


@click.command(cls=OmniqCommand)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@each_json_option
@url_option
def retry(ids: tuple[str, ...], as_json: bool, url: str | None) -> int:
    """Run FAILED or CANCELLED tasks again, with all their chances."""

    async def one(storage: BaseStorage, task_id: str) -> str:
        await storage.retry(task_id)
        return "PENDING"

    return with_store(url, lambda storage: each(storage, ids, one, as_json))


@click.command(cls=OmniqCommand)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@each_json_option
@url_option
def cancel(ids: tuple[str, ...], as_json: bool, url: str | None) -> int:
    """Cancel tasks: a waiting one at once, a running one is asked to stop."""

    async def one(storage: BaseStorage, task_id: str) -> str:
        return str(await storage.cancel(task_id))

    def told(status: str) -> str:
        return "RUNNING, asked to stop" if status == "RUNNING" else status

    return with_store(url, lambda storage: each(storage, ids, one, as_json, told))


async def each(
    storage: BaseStorage,
    ids: tuple[str, ...],
    do: Callable[[BaseStorage, str], Coroutine[Any, Any, str]],
    as_json: bool,
    told: Callable[[str], str] = str,
) -> int:
    """Every id gets its try; those that fail are named, and the exit code says so."""
    from omniq.cli.output import print_json
    from omniq.cli.text import safe
    from omniq.errors import StoreError, StoreUnavailable

    code = 0
    rows: list[dict[str, str]] = []
    for task_id in ids:
        try:
            became = await do(storage, task_id)
        except StoreUnavailable:
            raise
        except StoreError as exc:
            sys.stderr.write(f"omniq: {safe(exc)}\n")
            rows.append({"id": task_id, "error": str(exc)})
            code = EXIT_FAILED
        else:
            rows.append({"id": task_id, "status": became})
            if not as_json:
                sys.stdout.write(f"{safe(task_id)} {told(became)}\n")
    if as_json:
        print_json(rows)
    return code
