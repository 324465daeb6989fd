"""Whatever the bytes are: a value or `CorruptRecord`, soon, in little memory; nothing is run or imported."""

import contextlib
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from omniq.errors import CorruptRecord
from omniq.serializer import CloudpickleSerializer, Encoded, JsonSerializer, MsgpackSerializer, Serializer
from tests.serializer.samples import ALL, DATA_ONLY, Colour, Frozen, Job, Level, Money, Point

MSGPACK = MsgpackSerializer()
GOOD = MSGPACK.dump_call(None, (1, 2), {})
GOOD_JSON = JsonSerializer().dump_call(None, (1, 2), {})

pack = msgspec.msgpack.encode


def m(*parts: bytes) -> bytes:
    return b"\x01m\x00" + b"".join(parts)


def j(text: str) -> bytes:
    return b"\x01j\x00" + text.encode()


def tagged(code: int, payload: Any) -> bytes:
    return m(pack(Ext(code, pack(payload))))


def tag(name: Any, payload: Any) -> bytes:
    return b"\x01j\x00" + msgspec.json.encode({"$omniq": [name, payload]})


# --- the envelope ----------------------------------------------------------------------------------


@pytest.mark.parametrize("serializer", ALL, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut off after 0 bytes"),
        (b"\x01m", "cut off after 2 bytes"),
        (b"\x02" + GOOD[1:], "format version 2, this OmniQ reads version 1; upgrade"),
        (b"\x00" + GOOD[1:], "format version 0"),
        (b"\x80\x04\x95rest of a pickle", "format version 128"),
        (b'{"a": 1}', "format version 123"),
        (b"\x01x\x00" + GOOD[3:], "unknown codec 'x'"),
        (b"\x01\xff\x00" + GOOD[3:], "unknown codec"),
        (b"\x01m\x20" + b"s" * 32 + GOOD[3:], "signed payloads are not supported by this version"),
        (b"\x01j\x01", "signed payloads are not supported by this version"),
        (GOOD[:3], "cannot be decoded"),
        (GOOD[:-1], "truncated"),
        (GOOD + b"\x00", "trailing"),
        (GOOD_JSON + b"]", "trailing"),
        (GOOD_JSON[:-1], "truncated"),
        ("text", "a payload is bytes, not a str"),
        (None, "a payload is bytes, not a NoneType"),
        ([1, 2, 3], "a payload is bytes, not a list"),
    ],
)
def test_a_wrong_envelope_says_what_is_wrong(serializer: Serializer, data: Any, words: str) -> None:
    for read in (serializer.loads, serializer.decode_call, serializer.load_call):
        with pytest.raises(CorruptRecord) as caught:
            read(data)
        assert words in str(caught.value)


def test_a_value_is_not_a_call() -> None:
    for serializer in DATA_ONLY:
        for value in (None, 5, [], [1, 2], [[], []], [[], {}, 5], [[], {}, "a.b", 1], "text"):
            with pytest.raises(CorruptRecord):
                serializer.decode_call(serializer.dumps(value))


def test_keyword_arguments_have_names() -> None:
    with pytest.raises(CorruptRecord):
        MSGPACK.decode_call(m(pack([[], {1: 2}])))


def test_the_trailing_bytes_of_a_pickle_are_seen() -> None:
    serializer = CloudpickleSerializer()
    data = serializer.dumps([1] * 100_000)
    assert serializer.loads(data) == [1] * 100_000
    with pytest.raises(CorruptRecord, match="goes on after its end"):
        serializer.loads(data + b"\x00")


@pytest.mark.parametrize(
    "value", [5, (1, 2), (None, [], {}, 1), (5, [], {}), (None, 5, {}), (None, [], 5), "abc"]
)
def test_a_pickle_that_holds_no_call_is_refused(value: Any) -> None:
    with pytest.raises(CorruptRecord):
        CloudpickleSerializer().decode_call(CloudpickleSerializer().dumps(value))


class Unloadable:
    def __reduce__(self) -> Any:
        return (int, ("no number",))


def test_a_pickle_that_does_not_load_is_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="ValueError"):
        CloudpickleSerializer().loads(CloudpickleSerializer().dumps(Unloadable()))


# --- what bodies can hold ----------------------------------------------------------------------------


