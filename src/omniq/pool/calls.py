"""Calls and their outcomes as bytes: the one module of the pools that turns bytes into running code.

    parent                                    child
    encode(func, args, kwargs) -> bytes  ──>  load_function, load_arguments ──> call
    Returned | Raised          <── bytes  <──  dump_result, dump_failure

Both ends are one program and trust each other; nothing from outside is ever read here. Knows no processes.
"""

from __future__ import annotations

import io
import mmap
import pickle
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, Final, overload

import msgspec

from omniq.errors import CallFailed, UnserializableArgument
from omniq.names import name_in_module, unwrapped

Buffers = list[memoryview]
Function = Callable[..., Any]

# Smaller buffers are cheaper inside the pickle than beside it.
OUT_OF_BAND_BYTES: Final = 64 * 1024
PROTOCOL: Final = 5
# In the place of a function that lies beside its arguments.
CARRIED: Final = b""
MAX_TEXT_CHARS: Final = 64 * 1024
MAX_EXCEPTION_BYTES: Final = 1024 * 1024
MAX_KNOWN_FUNCTIONS: Final = 4096
# Values that nobody can change after they were returned, and that refer to nothing else.
ATOMS: Final = frozenset((type(None), bool, int, float, str, bytes))


class CallInterrupted(BaseException):
    """Raised inside a call that should end early. Like KeyboardInterrupt: clean up, and let it pass."""


