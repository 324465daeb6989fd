"""What cannot be carried is refused when it is dumped, with its place, its type and what to do instead."""

import collections
import io
import os
import threading
import zoneinfo
from collections.abc import Callable
from datetime import datetime, time, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from omniq.errors import InvalidOption, UnserializableArgument
from omniq.serializer import CloudpickleSerializer, JsonSerializer, MsgpackSerializer, Serializer
from tests.serializer.samples import DATA_ONLY, Box, DictLike, Frozen, Job, Level, Money, Point, Right, nested

LOCK = threading.Lock()
LONE = "ok\ud800"


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Pair(NamedTuple):
    a: int
    b: int


class Zone(tzinfo):
    def utcoffset(self, dt: datetime | None, /) -> timedelta:
        return timedelta(0)


class MyZoneInfo(ZoneInfo):
    pass


def nameless_zone() -> ZoneInfo:
    for folder in zoneinfo.TZPATH:
        if (file := Path(folder) / "UTC").exists():
            return ZoneInfo.from_file(io.BytesIO(file.read_bytes()))
    pytest.skip("no files with time zones on this machine")


def unset_field() -> Job:
    job = Job("a")
    del job.max_runs
    return job


@pytest.mark.parametrize("serializer", DATA_ONLY, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (LOCK, ["value is a _thread.lock", "cannot carry", "CloudpickleSerializer"]),
        ([1, LOCK], ["value[1] is a _thread.lock"]),
        ({"a": (0, LOCK)}, ["value['a'][1] is a _thread.lock"]),
        ({3: LOCK}, ["value[3] is a _thread.lock"]),
        (Box(["x", [LOCK]]), ["value.items[1][0] is a _thread.lock"]),
        (Frozen(key={"k": LOCK}), ["value.key['k'] is a _thread.lock"]),
        ({(1, LOCK): 1}, ["value (a key)[1] is a _thread.lock"]),
        ({frozenset({LOCK})}, ["value (an element) (an element) is a _thread.lock"]),
        (object(), ["value is a object"]),
        (Ellipsis, ["value is a ellipsis"]),
        (len, ["value is a builtin_function_or_method"]),
        (int, ["value is a type"]),
        (Point, ["value is a type"]),
        (range(3), ["value is a range"]),
        (memoryview(b"x"), ["value is a memoryview"]),
        (ValueError("x"), ["value is a ValueError"]),
        (SimpleNamespace(), ["value is a types.SimpleNamespace"]),
        ((n for n in ()), ["value is a generator"]),
        (Text("x"), ["test_refused.Text, a subclass of str", "pass str(...) of it"]),
        ([Number(1)], ["value[0] is a ", "Number, a subclass of int"]),
        (Pair(1, 2), ["Pair, a subclass of tuple"]),
        (collections.OrderedDict(), ["value is a collections.OrderedDict, a subclass of dict"]),
        (collections.Counter("x"), ["Counter, a subclass of dict"]),
        (collections.defaultdict(list), ["defaultdict, a subclass of dict"]),
        ({Text("k"): 1}, ["value (a key) is a ", "subclass of str"]),
        (DictLike(), ["DictLike, a subclass of dict"]),
        (Right.READ | Right.WRITE, ["combination of flags", ".value"]),
        (unset_field(), ["value.max_runs cannot be read (AttributeError)"]),
        (datetime(2024, 1, 1, tzinfo=Zone()), ["time zone of type", "Zone", "ZoneInfo('Europe/Berlin')"]),
        (time(1, tzinfo=MyZoneInfo("UTC")), ["time zone of type", "MyZoneInfo"]),
        (LONE, ["value is text with a lone surrogate at position 2"]),
        (["fine", {"k": LONE}], ["value[1]['k'] is text with a lone surrogate"]),
        ({LONE: 1}, ["value (a key) is text with a lone surrogate"]),
        ({1: (LONE,)}, ["value[1][0] is text with a lone surrogate"]),
        (Path(os.fsdecode(b"\xff")), ["value is text with a lone surrogate"]),
        (nested(65), ["value is nested more than 64 levels deep"]),
        ([[(nested(63),)]], ["value is nested more than 64 levels deep"]),
        (Money(nested(64)), ["value is nested more than 64 levels deep"]),
    ],
)
def test_refused(serializer: Serializer, value: Any, words: list[str]) -> None:
    with pytest.raises(UnserializableArgument) as caught:
        serializer.dumps(value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("serializer", DATA_ONLY, ids=lambda s: type(s).__name__)
def test_a_zone_without_a_name_is_refused(serializer: Serializer) -> None:
    with pytest.raises(UnserializableArgument, match="time zone"):
        serializer.dumps(datetime(2024, 1, 1, tzinfo=nameless_zone()))


def cyclic_list() -> Any:
    value: list[Any] = [1]
    value.append({"back": value})
    return value


def cyclic_dataclass() -> Any:
    point = Point(1)
    point.y = (point,)
    return point


def cyclic_struct() -> Any:
    job = Job("a")
    job.max_runs = [job]
    return job


@pytest.mark.parametrize("serializer", DATA_ONLY, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("make", [cyclic_list, cyclic_dataclass, cyclic_struct])
def test_a_value_that_contains_itself_is_refused(serializer: Serializer, make: Callable[[], Any]) -> None:
    with pytest.raises(UnserializableArgument, match=r"args\[1\] refers back to itself"):
        serializer.dump_call(None, (1, make()), {})


@pytest.mark.parametrize("serializer", DATA_ONLY, ids=lambda s: type(s).__name__)
def test_what_is_shared_but_not_circular_is_carried(serializer: Serializer) -> None:
    shared = [1]
    assert serializer.loads(serializer.dumps([shared, [shared]])) == [[1], [[1]]]


@pytest.mark.parametrize("serializer", DATA_ONLY, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((LOCK,), {}, "args[0] is a _thread.lock"),
        ((1, [2, LOCK]), {}, "args[1][1] is a _thread.lock"),
        ((1,), {"to": 1, "body": Box([0, 1, 2, LOCK])}, "kwargs['body'].items[3] is a _thread.lock"),
        ((1, LONE), {}, "args[1] is text with a lone surrogate"),
        ((1,), {"a": LONE}, "kwargs['a'] is text with a lone surrogate"),
        ((nested(65),), {}, "args[0] is nested more than 64"),
        ("ab", {}, "args must be a tuple or list, not a str"),
        ((), {1: 2}, "kwargs must be a dict whose keys"),
        ((), {Text("a"): 2}, "kwargs must be a dict whose keys"),
        ((), [], "kwargs must be a dict whose keys"),
        ((), {LONE: 1}, "not valid Unicode"),
    ],
)
def test_a_refused_argument_is_named(serializer: Serializer, args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(UnserializableArgument) as caught:
        serializer.dump_call(None, args, kwargs)
    assert words in str(caught.value)


@pytest.mark.parametrize("serializer", DATA_ONLY, ids=lambda s: type(s).__name__)
def test_arguments_may_nest_as_deep_as_values(serializer: Serializer) -> None:
    _, args, kwargs = serializer.decode_call(serializer.dump_call(None, (nested(64),), {"k": nested(64)}))
    assert (args, kwargs) == ([nested(64)], {"k": nested(64)})


@pytest.mark.parametrize("serializer", DATA_ONLY, ids=lambda s: type(s).__name__)
def test_the_deepest_list_may_hold_anything_that_is_no_container(serializer: Serializer) -> None:
    value: list[Any] = [Level.LOW, time(1), 2**70, 1j, Path("a")]
    for _ in range(63):
        value = [value]
    assert serializer.loads(serializer.dumps(value)) == value


def test_the_refusal_is_both_a_bad_option_and_a_type_error() -> None:
    with pytest.raises(InvalidOption) as caught:
        MsgpackSerializer().dumps(LOCK)
    assert isinstance(caught.value, TypeError)


def test_the_message_does_not_show_the_values() -> None:
    with pytest.raises(UnserializableArgument) as caught:
        JsonSerializer().dump_call(None, ("s3cret", {"password": ["s3cret", LOCK]}), {})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((1, LOCK), {}, "args[1] is a _thread.lock, which cloudpickle cannot carry"),
        ((), {"a": [LOCK]}, "kwargs['a'] is a builtins.list"),
        ("ab", {}, "args must be a tuple or list"),
        ((), {1: 2}, "kwargs must be a dict whose keys"),
    ],
)
def test_cloudpickle_names_the_argument_too(args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(UnserializableArgument) as caught:
        CloudpickleSerializer().dump_call(print, args, kwargs)
    assert words in str(caught.value)


def test_cloudpickle_refuses_what_it_cannot_carry() -> None:
    with pytest.raises(UnserializableArgument, match=r"value is a _thread\.lock"):
        CloudpickleSerializer().dumps(LOCK)
