"""Makes one batch of many samples: each array is copied once, into its row of memory where results go.

collation = Collation(32)
collation.add(sample, key)   for each; the first one says what the others must look like
collation.finish()           the batch

Arrays and tensors become arrays with one dimension more, numbers an array, text and bytes a list; dicts,
tuples, lists and dataclasses are looked through and keep their type.
"""

from __future__ import annotations

import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from omniq.data.inside import empty
from omniq.errors import CollateFailed

ADVICE: Final = "make them alike in the dataset, or pass collate=, a function of a list of samples"
MAX_TOLD_CHARS: Final = 80


class Collation:
    """A batch that comes to be, of at most `size` samples."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self._size = size
        self._root: Column | None = None

    def add(self, sample: Any, key: object) -> None:
        """Raises CollateFailed, and then the batch is as it was before."""
        if self._root is None:
            self._root = column_for(sample, Place("", _told(key)), self._size)
        self._root.put(self.count, sample, key)
        self.count += 1

    def finish(self) -> Any:
        assert self._root is not None, "a batch has at least one sample"
        return self._root.finish(self.count)


class Place:
    """Where in a sample a column lies, and the key of the sample that it was made from."""

    def __init__(self, path: str, first: str) -> None:
        self.path = path
        self.first = first

    def inside(self, step: str) -> Place:
        return Place(self.path + step, self.first)

    @property
    def name(self) -> str:
        return f"sample{self.path}"

    def differs(self, key: object, found: str, wanted: str) -> CollateFailed:
        return CollateFailed(
            f"{self.name} of index {_told(key)} is {found}, while of index {self.first} it is {wanted}; "
            f"{ADVICE}"
        )


class Column(ABC):
    """The values of all samples in one place."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @abstractmethod
    def put(self, nth: int, value: Any, key: object) -> None:
        """The value of sample `nth`; what stood there before is overwritten."""

    @abstractmethod
    def finish(self, count: int) -> Any:
        """The first `count` values as one."""


class Arrays(Column):
    def __init__(self, place: Place, first: np.ndarray[Any, Any], size: int) -> None:
        super().__init__(place)
        if first.dtype.hasobject:
            raise CollateFailed(f"{place.name} of index {place.first} is an array of objects; {ADVICE}")
        self._rows = empty((size, *first.shape), first.dtype)
        self._shape = first.shape
        self._dtype = first.dtype

    def put(self, nth: int, value: Any, key: object) -> None:
        array: Any = value if is_a(value, np.ndarray) else as_array(value)
        if (
            array is None
            or array.shape != self._shape
            or (array.dtype != self._dtype and not np.can_cast(array.dtype, self._dtype, "safe"))
        ):
            found = described(value if array is None else array)
            raise self.place.differs(key, found, f"an array of shape {self._shape}, {self._dtype}")
        if type(array) is not np.ndarray and is_masked(array):
            raise CollateFailed(
                f"{self.place.name} of index {_told(key)} is a masked array, and its mask would be lost; "
                "fill it in the dataset (.filled()), or return data and mask as two arrays"
            )
        self._rows[nth] = array

    def finish(self, count: int) -> Any:
        return self._rows if count == len(self._rows) else self._rows[:count]


class Numbers(Column):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._values: list[Any] = []

    def put(self, nth: int, value: Any, key: object) -> None:
        if not is_number(value):
            raise self.place.differs(key, described(value), "a number")
        self._values[nth:] = [value]

    def finish(self, count: int) -> Any:
        array = np.array(self._values[:count])
        if array.dtype.hasobject:
            raise CollateFailed(f"{self.place.name} has numbers that no array can hold; {ADVICE}")
        return array


class Texts(Column):
    def __init__(self, place: Place, kind: type[object]) -> None:
        super().__init__(place)
        self._kind = kind
        self._values: list[Any] = []

    def put(self, nth: int, value: Any, key: object) -> None:
        if not isinstance(value, self._kind):
            raise self.place.differs(key, described(value), f"a {self._kind.__name__}")
        self._values[nth:] = [value]

    def finish(self, count: int) -> list[Any]:
        return self._values[:count]


