"""Which Python files below a folder have changed, for `omniq worker --reload`: by looking."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

LOOK_EVERY_S: Final = 0.5
# More would make each look slow, and no project of one's own has so many.
MAX_FILES: Final = 20_000
PASSED_OVER: Final = {"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"}


async def changes(folder: Path) -> AsyncIterator[Path]:
    """One file of each look that found a difference: changed, new or gone."""
    before = await asyncio.to_thread(stamps, folder)
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        now = await asyncio.to_thread(stamps, folder)
        different = sorted({path for path, _ in before.items() ^ now.items()})
        before = now
        if different:
            yield different[0]


def stamps(folder: Path) -> dict[Path, tuple[int, int]]:
    """When each file was written, and its size."""
    found: dict[Path, tuple[int, int]] = {}
    for path in _python_files(folder):
        try:
            status = path.stat()
        except OSError:
            continue  # gone since it was listed
        found[path] = (status.st_mtime_ns, status.st_size)
        if len(found) >= MAX_FILES:
            break
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in PASSED_OVER)
        for name in files:
            if name.endswith(".py"):
                yield Path(parent, name)
