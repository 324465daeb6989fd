"""From a path to something that can run, and which paths a worker may run at all.

Three kinds of worker: one that imports any path (seed 001), one that imports what `allow` names, and one
that runs registered tasks only. What is not allowed is never imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from omniq.errors import CorruptRecord, InvalidOption, UnknownTask
from omniq.serializer.functions import resolve as import_path
from omniq.task import shown

Function = Callable[..., Any]
Kind = Literal["async", "thread"]


class Runnable(Struct, frozen=True):
    """A callable, where it runs, and the parameter that wants the context."""

    func: Function
    kind: Kind
    context_parameter: str | None = None
    context_index: int | None = None  # its place among the positional parameters


class Unresolvable(Exception):
    """The path leads nowhere, or to something that cannot be called: a failure of the run."""


class Resolver:
    """Looks a path up among the registered, then imports it if that is allowed. Only finds are cached."""

    def __init__(
        self, registered: Mapping[str, Runnable] | None = None, allow: Sequence[str] | None = None
    ) -> None:
        if isinstance(allow, str):
            raise InvalidOption(f"allow must be a list of patterns, such as [{allow!r}], not a str")
        self._registered: Mapping[str, Runnable] = {} if registered is None else registered
        self._allow = None if allow is None else tuple(allow)
        self._found: dict[str, Runnable] = {}

    @property
    def names(self) -> tuple[str, ...] | None:
        """What this worker says it serves; None is whatever can be imported."""
        return None if self._allow is None else (*self._registered, *self._allow)

    def resolve(self, path: str) -> Runnable:
        """`UnknownTask`: not for this worker. `Unresolvable`: ours, but it cannot run."""
        runnable = self._found.get(path) or self._registered.get(path)
        if runnable is None:
            runnable = self._find(path)
            self._found[path] = runnable
        return runnable

    def _find(self, path: str) -> Runnable:
        if self._allow is not None and not self._allowed(path):
            raise UnknownTask(
                f"no task named {shown(path)} in this worker; import its module before starting the worker"
            )
        try:
            found = import_path(path)
        except (CorruptRecord, SystemExit) as exc:
            raise Unresolvable(str(exc) or f"importing {shown(path)} ended the interpreter") from exc
        func = getattr(found, "__omniq_function__", found)
        if self._allow is not None and not self._lives_where_allowed(func):
            raise UnknownTask(f"{shown(path)} is only imported there, not defined; allow its own module")
        return runnable_of(func)

    def _allowed(self, path: str) -> bool:
        parts = path.replace(":", ".").split(".")
        if any(part.startswith("_") for part in parts):
            return False
        return any(fnmatchcase(path, pattern) for pattern in self._allow or ())

    def _lives_where_allowed(self, func: Function) -> bool:
        """`allow=["myapp.*"]` must not open `myapp.tasks.os.system`."""
        home = f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', '')}"
        return inspect.isroutine(func) and self._allowed(home)


def runnable_of(func: Function, executor: Literal["auto", "thread"] = "auto") -> Runnable:
    """Look at a callable once: does it await, does it want its context?"""
    if not callable(func):
        raise Unresolvable(f"{shown(func)} is not callable")
    is_async = executor == "auto" and _is_async(func)
    return Runnable(func, "async" if is_async else "thread", *_context_parameter(func))


def with_context(
    runnable: Runnable, args: Sequence[Any], kwargs: dict[str, Any], context: Any
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments, with the context where the body wants it."""
    name, index = runnable.context_parameter, runnable.context_index
    if name is None:
        return args, kwargs
    if index is not None and index <= len(args):
        return (*args[:index], context, *args[index:]), kwargs
    return args, {**kwargs, name: context}


def _is_async(func: Function) -> bool:
    while isinstance(func, partial):
        func = func.func
    if inspect.iscoroutinefunction(func):
        return True
    return inspect.iscoroutinefunction(getattr(func, "__call__", None))  # noqa: B004 - an object's own


def _context_parameter(func: Function) -> tuple[str | None, int | None]:
    """The parameter annotated `Context`, written as the class or as its name, and its place."""
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError):
        return None, None
    for index, parameter in enumerate(parameters):
        note = parameter.annotation
        name = (
            note
            if isinstance(note, str)
            else f"{getattr(note, '__module__', '')}.{getattr(note, '__qualname__', '')}"
        )
        if name in ("Context", "omniq.Context", "omniq.running.Context"):
            positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            return parameter.name, index if positional else None
    return None, None
