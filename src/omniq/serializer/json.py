"""The JSON body: a tag is an object with one key, {"$omniq": [name, payload]}.

An object of the user's with that key travels as a tagged list of its parts, so the two never look alike.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Collection
from typing import Any, Final

import msgspec

from omniq.errors import CorruptRecord
from omniq.serializer.base import DecodedCall
from omniq.serializer.packing import MAX_DEPTH, Packer, kind_of
from omniq.serializer.unpacking import BUILDERS, LEAVES, check_depth

MARK: Final = "$omniq"

encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_KEYS: Final = frozenset({str})


class JsonPacker(Packer):
    def tag(self, name: str, payload: Any) -> Any:
        return {MARK: [name, payload]}

    def carries_keys(self, keys: Collection[Any], packed_keys: list[Any]) -> bool:
        return _KEYS.issuperset(map(type, keys)) and MARK not in keys

    def sort_key(self, packed: Any) -> bytes:
        return encode(packed)

    def _float(self, value: float, room: int) -> Any:
        return value if math.isfinite(value) else self.tag("float", repr(value))

    def _bytes(self, value: bytes, room: int) -> Any:
        return self.tag("bytes", base64.b64encode(value).decode())


# The second one looks at every text, to name the place of one that does not fit. No key is plain: any
# object of the user's may have the key that marks a tag.
PACKERS: Final = (
    JsonPacker("JSON", plain=frozenset({type(None), bool, str}), plain_keys=frozenset()),
    JsonPacker("JSON", plain=frozenset({type(None), bool}), plain_keys=frozenset()),
)


class _Call(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    args: list[Any]
    kwargs: dict[str, Any]
    path: str | None = None


_decode_call: Final = msgspec.json.Decoder(_Call).decode


def _untagged(value: Any) -> Any:
    kind = kind_of(value)
    if kind is list:
        return value if LEAVES.issuperset(map(type, value)) else [_untagged(item) for item in value]
    if kind is not dict:
        return value
    if MARK not in value:
        return {key: _untagged(item) for key, item in value.items()}
    name, payload = value[MARK]
    build = BUILDERS.get(name)
    if build is None or len(value) > 1:
        raise CorruptRecord("the payload has a value of an unknown type; a newer OmniQ may have written it")
    return build(_untagged(payload))


def _may_be_deep(body: bytes) -> bool:
    return body.count(b"[") + body.count(b"{") > MAX_DEPTH


def decode_value(body: bytes) -> Any:
    value = _untagged(_decode(body))
    if _may_be_deep(body):
        check_depth((value,))
    return value


def decode_call(body: bytes) -> DecodedCall:
    call = _decode_call(body)
    args = [_untagged(value) for value in call.args]
    kwargs = {name: _untagged(value) for name, value in call.kwargs.items()}
    if _may_be_deep(body):
        check_depth((*args, *kwargs.values()))
    return call.path, args, kwargs
