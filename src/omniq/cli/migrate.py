"""`omniq migrate`: make the schema of the store, or bring it to this version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from omniq.cli.errors import EXIT_USAGE, CommandFailed
from omniq.cli.group import OmniqCommand
from omniq.cli.options import one_json_option
from omniq.cli.store import find_store, url_option

if TYPE_CHECKING:
    from omniq.storage.base import BaseStorage


@click.command(cls=OmniqCommand)
@url_option
@click.option("--sql", is_flag=True, help="Print the SQL and change nothing.")
@one_json_option
def migrate(url: str | None, sql: bool, as_json: bool) -> None:
    """Make the tables of a PostgreSQL store, or bring them to this version; safe to repeat."""
    import asyncio

    from omniq.cli.output import print_json

    if sql and as_json:
        raise CommandFailed("--sql prints SQL; leave out --json", EXIT_USAGE)
    storage = find_store(url)
    if sql:
        text = getattr(storage, "migration_sql", None)
        if text is None:
            raise CommandFailed(f"{storage!r} makes its tables by itself; there is no SQL to print")
        print(text())
        return
    asyncio.run(_migrate(storage))
    if as_json:
        print_json({"store": repr(storage), "up_to_date": True})
    else:
        print(f"{storage!r} is up to date")


async def _migrate(storage: BaseStorage) -> None:
    try:
        await storage.migrate()
    finally:
        await storage.close()
