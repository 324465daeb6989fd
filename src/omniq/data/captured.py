"""A function as it is now, for a thread that calls it later.

A call that goes to a process is pickled when it is submitted, and so are the variables that it looks at. A
thread would look later, when the loop that submitted it has gone on: `lambda: load(index)` would load the
last index again and again. So lambdas and closures get variables of their own; what those hold is shared.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

Function = Callable[..., Any]


def captured(fn: Function) -> Function:
    if isinstance(fn, functools.partial):
        inner = captured(fn.func)
        return fn if inner is fn.func else functools.partial(inner, *fn.args, **fn.keywords)  # pyright: ignore[reportUnknownVariableType] - of what, is not known
    if not isinstance(fn, FunctionType) or not (fn.__closure__ or fn.__name__ == "<lambda>"):
        return fn
    if any(_writes_to_closure(fn.__code__)):
        return fn  # a counter, say, which is meant to be shared
    variables = fn.__globals__
    if fn.__name__ == "<lambda>":
        variables = {name: variables[name] for name in _names(fn.__code__) if name in variables}
        variables["__builtins__"] = fn.__globals__.get("__builtins__", __builtins__)
        variables["__name__"] = fn.__globals__.get("__name__")
    cells = tuple(_copied(cell) for cell in fn.__closure__ or ())
    made = FunctionType(fn.__code__, variables, fn.__name__, fn.__defaults__, cells or None)
    made.__kwdefaults__ = fn.__kwdefaults__
    return functools.update_wrapper(made, fn)


def _copied(cell: CellType) -> CellType:
    try:
        return CellType(cell.cell_contents)
    except ValueError:  # not assigned yet
        return cell


def _names(code: CodeType) -> set[str]:
    """The global names that the code, or a function inside it, may look at."""
    return set(code.co_names).union(
        *(_names(const) for const in code.co_consts if isinstance(const, CodeType))
    )


def _writes_to_closure(code: CodeType) -> Iterator[bool]:
    for step in dis.get_instructions(code):
        yield step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _writes_to_closure(const)
