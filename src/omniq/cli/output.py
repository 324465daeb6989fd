"""How commands print: tables for people, JSON for programs, and nothing that could steer the terminal."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from omniq.cli.text import safe

_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def print_json(value: Any) -> None:
    """ASCII only: whatever is in the values, a terminal shows it as text."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns. A terminal cuts the last one off at its edge, a pipe gets everything."""
    cells = [list(columns), *([safe(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(columns))]
    edge = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip()[:edge] + "\n")


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
