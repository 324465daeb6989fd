"""`omniq move`: everything from one store into another."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from omniq.cli.errors import CommandFailed
from omniq.cli.group import OmniqCommand, debugging
from omniq.cli.store import find_store, storage_at

if TYPE_CHECKING:
    from omniq.moving import Removal
    from omniq.storage.base import BaseStorage


@click.command(cls=OmniqCommand)
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@click.option("--while-running", is_flag=True, help="Although workers live there; what runs stays.")
@click.option("--json", "as_json", is_flag=True, help="One object at the end instead of lines.")
def move(source: str, target: str, while_running: bool, as_json: bool) -> None:
    """Move tasks, their results and histories, schedules, paused queues and limits to another store.

    SOURCE and TARGET are URLs, such as sqlite:///jobs.db and postgresql://host/database. If it is stopped
    half-way, run it again: nothing is lost, and nothing arrives twice.
    """
    import asyncio

    from omniq.cli import log
    from omniq.cli.output import print_json
    from omniq.storage.memory import MemoryStorage

    here, there = find_store(source), storage_at(target)
    if isinstance(there, MemoryStorage):
        raise CommandFailed("a memory:// store ends with this command; name one that lasts")
    if here.url is not None and here.url == there.url:
        raise CommandFailed("both addresses are the same store; there is nothing to move")
    log.configure("warning", debug=debugging())
    done = asyncio.run(_move(here, there, while_running, quiet=as_json))
    if as_json:
        print_json({name: getattr(done, name) for name in done.__struct_fields__})
        return
    sys.stdout.write(_told(done) + "\n")


async def _move(source: BaseStorage, target: BaseStorage, while_running: bool, *, quiet: bool) -> Removal:
    from datetime import UTC, datetime

    from omniq.moving import check_still, move

    def tell(done: Removal) -> None:
        if not quiet and sys.stderr.isatty():
            sys.stderr.write(f"\r{done.tasks:,} tasks")
            sys.stderr.flush()

    async with source, target:
        if not while_running:
            await check_still(source, datetime.now(UTC))
        done = await move(source, target, tell=tell)
    if not quiet and sys.stderr.isatty():
        sys.stderr.write("\r")
    return done


def _told(done: Removal) -> str:
    from omniq.moving import counted

    words = [f"moved {counted(done.tasks, 'task')} and {counted(done.schedules, 'schedule')}"]
    if done.known:
        words.append(f"in the target already: {counted(done.known, 'task')}")
    if done.blocked:
        words.append(
            "there as CANCELLED, because another task there holds the unique key: "
            f"{counted(done.blocked, 'task')}"
        )
    if done.running:
        words.append(f"running in the source, so move again afterwards: {counted(done.running, 'task')}")
    return "; ".join(words)
