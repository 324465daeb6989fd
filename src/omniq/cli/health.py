"""`omniq health`: does due work move, and does the store answer? For probes of a container or a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from omniq.cli.errors import EXIT_FAILED, EXIT_USAGE, CommandFailed
from omniq.cli.group import OmniqCommand
from omniq.cli.options import POSITIVE, one_json_option
from omniq.cli.store import find_store, url_option

if TYPE_CHECKING:
    from omniq.logic.health import Health
    from omniq.storage.base import BaseStorage


@click.command(cls=OmniqCommand)
@click.option(
    "--lease",
    type=POSITIVE,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long due work may stand still, and the store take to answer.",
)
@one_json_option
@url_option
def health(lease: float, as_json: bool, url: str | None) -> int:
    """Whether work is being done: exits with 0 if so, with 1 if not.

    Red is: work that has been due for longer than a lease while nothing ended in its queue, or no living
    worker serves it; tasks whose function no living worker knows; and a store that does not answer.
    """
    import asyncio

    from omniq.cli import log
    from omniq.cli.output import print_json
    from omniq.cli.text import safe
    from omniq.logic.health import Health

    log.configure("error")
    try:
        storage = find_store(url)
    except CommandFailed as exc:
        if not as_json or exc.exit_code == EXIT_USAGE:
            raise
        found = Health(False, (str(exc),))
    else:
        found = asyncio.run(_look(storage, lease))
    if as_json:
        print_json(
            {
                "healthy": found.ok,
                "problems": list(found.problems),
                "notes": list(found.notes),
                "lease_s": lease,
            }
        )
    else:
        word = click.style("ok", fg="green") if found.ok else click.style("red", fg="red")
        click.echo(f"{word} {safe('; '.join(found.problems or found.notes) or 'nothing due is late')}")
    return 0 if found.ok else EXIT_FAILED


async def _look(storage: BaseStorage, lease_s: float) -> Health:
    import asyncio

    from omniq.errors import OmniqError
    from omniq.logic.health import Health, judge
    from omniq.storage.facts import vital_signs

    try:
        async with asyncio.timeout(lease_s), storage:
            return judge(*await vital_signs(storage), late_after_s=lease_s)
    except TimeoutError:
        return Health(False, (f"the store has not answered for {lease_s:g} s",))
    except OmniqError as exc:
        return Health(False, (f"the store does not answer: {exc}",))
