"""From a path to something that can run, and which paths a worker may run at all.

Three kinds of worker: one that imports any path (seed 001), one that imports what `allow` names, and one
that runs registered tasks only. What is not allowed is never imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from msgspec import Struct

from omniq.errors import CorruptRecord, UnknownTask
from omniq.logic.retry import NO_RULES, RetryRules
from omniq.names import name_in_module
from omniq.serializer.functions import resolve as import_path
from omniq.task import name_list, shown

Function = Callable[..., Any]
Kind = Literal["async", "thread", "process"]
Executor = Literal["auto", "thread", "process"]


class Runnable(Struct, frozen=True):
    """A callable, where it runs, and the parameter that wants the context."""

    func: Function
    kind: Kind
    context_parameter: str | None = None
    context_index: int | None = None  # its place among the positional parameters
    rules: RetryRules = NO_RULES


class Unresolvable(Exception):
    """The path leads nowhere, or to something that cannot be called: a failure of the run."""


class Resolver:
    """Looks a path up among the registered, then imports it if that is allowed. Only finds are cached."""

    def __init__(
        self, registered: Mapping[str, Runnable] | None = None, allow: Sequence[str] | None = None
    ) -> None:
        self._registered: Mapping[str, Runnable] = {} if registered is None else registered
        self._allow = None if allow is None else name_list(allow, "allow", "'myapp.tasks.*'")
        self._found: dict[str, Runnable] = {}

    @property
    def names(self) -> tuple[str, ...] | None:
        """What this worker says it serves; None is whatever can be imported."""
        return None if self._allow is None else (*self._registered, *self._allow)

    @property
    def modules(self) -> tuple[str, ...]:
        """Where the registered functions live: what a process imports before it can run one."""
        named = [runnable.func for runnable in self._registered.values() if name_in_module(runnable.func)]
        return tuple(name for name in dict.fromkeys(func.__module__ for func in named) if _can_import(name))

    @property
    def all_have_names(self) -> bool:
        """Whether another process finds every registered function where this one has it."""
        return all(name_in_module(runnable.func) for runnable in self._registered.values())

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


def _can_import(module: str) -> bool:
    """Whether another process can import it: what was made by `exec` exists only here."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def runnable_of(func: Function, executor: Executor = "auto", rules: RetryRules = NO_RULES) -> Runnable:
    """Look at a callable once: does it await, does it want its context?"""
    if not callable(func):
        raise Unresolvable(f"{shown(func)} is not callable")
    return Runnable(func, _kind_of(func, executor), *_context_parameter(func), rules)


def _kind_of(func: Function, executor: Executor) -> Kind:
    if executor == "auto":
        return "async" if _is_async(func) else "thread"
    return executor


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
    """The parameter annotated `Context`, or `Context | None`, and its place."""
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError):
        return None, None
    for index, parameter in enumerate(parameters):
        if _is_context(parameter.annotation, func):
            positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            return parameter.name, index if positional else None
    return None, None


def _is_context(note: Any, func: Function) -> bool:
    """Whether an annotation means the context, under whatever name the function's module has it."""
    if isinstance(note, str):
        try:
            holder = type("holder", (), {"__annotations__": {"it": note}})
            note = get_type_hints(holder, _globals_of(func), {})["it"]
        except Exception:  # imported for type checkers only: then its name must do
            return note in ("Context", "omniq.Context")
    if get_origin(note) in (Union, UnionType):
        return any(_is_context(one, func) for one in get_args(note))
    return f"{getattr(note, '__module__', '')}.{getattr(note, '__qualname__', '')}" == "omniq.running.Context"


def _globals_of(func: Function) -> dict[str, Any]:
    """Where the names are known that stand in its annotations."""
    func = inspect.unwrap(func)
    while isinstance(func, partial):
        func = inspect.unwrap(func.func)
    for one in (func, getattr(func, "__init__" if isinstance(func, type) else "__call__", None)):
        if isinstance(known := getattr(one, "__globals__", None), dict):
            return cast("dict[str, Any]", known)
    return {}
