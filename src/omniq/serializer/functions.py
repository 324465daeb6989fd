"""Functions by name: the path that a callable has, and the callable that a path leads to."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

from omniq.errors import CorruptRecord, UnserializableArgument
from omniq.serializer.base import Function
from omniq.task import FUNC_PATH, shown

_ADVICE: Final = "pass a function defined at the top of a module, or use CloudpickleSerializer on both sides"


def path_of(func: Function | str) -> str:
    """The importable path of `func`, or `UnserializableArgument` if there is none."""
    if isinstance(func, str):
        if not func:
            raise UnserializableArgument("the path of a function must not be empty")
        return func
    if not callable(func):
        raise UnserializableArgument(f"{shown(func)} is not callable; {_ADVICE}")
    module, qualname = getattr(func, "__module__", None), getattr(func, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise UnserializableArgument(f"a {type(func).__qualname__} has no importable path; {_ADVICE}")
    path = f"{module}.{qualname}"
    if module == "__main__":
        raise UnserializableArgument(f"{path} lives in a script, which a worker cannot import; {_ADVICE}")
    if not FUNC_PATH.fullmatch(path):  # <lambda>, <locals>
        raise UnserializableArgument(f"{path} was made inside an expression or a function; {_ADVICE}")
    if not _leads_to(module, qualname, func):
        raise UnserializableArgument(f"{path} is not the name of what was passed; {_ADVICE}")
    return path


def _leads_to(module: str, qualname: str, func: Function) -> bool:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if found is func:
        return True
    # A class method is bound anew at each access; two of them are equal if they belong to the same class.
    return isinstance(getattr(func, "__self__", None), type) and bool(found == func)


def resolve(path: str) -> Function:
    """Import what `path` names ('package.module.function' or 'package.module:Class.method').

    Imports whatever it says: only for payloads that are trusted to choose. A worker decides by its own rules.
    """
    if not FUNC_PATH.fullmatch(path):
        raise CorruptRecord(f"{shown(path)} is no path of a function, such as 'package.module.function'")
    try:
        found = _walk(path)
    except Exception as exc:  # a module may raise anything while it is imported
        raise CorruptRecord(
            f"the function {shown(path)} cannot be imported ({type(exc).__name__}: {exc}); "
            "make its module importable here, or correct the path"
        ) from exc
    if not callable(found):
        raise CorruptRecord(f"{shown(path)} is a {type(found).__name__}, not a function; correct the path")
    return found  # type: ignore[no-any-return]


def _walk(path: str) -> Any:
    module_name, colon, qualname = path.partition(":")
    if not colon:
        module_name, qualname = _split(path)
    found: Any = importlib.import_module(module_name)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def _split(path: str) -> tuple[str, str]:
    """Divide a dotted path behind its longest part that is a module; what is left are attributes."""
    module_name, _, qualname = path.rpartition(".")
    while module_name:
        try:
            importlib.import_module(module_name)
        except ModuleNotFoundError as exc:
            missing = exc.name or ""
            if not f"{module_name}.".startswith(f"{missing}."):
                raise  # the module is there, but what it imports is not
            module_name, _, name = module_name.rpartition(".")
            qualname = f"{name}.{qualname}"
        else:
            return module_name, qualname
    raise ModuleNotFoundError(f"no module named {path.partition('.')[0]!r}")
