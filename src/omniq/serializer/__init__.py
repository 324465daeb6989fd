"""Values to bytes and back: msgpack by default, JSON, and cloudpickle by opt-in on both sides.

A payload of msgpack or JSON is data only: reading one runs no code that it brought along and imports nothing.

    value ── packing ──> plain data and tags ── msgpack or JSON ──> body ── envelope ──> bytes
    value <── unpacking ── plain data and tags <── msgpack or JSON ── body <── envelope ── bytes
"""

from omniq.serializer.base import Serializer
from omniq.serializer.classes import register
from omniq.serializer.data import JsonSerializer, MsgpackSerializer
from omniq.serializer.envelope import Encoded
from omniq.serializer.pickled import CloudpickleSerializer

__all__ = [
    "Serializer",
    "MsgpackSerializer",
    "JsonSerializer",
    "CloudpickleSerializer",
    "Encoded",
    "register",
]
