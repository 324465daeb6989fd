"""Calls and outcomes as bytes: what can travel does, and what cannot is named."""

import math
import pickle
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from omniq.errors import CallFailed, UnserializableArgument
from omniq.pool import pickles
from omniq.pool.calls import EncodedCall, encode, encode_range
from omniq.pool.pickles import MAX_TEXT_CHARS
from tests.pool import transport_bodies as bodies


def run(call: EncodedCall) -> Any:
    """What a child does with it, without the child."""
    func = pickles.load_function(call.function, call.by_name)
    loaded = pickles.load(call.body, call.buffers) if call.body else ((),)
    return func(*loaded[0], **(loaded[1] if len(loaded) > 1 else {}))


class Adder:
    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, value: int) -> int:
        return value + self.amount

    def add(self, value: int) -> int:
        return value + self.amount

    @staticmethod
    def double(value: int) -> int:
        return 2 * value


@pytest.mark.parametrize(
    ("func", "by_name"),
    [
        (math.factorial, True),
        (bodies.echo, True),
        (Adder.double, True),
        (int, True),
        (lambda value: value, False),
        (partial(max, 1), False),
        (Adder(1), False),
        (Adder(1).add, False),
    ],
)
def test_functions_go_by_name_where_they_have_one(func: Any, by_name: bool) -> None:
    call = encode(1, func, (3,))
    assert call.by_name is by_name
    assert run(call) == func(3)


def test_what_is_large_in_a_closure_goes_beside_the_pickle() -> None:
    table, words = np.arange(100_000), "x" * 100_000
    for func in (lambda n: int(table[n]), lambda n: words[n]):
        for call in (encode(1, func, (7,)), encode_range(1, func, [7], like=encode_range(1, func, [6]))):
            assert not call.function
            found, arguments = pickles.load_carried(call.body, call.buffers)
            [args] = [arguments] if call.is_range else arguments[:1]
            assert found(*args) == func(7)
    assert max(map(len, encode(1, lambda: table).buffers)) == table.nbytes
    with pytest.raises(UnserializableArgument, match=r"args\[1\] of .*<lambda> is a _thread\.lock"):
        encode(1, lambda *_: table, (1, threading.Lock()))


def test_a_function_that_was_replaced_goes_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    original = bodies.pid
    monkeypatch.setattr(bodies, "pid", lambda: 0)
    assert encode(1, bodies.pid).by_name is False
    assert encode(1, original).by_name is False


def test_a_class_of_the_script_goes_by_value() -> None:
    """The other process has another __main__."""
    script: dict[str, Any] = {"__name__": "__main__"}
    exec("class Point:\n    def __init__(self, x): self.x = x\n", script)  # as a script defines it
    import __main__

    vars(__main__)["Point"] = script["Point"]
    try:
        call = encode(1, bodies.echo, (script["Point"](5),))
    finally:
        del vars(__main__)["Point"]
    assert run(call).x == 5


def test_big_buffers_lie_beside_the_pickle_and_small_ones_in_it() -> None:
    big, small = np.arange(100_000.0), np.arange(10.0)
    call = encode(1, bodies.echo, (big,), {})
    assert [view.nbytes for view in call.buffers] == [800_000]
    assert len(call.body) < 1000
    assert encode(1, bodies.echo, (small,)).buffers == []
    assert (run(call) == big).all()


@pytest.mark.parametrize(
    ("args", "kwargs", "place"),
    [
        ((1, 2, threading.Lock()), {}, r"args\[2\] of echo is a _thread.lock"),
        ((), {"x": 1, "conn": threading.Lock()}, r"kwargs\['conn'\] of echo is a _thread.lock"),
        ((bodies.Unpicklable(),), {}, r"args\[0\] of echo is a tests.pool.transport_bodies.Unpicklable"),
    ],
)
def test_an_argument_that_cannot_travel_is_named(args: Any, kwargs: Any, place: str) -> None:
    """D4: at once, where it was passed."""
    with pytest.raises(UnserializableArgument, match=place):
        encode(1, bodies.echo, args, kwargs)


def test_an_item_that_cannot_travel_is_named() -> None:
    with pytest.raises(UnserializableArgument, match=r"items\[1\] of echo is a _thread.lock"):
        encode_range(1, bodies.echo, [1, threading.Lock()])


def test_a_function_that_cannot_travel_is_named() -> None:
    lock = threading.Lock()

    def uses_a_lock() -> bool:
        return lock.locked()

    with pytest.raises(UnserializableArgument, match="uses_a_lock cannot be pickled"):
        encode(1, uses_a_lock)
    with pytest.raises(UnserializableArgument, match="not callable"):
        encode(1, 3)  # type: ignore[arg-type]


def test_a_result_that_cannot_travel_is_named() -> None:
    with pytest.raises(UnserializableArgument, match=r"the result is a _thread\.lock"):
        pickles.dump_result(threading.Lock())


def test_the_rest_of_a_range_keeps_its_ids() -> None:
    call = encode_range(10, bodies.echo, range(5)).after(2).after(1)
    assert (call.id, call.count, call.skip) == (13, 2, 3)


def failure(exc: BaseException) -> Exception:
    try:
        raise exc
    except BaseException as raised:
        return pickles.load_failure(pickles.dump_failure(raised))


def test_an_exception_comes_back_as_itself_with_its_traceback() -> None:
    back = failure(KeyError("k"))
    assert type(back) is KeyError
    assert back.args == ("k",)
    assert "test_calls.py" in str(back.__cause__)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (bodies.NeedsTwo("one", "other"), "NeedsTwo: one and other"),
        (ValueError(threading.Lock()), "ValueError: <unlocked"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (StopIteration(1), "StopIteration: 1"),
    ],
)
def test_what_cannot_travel_as_itself_is_told_in_words(raised: BaseException, told: str) -> None:
    back = failure(raised)
    assert isinstance(back, CallFailed)
    assert told in str(back)


def test_an_exception_that_cannot_be_shown_comes_back_all_the_same() -> None:
    back = failure(bodies.Unshowable())
    assert type(back) is bodies.Unshowable
    assert "test_calls.py" in str(back.__cause__)


def test_words_are_bounded_and_printable() -> None:
    """D20."""
    back = failure(ValueError("\x1b[31m\udcff" * 9_000_000))
    assert isinstance(back, CallFailed)
    assert back.type_name == "builtins.ValueError"
    assert len(back.traceback) <= MAX_TEXT_CHARS
    assert "the middle is left out" in str(back)
    assert all(line.isprintable() for line in str(back).replace("\t", "").split("\n"))


def test_a_failure_travels_again() -> None:
    back = pickle.loads(pickle.dumps(failure(SystemExit(3))))
    assert isinstance(back, CallFailed)
    assert back.type_name == "builtins.SystemExit"
