"""Classes whose instances travel as data: enums, dataclasses and msgspec structs, known by name.

A payload only names a class. It is looked for among the registered ones and in the modules that this
process has imported by itself; nothing is imported because a payload says so.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, TypeVar, cast

from msgspec import Struct

from omniq.errors import CorruptRecord, InvalidOption
from omniq.task import shown

T = TypeVar("T", bound=type)

ENUM: Final = "enum"
DATACLASS: Final = "dataclass"
STRUCT: Final = "struct"

# Py_TPFLAGS_HEAPTYPE: a class made by a class statement, not one built into Python.
_HEAP_TYPE: Final = 1 << 9


class Shape(Struct, frozen=True):
    """What travels of a class: its name, and the names of the fields of its instances."""

    cls: type[Any]
    kind: str
    name: str
    fields: tuple[str, ...]


# By name and not by class, so that classes made again and again inside a function do not pile up here.
_registered: dict[str, Shape] = {}


def register(cls: T) -> T:
    """Let payloads name `cls`, an enum, dataclass or struct. Works as a decorator.

    Only needed where its name does not lead to it, as for a class that was made inside a function.
    """
    if shape_of(cls) is None:
        raise InvalidOption(f"{shown(cls)} is neither an enum nor a dataclass nor a msgspec.Struct")
    return cls


def shape_of(cls: type[Any]) -> Shape | None:
    """The shape of `cls`, which is registered by this, or None if its instances do not travel."""
    name = _name_of(cls)
    shape = _registered.get(name)
    if shape is None or shape.cls is not cls:
        shape = _shape(cls, name)
        if shape is not None:
            _registered[name] = shape
    return shape


def find(name: Any, kind: str) -> Shape:
    """The shape of the class that a payload names, or `CorruptRecord` if this process does not have it."""
    if not isinstance(name, str):
        raise CorruptRecord(f"the payload names a {kind} by {shown(name)}, which is no name")
    shape = _registered.get(name) or _imported(name)
    if shape is None:
        module, _, _ = name.partition(":")
        raise CorruptRecord(
            f"the payload holds the {kind} {shown(name)}, which this process does not have; import "
            f"{shown(module)} before the worker starts, or give the class to omniq.serializer.register"
        )
    if shape.kind != kind:
        raise CorruptRecord(f"the payload calls {shown(name)} a {kind}, but here it is a {shape.kind}")
    return shape


def built(name: Any, values: Any, kind: str) -> Any:
    """Make the instance that a payload describes."""
    shape = find(name, kind)
    build = _BUILDERS[kind]
    return build(shape, values)


def _shape(cls: type[Any], name: str) -> Shape | None:
    if not isinstance(cls, type):  # pyright: ignore[reportUnnecessaryIsInstance] - register takes anything
        return None
    if issubclass(cls, Enum):
        return Shape(cls, ENUM, name, ())
    if issubclass(cls, Struct):
        return Shape(cls, STRUCT, name, cls.__struct_fields__)
    if dataclasses.is_dataclass(cls) and _holds_only_fields(cls):
        return Shape(cls, DATACLASS, name, tuple(field.name for field in dataclasses.fields(cls)))
    return None


def _holds_only_fields(cls: type[Any]) -> bool:
    """Whether no class of Python itself, such as dict or Exception, keeps a part of its instances."""
    return all(base.__flags__ & _HEAP_TYPE for base in cls.__mro__[:-1])


# --- names ---------------------------------------------------------------------------------------


def _name_of(cls: type[Any]) -> str:
    module = getattr(cls, "__module__", "")
    if module == "__main__":
        module = _script_module() or module
    return f"{module}:{getattr(cls, '__qualname__', '')}"


def _script_module() -> str | None:
    """The name that the script run as `__main__` has for a worker which imports it."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return None if file is None else os.path.splitext(os.path.basename(file))[0]


def _imported(name: str) -> Shape | None:
    module_name, _, qualname = name.partition(":")
    module = sys.modules.get(module_name)
    if module is None and module_name == _script_module():
        module = sys.modules["__main__"]
        module_name = "__main__"
    found: Any = module
    for part in qualname.split("."):
        found = _own_attribute(found, part)
    if not isinstance(found, type):
        return None
    if found.__module__ != module_name or found.__qualname__ != qualname:
        return None
    return _shape(found, name)


def _own_attribute(owner: object, name: str) -> object:
    """What lies in the namespace of a module or class; an ordinary getattr could run code, or even import."""
    try:
        if issubclass(type(owner), type):  # isinstance would ask the owner itself for its __class__
            return type.__getattribute__(cast("type", owner), "__dict__").get(name)
        return object.__getattribute__(owner, "__dict__").get(name)
    except AttributeError:
        return None


# --- instances -----------------------------------------------------------------------------------


def _member(shape: Shape, name: Any) -> Any:
    try:
        return shape.cls.__members__[name]
    except (KeyError, TypeError):
        raise CorruptRecord(
            f"{shape.name} has no member {shown(name)} here; producer and worker run different versions of it"
        ) from None


def _struct(shape: Shape, values: dict[str, Any]) -> Any:
    try:
        return shape.cls(**values)
    except Exception as exc:  # whatever the struct's own checks raise
        raise CorruptRecord(f"{shape.name} refuses what the payload holds: {exc}") from exc


def _dataclass(shape: Shape, values: dict[str, Any]) -> Any:
    """Set the fields and run nothing: no `__init__`, `__post_init__` or `__setattr__` of the class."""
    unknown = set(values) - set(shape.fields)
    if unknown:
        raise CorruptRecord(
            f"{shape.name} has no field {shown(min(map(str, unknown)))} here; "
            "the payload comes from another version of it, so update this process"
        )
    instance = object.__new__(shape.cls)
    for field in dataclasses.fields(shape.cls):
        value = values[field.name] if field.name in values else _default(shape, field)
        object.__setattr__(instance, field.name, value)
    return instance


def _default(shape: Shape, field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise CorruptRecord(
        f"the payload holds no {field.name!r} for {shape.name}, which has no default for it; "
        "give the new field a default, or let the tasks of the old version finish first"
    )


_BUILDERS: Final[dict[str, Callable[[Shape, Any], Any]]] = {
    ENUM: _member,
    STRUCT: _struct,
    DATACLASS: _dataclass,
}
