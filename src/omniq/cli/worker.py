"""`omniq worker MODULE:APP`."""

from __future__ import annotations

import math
import sys
from typing import Any, Final

import click

from omniq.cli.errors import CommandFailed
from omniq.cli.group import OmniqCommand, debugging

LEVELS: Final = ("debug", "info", "warning", "error")


class Seconds(click.FloatRange):
    """A number of seconds that somebody could wait for."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return seconds


POSITIVE: Final = Seconds(min=0, min_open=True)


def _app_path(_: click.Context, __: click.Parameter, value: str) -> str:
    from omniq.cli.wire import APP_PATH

    if not APP_PATH.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no module and name, such as myapp.tasks:q")
    return value


def _queue_names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    from omniq.errors import InvalidOption
    from omniq.task import queue_name

    if value is None:
        return None
    try:
        return tuple(queue_name(name.strip()) for name in value.split(","))
    except InvalidOption as exc:
        raise click.BadParameter(str(exc)) from exc


@click.command(cls=OmniqCommand)
@click.argument("app", metavar="MODULE:APP", callback=_app_path)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="How many tasks each process runs at once.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1, max=512),
    default=1,
    show_default=True,
    help="How many worker processes.",
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
    "--allow",
    multiple=True,
    metavar="PATTERN",
    help="Also run functions that are no registered tasks, such as 'myapp.jobs.*'; repeatable.",
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
    from omniq.cli.supervisor import supervise
    from omniq.cli.wire import Plan

    refusal = supervise(Plan(debug=debugging(), **options))
    if refusal is not None:
        raise CommandFailed(refusal.message, refusal.code)
