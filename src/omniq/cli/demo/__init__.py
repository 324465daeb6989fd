"""`omniq demo`: a few thousand tasks, real worker processes, one of them killed, and an account of it all."""

from __future__ import annotations

import click

from omniq.cli.errors import EXIT_FAILED
from omniq.cli.group import OmniqCommand


@click.command(cls=OmniqCommand)
@click.option("--seconds", type=click.FloatRange(2, 600), default=20.0, show_default=True,
              help="About how long it takes.")  # fmt: skip
def demo(seconds: float) -> int:
    """Watch a few thousand tasks run, and survive a killed worker process.

    Everything happens in a temporary folder. Exits with 1 if a task was lost.
    """
    from omniq.cli import log
    from omniq.cli.demo.run import run

    log.configure("error")
    return 0 if run(seconds) else EXIT_FAILED
