"""A call travels as a path and data, or, where both sides chose cloudpickle, as code."""

import functools
import operator
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omniq.errors import CorruptRecord, UnserializableArgument
from omniq.serializer import CloudpickleSerializer, MsgpackSerializer, Serializer
from tests.serializer import samples
from tests.serializer.samples import ALL, DATA_ONLY, Outer, Point, add, adder, same


@pytest.mark.parametrize("serializer", ALL, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    ("func", "args", "kwargs", "result"),
    [
        (add, (1,), {"b": 5}, 6),
        ("tests.serializer.samples.add", [2, 3], {}, 5),
        ("tests.serializer.samples:add", (2,), {}, 3),
        ("tests.serializer.samples.Outer.static", (4,), {}, 8),
        ("tests.serializer.samples:Outer.static", (4,), {}, 8),
        (Outer.static, (4,), {}, 8),
        (Outer.by_class, (), {}, "Outer"),
        (Outer.Inner, (1,), {}, Outer.Inner(1)),
        (len, ("abc",), {}, 3),
        (operator.add, ((1,), (2,)), {}, (1, 2)),
    ],
)
def test_a_call_arrives_ready_to_be_made(
    serializer: Serializer, func: Any, args: Any, kwargs: Any, result: Any
) -> None:
    func, back_args, back_kwargs = serializer.load_call(serializer.dump_call(func, args, kwargs))
    assert same(func(*back_args, **back_kwargs), result)


@pytest.mark.parametrize("serializer", ALL, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1, "a", None, 2.5, b"x", True), {"k": 1}),
        ((2**80,), {"k": -(2**80)}),  # leaves the fast path while it is encoded
        (([1, "x"], {"a": 1}), {"k": [1]}),
        (((1, 2), Point(1)), {"k": {1}}),
    ],
)
def test_arguments_arrive_as_they_were(serializer: Serializer, args: Any, kwargs: Any) -> None:
    func, back_args, back_kwargs = serializer.decode_call(serializer.dump_call(None, args, kwargs))
    assert func is None
    assert same((back_args, back_kwargs), (list(args), kwargs))


@pytest.mark.parametrize("serializer", ALL, ids=lambda s: type(s).__name__)
def test_a_list_of_arguments_and_any_mapping_will_do(serializer: Serializer) -> None:
    from types import MappingProxyType

    data = serializer.dump_call(None, [1, [2]], MappingProxyType({"k": "v"}))
    assert serializer.decode_call(data) == (None, [1, [2]], {"k": "v"})


def test_the_fast_and_the_slow_way_write_the_same_bytes() -> None:
    serializer = MsgpackSerializer()
    assert serializer.dump_call(None, (1, "a"), {"k": None}) == serializer.dump_call(
        None, [1, "a"], {"k": None}
    )


@pytest.mark.parametrize("serializer", DATA_ONLY, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    ("func", "words"),
    [
        (lambda: None, "<lambda>"),
        (adder(1), "<locals>"),
        (functools.partial(add, 1), "partial has no importable path"),
        (Outer().method, "is not the name of what was passed"),
        ("".join, "has no importable path"),
        (operator.itemgetter(1), "has no importable path"),
        (5, "5 is not callable"),
        ("", "must not be empty"),
    ],
)
def test_a_function_without_a_path_is_refused(serializer: Serializer, func: Any, words: str) -> None:
    with pytest.raises(UnserializableArgument) as caught:
        serializer.dump_call(func, (), {})
    assert words in str(caught.value)
    assert func == "" or "CloudpickleSerializer" in str(caught.value)


def test_a_function_of_a_script_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from omniq.serializer import MsgpackSerializer\n"
        "def work(): ...\n"
        "try:\n"
        "    MsgpackSerializer().dump_call(work, (), {})\n"
        "except TypeError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("__main__.work lives in a script, which a worker cannot import; pass")


def test_a_name_that_something_else_took_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = samples.add
    monkeypatch.setattr(samples, "add", adder(1))
    with pytest.raises(UnserializableArgument, match="is not the name of what was passed"):
        MsgpackSerializer().dump_call(original, (), {})


def test_cloudpickle_carries_functions_by_value() -> None:
    serializer = CloudpickleSerializer()
    func, args, kwargs = serializer.load_call(serializer.dump_call(adder(10), (5,), {}))
    assert func(*args, **kwargs) == 15
    func, args, kwargs = serializer.decode_call(serializer.dump_call(lambda x: x * 2, (5,), {}))
    assert callable(func)
    assert func(*args, **kwargs) == 10


def test_cloudpickle_refuses_what_is_no_function() -> None:
    with pytest.raises(UnserializableArgument, match="5 is not callable"):
        CloudpickleSerializer().dump_call(5, (), {})  # type: ignore[arg-type]


@pytest.mark.parametrize("serializer", ALL, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no_such_module_1.func", "cannot be imported (ModuleNotFoundError"),
        ("tests.serializer.no_such.func", "cannot be imported (AttributeError"),
        ("tests.serializer.samples.no_such", "cannot be imported (AttributeError"),
        ("tests.serializer.samples.not_callable", "is a int, not a function"),
        ("alone", "cannot be imported"),
        ("a..b", "is no path of a function"),
        ("os;system.x", "is no path of a function"),
        ("a.b\n", "is no path of a function"),
    ],
)
def test_a_path_that_leads_nowhere_says_so(serializer: Serializer, path: str, words: str) -> None:
    with pytest.raises(CorruptRecord) as caught:
        serializer.load_call(serializer.dump_call(path, (), {}))
    assert words in str(caught.value)


def test_a_module_that_fails_says_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_that_lacks_something.py").write_text("import no_such_dependency\n")
    (tmp_path / "module_that_raises.py").write_text("raise RuntimeError('not configured')\n")
    monkeypatch.syspath_prepend(tmp_path)
    serializer = MsgpackSerializer()
    for module, words in (
        ("module_that_lacks_something", "no_such_dependency"),
        ("module_that_raises", "RuntimeError: not configured"),
    ):
        with pytest.raises(CorruptRecord) as caught:
            serializer.load_call(serializer.dump_call(f"{module}.func", (), {}))
        assert words in str(caught.value)


@pytest.mark.parametrize("serializer", ALL, ids=lambda s: type(s).__name__)
def test_a_payload_without_a_function_cannot_be_loaded_as_a_call(serializer: Serializer) -> None:
    with pytest.raises(CorruptRecord, match="names no function"):
        serializer.load_call(serializer.dump_call(None, (), {}))


class Reversing(Serializer):
    """The least that somebody else's serializer has."""

    def dumps(self, value: Any) -> bytes:
        return bytes(reversed(value))

    def loads(self, data: bytes) -> Any:
        return bytes(reversed(data))

    def dump_call(self, func: Any, args: Any, kwargs: Any) -> bytes:
        return bytes(args)

    def load_call(self, data: bytes) -> Any:
        return sum, [list(data)], {}


def test_a_serializer_with_the_four_methods_is_enough() -> None:
    func, args, kwargs = Reversing().decode_call(b"\x01\x02")
    assert callable(func)
    assert func(*args, **kwargs) == 3
