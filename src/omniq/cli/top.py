"""`omniq top`: the overview in a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from omniq.cli.errors import CommandFailed
from omniq.cli.group import OmniqCommand
from omniq.cli.store import url_option, with_store

if TYPE_CHECKING:
    from omniq.storage.base import BaseStorage


@click.command(cls=OmniqCommand)
@url_option
def top(url: str | None) -> None:
    """Watch the store in this terminal: queues, what runs and waits longest, what failed.

    Keys: p pauses or resumes the queue, r retries the task, c twice cancels it, tab goes to the other table,
    q ends.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandFailed(
            "omniq top needs a terminal; `omniq queues` and `omniq tasks` print their answers"
        )
    try:
        from omniq.cli.terminal import Top
    except ImportError:
        raise CommandFailed("omniq top needs pip install 'omniq-tasks[top]'") from None

    async def watch(storage: BaseStorage) -> None:
        await Top(storage).run_async()

    with_store(url, watch)
