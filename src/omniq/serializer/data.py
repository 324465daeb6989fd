"""The serializers whose payloads are data only, and how each of them reads the other's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from msgspec import DecodeError

from omniq.errors import CorruptRecord, PayloadTooLarge, UnserializableArgument
from omniq.serializer import envelope, json, msgpack
from omniq.serializer.base import Call, DecodedCall, Function, Serializer
from omniq.serializer.envelope import HEAD_BYTES
from omniq.serializer.functions import path_of, resolve
from omniq.serializer.packing import Packer, Unfit, kind_of

_MSGPACK_HEAD: Final = envelope.HEADS[envelope.MSGPACK]
_JSON_HEAD: Final = envelope.HEADS[envelope.JSON]
_NONE: Final = _MSGPACK_HEAD + msgpack.encode(None)
_PLAIN: Final = msgpack.PLAIN
_TEXT: Final = frozenset({str})


# --- reading -------------------------------------------------------------------------------------


class Decoders(NamedTuple):
    """How the bodies of one codec are read."""

    value: Callable[[bytes], Any]
    call: Callable[[bytes], DecodedCall]


class EnvelopeSerializer(Serializer):
    """Reads whatever codec the envelope names, as far as it may: by default all that is data only."""

    _decoders: ClassVar[Mapping[str, Decoders]] = {
        envelope.MSGPACK: Decoders(msgpack.decode_value, msgpack.decode_call),
        envelope.JSON: Decoders(json.decode_value, json.decode_call),
    }

    def loads(self, data: bytes) -> Any:
        """Decode what the `dumps` of any of OmniQ's serializers gave."""
        try:
            if type(data) is bytes and data[:HEAD_BYTES] == _MSGPACK_HEAD:  # the usual case, at once
                return msgpack.decode_value(data[HEAD_BYTES:])
            codec, body = envelope.opened(data)
            return self._decoders_of(codec).value(body)
        except CorruptRecord:
            raise
        except Exception as exc:  # hostile bytes, and checks of the classes they name, can raise anything
            raise _corrupt(exc) from exc

    def decode_call(self, data: bytes) -> DecodedCall:
        """Decode a call into its function (a path, a callable or None), arguments and keyword arguments.

        Imports nothing, except where the function itself travels as code (cloudpickle).
        """
        try:
            if type(data) is bytes and data[:HEAD_BYTES] == _MSGPACK_HEAD:
                return msgpack.decode_call(data[HEAD_BYTES:])
            codec, body = envelope.opened(data)
            return self._decoders_of(codec).call(body)
        except CorruptRecord:
            raise
        except Exception as exc:  # as above
            raise _corrupt(exc) from exc

    def load_call(self, data: bytes) -> Call:
        """Decode a call and import its function, any that the payload names: only for payloads you trust."""
        func, args, kwargs = self.decode_call(data)
        if func is None:
            raise CorruptRecord("the payload names no function: its path travels beside it; use decode_call")
        return (resolve(func) if isinstance(func, str) else func), args, kwargs

    def _decoders_of(self, codec: str) -> Decoders:
        decoders = self._decoders.get(codec)
        if decoders is None:
            raise CorruptRecord(
                f"the payload was written with {codec} and may hold code, which is not read by default; if "
                "everybody who can write to the store is trusted, start the worker with "
                "serializer=CloudpickleSerializer()"
            )
        return decoders


def _corrupt(exc: Exception) -> CorruptRecord:
    # The decoder's own words show types and places; those of others may show what the payload holds.
    found = f"{exc}" if isinstance(exc, DecodeError) else type(exc).__name__
    return CorruptRecord(
        f"the payload cannot be decoded ({found}): it was damaged, or not written by OmniQ; "
        "enqueue the task again"
    )


# --- writing -------------------------------------------------------------------------------------


