"""`omniq enqueue MODULE:APP NAME --args JSON --kwargs JSON`."""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING, Any

import click

from omniq.cli.errors import EXIT_USAGE, CommandFailed, written_wrongly
from omniq.cli.group import OmniqCommand, debugging
from omniq.cli.options import app_path, call_options
from omniq.cli.store import storage_at, storage_of

if TYPE_CHECKING:
    from omniq.app import OmniQ, TaskFunction


@click.command(cls=OmniqCommand)
@click.argument("app", metavar="MODULE:APP", callback=app_path)
@click.argument("name", metavar="NAME")
@call_options
@click.option("--json", "as_json", is_flag=True, help="One object instead of the id.")
@click.option("--url", metavar="URL", help="The store, instead of the application's own.")
def enqueue(
    app: str, name: str, args: list[Any], kwargs: dict[str, Any], as_json: bool, url: str | None
) -> None:
    """Enqueue the task NAME of the application APP in MODULE, and print its id.

    NAME is the whole name of a task, or its end where that is enough.
    """
    from omniq.cli import log
    from omniq.cli.application import load
    from omniq.cli.output import print_json

    log.configure("warning", debug=debugging())
    q = load(app)
    if url is not None:
        q.use(storage_at(url))
    task = _find(q, app, name)
    with written_wrongly():
        call = task.call(*args, **kwargs)
    storage_of(q)
    with q:
        [handle] = q.enqueue_many([call])
    if as_json:
        print_json({"id": handle.id, "created": handle.created})
    else:
        sys.stdout.write(f"{handle.id}\n")


def _find(q: OmniQ, app: str, name: str) -> TaskFunction[..., Any, Any]:
    tasks = q.tasks
    matching = [name] if name in tasks else [one for one in tasks if one.endswith(f".{name}")]
    if len(matching) == 1:
        return tasks[matching[0]]
    if matching:
        raise CommandFailed(
            f"{name!r} is one of {', '.join(sorted(matching))}; write the whole name", EXIT_USAGE
        )
    near = difflib.get_close_matches(name, [*tasks, *(one.rpartition(".")[2] for one in tasks)], 1)
    known = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(tasks)[:10]) or 'no tasks'}"
    raise CommandFailed(f"{app} has no task {name!r}; {known}", EXIT_USAGE)
