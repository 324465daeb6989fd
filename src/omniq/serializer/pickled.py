"""The one place with pickle: values and functions as code, for a store that only trusted people write to."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from omniq.errors import CorruptRecord, UnserializableArgument
from omniq.serializer import envelope
from omniq.serializer.base import DecodedCall, Function
from omniq.serializer.data import Decoders, EnvelopeSerializer, check_call
from omniq.task import shown

_HEAD: Final = envelope.HEADS[envelope.CLOUDPICKLE]


def _decode_value(body: bytes) -> Any:
    import pickle

    stream = io.BytesIO(body)
    value = pickle.load(stream)  # noqa: S301 - whoever chose CloudpickleSerializer chose to trust the store
    if stream.read(1):
        raise CorruptRecord("the payload goes on after its end: it was damaged; enqueue the task again")
    return value


def _decode_call(body: bytes) -> DecodedCall:
    func, args, kwargs = _decode_value(body)
    if not (func is None or isinstance(func, str) or callable(func)):
        raise CorruptRecord(f"the payload has a {type(func).__name__} where its function should be")
    return func, list(args), dict(kwargs)


class CloudpickleSerializer(EnvelopeSerializer):
    """Carries almost anything, also lambdas and closures. Reading a payload runs the code that it holds."""

    _decoders: ClassVar[Mapping[str, Decoders]] = {
        **EnvelopeSerializer._decoders,
        envelope.CLOUDPICKLE: Decoders(_decode_value, _decode_call),
    }

    def dumps(self, value: Any) -> bytes:
        """Encode one value, or raise `UnserializableArgument`."""
        return _HEAD + _pickled(value, "value")

    def dump_call(self, func: Function | str | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Encode a call. A function goes by reference where it can be imported, otherwise by value."""
        check_call(args, kwargs)
        if not (func is None or isinstance(func, str) or callable(func)):  # pyright: ignore[reportUnnecessaryComparison]
            raise UnserializableArgument(f"{shown(func)} is not callable; pass a function or its path")
        try:
            return _HEAD + _pickled((func, list(args), dict(kwargs)), "the call")
        except UnserializableArgument:
            _pickled(func, "the function")
            for index, value in enumerate(args):
                _pickled(value, f"args[{index}]")
            for name, value in kwargs.items():
                _pickled(value, f"kwargs[{shown(name)}]")
            raise


def _pickled(value: object, place: str) -> bytes:
    import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

    try:
        return bytes(cloudpickle.dumps(value))  # pyright: ignore[reportUnknownMemberType]
    except Exception as exc:  # an object's own __reduce__ can raise anything
        cls = type(value)
        raise UnserializableArgument(
            f"{place} is a {cls.__module__}.{cls.__qualname__}, which cloudpickle cannot carry "
            f"({type(exc).__name__}: {exc}); pass plain data"
        ) from exc
