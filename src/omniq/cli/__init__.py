"""The command `omniq`. Worker processes live in this package too, so it loads the command on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omniq.cli.entry import main

__all__ = ["main"]


def __getattr__(name: str) -> Any:
    if name != "main":
        raise AttributeError(f"module 'omniq.cli' has no attribute {name!r}")
    from omniq.cli.entry import main

    return main
