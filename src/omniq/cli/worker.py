"""`omniq worker MODULE:APP`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any, Final

import click

from omniq.cli.errors import CommandFailed
from omniq.cli.group import OmniqCommand, debugging
from omniq.cli.options import POSITIVE, QUEUE, SIZE, Seconds, Whole, app_path

LEVELS: Final = ("debug", "info", "warning", "error")


def _queue_names(
    context: click.Context, option: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(QUEUE.convert(name.strip(), option, context) for name in value.split(","))


@click.command(cls=OmniqCommand)
@click.argument("app", metavar="MODULE:APP", callback=app_path)
@click.option(
    "--concurrency",
    type=Whole(min=1),
    default=100,
    show_default=True,
    help="How many tasks each process runs at once.",
)
@click.option(
    "--processes",
    type=Whole(min=1, max=512),
    default=1,
    show_default=True,
    help="How many worker processes.",
)
@click.option(
    "--task-processes",
    type=Whole(min=1, max=512),
    help="How many processes each worker process has for tasks with executor='process'. [default: its CPUs]",
)
@click.option(
    "--max-tasks-per-process",
    type=Whole(min=1),
    help="Replace such a process when it has run so many tasks.",
)
@click.option(
    "--max-memory-per-process",
    type=SIZE,
    metavar="SIZE",
    help="Replace such a process when it holds more memory than this, such as 500M or 2G.",
)
@click.option("--queues", callback=_queue_names, metavar="A,B", help="Serve these queues only.")
@click.option(
    "--lease",
    type=POSITIVE,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long tasks stay with a machine that disappeared.",
)
@click.option(
    "--grace",
    type=Seconds(min=0),
    default=25.0,
    show_default=True,
    metavar="SECONDS",
    help="How long running tasks may go on after the first SIGTERM or Ctrl-C.",
)
@click.option(
    "--poll-interval",
    type=POSITIVE,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look for work that nothing announced.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="Lines for people, or an object per line for programs.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="Start the worker processes again when a Python file below the working directory changes.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="PATTERN",
    help="Also run functions that are no registered tasks, such as 'myapp.jobs.*'; repeatable.",
)
@click.option(
    "--metrics-port",
    type=Whole(0, 65535),
    metavar="PORT",
    help="Serve metrics for Prometheus here; each further process on the next port. 0: any that is free.",
)
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, help="The address for --metrics-port."
)
@click.option("--url", metavar="URL", help="Work on this store instead of the application's own.")
@click.option("--stall-limit", type=POSITIVE, default=600.0, hidden=True)
def worker(**options: Any) -> None:
    """Run the tasks of the application APP in MODULE, until SIGTERM or Ctrl-C.

    The first signal lets running tasks end, a second one gives them back at once. A worker process that
    dies is replaced, and its tasks run again.
    """
    if sys.platform == "win32":  # it has neither sessions nor socket pairs to inherit
        raise CommandFailed("omniq worker needs a POSIX system; run q.worker() in a program of your own")
    if options["metrics_port"] is not None and find_spec("prometheus_client") is None:
        raise CommandFailed("--metrics-port needs pip install 'omniq-tasks[metrics]'")
    from omniq.cli.supervisor import supervise
    from omniq.cli.wire import Plan

    refusal = supervise(Plan(debug=debugging(), **options))
    if refusal is not None:
        raise CommandFailed(refusal.message, refusal.code)
