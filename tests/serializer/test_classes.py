"""Classes travel by name. A payload never imports anything, and never runs the code of a dataclass."""

import dataclasses
import enum
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from omniq.errors import CorruptRecord, InvalidOption
from omniq.serializer import MsgpackSerializer, Serializer, register
from tests.serializer.samples import DATA_ONLY, Colour, Guarded, Job, Level, Point, Positive

MSGPACK = MsgpackSerializer()
SAMPLES = "tests.serializer.samples"


def forged(kind: str, name: Any, values: Any) -> bytes:
    """A msgpack payload with an instance, as somebody who can write to the store could make it."""
    code = {"enum": 15, "dataclass": 16, "struct": 17}[kind]
    ext = msgspec.msgpack.Ext(code, msgspec.msgpack.encode([name, values]))
    return b"\x01m\x00" + msgspec.msgpack.encode(ext)


def test_the_forgery_of_these_tests_is_a_good_one() -> None:
    assert MSGPACK.loads(forged("dataclass", f"{SAMPLES}:Point", {"x": 1, "y": 2})) == Point(1, 2)
    assert MSGPACK.loads(forged("struct", f"{SAMPLES}:Job", {"job_name": 1})) == Job(1)
    assert MSGPACK.loads(forged("enum", f"{SAMPLES}:Level", "LOW")) is Level.LOW


@pytest.mark.parametrize(
    ("kind", "name", "values", "words"),
    [
        ("dataclass", "no.such.module:Order", {}, "does not have; import 'no.such.module' before"),
        ("dataclass", f"{SAMPLES}:NoSuch", {}, "does not have"),
        ("dataclass", f"{SAMPLES}:Outer", {}, "does not have"),  # a class, but no dataclass
        ("dataclass", f"{SAMPLES}:add", {}, "does not have"),
        ("dataclass", f"{SAMPLES}:Outer.Inner.value", {}, "does not have"),
        ("dataclass", f"{SAMPLES}:dataclasses.Field", {}, "does not have"),
        ("dataclass", f"{SAMPLES}:msgspec.Struct", {}, "does not have"),  # its name is another
        ("dataclass", f"{SAMPLES}.Point", {}, "does not have"),
        ("dataclass", f"{SAMPLES}:", {}, "does not have"),
        ("dataclass", ":Point", {}, "does not have"),
        ("dataclass", "subprocess:Popen", {"args": "true"}, "does not have"),
        ("dataclass", "builtins:object", {}, "does not have"),
        ("dataclass", 5, {}, "which is no name"),
        ("dataclass", f"{SAMPLES}:DictLike", {"extra": 1}, "does not have"),
        ("dataclass", f"{SAMPLES}:Job", {}, "but here it is a struct"),
        ("struct", f"{SAMPLES}:Point", {}, "but here it is a dataclass"),
        ("enum", f"{SAMPLES}:Point", "x", "but here it is a dataclass"),
        ("dataclass", f"{SAMPLES}:Point", {"y": 1}, "no 'x' for"),
        ("dataclass", f"{SAMPLES}:Point", {"x": 1, "z": 1}, "has no field 'z' here"),
        ("dataclass", f"{SAMPLES}:Point", {"x": 1, "__class__": 1}, "has no field '__class__' here"),
        ("dataclass", f"{SAMPLES}:Point", {"x": 1, 5: 1}, "has no field '5' here"),
        ("dataclass", f"{SAMPLES}:Point", ["x"], "cannot be decoded"),
        ("dataclass", f"{SAMPLES}:Point", None, "cannot be decoded"),
        ("struct", f"{SAMPLES}:Job", {"max_runs": 1}, "job_name"),
        ("struct", f"{SAMPLES}:Job", {"job_name": 1, "more": 1}, "more"),
        ("struct", f"{SAMPLES}:Job", [1], "refuses what the payload holds"),
        ("struct", f"{SAMPLES}:Positive", {"number": -1}, "must not be negative"),
        ("enum", f"{SAMPLES}:Level", "MIDDLE", "has no member 'MIDDLE' here"),
        ("enum", f"{SAMPLES}:Level", "__class__", "has no member '__class__' here"),
        ("enum", f"{SAMPLES}:Level", 1, "has no member 1 here"),
        ("enum", f"{SAMPLES}:Level", ["LOW"], "has no member"),
    ],
)
def test_a_forged_instance_is_refused(kind: str, name: Any, values: Any, words: str) -> None:
    with pytest.raises(CorruptRecord) as caught:
        MSGPACK.loads(forged(kind, name, values))
    assert words in str(caught.value)


def test_an_alias_of_a_member_reads_as_the_member() -> None:
    assert MSGPACK.loads(forged("enum", f"{SAMPLES}:Colour", "ROUGE")) is Colour.RED


def test_a_struct_may_check_itself() -> None:
    assert MSGPACK.loads(MSGPACK.dumps(Positive(1))) == Positive(1)


@pytest.mark.parametrize("serializer", DATA_ONLY, ids=lambda s: type(s).__name__)
def test_nothing_of_a_dataclass_is_run(serializer: Serializer) -> None:
    guarded = object.__new__(Guarded)
    object.__setattr__(guarded, "value", (1,))
    object.__setattr__(guarded, "seen", [2])
    back = serializer.loads(serializer.dumps(guarded))
    assert (type(back), back.value, back.seen) == (Guarded, (1,), [2])


