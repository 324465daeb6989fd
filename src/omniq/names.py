"""Functions by name: whether another process that imports a module finds the very function that is here."""

from __future__ import annotations

import os
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


def main_module() -> str:
    """What the script that runs as `__main__` is called when somebody imports it."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        name: str = spec.name
        return name
    file = getattr(main, "__file__", None)
    return os.path.splitext(os.path.basename(file))[0] if file else "__main__"


def class_names(kind: type[BaseException]) -> tuple[str, ...]:
    """A class and those above it, by names that are the same in a worker and in its processes."""
    return tuple(f"{_module_of(one)}.{one.__qualname__}" for one in kind.__mro__)


def class_name(kind: type[BaseException]) -> str:
    return f"{_module_of(kind)}.{kind.__qualname__}"


def _module_of(kind: type) -> str:
    return main_module() if kind.__module__ == "__main__" else kind.__module__