@pytest.mark.parametrize("serializer", ALL, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    "data",
    [
        m(b"\x91" * 1_000_000),
        m(b"\x91" * 70, b"\xc0"),  # only as deep as a list that was never written
        m(b"\x81\xa1k" * 70, b"\xc0"),
        m(b"\xdc\x00\x01" * 70, b"\xc0"),
        m(b"\xdd\x00\x00\x00\x01" * 70, b"\xc0"),
        m(b"\xde\x00\x01\xa1k" * 70, b"\xc0"),
        m(b"\xdf\x00\x00\x00\x01\xa1k" * 70, b"\xc0"),
        m(b"\xdd\xff\xff\xff\xff"),
        m(b"\xdd\x3f\xff\xff\xff" * 1000),
        m(b"\xdc\xff\xff" * 100_000),
        m(b"\xdf\xff\xff\xff\xff"),
        m(b"\xdb\xff\xff\xff\xff"),
        m(b"\xc9\xff\xff\xff\xff\x04"),
        m(b"\xc1"),
        m(b"\x81\x90\x01"),  # fine in itself: an empty list as a key becomes ()
        m(b"\xa1\xff"),
        m(b"\xc7\x0c\xff" + b"\xff" * 12),
        m(pack(Ext(99, b""))),
        m(pack(Ext(-5, b""))),
        m(pack(Ext(4, b""))),
        m(pack(Ext(4, b"\xc0\xc0"))),
        tagged(1, "zz"),
        tagged(1, "1_0"),
        tagged(1, 5),
        tagged(1, ""),
        tagged(2, [1]),
        tagged(2, ["1", b"2"]),
        tagged(2, [2**63, "x"]),
        tagged(3, 10**9),
        tagged(3, "text"),
        tagged(4, "text"),
        tagged(4, {"a": 1}),
        tagged(5, [[1]]),
        tagged(5, [{}]),
        tagged(6, "ab"),
        tagged(7, [1]),
        tagged(7, [[1], 2]),
        tagged(7, {"a": 1}),
        tagged(8, ["2024-01-01", 0]),
        tagged(8, ["2024-01-01", 0, "../../../etc/passwd"]),
        tagged(8, ["2024-01-01", 0, "/etc/passwd"]),
        tagged(8, ["2024-01-01", 0, "No/Such_Zone"]),
        tagged(8, ["2024-01-01", 0, "Europe"]),
        tagged(8, ["2024-01-01", 0, ""]),
        tagged(8, ["2024-01-01", 0, "zone.tab"]),
        tagged(8, ["2024-01-01", 0, "zone\0"]),
        tagged(8, ["2024-01-01", 0, 10**18]),
        tagged(8, ["2024-01-01", 0, 2**63]),
        tagged(8, ["2024-01-01", 0, [1, 2]]),
        tagged(8, ["2024-01-01", 2, None]),
        tagged(8, ["2024-13-01", 0, None]),
        tagged(8, [5, 0, None]),
        tagged(9, 5),
        tagged(9, "2024-02-30"),
        tagged(10, ["25:00", 0, None]),
        tagged(11, [10**12, 0, 0]),
        tagged(11, ["1", 0, 0]),
        tagged(11, [float("nan"), 0, 0]),
        tagged(12, "12"),
        tagged(12, 5),
        tagged(12, "g" * 32),
        tagged(13, "one"),
        tagged(13, 1.5),
        tagged(13, "1e99999999999999999999"),
        tagged(14, ["Path", "a"]),
        tagged(14, ["PosixPath"]),
        tagged(14, ["PosixPath", 5]),
        tagged(14, [["PosixPath"], "a"]),
        tagged(15, None),
        tagged(16, ["a", {}, 1]),
        tagged(17, {}),
        j("[" * 1_000_000),
        j("[" * 70 + "]" * 70),
        j('{"a":' * 1_000_000),
        j('{"$omniq":["tuple",[' * 100_000),
        j("9" * 10_000_000),
        j("-" + "9" * 10_000_000),
        j("1e999999999"),
        j("NaN"),
        j('"\\ud800"'),
        j("\ufeff1"),
        j("{'a': 1}"),
        j('{"$omniq": 5}'),
        j('{"$omniq": "ab"}'),
        j('{"$omniq": ["tuple"]}'),
        j('{"$omniq": ["tuple", [], 1]}'),
        j('{"$omniq": ["tuple", []], "more": 1}'),
        j('{"$omniq": ["no such", []]}'),
        j('{"$omniq": [["tuple"], []]}'),
        j('{"$omniq": {"tuple": []}}'),
        tag("float", "1.5"),
        tag("float", None),
        tag("bytes", "a"),
        tag("bytes", "a b="),
        tag("bytes", "Y!Q=="),
        tag("bytes", "ü"),
        tag("bytes", 5),
        tag("bytearray", "YQ=="),
        tag("int", "9" * 10 + "."),
        tag("complex", ["1", {}]),
        tag("dict", [1]),
        tag("set", [[]]),
    ],
    ids=lambda data: (data[1:2] + data[3:20]).hex(),
)
def test_a_hostile_body_is_corrupt_and_nothing_else(serializer: Serializer, data: bytes) -> None:
    if data == m(b"\x81\x90\x01"):
        assert serializer.loads(data) == {(): 1}
    else:
        with pytest.raises(CorruptRecord):
            serializer.loads(data)
    with pytest.raises(CorruptRecord):
        serializer.decode_call(data)


