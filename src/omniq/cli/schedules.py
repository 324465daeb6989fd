"""`omniq schedules`: what ticks, and a hand on it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from omniq.cli.errors import EXIT_USAGE, CommandFailed, written_wrongly
from omniq.cli.group import OmniqCommand
from omniq.cli.options import POSITIVE, QUEUE, Whole, call_options, one_json_option
from omniq.cli.store import url_option, with_store

if TYPE_CHECKING:
    from omniq.schedule import Schedule
    from omniq.storage.base import BaseStorage

# A worker beats every ten seconds; one that was silent for longer than this has ended.
SILENT_S: Final = 60.0


@click.group(invoke_without_command=True, short_help="List schedules, or change them while everything runs.")
@click.option("--json", "as_json", is_flag=True, help="A list of objects instead of a table.")
@url_option
@click.pass_context
def schedules(context: click.Context, as_json: bool, url: str | None) -> None:
    """List schedules, or change them: add, pause, resume, run, remove."""
    if context.invoked_subcommand is None:
        show_all(url, as_json)
    else:  # both may stand before the verb, too
        context.default_map = {context.invoked_subcommand: {"as_json": as_json, "url": url}}


@schedules.command(name="list", cls=OmniqCommand)
@click.option("--json", "as_json", is_flag=True, help="A list of objects instead of a table.")
@url_option
def list_them(as_json: bool, url: str | None) -> None:
    """The same as without a verb."""
    show_all(url, as_json)


def show_all(url: str | None, as_json: bool) -> None:
    from omniq.cli.output import ago, print_json, print_table

    found = with_store(url, lambda storage: storage.schedules())
    if as_json:
        print_json([as_dict(one) for one in found])
        return
    print_table(
        ("NAME", "WHEN", "TASK", "QUEUE", "NEXT", "LAST", "NOTE"),
        (
            (s.name, when(s), s.call.func_path, s.call.queue, ago(s.next_at), ago(s.last_at), note(s))
            for s in found
        ),
    )


def when(schedule: Schedule) -> str:
    if schedule.every is not None:
        return f"every {schedule.every:g} s"
    return f"{schedule.cron} ({schedule.tz})"


def note(schedule: Schedule) -> str:
    words = ["paused"] if schedule.paused else []
    if schedule.catch_up != "latest":
        words.append(f"catch up {schedule.catch_up}")
    if schedule.overlap != "allow":
        words.append("no overlap")
    return ", ".join(words)


def as_dict(schedule: Schedule) -> dict[str, Any]:
    moments = {
        name: None if (moment := getattr(schedule, name)) is None else moment.isoformat()
        for name in ("created_at", "next_at", "last_at")
    }
    plain = {name: getattr(schedule, name) for name in ("name", "every", "cron", "tz", "catch_up", "overlap")}
    call = schedule.call
    return {
        **plain,
        "paused": schedule.paused,
        **moments,
        "func_path": call.func_path,
        "queue": call.queue,
        "priority": call.priority,
    }


@schedules.command(cls=OmniqCommand)
@click.argument("name")
@click.argument("task")
@click.option("--every", type=POSITIVE, metavar="SECONDS", help="So many seconds apart.")
@click.option("--cron", metavar="LINE", help="A cron line of five fields, such as '0 2 * * *'.")
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="The time zone of --cron.")
@click.option("--catch-up", type=click.Choice(["latest", "all", "skip"]), default="latest", show_default=True)
@click.option("--overlap", type=click.Choice(["allow", "skip"]), default="allow", show_default=True)
@call_options
@click.option("--queue", type=QUEUE, default="default", show_default=True)
@click.option("--priority", type=Whole(0, 9), default=0, show_default=True)
@click.option("--timeout", type=POSITIVE, metavar="SECONDS")
@click.option("--max-retries", type=Whole(0), default=3, show_default=True)
@click.option("--force", is_flag=True, help="Also for a task that no worker here serves now.")
@one_json_option
@url_option
def add(
    name: str,
    task: str,
    args: list[Any],
    kwargs: dict[str, Any],
    force: bool,
    as_json: bool,
    url: str | None,
    **options: Any,
) -> None:
    """Save a schedule called NAME for the task TASK (its name in the application)."""
    from omniq.cli.output import print_json
    from omniq.cli.text import safe
    from omniq.schedule import Schedule
    from omniq.task import Task

    if (options["every"] is None) == (options["cron"] is None):
        raise CommandFailed(
            "a schedule needs either --every 60 or --cron '*/5 * * * *', and not both", EXIT_USAGE
        )
    fields = ("queue", "priority", "timeout", "max_retries")
    with written_wrongly():
        call = Task(task, tuple(args), kwargs, **{field: options.pop(field) for field in fields})
        wanted = Schedule(name=name, call=call, **options)
    saved = with_store(url, lambda storage: _save(storage, wanted, force))
    if as_json:
        print_json(as_dict(saved))
        return
    sys.stdout.write(f"{safe(name)}: {when(saved)}, next {_moment(saved)}\n")


async def _save(storage: BaseStorage, wanted: Schedule, force: bool) -> Schedule:
    if not force:
        await _check_served(storage, wanted.call.func_path)
    with written_wrongly():  # the store is open by now; what it refuses is the schedule
        return await storage.save_schedule(wanted)


async def _check_served(storage: BaseStorage, func_path: str) -> None:
    """Only where every worker that lives says which functions it serves can anybody know."""
    from datetime import UTC, datetime

    from omniq.schedules import near

    now = datetime.now(UTC)
    living = [
        one
        for one in await storage.workers()
        if one.seen_at is not None and (now - one.seen_at).total_seconds() < SILENT_S
    ]
    if not living or any(one.functions is None for one in living):
        return
    served = {name: one for one in living for name in one.functions or ()}
    if func_path not in served:
        raise CommandFailed(
            f"no living worker serves a task named {func_path!r}; {near(func_path, served)} "
            "(--force saves it all the same)"
        )


def _moment(schedule: Schedule) -> str:
    from omniq.cli.output import ago

    if schedule.next_at is None:
        return "never (paused)"
    return f"{ago(schedule.next_at)} ({schedule.next_at:%Y-%m-%d %H:%M:%S} UTC)"


@schedules.command(cls=OmniqCommand)
@click.argument("name")
@one_json_option
@url_option
def pause(name: str, as_json: bool, url: str | None) -> None:
    """No ticks until `resume`."""
    with_store(url, lambda storage: storage.pause_schedule(name))
    _tell(name, "paused", {"paused": True}, as_json)


@schedules.command(cls=OmniqCommand)
@click.argument("name")
@one_json_option
@url_option
def resume(name: str, as_json: bool, url: str | None) -> None:
    """Go on with the next tick; what was missed meanwhile stays missed."""
    with_store(url, lambda storage: storage.resume_schedule(name))
    _tell(name, "resumed", {"paused": False}, as_json)


@schedules.command(cls=OmniqCommand)
@click.argument("name")
@one_json_option
@url_option
def run(name: str, as_json: bool, url: str | None) -> None:
    """Make a task now, beside the ticks; prints its id."""
    from omniq.cli.output import print_json

    made = with_store(url, lambda storage: storage.run_schedule(name))
    if as_json:
        print_json({"id": str(made), "created": made.created})
        return
    sys.stdout.write(f"{made}\n" if made.created else f"{made} (has not ended yet, and must not overlap)\n")


@schedules.command(cls=OmniqCommand)
@click.argument("name")
@one_json_option
@url_option
def remove(name: str, as_json: bool, url: str | None) -> None:
    """Forget a schedule. The tasks that it made stay; an application that saves it again brings it back."""
    with_store(url, lambda storage: storage.delete_schedule(name))
    _tell(name, "removed", {"removed": True}, as_json)


def _tell(name: str, state: str, facts: dict[str, bool], as_json: bool) -> None:
    from omniq.cli.output import print_json
    from omniq.cli.text import safe

    if as_json:
        print_json({"name": name, **facts})
        return
    sys.stdout.write(f"{safe(name)}: {state}\n")
