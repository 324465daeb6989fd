"""How commands print: tables for people, JSON for programs, and nothing that could steer the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from omniq.cli.text import safe

_COLOURS: Final = {
    "PENDING": "cyan", "RUNNING": "blue", "SUCCESS": "green", "FAILED": "red", "CANCELLED": "yellow",
    "paused": "yellow",
}  # fmt: skip
_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def print_json(value: Any) -> None:
    """ASCII only: whatever is in the values, a terminal shows it as text."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns. A terminal gets colours, and lines that end at its edge; a pipe gets everything."""
    cells = [[safe(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, cells)
        return
    widths = [max(len(row[column]) for row in (columns, *cells)) for column in range(len(columns))]
    for row in (columns, *cells):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")


def _print_rich(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        # What names a row is never cut: people copy it. The last column gives way first.
        table.add_column(column, no_wrap=True, overflow="fold" if number == 0 else "ellipsis")
    for row in cells:
        table.add_row(*(Text(cell, style=_COLOURS.get(cell.partition(" ")[0], "")) for cell in row))
    Console(soft_wrap=False).print(table)


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    for name, value in pairs:
        sys.stdout.write(f"{name:<12} {safe(value)}\n")


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago, or in how long, in the unit that says it best."""
    if moment is None:
        return ""
    passed_s = ((now or datetime.now(UTC)) - moment).total_seconds()
    size, unit = next(((s, u) for s, u in _UNITS if abs(passed_s) >= 2 * s), (1.0, "s"))
    amount = f"{abs(passed_s) / size:.0f} {unit}"
    return f"{amount} ago" if passed_s >= 0 else f"in {amount}"
