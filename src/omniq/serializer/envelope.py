"""The few bytes in front of every payload: which format, which codec, room for a signature.

    +---------+-------+------------------+-----------+------+
    | version | codec | signature length | signature | body |
    |  1 byte | m j c |      1 byte      | (no bytes)|      |
    +---------+-------+------------------+-----------+------+

Knows nothing of what is in a body.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from omniq.errors import CorruptRecord
from omniq.task import shown

VERSION: Final = 1
MSGPACK: Final = "msgpack"
JSON: Final = "json"
CLOUDPICKLE: Final = "cloudpickle"

_CODECS: Final = {ord("m"): MSGPACK, ord("j"): JSON, ord("c"): CLOUDPICKLE}
HEAD_BYTES: Final = 3
HEADS: Final = {name: bytes((VERSION, byte, 0)) for byte, name in _CODECS.items()}


def opened(data: Any) -> tuple[str, bytes]:
    """Split a payload into the name of its codec and its body, or say what is wrong with it."""
    if type(data) not in (bytes, bytearray, memoryview):
        raise CorruptRecord(f"a payload is bytes, not a {type(data).__name__}; pass what dumps gave")
    data = bytes(data)
    if len(data) < HEAD_BYTES:
        raise CorruptRecord(f"the payload was cut off after {len(data)} bytes; enqueue the task again")
    version, codec, signature_bytes = data[:HEAD_BYTES]
    if version != VERSION:
        raise CorruptRecord(
            f"the payload has format version {version}, this OmniQ reads version {VERSION}; "
            "upgrade OmniQ here if a newer one wrote it, otherwise these are not bytes of OmniQ"
        )
    if codec not in _CODECS:
        raise CorruptRecord(
            f"the payload has the unknown codec {shown(chr(codec))}, known are m, j and c; "
            "upgrade OmniQ here if a newer one wrote it"
        )
    if signature_bytes:
        raise CorruptRecord(
            f"the payload has a signature of {signature_bytes} bytes; "
            "signed payloads are not supported by this version, upgrade OmniQ here"
        )
    return _CODECS[codec], data[HEAD_BYTES:]


class Encoded(Struct, frozen=True):
    """A payload shown as it is, because this process cannot decode it. Its repr never shows the content."""

    codec: str
    payload: bytes

    @classmethod
    def of(cls, payload: bytes) -> Encoded:
        """Wrap `payload`, with the name of its codec as far as the envelope tells."""
        try:
            codec, _ = opened(payload)
        except CorruptRecord:
            codec = "unknown"
        return cls(codec, payload)

    def __repr__(self) -> str:
        return f"Encoded({shown(self.codec)}, {len(self.payload)} bytes)"
