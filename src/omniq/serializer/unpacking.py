"""From tags back to values, one builder for each name, and the bound on how deep a read value nests.

Payloads may be hostile: a builder may raise anything, and whoever calls it turns that into `CorruptRecord`.
Nothing here imports a module or calls what a payload names, except to make an instance (see `classes`).
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from itertools import chain
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from omniq.errors import CorruptRecord
from omniq.serializer import classes
from omniq.serializer.packing import MAX_DEPTH, kind_of
from omniq.task import shown

_HEX: Final = re.compile(r"-?[0-9a-f]+")
_PATHS: Final[dict[str, type[PurePath]]] = {
    "PurePosixPath": PurePosixPath,
    "PureWindowsPath": PureWindowsPath,
    "PosixPath": PurePosixPath if os.name == "nt" else PosixPath,
    "WindowsPath": WindowsPath if os.name == "nt" else PureWindowsPath,
}


def _list(payload: Any) -> list[Any]:
    if kind_of(payload) is not list:
        raise CorruptRecord(f"a list was expected in the payload, not a {type(payload).__name__}")
    items: list[Any] = payload
    return items


def _text(payload: Any) -> str:
    if type(payload) is not str:
        raise CorruptRecord(f"text was expected in the payload, not a {type(payload).__name__}")
    return payload


def _int(payload: Any) -> int:
    if not _HEX.fullmatch(_text(payload)):
        raise CorruptRecord("a whole number was expected in the payload")
    return int(payload, 16)


def _float(payload: Any) -> float:
    return {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}[_text(payload)]


def _complex(payload: Any) -> complex:
    real, imag = _list(payload)
    return complex(real, imag)  # a sum would lose the sign of a zero, and make nan of inf


def _bytes(payload: Any) -> bytes:
    return base64.b64decode(_text(payload), validate=True)


def _bytearray(payload: Any) -> bytearray:
    if type(payload) is not bytes:
        raise CorruptRecord(f"bytes were expected in the payload, not a {type(payload).__name__}")
    return bytearray(payload)


def _dict(payload: Any) -> dict[Any, Any]:
    parts = _list(payload)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _datetime(payload: Any) -> datetime:
    text, fold, zone = _list(payload)
    return datetime.fromisoformat(text).replace(fold=fold, tzinfo=_zone(zone))


def _time(payload: Any) -> time:
    text, fold, zone = _list(payload)
    return time.fromisoformat(text).replace(fold=fold, tzinfo=_zone(zone))


def _zone(payload: Any) -> tzinfo | None:
    if payload is None:
        return None
    if type(payload) is str:
        return _zone_info(payload)
    if type(payload) is int:
        return timezone(timedelta(microseconds=payload)) if payload else UTC
    offset_us, name = _list(payload)
    return timezone(timedelta(microseconds=offset_us), name)


def _zone_info(key: str) -> ZoneInfo:
    # ZoneInfo keeps to the system's folders and to the package tzdata, whatever the key is.
    try:
        return ZoneInfo(key)
    except (KeyError, ValueError, OSError) as exc:
        raise CorruptRecord(
            f"the time zone {shown(key)} is not known here; install or update tzdata"
        ) from exc


def _date(payload: Any) -> date:
    return date.fromisoformat(payload)


def _timedelta(payload: Any) -> timedelta:
    days, seconds, microseconds = _list(payload)
    return timedelta(days, seconds, microseconds)


def _uuid(payload: Any) -> UUID:
    return UUID(hex=_text(payload))


def _decimal(payload: Any) -> Decimal:
    return Decimal(_text(payload))


def _path(payload: Any) -> PurePath:
    """The same class, or its pure twin where this platform cannot have it."""
    name, text = _list(payload)
    return _PATHS[name](_text(text))


def _instance(kind: str) -> Callable[[Any], Any]:
    def build(payload: Any) -> Any:
        name, values = _list(payload)
        return classes.built(name, values, kind)

    return build


BUILDERS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": _int,
    "float": _float,
    "complex": _complex,
    "bytes": _bytes,
    "bytearray": _bytearray,
    "tuple": lambda payload: tuple(_list(payload)),
    "set": lambda payload: set(_list(payload)),
    "frozenset": lambda payload: frozenset(_list(payload)),
    "dict": _dict,
    "datetime": _datetime,
    "date": _date,
    "time": _time,
    "timedelta": _timedelta,
    "uuid": _uuid,
    "decimal": _decimal,
    "path": _path,
    classes.ENUM: _instance(classes.ENUM),
    classes.DATACLASS: _instance(classes.DATACLASS),
    classes.STRUCT: _instance(classes.STRUCT),
}


# --- depth -----------------------------------------------------------------------------------------

LEAVES: Final = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        bytearray,
        datetime,
        date,
        time,
        timedelta,
        UUID,
        Decimal,
    }
    | set(_PATHS.values())
)


def check_depth(values: Iterable[Any]) -> None:
    """Refuse what nests deeper than anything that was written: later code may walk it recursively."""
    level = [value for value in values if type(value) not in LEAVES]
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [item for value in level for item in _inside(value) if type(item) not in LEAVES]
    if any(not isinstance(value, Enum) for value in level):
        raise CorruptRecord(f"the payload nests more than {MAX_DEPTH} levels deep, which OmniQ never writes")


def _inside(value: Any) -> Iterable[Any]:
    kind = kind_of(value)
    if kind is dict:
        return chain(value, value.values())
    if kind in (list, tuple, set, frozenset):
        items: Iterable[Any] = value
        return items
    shape = classes.shape_of(kind)
    return [getattr(value, name) for name in shape.fields] if shape else ()
