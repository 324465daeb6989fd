"""`omniq why`: what keeps a task from running, in a line each."""

from __future__ import annotations

import sys

import click

from omniq.cli.group import OmniqCommand
from omniq.cli.store import url_option, with_store


@click.command(cls=OmniqCommand)
@click.argument("task_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="A list of reasons as objects instead of lines.")
@url_option
def why(task_id: str, as_json: bool, url: str | None) -> None:
    """Say why a task stands where it stands, and what helps. The weightiest reason comes first."""
    from omniq.cli.output import print_json
    from omniq.cli.text import safe
    from omniq.logic.why import why as reasons_for
    from omniq.storage.facts import facts_about

    reasons = reasons_for(with_store(url, lambda storage: facts_about(storage, task_id)))
    if as_json:
        print_json([{"because": one.because, "text": one.text, "do": one.do} for one in reasons])
        return
    for one in reasons:
        sys.stdout.write(safe(f"{one.because}: {one.text}" + (f" ({one.do})" if one.do else "")) + "\n")