@pytest.mark.parametrize("code", range(1, 18))
def test_no_tag_nests_without_end(code: int) -> None:
    data = pack(None)
    for _ in range(500):
        data = pack(Ext(code, data))
    with pytest.raises(CorruptRecord):
        MSGPACK.loads(m(data))


@pytest.mark.parametrize(
    "data",
    [
        m(b"\x92\x91", b"\x91" * 65, b"\xc0\x80"),
        m(b"\x92\x90\x81\xa1k", b"\x91" * 65, b"\xc0"),
        j("[[" + "[" * 65 + "]" * 65 + "],{}]"),
        j('[[],{"k":' + "[" * 65 + "]" * 65 + "}]"),
    ],
    ids=["msgpack args", "msgpack kwargs", "json args", "json kwargs"],
)
def test_the_arguments_of_a_call_are_bounded_in_depth(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match="nests more than 64 levels deep"):
        MSGPACK.decode_call(data)


def test_tuples_in_tuples_are_bounded_like_lists() -> None:
    data = b"\x90"
    for _ in range(64):
        data = b"\x91" + pack(Ext(4, data))
    with pytest.raises(CorruptRecord, match="nests more than 64 levels deep"):
        MSGPACK.loads(m(data))


@pytest.mark.parametrize(
    "data",
    [
        tagged(1, "f" * 8_000_000),  # more than ten million digits, but in a base that takes linear time
        tag("int", "f" * 8_000_000),
        tagged(13, "9" * 10_000_000),
        tag("decimal", "9" * 10_000_000),
    ],
    ids=["msgpack int", "json int", "msgpack decimal", "json decimal"],
)
def test_a_number_of_ten_million_digits_is_read_in_linear_time(data: bytes) -> None:
    begin = time.process_time()
    MSGPACK.loads(data)
    assert time.process_time() - begin < 5  # decimal digits to int would take minutes


BOMBS = """
import resource, sys
from omniq.serializer import MsgpackSerializer
from omniq.errors import CorruptRecord
limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + 64 * 1024
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for data in (
    b"\\x01m\\x00" + b"\\xdd\\xff\\xff\\xff\\xff" * 200_000,
    b"\\x01m\\x00" + b"\\xdd\\x00\\xff\\xff\\xff" * 200_000,
    b"\\x01m\\x00" + b"\\xdc\\xff\\xff" * 300_000,
    b"\\x01m\\x00" + b"\\xdf\\xff\\xff\\xff\\xff" * 200_000,
    b"\\x01m\\x00" + b"\\xc9\\x00\\x0f\\x00\\x00\\x04" * 100_000,
    b"\\x01m\\x00" + b"\\x91" * 1_000_000,
    b"\\x01j\\x00" + b"[" * 1_000_000,
    b"\\x01j\\x00" + b'{"$omniq":["tuple",[' * 50_000,
    b"\\x01j\\x00" + b"9" * 1_000_000,
):
    for read in (MsgpackSerializer().loads, MsgpackSerializer().decode_call):
        try:
            read(data)
        except CorruptRecord:
            print("corrupt")
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < limit, "more than 64 MiB"
"""


def test_bombs_of_a_megabyte_cost_little_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOMBS], capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["corrupt"] * 18


SEEDS = [
    serializer.dump_call(
        "a.b",
        (1, "x", [1.5, None], (True, b"y"), {1: {2}}, Point(1, Money(2)), Job(Colour.RED), Level.LOW),
        {"k": Frozen(key=2**70), "$omniq": {"$omniq": (1,)}},
    )
    for serializer in DATA_ONLY
]


def answers_or_is_corrupt(data: bytes) -> None:
    for serializer in DATA_ONLY:
        for read in (serializer.loads, serializer.decode_call):
            with contextlib.suppress(CorruptRecord):
                read(data)


@given(head=st.sampled_from([b"\x01m\x00", b"\x01j\x00", b""]), body=st.binary(max_size=200))
def test_random_bytes(head: bytes, body: bytes) -> None:
    answers_or_is_corrupt(head + body)


