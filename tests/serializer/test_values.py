"""Values come back equal, and of the same type, wherever they stand."""

import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniq.serializer import Encoded, JsonSerializer, MsgpackSerializer, Serializer
from tests.serializer.samples import (
    ALL,
    DATA_ONLY,
    Box,
    Colour,
    Frozen,
    Job,
    Level,
    Money,
    Outer,
    Point,
    Right,
    Word,
    same,
)

NAN = float("nan")
BERLIN = ZoneInfo("Europe/Berlin")

VALUES: list[Any] = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    2**64,  # one more than msgpack can
    -(2**63) - 1,
    10**5000,  # more digits than int() takes
    -(10**5000),
    1.5,
    -0.0,
    1e308,
    5e-324,
    NAN,
    float("inf"),
    -float("inf"),
    1 + 2j,
    complex(-0.0, NAN),
    complex(float("inf"), -0.0),
    "",
    "text with \x00, ü, 𝄞 and \u2028",
    b"",
    b"\x00\xff",
    bytearray(b"\x00\xff"),
    [],
    (),
    {},
    set(),
    frozenset(),
    [1, [2, (3, {4: {5}})]],
    (1, (2, [3])),
    {1, "one", 1.5, None, (1, 2)},
    frozenset({frozenset({1}), b"x"}),
    {"b": 1, "a": 2},
    {1: "a", None: "b", 2.5: "c", b"k": "d", (1, "x"): "e", frozenset({1}): "f"},
    {2**70: 2**70, date(2024, 1, 1): uuid.UUID(int=7), Money(1): Money(2), Level.LOW: 1, Path("a"): 2},
    {NAN: NAN},
    {"$omniq": 1},
    {"$omniq": ["tuple", [1]], "other": {"$omniq": {"$omniq": (1,)}}},
    ["$omniq", {"x": "$omniq"}],
    datetime(2024, 2, 29, 12, 30, 15, 123456),  # noqa: DTZ001 - naive is a value of its own
    datetime(2024, 10, 27, 2, 30, fold=1),  # noqa: DTZ001
    datetime.min,  # noqa: DTZ901
    datetime.max,  # noqa: DTZ901
    datetime(2024, 1, 1, tzinfo=UTC),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-5, minutes=30))),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(seconds=1, microseconds=1))),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
    datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
    datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
    date(1, 1, 1),
    date(9999, 12, 31),
    time(23, 59, 59, 999999),
    time(1, 2, fold=1, tzinfo=BERLIN),
    time(1, 2, tzinfo=timezone(timedelta(hours=2))),
    timedelta(days=-1, microseconds=1),
    timedelta.max,
    uuid.UUID("12345678-1234-5678-1234-567812345678"),
    Decimal("1.10"),
    Decimal("-0"),
    Decimal("1E+1000"),
    Decimal("-Infinity"),
    Decimal("NaN"),
    Decimal("sNaN123"),
    Path("a/b.txt"),
    Path("/"),
    PurePosixPath("a//b"),
    PureWindowsPath(r"c:\a\b"),
    Colour.RED,
    Colour.GREEN,
    Colour.ROUGE,
    Level.HIGH,
    Word.YES,
    Right.WRITE,
    Point(1, (2, Point(None, Colour.RED))),
    Money(Decimal("1.5")),
    Box([1, Box({2})]),
    Outer.Inner(1),
    Job("a", max_runs=(1, 2)),
    Job(Job("inner")),
    Frozen(key=(1,), parts=[Point(1)]),
    Encoded("msgpack", b"x"),
]


@pytest.mark.parametrize("serializer", ALL, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "place",
    [
        lambda value: value,
        lambda value: [value],
        lambda value: {"key": (value, 1)},
        lambda value: Point({"deep": [value]}, 2),
    ],
    ids=["alone", "in a list", "in a tuple in a dict", "in a dataclass"],
)
def test_a_value_comes_back_as_it_was(
    serializer: Serializer, value: Any, place: Callable[[Any], Any]
) -> None:
    back = serializer.loads(serializer.dumps(place(value)))
    assert same(back, place(value)), back