class DataSerializer(EnvelopeSerializer):
    """Writes values as data: packed into what the codec carries, then encoded."""

    _head: ClassVar[bytes]
    _packers: ClassVar[Sequence[Packer]]

    @abstractmethod
    def _encode(self, packed: Any) -> bytes:
        """Encode what a packer gave."""

    def dumps(self, value: Any) -> bytes:
        """Encode one value, or raise `UnserializableArgument` that says which part of it does not fit."""

        def packed(packer: Packer) -> Any:
            try:
                return packer.pack(value)
            except Unfit as unfit:
                raise unfit.refusal("value") from None

        return self._head + self._encoded(packed)

    def dump_call(self, func: Function | str | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Encode a call as data. A function travels as its path, so it must be importable."""
        check_call(args, kwargs)
        path = () if func is None else (path_of(func),)
        return self._head + self._encoded(lambda packer: (*_packed_call(packer, args, kwargs), *path))

    def _encoded(self, packed: Callable[[Packer], Any]) -> bytes:
        problem: ValueError | OverflowError | None = None
        for packer in self._packers:
            try:
                return self._encode(packed(packer))
            except UnserializableArgument:
                raise
            except (ValueError, OverflowError) as exc:  # the encoder; the next packer looks closer
                problem = exc
        if isinstance(problem, UnicodeEncodeError):
            raise UnserializableArgument("a name among the values is not valid Unicode") from problem
        raise PayloadTooLarge(f"the values are too large to encode: {problem}") from problem


def check_call(args: Any, kwargs: Any) -> None:
    """Refuse what could not be passed as `func(*args, **kwargs)`."""
    if not issubclass(kind_of(args), (tuple, list)):
        raise UnserializableArgument(f"args must be a tuple or list, not a {type(args).__name__}")
    if not issubclass(kind_of(kwargs), (dict, Mapping)) or not _TEXT.issuperset(map(type, kwargs)):
        raise UnserializableArgument("kwargs must be a dict whose keys are the names of arguments, as str")


def _packed_call(
    packer: Packer, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    packed_args: list[Any] = []
    packed_kwargs: dict[str, Any] = {}
    name: str | None = None
    try:
        for value in args:
            packed_args.append(packer.pack(value))
        for name, value in kwargs.items():
            packed_kwargs[name] = packer.pack(value)
    except Unfit as unfit:
        place = f"args[{len(packed_args)}]" if name is None else f"kwargs[{name!r}]"
        raise unfit.refusal(place) from None
    return packed_args, packed_kwargs


class MsgpackSerializer(DataSerializer):
    """The default: compact, fast, and data only."""

    _head = _MSGPACK_HEAD
    _packers = msgpack.PACKERS

    def _encode(self, packed: Any) -> bytes:
        return msgpack.encode(packed)

    def dumps(self, value: Any) -> bytes:
        """Encode one value, or raise `UnserializableArgument` that says which part of it does not fit."""
        if value is None:
            return _NONE
        if type(value) in _PLAIN:
            try:
                return _MSGPACK_HEAD + msgpack.encode(value)
            except (ValueError, OverflowError):
                pass  # the walk below finds a way, or words
        return super().dumps(value)

    def dump_call(self, func: Function | str | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Encode a call as data. A function travels as its path, so it must be importable."""
        if func is None and kind_of(args) is tuple and kind_of(kwargs) is dict and _plain(args, kwargs):
            try:
                return _MSGPACK_HEAD + msgpack.encode((args, kwargs))
            except (ValueError, OverflowError):
                pass  # as above
        return super().dump_call(func, args, kwargs)


def _plain(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    # For the handful of arguments that most calls have, loops are faster than operations on sets.
    for value in args:
        if type(value) not in _PLAIN:
            return False
    for name, value in kwargs.items():  # noqa: SIM110 - as above
        if type(name) is not str or type(value) not in _PLAIN:
            return False
    return True


class KeySerializer(MsgpackSerializer):
    """Only for comparing: equal values become equal bytes, in whatever order their dicts were filled."""

    _packers = msgpack.SORTING_PACKERS


class JsonSerializer(DataSerializer):
    """Data only and readable by people; slower than msgpack where values need tags."""

    _head = _JSON_HEAD
    _packers = json.PACKERS

    def _encode(self, packed: Any) -> bytes:
        return json.encode(packed)
