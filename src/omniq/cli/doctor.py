"""`omniq doctor`: is this store well, and who works on it?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from omniq.cli.errors import EXIT_FAILED
from omniq.cli.group import OmniqCommand, debugging
from omniq.cli.store import find_store, url_option

if TYPE_CHECKING:
    from omniq.cli.examine_store import Finding
    from omniq.storage.base import BaseStorage


@click.command(cls=OmniqCommand)
@click.option("--json", "as_json", is_flag=True, help="A list of findings instead of lines.")
@url_option
def doctor(as_json: bool, url: str | None) -> int:
    """Examine the store: versions, files, data, workers, clock, and what runs. Changes nothing.

    Exits with 1 when something is broken; warnings alone do not.
    """
    import asyncio

    from omniq.cli import log
    from omniq.cli.output import print_json

    storage = find_store(url)
    log.configure("error", debug=debugging())
    findings = asyncio.run(_examine(storage))
    if as_json:
        print_json([{"level": f.level, "about": f.about, "text": f.text} for f in findings])
    else:
        _print(findings)
    return EXIT_FAILED if any(finding.level == "problem" for finding in findings) else 0


async def _examine(storage: BaseStorage) -> list[Finding]:
    from omniq.cli.examine_files import examine_files
    from omniq.cli.examine_store import examine, platform
    from omniq.storage.sqlite import SQLiteStorage

    findings = [*platform(storage), *await examine(storage)]
    if isinstance(storage, SQLiteStorage):
        findings += examine_files(storage.path)
    return findings


def _print(findings: list[Finding]) -> None:
    from omniq.cli.text import safe

    colours = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}
    for finding in findings:
        level = click.style(f"{finding.level:<8}", fg=colours[finding.level])
        click.echo(f"{level} {finding.about:<9} {safe(finding.text)}")
    problems, warnings = (sum(f.level == level for f in findings) for level in ("problem", "warning"))
    click.echo(f"problems: {problems}, warnings: {warnings}")