class RemoteTraceback(Exception):
    """The traceback of the other process, as the cause of an exception that came from there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


# --- what travels --------------------------------------------------------------------------------


class EncodedCall(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """One call, or `count` calls of one function with the ids from `id` on. It can be sent more than once."""

    id: int
    name: str
    function: bytes
    by_name: bool
    body: bytes
    buffers: Buffers
    count: int = 1
    skip: int = 0
    is_range: bool = False

    def after(self, done: int) -> EncodedCall:
        """The same range without its first `done` calls."""
        assert self.is_range and 0 <= done < self.count
        return msgspec.structs.replace(
            self, id=self.id + done, skip=self.skip + done, count=self.count - done
        )


class Message(msgspec.Struct, frozen=True, eq=False):
    """What a child gets at once and works off in order."""

    id: int
    calls: tuple[EncodedCall, ...]


class Returned(msgspec.Struct, frozen=True):
    value: Any


class Raised(msgspec.Struct, frozen=True):
    exception: Exception


class Interrupted(msgspec.Struct, frozen=True):
    """The call ended early because it was asked to."""


Outcome = Returned | Raised | Interrupted


class Outcomes(Sequence[Outcome]):
    """Outcomes of calls in order. Values are kept bare, because there may be many of them."""

    __slots__ = ("others", "values")

    def __init__(self, values: list[Any] | None = None) -> None:
        self.values: list[Any] = [] if values is None else values
        self.others: dict[int, Raised | Interrupted] = {}  # those that are no values, by index

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Outcome: ...
    @overload
    def __getitem__(self, index: slice) -> Outcomes: ...
    def __getitem__(self, index: int | slice) -> Outcome | Outcomes:
        if isinstance(index, slice):
            part = Outcomes()
            for nth in range(len(self))[index]:
                part.append(self[nth])
            return part
        nth = range(len(self))[index]
        return self.others.get(nth) or Returned(self.values[nth])

    def append(self, outcome: Outcome) -> None:
        if type(outcome) is Returned:
            self.values.append(outcome.value)
        else:
            assert not isinstance(outcome, Returned)
            self.others[len(self.values)] = outcome
            self.values.append(None)

    def extend(self, outcomes: Sequence[Outcome]) -> None:
        if isinstance(outcomes, Outcomes) and not outcomes.others:
            self.values += outcomes.values  # as nearly always, and fast for long ranges
            return
        for outcome in outcomes:
            self.append(outcome)


# --- a call, in the parent -----------------------------------------------------------------------


def encode(
    call_id: int, func: Function, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> EncodedCall:
    """Encode a call now, so that what cannot travel is an error here. Arrays are copied when it is sent."""
    function, by_name = _dump_function(func)
    if function == CARRIED:
        return _carrying(call_id, func, args, kwargs)
    if not args and not kwargs:
        return EncodedCall(call_id, name_of(func), function, by_name, b"", [])
    if not kwargs and len(args) == 1 and type(args[0]) in ATOMS:
        # As so often. An atom refers to nothing that would have to be looked after.
        return EncodedCall(call_id, name_of(func), function, by_name, pickle.dumps((args,), PROTOCOL), [])
    body, buffers = _dump_arguments((args, kwargs) if kwargs else (args,), func, args, kwargs)
    return EncodedCall(call_id, name_of(func), function, by_name, body, buffers)


def _carrying(
    call_id: int, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> EncodedCall:
    """A call whose function lies beside its arguments, so that what is large in it goes by shared memory."""
    body, buffers = _dump_arguments((func, (args, kwargs or {})), func, args, kwargs)
    return EncodedCall(call_id, name_of(func), CARRIED, False, body, buffers)


def _dump_arguments(
    whole: Any, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[bytes, Buffers]:
    try:
        return _dumps(whole)
    except Exception as exc:
        places = [(f"args[{index}]", value) for index, value in enumerate(args)]
        places += [(f"kwargs[{name!r}]", value) for name, value in (kwargs or {}).items()]
        raise _culprit(places, name_of(func), exc) from exc


def encode_range(
    first_id: int, func: Function, items: Iterable[Any], like: EncodedCall | None = None
) -> EncodedCall:
    """`func(item)` for each of `items`, with ids from `first_id` on: cheaper than one by one.

    `like` is an earlier call of the same function, which need not be pickled again.
    """
    function, by_name = _dump_function(func) if like is None else (like.function, like.by_name)
    listed = list(items)
    assert listed, "a range has at least one call"
    try:
        body, buffers = _dumps((func, listed) if function == CARRIED else listed)
    except Exception as exc:
        places = [(f"items[{index}]", item) for index, item in enumerate(listed)]
        raise _culprit(places, name_of(func), exc) from exc
    return EncodedCall(
        first_id, name_of(func), function, by_name, body, buffers, count=len(listed), is_range=True
    )


def name_of(func: object) -> str:
    name = getattr(func, "__qualname__", None)
    return name if isinstance(name, str) else type(func).__qualname__


def _dump_function(func: Function) -> tuple[bytes, bool]:
    """By name where it has one, otherwise by value; CARRIED where that is large."""
    found = name_in_module(func)
    if found is not None:
        return found.encode(), True
    if not callable(func):
        raise UnserializableArgument(f"a {_type_name(func)} is not callable; pass a function")
    try:
        pickled, buffers = _dumps(func)
    except Exception as exc:
        raise UnserializableArgument(
            f"the function {name_of(func)} cannot be pickled ({_told(exc)}); define it in a module, "
            "and pass as arguments what it now refers to"
        ) from exc
    return CARRIED if buffers or len(pickled) >= OUT_OF_BAND_BYTES else pickled, False


def _culprit(places: Iterable[tuple[str, Any]], name: str, exc: Exception) -> UnserializableArgument:
    for place, value in places:
        try:
            _dumps(value)
        except Exception as own:
            return UnserializableArgument(
                f"{place} of {name} is a {_type_name(value)}, which cannot be pickled ({_told(own)}); "
                "pass plain data, and open files, locks and connections inside the function"
            )
    return UnserializableArgument(
        f"the arguments of {name} cannot be pickled ({_told(exc)}); pass plain data"
    )


# --- pickles -------------------------------------------------------------------------------------


def _dumps(value: Any) -> tuple[bytes, Buffers]:
    """Plain pickle is several times faster; cloudpickle carries what has no importable name."""
    buffers: Buffers = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < OUT_OF_BAND_BYTES:
            return True
        buffers.append(view)
        return False

    try:
        data = pickle.dumps(value, PROTOCOL, buffer_callback=keep)
    except Exception:  # an object's own __reduce__ can raise anything
        data = b"__main__"
    # The other process has another __main__: its classes and functions must go by value.
    if b"__main__" in data:
        import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

        buffers.clear()
        data = bytes(cloudpickle.dumps(value, PROTOCOL, keep))  # pyright: ignore[reportUnknownMemberType]
    return data, buffers


def dump_shared(value: Any, what: str) -> tuple[bytes, Buffers]:
    """For memory that several processes map. `what` it is, for whoever must be told that it cannot travel."""
    try:
        return _dumps(value)
    except Exception as exc:
        raise UnserializableArgument(
            f"{what} cannot be pickled ({_told(exc)}); keep plain data in it, and open files, locks and "
            "connections where they are used"
        ) from exc


def beside(view: memoryview) -> object:
    """What a reducer gives for memory that should go beside the pickle, not into it."""
    return pickle.PickleBuffer(view)


def dump_in_band(value: Any) -> bytes:
    try:
        data = pickle.dumps(value, PROTOCOL)
    except Exception:  # as above
        data = b"__main__"
    if b"__main__" in data:
        import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

        data = bytes(cloudpickle.dumps(value, PROTOCOL))  # pyright: ignore[reportUnknownMemberType]
    return data


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _told(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {_text_of(exc)[:500]}"


# --- a call, in the child ------------------------------------------------------------------------

_known: dict[bytes, Function] = {}


def load_function(function: bytes, by_name: bool) -> Function:
    """Import it or rebuild it. What was imported is kept; a closure may have changed since the last time."""
    if not by_name:
        rebuilt: Function = pickle.loads(function)  # noqa: S301 - written by our own parent
        return rebuilt
    known = _known.get(function)
    if known is not None:
        return known
    module, _, name = function.decode().partition(":")
    place: Any = import_module(module)
    for part in name.split("."):
        place = getattr(place, part)
    found: Function = unwrapped(place)
    if len(_known) >= MAX_KNOWN_FUNCTIONS:
        _known.clear()
    _known[function] = found
    return found


def load_carried(body: bytes | memoryview, buffers: Buffers) -> tuple[Function, Any]:
    """A function and what lies beside it."""
    func, arguments = load(body, buffers)
    return func, arguments


def load(body: bytes | memoryview, buffers: Buffers) -> Any:
    return pickle.loads(body, buffers=buffers)  # noqa: S301 - written by our own other end


def dump_result(value: Any) -> tuple[bytes, Buffers]:
    if type(value) in ATOMS:
        return pickle.dumps(value, PROTOCOL), []
    try:
        return _dumps(value)
    except Exception as exc:
        raise UnserializableArgument(
            f"the result is a {_type_name(value)}, which cannot be pickled ({_told(exc)}); return plain data"
        ) from exc


# --- many results --------------------------------------------------------------------------------

Gathered = list[Any]


class Journal:
    """Results of a range, pickled one by one into shared memory, so that they outlive a process that dies."""

    def __init__(self, memory: mmap.mmap, start: int) -> None:
        self._memory = memory
        self._start = start
        memory.seek(start)
        pickler = pickle.Pickler(memory, PROTOCOL)
        pickler.fast = True  # no memory of earlier values: each pickle can be read by itself
        self.record_atom: Callable[[Any], None] = pickler.dump
        self.record: Callable[[bytes], object] = memory.write

    @property
    def free_bytes(self) -> int:
        return len(self._memory) - self._memory.tell()

    def erase(self) -> None:
        self._memory.seek(self._start)


def dump_gathered(gathered: Gathered) -> bytes:
    """Atoms as they are; anything else was pickled when it was returned, and stands in a tuple of its own."""
    return pickle.dumps(gathered, PROTOCOL)


def load_gathered(body: memoryview, name: str) -> Outcomes:
    gathered: list[tuple[bytes] | float | str | bytes | None] = pickle.loads(body)  # noqa: S301 - written by our own child
    outcomes = Outcomes()
    for item in gathered:
        outcomes.append(load_outcome(item[0], [], name) if isinstance(item, tuple) else Returned(item))
    return outcomes


def load_recorded(pickles: bytes, count: int, name: str) -> Outcomes:
    """What a journal holds. One that cannot be read leaves no way to find the next."""
    outcomes = Outcomes()
    stream = io.BytesIO(pickles)
    try:
        while len(outcomes) < count:
            outcomes.append(Returned(pickle.load(stream)))  # noqa: S301 - written by our own child
    except BaseException as exc:  # as below
        outcomes.extend([Raised(unreadable_result(name, exc))] * (count - len(outcomes)))
    return outcomes


def load_value(pickled: bytes | memoryview, name: str) -> Sequence[Outcome]:
    """The outcome of one call, where nothing lies beside the pickle."""
    try:
        return Outcomes([pickle.loads(pickled)])  # noqa: S301 - written by our own child
    except BaseException as exc:  # as below
        return (Raised(unreadable_result(name, exc)),)


def load_outcome(pickled: bytes | memoryview, buffers: Buffers, name: str) -> Outcome:
    try:
        return Returned(pickle.loads(pickled, buffers=buffers))  # noqa: S301 - written by our own child
    # A class whose objects pickle and do not unpickle. Whatever it raises is about this call: a SystemExit or
    # KeyboardInterrupt of the other end's making must not end the program that waits.
    except BaseException as exc:
        return Raised(unreadable_result(name, exc))


# --- failures ------------------------------------------------------------------------------------


class Failure(msgspec.Struct, frozen=True):
    """An exception in words, and as itself where it survives the journey."""

    type_name: str
    message: str
    traceback: str
    pickled: bytes = b""


def dump_failure(exc: BaseException) -> bytes:
    """Never raises: whatever an exception does when it is shown or pickled, something is told."""
    failure = Failure(
        _type_name(exc), bounded(_text_of(exc)), bounded(_traceback_of(exc)), _dump_exception(exc)
    )
    return msgspec.msgpack.encode(failure)


def load_failure(body: bytes | memoryview) -> Exception:
    failure = msgspec.msgpack.decode(body, type=Failure)
    exc = _load_exception(failure)
    exc.__cause__ = RemoteTraceback(failure.traceback)
    return exc


def unreadable_result(name: str, exc: BaseException) -> Exception:
    """For a result that was pickled in the child and cannot be unpickled in the parent."""
    text = bounded(_traceback_of(exc))
    failed = CallFailed(
        f"the result of {name} cannot be unpickled here ({_told(exc)})", _type_name(exc), text
    )
    failed.__cause__ = exc
    return failed


def raisable(exc: BaseException) -> Exception:
    """For whoever waits for a call: what it raised, or told in words what would mean something else there.

    A loop takes SystemExit, KeyboardInterrupt or CancelledError for its own, and StopIteration for an end.
    """
    if isinstance(exc, Exception) and not isinstance(exc, StopIteration | StopAsyncIteration):
        return exc
    name = _type_name(exc)
    failed = CallFailed(f"{name}: {_text_of(exc)}", name, bounded(_traceback_of(exc)))
    failed.__cause__ = exc
    return failed


def _dump_exception(exc: BaseException) -> bytes:
    if raisable(exc) is not exc:
        return b""
    try:
        data = dump_in_band(exc)
        if len(data) <= MAX_EXCEPTION_BYTES and type(pickle.loads(data)) is type(exc):  # noqa: S301 - our own
            return data
    except CallInterrupted:
        raise
    except BaseException:  # __init__ with other arguments, an attribute that cannot travel: told in words
        return b""
    return b""


def _load_exception(failure: Failure) -> Exception:
    if failure.pickled:
        try:
            found = pickle.loads(failure.pickled)  # noqa: S301 - our own child's
        except BaseException:  # it could be read there and cannot here: another module path, say
            found = None
        if isinstance(found, Exception):
            return found
    return CallFailed(f"{failure.type_name}: {failure.message}", failure.type_name, failure.traceback)


def _text_of(exc: BaseException) -> str:
    try:
        return str(exc)
    except CallInterrupted:
        raise
    except BaseException as own:  # a __str__ of somebody else
        return f"<no message: its __str__ raised {type(own).__name__}>"


def _traceback_of(exc: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(exc))
    except CallInterrupted:
        raise
    except BaseException:  # the same __str__, or no memory left
        return _frames_of(exc.__traceback__)


def _frames_of(tb: TracebackType | None) -> str:
    try:
        return "".join(traceback.format_tb(tb))
    except Exception:
        return "<the traceback cannot be shown>"


_UNPRINTABLE: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127) if chr(code) not in "\n\t"}


def bounded(text: str) -> str:
    """Printable and at most MAX_TEXT_CHARS: the beginning, and the end where the cause usually stands."""
    head, tail = MAX_TEXT_CHARS // 2, MAX_TEXT_CHARS // 4
    if len(text) <= MAX_TEXT_CHARS:
        whole = _printable(text)
        if len(whole) <= MAX_TEXT_CHARS:
            return whole
    first, last = _printable(text[:head])[:head], _printable(text[-tail:])[-tail:]
    return f"{first}\n... {len(text)} characters, the middle is left out ...\n{last}"


def _printable(text: str) -> str:
    return text.translate(_UNPRINTABLE).encode("utf-8", "backslashreplace").decode()
