"""From values to plain data and tags: the walk that msgpack and JSON share.

A codec carries some types as they are. Everything else becomes a tag (a name and a payload that is plain
itself), or is refused with the way to it. Types are matched exactly: a subclass would come back as its base.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo

from omniq.errors import UnserializableArgument
from omniq.serializer import classes
from omniq.task import shown

MAX_DEPTH: Final = 64  # containers inside each other; deep enough for data, shallow enough for any stack

# The exact type of a value. Under this name it tells type checkers nothing about the value's items.
kind_of: Final[Callable[[Any], type]] = type

_OTHERWISE: Final = "pass plain data, or use CloudpickleSerializer on both sides"


class Unfit(Exception):
    """A value that cannot travel. The way to it is collected while the walk unwinds."""

    def __init__(self, problem: str, *, too_deep: bool = False) -> None:
        super().__init__(problem)
        self._problem = problem
        self._too_deep = too_deep
        self._way: list[tuple[int, str]] = []  # from the inside out: which container, which step into it

    def found_in(self, container: object, step: str) -> None:
        self._way.append((id(container), step))

    def refusal(self, root: str) -> UnserializableArgument:
        """What the caller is told; `root` is what the walk began with."""
        if not self._too_deep:
            place = root + "".join(step for _, step in reversed(self._way))
            return UnserializableArgument(f"{place} {self._problem}")
        if len({container for container, _ in self._way}) < len(self._way):
            return UnserializableArgument(f"{root} refers back to itself; pass data that does not")
        return UnserializableArgument(f"{root} {self._problem}")


class Packer(ABC):
    """The walk for one codec.

    `plain` are the types that it carries as they are, whatever the value; `plain_keys` the same for keys.
    """

    def __init__(self, codec: str, *, plain: frozenset[type], plain_keys: frozenset[type]) -> None:
        self._codec = codec
        self._plain = plain
        self._plain_keys = plain_keys
        self._by_type: dict[type, Callable[[Any, int], Any]] = {
            list: self._list,
            dict: self._dict,
            tuple: self._tuple,
            set: self._set,
            frozenset: self._set,
            int: self._int,
            str: self._str,
            float: self._float,
            complex: self._complex,
            bytes: self._bytes,
            bytearray: self._bytearray,
            datetime: self._datetime,
            date: self._date,
            time: self._time,
            timedelta: self._timedelta,
            UUID: self._uuid,
            Decimal: self._decimal,
            PurePosixPath: self._path,
            PureWindowsPath: self._path,
            PosixPath: self._path,
            WindowsPath: self._path,
        }

    @abstractmethod
    def tag(self, name: str, payload: Any) -> Any:
        """How this codec marks a payload that is already packed."""

    @abstractmethod
    def carries_keys(self, keys: Collection[Any], packed_keys: list[Any]) -> bool:
        """Whether the codec's own map can have these keys."""

    @abstractmethod
    def sort_key(self, packed: Any) -> bytes:
        """An order for the packed elements of a set, so that equal sets become equal bytes."""

    def pack(self, value: object, room: int = MAX_DEPTH) -> Any:
        """Bring `value` into a form that the codec carries; `room` is how deep it may still nest."""
        kind = type(value)
        if kind in self._plain:
            return value
        pack = self._by_type.get(kind)
        if pack is None:
            return self._instance(value, room)
        return pack(value, room)

    # --- containers ------------------------------------------------------------------------------

    def _list(self, value: list[Any], room: int) -> list[Any]:
        if not room:
            refuse_depth()
        if self._plain.issuperset(map(type, value)):
            return value
        return self._items(value, room)

    def _items(self, value: Collection[Any], room: int) -> list[Any]:
        packed: list[Any] = []
        for index, item in enumerate(value):
            try:
                packed.append(self.pack(item, room - 1))
            except Unfit as unfit:
                unfit.found_in(value, f"[{index}]")
                raise
        return packed

    def _tuple(self, value: tuple[Any, ...], room: int) -> Any:
        if not room:
            refuse_depth()
        return self.tag("tuple", self._items(value, room))

    def _unordered(self, value: Collection[Any], room: int, step: str) -> list[Any]:
        try:
            return [self.pack(item, room - 1) for item in value]
        except Unfit as unfit:
            unfit.found_in(value, step)
            raise

    def _set(self, value: set[Any] | frozenset[Any], room: int) -> Any:
        if not room:
            refuse_depth()
        packed = self._unordered(value, room, " (an element)")
        return self.tag(type(value).__name__, sorted(packed, key=self.sort_key))

    def _dict(self, value: dict[Any, Any], room: int) -> Any:
        if not room:
            refuse_depth()
        if self._plain_keys.issuperset(map(type, value)):
            if self._plain.issuperset(map(type, value.values())):
                return value
            return dict(zip(value, self._values(value, room), strict=True))
        keys = self._unordered(value, room, " (a key)")
        values = self._values(value, room)
        if self.carries_keys(value, keys):
            return dict(zip(keys, values, strict=True))
        return self.tag("dict", [part for pair in zip(keys, values, strict=True) for part in pair])

    def _values(self, value: dict[Any, Any], room: int) -> list[Any]:
        packed: list[Any] = []
        for key, item in value.items():
            try:
                packed.append(self.pack(item, room - 1))
            except Unfit as unfit:
                unfit.found_in(value, f"[{shown(key, 40)}]")
                raise
        return packed

    # --- instances of classes that go by name ------------------------------------------------------

    def _instance(self, value: object, room: int) -> Any:
        cls = type(value)
        shape = classes.shape_of(cls)
        if shape is None:
            raise Unfit(self._refused(cls))
        if shape.kind == classes.ENUM:
            return self._member(value, shape)
        if not room:
            refuse_depth()
        packed: dict[str, Any] = {}
        for name in shape.fields:
            try:
                packed[name] = self.pack(_field(value, name), room - 1)
            except Unfit as unfit:
                unfit.found_in(value, f".{name}")
                raise
        return self.tag(shape.kind, [shape.name, packed])

    def _member(self, value: Any, shape: classes.Shape) -> Any:
        name = value._name_
        if shape.cls.__members__.get(name) is not value:
            raise Unfit("is a combination of flags, which has no name of its own; pass its .value")
        return self.tag(classes.ENUM, [shape.name, name])

    def _refused(self, cls: type[Any]) -> str:
        name = _type_name(cls)
        base = next((base for base in cls.__mro__ if base in self._by_type), None)
        if base is not None:
            return (
                f"is a {name}, a subclass of {base.__name__}, which {self._codec} cannot carry; "
                f"pass {base.__name__}(...) of it, or use CloudpickleSerializer on both sides"
            )
        return f"is a {name}, which {self._codec} cannot carry; {_OTHERWISE}"

    # --- scalars -----------------------------------------------------------------------------------

    def _int(self, value: int, room: int) -> Any:
        if -(1 << 63) <= value < 1 << 64:
            return value
        return self.tag("int", format(value, "x"))  # hexadecimal takes linear time, both ways

    def _str(self, value: str, room: int) -> str:
        try:
            value.encode()
        except UnicodeEncodeError as exc:
            raise Unfit(
                f"is text with a lone surrogate at position {exc.start}, which is not valid Unicode; "
                "pass bytes (for file names: os.fsencode)"
            ) from None
        return value

    def _float(self, value: float, room: int) -> Any:
        return value

    def _complex(self, value: complex, room: int) -> Any:
        return self.tag("complex", [self.pack(value.real), self.pack(value.imag)])

    def _bytes(self, value: bytes, room: int) -> Any:
        return value

    def _bytearray(self, value: bytearray, room: int) -> Any:
        return self.tag("bytearray", self.pack(bytes(value)))

    def _datetime(self, value: datetime, room: int) -> Any:
        text = value.replace(tzinfo=None).isoformat()
        return self.tag("datetime", [text, value.fold, self._zone(value.tzinfo)])

    def _time(self, value: time, room: int) -> Any:
        text = value.replace(tzinfo=None).isoformat()
        return self.tag("time", [text, value.fold, self._zone(value.tzinfo)])

    def _zone(self, zone: tzinfo | None) -> Any:
        """None, the key of a ZoneInfo, or microseconds east of UTC with a name if the zone has one."""
        if zone is None:
            return None
        if type(zone) is ZoneInfo and zone.key:
            return self.pack(zone.key)
        if not isinstance(zone, timezone):
            raise Unfit(
                f"has a time zone of type {_type_name(type(zone))}, which {self._codec} cannot carry; "
                "use zoneinfo.ZoneInfo('Europe/Berlin') or datetime.timezone"
            )
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        offset_us = offset // timedelta(microseconds=1)
        return offset_us if name == timezone(offset).tzname(None) else [offset_us, self.pack(name)]

    def _date(self, value: date, room: int) -> Any:
        return self.tag("date", value.isoformat())

    def _timedelta(self, value: timedelta, room: int) -> Any:
        return self.tag("timedelta", [value.days, value.seconds, value.microseconds])

    def _uuid(self, value: UUID, room: int) -> Any:
        return self.tag("uuid", value.hex)

    def _decimal(self, value: Decimal, room: int) -> Any:
        return self.tag("decimal", str(value))

    def _path(self, value: PurePosixPath | PureWindowsPath, room: int) -> Any:
        return self.tag("path", [type(value).__name__, self.pack(str(value))])


def _type_name(cls: type[Any]) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _field(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except Exception as exc:  # never set, or a property of the class that raises
        raise Unfit(f"cannot be read ({type(exc).__name__}); give the field a value") from exc


def refuse_depth() -> NoReturn:
    raise Unfit(f"is nested more than {MAX_DEPTH} levels deep; pass flatter data", too_deep=True)
