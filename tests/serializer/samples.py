"""Classes and functions that the serializer's tests send around, and an equality that looks at types."""

import dataclasses
import math
from collections.abc import Callable
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Any, Generic, TypeVar

import msgspec

from omniq.serializer import CloudpickleSerializer, JsonSerializer, MsgpackSerializer, Serializer

DATA_ONLY: list[Serializer] = [MsgpackSerializer(), JsonSerializer()]
ALL: list[Serializer] = [*DATA_ONLY, CloudpickleSerializer()]

T = TypeVar("T")


class Colour(Enum):
    RED = "r"
    GREEN = ("g", 2)
    ROUGE = "r"  # an alias: the same member as RED


class Level(IntEnum):
    LOW = 1
    HIGH = 9


class Word(StrEnum):
    YES = "yes"


class Right(Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Money:
    amount: Any
    currency: Any = "EUR"


@dataclasses.dataclass
class Guarded:
    """Everything of it that could run does something that a test can see."""

    value: Any
    seen: Any = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        raise AssertionError("__post_init__ was run")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("__setattr__ was run")


@dataclasses.dataclass
class Box(Generic[T]):
    items: T


@dataclasses.dataclass
class DictLike(dict):  # type: ignore[type-arg]
    extra: int = 0


class Job(msgspec.Struct, rename="camel"):
    job_name: Any
    max_runs: Any = 3


class Frozen(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    key: Any
    parts: Any = ()


class Positive(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("must not be negative")


class Outer:
    @dataclasses.dataclass
    class Inner:
        value: Any

    @staticmethod
    def static(value: int) -> int:
        return value * 2

    @classmethod
    def by_class(cls) -> str:
        return cls.__name__

    def method(self) -> None: ...


def add(a: int, b: int = 1) -> int:
    return a + b


def adder(step: int) -> Callable[[int], int]:
    def add_step(value: int) -> int:
        return value + step

    return add_step


not_callable = 5


def same(left: Any, right: Any) -> bool:
    """Equal in value and type, all the way down; nan equals nan, and 0.0 does not equal -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Enum):
        return left is right
    if isinstance(left, float):
        return repr(left) == repr(right)
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, set | frozenset):
        return len(left) == len(right) and all(any(same(a, b) for b in right) for a in left)
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if dataclasses.is_dataclass(left):
        return all(
            same(getattr(left, field.name), getattr(right, field.name)) for field in dataclasses.fields(left)
        )
    if isinstance(left, msgspec.Struct):
        return all(same(getattr(left, name), getattr(right, name)) for name in left.__struct_fields__)
    if hasattr(left, "tzinfo") and hasattr(left, "fold"):
        return same_moment(left, right)
    if hasattr(left, "is_nan") and left.is_nan():
        return str(left) == str(right)
    return bool(left == right)


def same_moment(left: Any, right: Any) -> bool:
    zones = type(left.tzinfo) is type(right.tzinfo) and str(left.tzinfo) == str(right.tzinfo)
    offsets = left.utcoffset() == right.utcoffset() and left.fold == right.fold
    return zones and offsets and bool(left.replace(tzinfo=None) == right.replace(tzinfo=None))


def nested(depth: int) -> list[Any]:
    """A list inside a list, `depth` lists in all."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


assert not same(1, True) and not same(0.0, -0.0) and same(math.nan, math.nan) and not same([1], (1,))