@given(seed=st.sampled_from(SEEDS), data=st.data())
def test_flipped_and_cut_bytes(seed: bytes, data: st.DataObject) -> None:
    damaged = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(3, len(seed) - 1))] = data.draw(st.integers(0, 255))
    begin = data.draw(st.integers(3, len(seed)))
    end = data.draw(st.integers(begin, len(seed)))
    answers_or_is_corrupt(bytes(damaged))
    answers_or_is_corrupt(seed[:3] + bytes(damaged[begin:end]))


@pytest.mark.parametrize("seed", SEEDS, ids=["msgpack", "json"])
def test_every_single_byte_flipped_and_every_cut(seed: bytes) -> None:
    for position in range(len(seed)):
        for bit in range(8):
            damaged = bytearray(seed)
            damaged[position] ^= 1 << bit
            answers_or_is_corrupt(bytes(damaged))
        with pytest.raises(CorruptRecord):
            MSGPACK.loads(seed[:position])


# --- code ------------------------------------------------------------------------------------------


class Canary:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (Path.touch, (self.file,))


@pytest.mark.parametrize("serializer", DATA_ONLY, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps], ids=["pickle", "cloudpickle"])
@pytest.mark.parametrize("head", [b"\x01c\x00", b"\x01m\x00", b"\x01j\x00", b"\x01c\x10", b""])
def test_a_pickle_is_never_run_by_default(
    serializer: Serializer, dumps: Any, head: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "canary"
    data = head + dumps((Canary(file), [], {}))
    for read in (serializer.loads, serializer.decode_call, serializer.load_call):
        with pytest.raises(CorruptRecord):
            read(data)
    assert not file.exists()
    CloudpickleSerializer().loads(b"\x01c\x00" + dumps(Canary(file)))
    assert file.exists(), "the canary does not sing at all"


@pytest.mark.parametrize("serializer", DATA_ONLY, ids=lambda s: type(s).__name__)
def test_code_is_refused_with_the_way_out(serializer: Serializer) -> None:
    data = CloudpickleSerializer().dumps(1)
    with pytest.raises(CorruptRecord, match=r"start the worker with serializer=CloudpickleSerializer\(\)"):
        serializer.loads(data)


IMPORTS = """
import sys
from omniq.serializer import MsgpackSerializer
assert not {"pickle", "cloudpickle"} & set(sys.modules), "pickle is imported by default"
from omniq.errors import CorruptRecord
import zoneinfo
data = [bytes.fromhex(text) for text in sys.argv[1:]]
MsgpackSerializer().decode_call(MsgpackSerializer().dump_call("os.path.join", (1, (2,)), {}))
before = set(sys.modules)
for payload in data:
    for read in (MsgpackSerializer().loads, MsgpackSerializer().decode_call):
        try:
            read(payload)
        except CorruptRecord:
            pass
print(set(sys.modules) - before)
"""


def test_reading_imports_nothing() -> None:
    payloads = [
        *SEEDS,
        CloudpickleSerializer().dump_call(lambda: 1, (), {}),
        MSGPACK.dump_call("antigravity.fly", (), {}),
        tagged(15, ["antigravity:Comic", "X"]),
        tagged(16, ["tkinter.messagebox:Message", {}]),
        tagged(17, ["this:That", {}]),
        tag("dataclass", ["antigravity:Comic", {}]),
    ]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *(payload.hex() for payload in payloads)],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "set()"


def test_the_message_for_damaged_bytes_does_not_show_them() -> None:
    for data in (tagged(9, "s3cret-s3cret"), tagged(14, ["s3cret", "x"]), tag("float", "s3cret")):
        with pytest.raises(CorruptRecord) as caught:
            MSGPACK.loads(data)
        assert "s3cret" not in str(caught.value)


# --- payloads that are only shown -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (MSGPACK.dumps("s3cret"), "Encoded('msgpack', 10 bytes)"),
        (JsonSerializer().dumps("s3cret"), "Encoded('json', 11 bytes)"),
        (b"\x01c\x00s3cret", "Encoded('cloudpickle', 9 bytes)"),
        (b"s3cret", "Encoded('unknown', 6 bytes)"),
        (b"", "Encoded('unknown', 0 bytes)"),
    ],
)
def test_an_encoded_payload_shows_codec_and_size_only(data: bytes, shown: str) -> None:
    encoded = Encoded.of(data)
    assert repr(encoded) == str(encoded) == shown
    assert encoded.payload == data
    with pytest.raises(AttributeError):
        encoded.codec = "x"  # type: ignore[misc]
