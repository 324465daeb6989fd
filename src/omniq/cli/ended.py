"""`omniq result`, `delete`, `purge`: what has ended, to read or to forget."""

from __future__ import annotations

import contextlib
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from omniq.cli.errors import EXIT_FAILED, CommandFailed
from omniq.cli.group import OmniqCommand
from omniq.cli.options import QUEUE, Seconds, age, each_json_option, one_json_option
from omniq.cli.store import url_option, with_store
from omniq.cli.tasks import each

if TYPE_CHECKING:
    from omniq.storage.base import BaseStorage
    from omniq.task import TaskResult, TaskStatus

FINAL: Final = ("SUCCESS", "FAILED", "CANCELLED")
PURGE_PAGE: Final = 500


@click.command(cls=OmniqCommand)
@click.argument("task_id", metavar="ID")
@click.option(
    "--timeout",
    type=Seconds(min=0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long for the end of the task.",
)
@one_json_option
@url_option
def result(task_id: str, timeout: float, as_json: bool, url: str | None) -> int:
    """Print what a task returned. Exits with 1 if it failed, was cancelled, or has not ended."""
    from omniq.cli.output import print_json
    from omniq.cli.shape import builtins, error_as_dict
    from omniq.cli.text import safe

    found = with_store(url, lambda storage: _result(storage, task_id, timeout))
    if as_json:
        print_json(
            {
                "task_id": found.task_id,
                "status": str(found.status),
                "result": builtins(found.result),
                "error": error_as_dict(found.error),
                "finished_at": builtins(found.finished_at),
            }
        )
    elif found.status == "SUCCESS":
        sys.stdout.write(f"{safe(repr(found.result))}\n")
    else:
        sys.stderr.write(f"omniq: task {safe(task_id)} is {found.status}: {safe(found.error)}\n")
    return 0 if found.status == "SUCCESS" else EXIT_FAILED


async def _result(storage: BaseStorage, task_id: str, timeout_s: float) -> TaskResult:
    found = await storage.wait_result(task_id, timeout_s)
    if found is None:
        raise CommandFailed(f"task {task_id} has not ended; --timeout 60 waits a minute for it")
    return found


@click.command(cls=OmniqCommand)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@each_json_option
@url_option
def delete(ids: tuple[str, ...], as_json: bool, url: str | None) -> int:
    """Forget tasks that have ended, with their results and history."""

    async def one(storage: BaseStorage, task_id: str) -> str:
        await storage.delete(task_id)
        return "deleted"

    return with_store(url, lambda storage: each(storage, ids, one, as_json))


@click.command(cls=OmniqCommand)
@click.option("--status", type=click.Choice(FINAL, case_sensitive=False), help="Only tasks that ended so.")
@click.option("--queue", type=QUEUE, metavar="NAME", help="Only tasks of this queue.")
@click.option(
    "--older-than",
    callback=age,
    metavar="AGE",
    help="Only what ended longer ago than this: 90s, 30m, 12h, 7d, 2w.",
)
@one_json_option
@url_option
def purge(status: str | None, queue: str | None, older_than: float, as_json: bool, url: str | None) -> None:
    """Delete tasks that have ended. What waits or runs stays."""
    from omniq.cli.output import print_json
    from omniq.task import TaskStatus

    wanted = [TaskStatus(name) for name in FINAL if status is None or status.upper() == name]
    before = datetime.now(UTC) - timedelta(seconds=older_than)
    deleted = with_store(url, lambda storage: _purge(storage, wanted, queue, before))
    if as_json:
        print_json({"deleted": deleted})
    else:
        sys.stdout.write(f"deleted {deleted} tasks\n")


async def _purge(
    storage: BaseStorage, statuses: list[TaskStatus], queue: str | None, before: datetime
) -> int:
    """Page by page; what somebody else deletes or retries meanwhile is left to them."""
    from omniq.errors import Conflict, NotFound
    from omniq.task import TaskFilter

    deleted = 0
    for status in statuses:
        wanted = TaskFilter(status=status, queue=queue, finished_before=before)
        after: str | None = None
        while page := await storage.list_tasks(wanted, after, PURGE_PAGE):
            gone = 0
            for task in page:
                with contextlib.suppress(Conflict, NotFound):
                    await storage.delete(task.id)
                    gone += 1
            deleted += gone
            # A page begins behind a task that is there; one of which nothing could be deleted is passed.
            after = None if gone else page[-1].id
    return deleted