def test_a_new_field_with_a_default_is_a_compatible_change() -> None:
    back = MSGPACK.loads(forged("dataclass", f"{SAMPLES}:Guarded", {"value": 1}))
    assert (back.value, back.seen) == (1, [])
    other = MSGPACK.loads(forged("dataclass", f"{SAMPLES}:Guarded", {"value": 1}))
    assert back.seen is not other.seen


def test_fields_that_are_not_arguments_of_init_travel_too() -> None:
    @dataclasses.dataclass
    class Counter:
        start: int
        seen: int = dataclasses.field(init=False, default=0)
        kind: dataclasses.InitVar[str] = "x"

    counter = Counter(1)
    counter.seen = 7
    assert MSGPACK.loads(MSGPACK.dumps(counter)).seen == 7


def test_a_class_made_inside_a_function_is_known_to_its_own_process() -> None:
    @dataclasses.dataclass
    class Local:
        value: Any

    data = MSGPACK.dumps(Local((1, 2)))
    assert MSGPACK.loads(data) == Local((1, 2))


def test_a_class_that_was_made_again_replaces_the_old_one() -> None:
    def make() -> Any:
        @dataclasses.dataclass
        class Again:
            value: int

        return Again

    first, second = make(), make()
    MSGPACK.dumps(first(1))
    assert type(MSGPACK.loads(MSGPACK.dumps(second(1)))) is second


def test_register_makes_a_class_known() -> None:
    def make() -> Any:
        class Registered(enum.Enum):
            A = 1

        return Registered

    name = f"{__name__}:test_register_makes_a_class_known.<locals>.make.<locals>.Registered"
    with pytest.raises(CorruptRecord, match=r"omniq\.serializer\.register"):
        MSGPACK.loads(forged("enum", name, "A"))
    cls = make()
    assert register(cls) is cls
    assert MSGPACK.loads(forged("enum", name, "A")) is cls.A


@pytest.mark.parametrize("value", [int, object, type(print), 5, "x", Point(1)])
def test_register_refuses_what_is_no_class_for_data(value: Any) -> None:
    with pytest.raises(InvalidOption, match="neither an enum nor a dataclass nor a msgspec"):
        register(value)


def test_a_lazy_module_is_not_woken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[str] = []

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            woken.append(name)
            return super().__getattribute__(name)

    class WithGetattr(ModuleType):
        def __getattr__(self, name: str) -> Any:
            woken.append(name)
            return Point

    monkeypatch.setitem(sys.modules, "lazy_module", Lazy("lazy_module"))
    monkeypatch.setitem(sys.modules, "getattr_module", WithGetattr("getattr_module"))
    monkeypatch.setitem(sys.modules, "no_module", None)
    woken.clear()
    for module in ("lazy_module", "getattr_module", "no_module"):
        with pytest.raises(CorruptRecord, match="does not have"):
            MSGPACK.loads(forged("dataclass", f"{module}:Order", {}))
    assert woken == []


MODEL = """
from dataclasses import dataclass
from enum import Enum
from msgspec import Struct

class Size(Enum):
    BIG = 1

@dataclass
class Order:
    number: int
    size: Size = Size.BIG

class Line(Struct):
    order: Order
"""

WRITE = """
import sys
import shop_models
from omniq.serializer import {serializer}
sys.stdout.write({serializer}().dumps((shop_models.Line(shop_models.Order(7)), shop_models.Size.BIG)).hex())
"""

READ = """
import sys
from omniq.serializer import MsgpackSerializer
from omniq.errors import CorruptRecord
data = bytes.fromhex(sys.argv[1])
before = set(sys.modules)
try:
    MsgpackSerializer().loads(data)
except CorruptRecord as error:
    print(error)
print(set(sys.modules) - before)
import shop_models
line, size = MsgpackSerializer().loads(data)
print(line == shop_models.Line(shop_models.Order(7)), size is shop_models.Size.BIG)
"""


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("serializer", ["MsgpackSerializer", "JsonSerializer"])
def test_another_process_finds_a_class_once_it_has_imported_it(tmp_path: Path, serializer: str) -> None:
    (tmp_path / "shop_models.py").write_text(MODEL)
    payload = run(tmp_path, "-c", WRITE.format(serializer=serializer))
    refusal, imported, result = run(tmp_path, "-c", READ, payload).splitlines()
    assert "'shop_models:" in refusal
    assert "import 'shop_models' before the worker starts" in refusal
    assert imported == "set()"
    assert result == "True True"


SCRIPT = """
import sys
from dataclasses import dataclass
from omniq.serializer import MsgpackSerializer

@dataclass
class Order:
    number: int

if __name__ == "__main__":
    if sys.argv[1:]:
        print(MsgpackSerializer().loads(bytes.fromhex(sys.argv[1])) == Order(7))
    else:
        print(MsgpackSerializer().dumps(Order(7)).hex())
"""


def test_a_class_of_a_script_is_found_by_whoever_imports_the_script(tmp_path: Path) -> None:
    """As a task of a script is: the worker imports the script under its name."""
    (tmp_path / "shop.py").write_text(SCRIPT)
    payload = run(tmp_path, "shop.py").strip()
    worker = (
        "import shop, sys; from omniq.serializer import MsgpackSerializer; s = MsgpackSerializer(); "
        "order = s.loads(bytes.fromhex(sys.argv[1])); "
        "print(order == shop.Order(7)); print(s.dumps(order).hex())"
    )
    equal, back = run(tmp_path, "-c", worker, payload).splitlines()
    assert equal == "True"
    assert back == payload
    assert run(tmp_path, "shop.py", back).strip() == "True"  # and a result comes back to the script
