"""`omniq health`: does due work move, and does the store answer? For probes of a container or a service."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from omniq.cli.errors import EXIT_FAILED
from omniq.cli.group import OmniqCommand
from omniq.cli.options import POSITIVE
from omniq.cli.store import find_store, url_option

if TYPE_CHECKING:
    from omniq.logic.health import Health, Work
    from omniq.storage.base import BaseStorage
    from omniq.task import Task

# A backlog is looked through from its newest end, so far; what waits behind has waited longer.
PAGE: Final = 500
MAX_PAGES: Final = 20


@click.command(cls=OmniqCommand)
@click.option(
    "--lease",
    type=POSITIVE,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long due work may stand still, and the store take to answer.",
)
@click.option("--json", "as_json", is_flag=True, help="One object instead of a line.")
@url_option
def health(lease: float, as_json: bool, url: str | None) -> int:
    """Whether work is being done: exits with 0 if so, with 1 if not.

    Red is: due work that has not moved for longer than a lease although a worker has free slots, or none is
    there; and a store that does not answer.
    """
    import asyncio

    from omniq.cli import log
    from omniq.cli.output import print_json
    from omniq.cli.text import safe

    storage = find_store(url)
    log.configure("error")
    found, work = asyncio.run(_look(storage, lease))
    if as_json:
        facts = {} if work is None else {name: getattr(work, name) for name in work.__struct_fields__}
        print_json({"healthy": found.ok, "why": found.why, "lease_s": lease} | facts)
    else:
        click.echo(f"{click.style('ok', fg='green') if found.ok else click.style('red', fg='red')} "
                   f"{safe(found.why)}")  # fmt: skip
    return 0 if found.ok else EXIT_FAILED


async def _look(storage: BaseStorage, lease_s: float) -> tuple[Health, Work | None]:
    import asyncio

    from omniq.errors import OmniqError
    from omniq.logic.health import Health, judge

    try:
        async with asyncio.timeout(lease_s):
            async with storage:
                work = await _work(storage, lease_s)
    except TimeoutError:
        return Health(False, f"the store has not answered for {lease_s:g} s"), None
    except OmniqError as exc:
        return Health(False, f"the store does not answer: {exc}"), None
    return judge(work, lease_s), work


async def _work(storage: BaseStorage, lease_s: float) -> Work:
    from omniq.logic.health import Work

    now = datetime.now(UTC)
    lately = now - timedelta(seconds=lease_s)
    rates = await storage.rates(lately)
    workers = [one for one in await storage.workers() if one.seen_at is not None and one.seen_at >= lately]
    ended = rates.succeeded + rates.failed + rates.cancelled
    return Work(
        waits_s=await _waits_s(storage, now),
        moved=ended + await _begun_since(storage, lately),
        workers=len(workers),
        free_slots=sum(max(0, one.concurrency - one.in_flight) for one in workers),
    )


async def _begun_since(storage: BaseStorage, since: datetime) -> int:
    from omniq.task import TaskFilter, TaskStatus

    running = await storage.list_tasks(TaskFilter(status=TaskStatus.RUNNING), limit=PAGE)
    return sum(task.started_at is not None and task.started_at >= since for task in running)


async def _waits_s(storage: BaseStorage, now: datetime) -> float | None:
    """How long the longest of those that were looked at has been due, in queues that are not paused."""
    from omniq.task import TaskFilter, TaskStatus

    paused = await storage.paused()
    longest_s = -1.0
    after: str | None = None
    for _ in range(MAX_PAGES):
        page = await storage.list_tasks(TaskFilter(status=TaskStatus.PENDING), after, PAGE)
        for task in page:
            due_at = _due_at(task, paused)
            if due_at is not None:
                longest_s = max(longest_s, (now - due_at).total_seconds())
        if len(page) < PAGE:
            break
        after = page[-1].id
    return longest_s if longest_s >= 0 else None


def _due_at(task: Task, paused: set[str]) -> datetime | None:
    return None if task.queue in paused else task.eta or task.enqueued_at