@pytest.mark.parametrize("writer", DATA_ONLY, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("reader", ALL, ids=lambda s: type(s).__name__)
def test_every_serializer_reads_all_data_only_payloads(writer: Serializer, reader: Serializer) -> None:
    value = {"when": datetime(2024, 1, 1, tzinfo=UTC), "what": [Point(1, b"x"), (Colour.RED,)]}
    assert same(reader.loads(writer.dumps(value)), value)
    func, args, kwargs = reader.decode_call(writer.dump_call("a.b", (value,), {"k": value}))
    assert func == "a.b"
    assert same((args, kwargs), ([value], {"k": value}))


@pytest.mark.parametrize("serializer", ALL, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("convert", [bytes, bytearray, memoryview])
def test_a_payload_may_be_any_bytes(serializer: Serializer, convert: Any) -> None:
    assert serializer.loads(convert(serializer.dumps([1, "a" * 100]))) == [1, "a" * 100]


@pytest.mark.parametrize("serializer", DATA_ONLY, ids=lambda s: type(s).__name__)
def test_equal_sets_become_equal_bytes(serializer: Serializer) -> None:
    numbers = [8, 16, 24, 0]  # these collide in a set of eight places, so their order depends on history
    forward: set[int] = set()
    backward: set[int] = set()
    for number in numbers:
        forward.add(number)
    for number in reversed(numbers):
        backward.add(number)
    assert list(forward) != list(backward)
    assert serializer.dumps(forward) == serializer.dumps(backward)


def test_none_costs_nothing() -> None:
    serializer = MsgpackSerializer()
    assert serializer.dumps(None) is serializer.dumps(None)


def test_json_stays_readable() -> None:
    data = JsonSerializer().dump_call("a.b", (1, "x", None, 1.5), {"when": date(2024, 1, 2)})
    assert data == b'\x01j\x00[[1,"x",null,1.5],{"when":{"$omniq":["date","2024-01-02"]}},"a.b"]'


def test_stored_msgpack_payloads_stay_readable() -> None:
    """Bytes as they lie in stores. If this fails, tasks that wait there can no longer be read."""
    stored = bytes.fromhex(
        "016d009391dc0012c71201b13130303030303030303030303030303030c7130292cb3ff0000000000000cb4000000000"
        "000000c70303c40178d5049101d5059101d5069101c7060792d504910102c72b0893ba323032342d30312d3032543033"
        "3a30343a30352e30303030303601ad4575726f70652f4265726c696ec7200893b3323032342d30312d30325430303a30"
        "303a30300092ced693a400a3434554c70b09aa323032342d30312d3032c70c0a93a830313a30323a303000c0d60b9301"
        "0203c7220cd9203030303030303030303030303030303030303030303030303030303030303031d60da3312e30c7110e"
        "92ad50757265506f73697850617468a161c7250f92bf74657374732e73657269616c697a65722e73616d706c65733a43"
        "6f6c6f7572a3524544c7271092be74657374732e73657269616c697a65722e73616d706c65733a506f696e7482a17801"
        "a17900c7341192bc74657374732e73657269616c697a65722e73616d706c65733a4a6f6282a86a6f625f6e616d65a161"
        "a86d61785f72756e730381a16bc0a3612e62"
    )
    func, [values_], kwargs = MsgpackSerializer().decode_call(stored)
    assert (func, kwargs) == ("a.b", {"k": None})
    assert same(
        values_,
        [
            2**64,
            1 + 2j,
            bytearray(b"x"),
            (1,),
            {1},
            frozenset({1}),
            {(1,): 2},
            datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=BERLIN, fold=1),
            datetime(2024, 1, 2, tzinfo=timezone(timedelta(hours=1), "CET")),
            date(2024, 1, 2),
            time(1, 2),
            timedelta(1, 2, 3),
            uuid.UUID(int=1),
            Decimal("1.0"),
            PurePosixPath("a"),
            Colour.RED,
            Point(1),
            Job("a"),
        ],
    )


# --- whatever Hypothesis thinks of ----------------------------------------------------------------

zones = st.one_of(
    st.none(),
    st.builds(
        timezone,
        st.timedeltas(min_value=timedelta(hours=-23, minutes=-59), max_value=timedelta(hours=23, minutes=59)),
    ),
    st.sampled_from([BERLIN, ZoneInfo("UTC"), ZoneInfo("America/New_York")]),
)
text = st.text(st.characters(exclude_categories=["Cs"]))
hashable_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**130), max_value=2**130),
    st.floats(),
    st.complex_numbers(),
    text,
    st.binary(),
    st.datetimes(timezones=zones, allow_imaginary=True),
    st.dates(),
    st.times(timezones=st.none()),
    st.timedeltas(),
    st.uuids(),
    st.decimals(),
    st.builds(PurePosixPath, text.filter(lambda part: "\0" not in part)),
    st.sampled_from([*Colour, *Level, *Word, *Right]),
)
# Signalling NaNs refuse to be hashed, so they can be values but not keys.
quiet = hashable_leaves.filter(lambda value: not (isinstance(value, Decimal) and value.is_snan()))
hashables = st.recursive(
    quiet,
    lambda inner: st.one_of(
        st.tuples(inner, inner), st.frozensets(inner, max_size=3), st.builds(Money, inner, inner)
    ),
    max_leaves=5,
)
values = st.recursive(
    st.one_of(hashable_leaves, st.builds(bytearray, st.binary())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.sets(hashables, max_size=4),
        st.frozensets(hashables, max_size=4),
        st.dictionaries(text | st.just("$omniq"), inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=4),
        st.builds(Point, inner, inner),
        st.builds(Job, inner, inner),
        st.builds(Frozen, key=inner, parts=inner),
    ),
    max_leaves=20,
)


@given(value=values)
def test_any_value_comes_back_as_it_was(value: Any) -> None:
    for serializer in DATA_ONLY:
        back = serializer.loads(serializer.dumps(value))
        assert same(back, value), (serializer, back)


@given(args=st.lists(values, max_size=4).map(tuple), kwargs=st.dictionaries(text, values, max_size=3))
def test_any_call_comes_back_as_it_was(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for serializer in DATA_ONLY:
        func, back_args, back_kwargs = serializer.decode_call(serializer.dump_call(None, args, kwargs))
        assert func is None
        assert same(back_args, list(args))
        assert same(back_kwargs, kwargs)
