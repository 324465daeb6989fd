"""Results of threads, made like those of processes: large arrays in them can be read and not written.

Nothing is copied. Lists, tuples, dicts and dataclasses are looked through, and only those that hold a large
array are made anew.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from typing import Any, Final, cast

LARGE_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 32
# These and not their subclasses, which may have a meaning of their own.
_BUILTIN: Final[dict[type[object], str]] = {
    memoryview: "memoryview",
    list: "list",
    tuple: "tuple",
    dict: "dict",
}


def sealed(value: Any) -> tuple[Any, int]:
    """The value with its large arrays sealed, and how many bytes those have."""
    sizes: list[int] = []
    return _sealed(value, sizes, MAX_DEPTH), sum(sizes)


def _sealed(value: Any, sizes: list[int], depth: int) -> Any:
    kind = _BUILTIN.get(cast("object", value).__class__)
    if kind == "memoryview":
        return _view(value, sizes)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _array(value, sizes)
    if depth == 0:
        return value
    if kind in ("list", "tuple"):
        made = [_sealed(each, sizes, depth - 1) for each in value]
        same = all(new is old for new, old in zip(made, value, strict=True))
        return value if same else made if kind == "list" else tuple(made)
    if kind == "dict":
        entries = {key: _sealed(each, sizes, depth - 1) for key, each in value.items()}
        return value if all(entries[key] is value[key] for key in value) else entries
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass(value, sizes, depth)
    return value


def _view(view: memoryview, sizes: list[int]) -> memoryview:
    if view.nbytes < LARGE_BYTES:
        return view
    sizes.append(view.nbytes)
    return view.toreadonly()


def _array(array: Any, sizes: list[int]) -> Any:
    if array.nbytes < LARGE_BYTES or array.dtype.hasobject:
        return array
    sizes.append(array.nbytes)
    view = array.view()
    view.flags.writeable = False
    return view


def _dataclass(value: Any, sizes: list[int], depth: int) -> Any:
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        if hasattr(value, field.name):
            old = getattr(value, field.name)
            new = _sealed(old, sizes, depth - 1)
            if new is not old:
                changed[field.name] = new
    if not changed:
        return value
    made = copy.copy(value)
    for name, new in changed.items():
        object.__setattr__(made, name, new)  # also where it is frozen
    return made
