"""The command and its subcommands. What each needs is imported when it runs, so `--help` answers at once."""

from __future__ import annotations

import click

from omniq import __version__
from omniq.cli.dashboard import dashboard
from omniq.cli.demo import demo
from omniq.cli.doctor import doctor
from omniq.cli.group import OmniqGroup
from omniq.cli.migrate import migrate
from omniq.cli.move import move
from omniq.cli.schedules import schedules
from omniq.cli.tasks import cancel, retry, show, tasks
from omniq.cli.why import why
from omniq.cli.worker import worker


@click.group(cls=OmniqGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="omniq")
def main() -> None:
    """Run Python functions reliably: workers, and a look into their store."""


for command in (worker, tasks, show, why, retry, cancel, schedules, doctor, migrate, move, dashboard, demo):
    main.add_command(command)