class Parts(Column):
    """A sample that consists of others: `steps` lead to the columns, `open_` takes a value apart."""

    def __init__(
        self,
        place: Place,
        first: Any,
        size: int,
        kind: type[object],
        steps: Sequence[str],
        open_: Callable[[Any], Sequence[Any] | None],
        close: Callable[[list[Any]], Any],
    ) -> None:
        super().__init__(place)
        self._kind = kind
        self._open = open_
        self._close = close
        values = open_(first)
        assert values is not None
        self._columns = [
            column_for(value, place.inside(step), size) for step, value in zip(steps, values, strict=True)
        ]
        self._wanted = described(first)

    def put(self, nth: int, value: Any, key: object) -> None:
        values = self._open(value) if isinstance(value, self._kind) else None
        if values is None:
            raise self.place.differs(key, described(value), self._wanted)
        for column, part in zip(self._columns, values, strict=True):
            column.put(nth, part, key)

    def finish(self, count: int) -> Any:
        return self._close([column.finish(count) for column in self._columns])


def column_for(first: Any, place: Place, size: int) -> Column:
    """The column for values like this one."""
    if is_a(first, np.ndarray):
        return Arrays(place, first, size)
    if is_number(first):
        return Numbers(place)
    if is_a(first, (str, bytes)):
        return Texts(place, str if is_a(first, str) else bytes)
    if is_a(first, Mapping):
        return _mapping(first, place, size)
    if is_a(first, (tuple, list)):
        return _sequence(first, place, size)
    if is_dataclass(first):
        return _dataclass(first, place, size)
    array = as_array(first)
    if array is not None:
        return Arrays(place, array, size)
    raise CollateFailed(
        f"{place.name} of index {place.first} is {described(first)}, and nobody has said what a batch of "
        f"those is; return arrays, numbers or text, in dicts, tuples, lists or dataclasses, or {ADVICE}"
    )


def is_a(value: Any, kind: type[Any] | tuple[type[Any], ...]) -> bool:
    """Leaves the value what it is to a type checker: of what its parts are, nobody knows."""
    return isinstance(value, kind)


def is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_masked(array: Any) -> bool:
    masked: Any = sys.modules.get("numpy.ma")  # without which there are none
    return masked is not None and isinstance(array, masked.MaskedArray)


def is_number(value: Any) -> bool:
    # np.str_ and np.bytes_ are texts, too.
    return isinstance(value, (bool, int, float, complex, np.generic)) and not isinstance(value, (str, bytes))


def _mapping(first: Mapping[Any, Any], place: Place, size: int) -> Column:
    keys = tuple(first)

    def opened(value: Mapping[Any, Any]) -> list[Any] | None:
        if len(value) != len(keys) or any(key not in value for key in keys):
            return None
        return [value[key] for key in keys]

    def closed(columns: list[Any]) -> dict[Any, Any]:
        return dict(zip(keys, columns, strict=True))

    return Parts(place, first, size, Mapping, [f"[{key!r}]" for key in keys], opened, closed)


def _sequence(first: Sequence[Any], place: Place, size: int) -> Column:
    kind: Any = type(first)
    length = len(first)
    fields: tuple[str, ...] | None = getattr(kind, "_fields", None)
    steps = [f"[{nth}]" for nth in range(length)] if fields is None else [f".{name}" for name in fields]
    base: Any = tuple if isinstance(first, tuple) else list
    make: Any = base if fields is None else getattr(kind, "_make")  # noqa: B009 - of a named tuple

    def opened(value: Sequence[Any]) -> Sequence[Any] | None:
        return value if len(value) == length else None

    return Parts(place, first, size, base, steps, opened, make)


def _dataclass(first: Any, place: Place, size: int) -> Column:
    kind: Any = first.__class__
    names = [field.name for field in dataclasses.fields(first)]

    def opened(value: Any) -> list[Any]:
        return [getattr(value, name) for name in names]

    def closed(columns: list[Any]) -> Any:
        made = object.__new__(kind)  # not by its __init__, which may check what a sample must be
        for name, column in zip(names, columns, strict=True):
            object.__setattr__(made, name, column)
        return made

    return Parts(place, first, size, kind, [f".{name}" for name in names], opened, closed)


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """A tensor as an array over the same memory; None for what is none."""
    if type(value).__module__.partition(".")[0] != "torch" or not hasattr(value, "detach"):
        return None
    try:
        array: np.ndarray[Any, Any] = value.detach().cpu().numpy()
    except TypeError as exc:
        raise CollateFailed(f"a {value.dtype} tensor cannot be an array; convert it in the dataset") from exc
    return array


def described(value: Any) -> str:
    if is_a(value, np.ndarray):
        return f"an array of shape {value.shape}, {value.dtype}"
    if is_a(value, Mapping):
        return f"a {type(value).__name__} with the keys {_told(list(value))}"
    if is_a(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _told(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_TOLD_CHARS else f"{text[:MAX_TOLD_CHARS]}..."
