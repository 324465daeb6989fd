"""Values as bytes, on both ends: the one module of the pools that turns bytes into running code.

    parent                                       child
    dumps(arguments)         ── bytes ──>  load_function, load ──> call
    load, load_failure      <── bytes ──   dump_result, dump_failure

Both ends are one program and trust each other; nothing from outside is ever read here. Every process imports
this before it can do anything, so it needs nothing but the standard library.
"""

from __future__ import annotations

import mmap
import pickle
import traceback
from collections.abc import Callable, Container
from importlib import import_module
from types import TracebackType
from typing import Any, Final, NamedTuple

from omniq.errors import CallFailed, UnserializableArgument
from omniq.names import unwrapped

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


# --- pickles -------------------------------------------------------------------------------------


def dumps(value: Any) -> tuple[bytes, Buffers]:
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
        return dumps(value)
    except Exception as exc:
        raise UnserializableArgument(
            f"{what} cannot be pickled ({told(exc)}); keep plain data in it, and open files, locks and "
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


def type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def told(exc: BaseException) -> str:
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


load_plain: Final = pickle.loads  # where nothing lies beside the pickle
load_next: Final = pickle.load  # the next one in a stream of them


def dump_atom(value: Any) -> bytes:
    """What refers to nothing that would have to be looked after."""
    return pickle.dumps(value, PROTOCOL)


def dump_result(value: Any) -> tuple[bytes, Buffers]:
    if type(value) in ATOMS:
        return pickle.dumps(value, PROTOCOL), []
    try:
        return dumps(value)
    except Exception as exc:
        raise UnserializableArgument(
            f"the result is a {type_name(value)}, which cannot be pickled ({told(exc)}); return plain data"
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


# --- failures ------------------------------------------------------------------------------------


class Failure(NamedTuple):
    """An exception in words, and as itself where it survives the journey."""

    type_name: str
    message: str
    traceback: str
    pickled: bytes = b""


def dump_failure(exc: BaseException, our_frames: Container[str] = ()) -> bytes:
    """Never raises: whatever an exception does when it is looked at, shown or pickled, something is told.

    Of its traceback, the first frames are left out that are in files of ours.
    """
    try:
        tb = exc.__traceback__
        while tb is not None and tb.tb_frame.f_code.co_filename in our_frames:
            tb = tb.tb_next
        exc = exc.with_traceback(tb)
        failure = Failure(
            type_name(exc), bounded(_text_of(exc)), bounded(traceback_of(exc)), _dump_exception(exc)
        )
    except CallInterrupted:
        raise
    except BaseException as own:  # it has its own way to answer for its attributes
        failure = Failure(type(exc).__name__, f"<it cannot be told: {type(own).__name__}>", "")
    return pickle.dumps(tuple(failure), PROTOCOL)


def load_failure(body: bytes | memoryview) -> Exception:
    failure = Failure(*pickle.loads(body))  # noqa: S301 - our own child's
    exc = _load_exception(failure)
    exc.__cause__ = RemoteTraceback(failure.traceback)
    return exc


def raisable(exc: BaseException) -> Exception:
    """For whoever waits for a call: what it raised, or told in words what would mean something else there.

    A loop takes SystemExit, KeyboardInterrupt or CancelledError for its own, and StopIteration for an end.
    """
    if isinstance(exc, Exception) and not isinstance(exc, StopIteration | StopAsyncIteration):
        return exc
    name = type_name(exc)
    failed = CallFailed(f"{name}: {_text_of(exc)}", name, bounded(traceback_of(exc)))
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


def traceback_of(exc: BaseException) -> str:
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
