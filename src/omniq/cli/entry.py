"""The command and its subcommands. What each needs is imported when it runs, so `--help` answers at once."""

from __future__ import annotations

import click

from omniq import __version__
from omniq.cli.dashboard import dashboard
from omniq.cli.demo import demo
from omniq.cli.doctor import doctor
from omniq.cli.ended import delete, purge, result
from omniq.cli.enqueue import enqueue
from omniq.cli.group import OmniqGroup
from omniq.cli.health import health
from omniq.cli.migrate import migrate
from omniq.cli.move import move
from omniq.cli.queues import pause, queues, resume, workers
from omniq.cli.schedules import schedules
from omniq.cli.tasks import cancel, retry, show, tasks
from omniq.cli.top import top
from omniq.cli.why import why
from omniq.cli.worker import worker


@click.group(cls=OmniqGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="omniq")
def main() -> None:
    """Run Python functions reliably: workers, and a look into their store."""


for command in (
    worker, enqueue, tasks, show, why, result, retry, cancel, delete, purge, queues, pause, resume, workers,
    schedules, health, doctor, migrate, move, dashboard, top, demo,
):  # fmt: skip
    main.add_command(command)
