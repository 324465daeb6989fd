"""Functions by name: whether another process that imports a module finds the very function that is here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def unwrapped(found: Any) -> Any:
    """A task's own function; anything else is itself. What stands in a module under the name is the task."""
    return getattr(found, "__omniq_function__", found)


def name_in_module(func: Callable[..., Any]) -> str | None:
    """`module:qualname` where that leads to `func`, or to a task made of it; a script's own has none."""
    module, name = getattr(func, "__module__", None), getattr(func, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is func or unwrapped(found) is func else None
