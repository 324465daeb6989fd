"""The msgpack body: tags are extension types.

A call is [args, kwargs], or [args, kwargs, path]; any other value is itself.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import is_
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from omniq.errors import CorruptRecord
from omniq.serializer.base import DecodedCall
from omniq.serializer.packing import MAX_DEPTH, Packer, refuse_depth
from omniq.serializer.unpacking import BUILDERS, check_depth

# Stored payloads name tags by these numbers: add new ones at the end, never change one.
_CODES: Final = {
    "int": 1,
    "complex": 2,
    "bytearray": 3,
    "tuple": 4,
    "set": 5,
    "frozenset": 6,
    "dict": 7,
    "datetime": 8,
    "date": 9,
    "time": 10,
    "timedelta": 11,
    "uuid": 12,
    "decimal": 13,
    "path": 14,
    "enum": 15,
    "dataclass": 16,
    "struct": 17,
}
_BUILDERS: Final = {code: BUILDERS[name] for name, code in _CODES.items()}

PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})
_SURE: Final = PLAIN - {int, str}  # an int may be over 64 bits, text may have a lone surrogate

encode: Final = msgspec.msgpack.Encoder().encode


class MsgpackPacker(Packer):
    def tag(self, name: str, payload: Any) -> Any:
        return Ext(_CODES[name], encode(payload))

    def carries_keys(self, keys: Collection[Any], packed_keys: list[Any]) -> bool:
        return all(map(is_, keys, packed_keys))

    def sort_key(self, packed: Any) -> bytes:
        return encode(packed)


class SortingPacker(MsgpackPacker):
    """Brings every dict into one order, wherever it is; Python keeps that of arrival.

    A tuple is a list: who enqueues with JSON can say nothing else.
    """

    def _tuple(self, value: tuple[Any, ...], room: int) -> Any:
        return self._list(list(value), room)

    def _dict(self, value: dict[Any, Any], room: int) -> Any:
        if not room:
            refuse_depth()
        keys = self._unordered(value, room, " (a key)")
        items = zip(keys, self._values(value, room), strict=True)
        return self.tag("dict", sorted(items, key=lambda item: self.sort_key(item[0])))


# The first walk trusts every int and text, and the encoder then says if one does not fit. The second one
# looks at each of them, to tag it or to name its place.
PACKERS: Final = (
    MsgpackPacker("msgpack", plain=PLAIN, plain_keys=PLAIN),
    MsgpackPacker("msgpack", plain=_SURE, plain_keys=_SURE),
)
SORTING_PACKERS: Final = (
    SortingPacker("msgpack", plain=PLAIN, plain_keys=PLAIN),
    SortingPacker("msgpack", plain=_SURE, plain_keys=_SURE),
)


class _Call(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    args: list[Any]
    kwargs: dict[str, Any]
    path: str | None = None


def _build(code: int, data: memoryview) -> Any:
    build = _BUILDERS.get(code)
    if build is None:
        raise CorruptRecord(
            f"the payload has a value of unknown type {code}; a newer OmniQ may have written it"
        )
    return build(_decode_value(data))


_decode_value: Final = msgspec.msgpack.Decoder(ext_hook=_build).decode
_decode_call: Final = msgspec.msgpack.Decoder(_Call, ext_hook=_build).decode

_OPENING: Final = {*range(0x80, 0xA0), *range(0xDC, 0xE0)}  # arrays and maps, also inside tags
_NOT_OPENING: Final = bytes(byte for byte in range(256) if byte not in _OPENING)


def _may_be_deep(body: bytes) -> bool:
    # Each level begins with a byte of its own, so few such bytes (wherever they are) mean few levels.
    return len(body) > MAX_DEPTH and len(body.translate(None, _NOT_OPENING)) > MAX_DEPTH


def decode_value(body: bytes) -> Any:
    value = _decode_value(body)
    if _may_be_deep(body):
        check_depth((value,))
    return value


def decode_call(body: bytes) -> DecodedCall:
    call = _decode_call(body)
    if _may_be_deep(body):
        check_depth((*call.args, *call.kwargs.values()))
    return call.path, call.args, call.kwargs
