"""What every serializer promises, whoever wrote it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Function: TypeAlias = Callable[..., Any]
Call: TypeAlias = tuple[Function, list[Any], dict[str, Any]]
DecodedCall: TypeAlias = tuple[Function | str | None, list[Any], dict[str, Any]]


class Serializer(ABC):
    """Values to bytes and back.

    Promises: what `loads` gives equals what `dumps` took, in value and in type. What cannot be carried is
    refused by `dumps` with `UnserializableArgument`. Whatever the bytes are, `loads` answers or raises
    `CorruptRecord`. Safe to use from several threads.
    """

    @abstractmethod
    def dumps(self, value: Any) -> bytes:
        """Encode one value, such as a result."""

    @abstractmethod
    def loads(self, data: bytes) -> Any:
        """Decode what `dumps` gave."""

    @abstractmethod
    def dump_call(self, func: Function | str | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Encode a call. `func` is a callable, its path, or None if the path travels beside the payload."""

    @abstractmethod
    def load_call(self, data: bytes) -> Call:
        """Decode a call, ready for `func(*args, **kwargs)`. A function given by its path is imported."""

    def decode_call(self, data: bytes) -> DecodedCall:
        """Decode a call without looking for its function, so that the worker decides what may run."""
        return self.load_call(data)
