"""`omniq queues`, `pause`, `resume`, `workers`: what waits where, and who is there to run it."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from omniq.cli.group import OmniqCommand
from omniq.cli.options import QUEUE, each_json_option
from omniq.cli.store import url_option, with_store

if TYPE_CHECKING:
    from omniq.storage.base import BaseStorage
    from omniq.task import WorkerInfo

STATUSES = ("PENDING", "RUNNING", "SUCCESS", "FAILED", "CANCELLED")


@click.command(cls=OmniqCommand)
@click.option("--json", "as_json", is_flag=True, help="A list of objects instead of a table.")
@url_option
def queues(as_json: bool, url: str | None) -> None:
    """List the queues: how many tasks each has in each status, and whether it is paused."""
    from omniq.cli.output import print_json, print_table

    rows = with_store(url, _queues)
    if as_json:
        print_json(rows)
        return
    print_table(
        ("QUEUE", "STATE", *STATUSES),
        (
            (row["queue"], "paused" if row["paused"] else "open", *(row[name.lower()] for name in STATUSES))
            for row in rows
        ),
    )


async def _queues(storage: BaseStorage) -> list[dict[str, Any]]:
    counts, paused = await storage.counts(), await storage.paused()
    return [
        {"queue": name, "paused": name in paused}
        | {status.lower(): counts.get(name, {}).get(status, 0) for status in STATUSES}  # type: ignore[call-overload]
        for name in sorted({*counts, *paused})
    ]


@click.command(cls=OmniqCommand)
@click.argument("names", type=QUEUE, metavar="QUEUE...", nargs=-1, required=True)
@each_json_option
@url_option
def pause(names: tuple[str, ...], as_json: bool, url: str | None) -> None:
    """Hand out nothing more from these queues. What runs goes on, and enqueueing too."""
    with_store(url, lambda storage: _each_queue(storage, names, as_json, paused=True))


@click.command(cls=OmniqCommand)
@click.argument("names", type=QUEUE, metavar="QUEUE...", nargs=-1, required=True)
@each_json_option
@url_option
def resume(names: tuple[str, ...], as_json: bool, url: str | None) -> None:
    """Go on with queues that were paused."""
    with_store(url, lambda storage: _each_queue(storage, names, as_json, paused=False))


async def _each_queue(storage: BaseStorage, names: tuple[str, ...], as_json: bool, *, paused: bool) -> None:
    from omniq.cli.output import print_json
    from omniq.cli.text import safe

    known = {*await storage.counts(), *await storage.paused()}
    for name in names:
        await (storage.pause if paused else storage.resume)(name)
        if name not in known:  # done all the same: its tasks may come later, or it is a typing error
            near = get_close_matches(name, known, n=1)
            meant = f"; did you mean {safe(near[0])}?" if near else ""
            click.echo(f"queue {name} has no tasks{meant}", err=True)
        if not as_json:
            sys.stdout.write(f"{name} {'paused' if paused else 'open'}\n")
    if as_json:
        print_json([{"queue": name, "paused": paused} for name in names])


@click.command(cls=OmniqCommand)
@click.option("--json", "as_json", is_flag=True, help="A list of objects instead of a table.")
@url_option
def workers(as_json: bool, url: str | None) -> None:
    """List the workers that have been seen lately, and what they serve."""
    from omniq.cli.output import ago, print_json, print_table
    from omniq.cli.shape import builtins

    async def look(storage: BaseStorage) -> list[WorkerInfo]:
        return await storage.workers()

    found = with_store(url, look)
    if as_json:
        print_json([{name: builtins(getattr(one, name)) for name in one.__struct_fields__} for one in found])
        return
    print_table(
        ("WORKER", "SEEN", "BUSY", "OF", "QUEUES", "STARTED"),
        (
            (
                one.id,
                ago(one.seen_at),
                one.in_flight,
                one.concurrency,
                "all" if one.queues is None else ",".join(one.queues),
                ago(one.started_at),
            )
            for one in found
        ),
    )
