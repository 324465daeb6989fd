"""Calls as bytes and their outcomes as values, in the parent. The other end needs none of this.

encode(func, args, kwargs) ──> EncodedCall ── child ──> Returned | Raised | Interrupted
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

import msgspec

from omniq.errors import CallFailed, UnserializableArgument
from omniq.names import name_in_module
from omniq.pool import pickles
from omniq.pool.pickles import ATOMS, CARRIED, OUT_OF_BAND_BYTES, Buffers, Function, told, type_name


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
        return EncodedCall(call_id, name_of(func), function, by_name, pickles.dump_atom((args,)), [])
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
        return pickles.dumps(whole)
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
        body, buffers = pickles.dumps((func, listed) if function == CARRIED else listed)
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
        raise UnserializableArgument(f"a {type_name(func)} is not callable; pass a function")
    try:
        pickled, buffers = pickles.dumps(func)
    except Exception as exc:
        raise UnserializableArgument(
            f"the function {name_of(func)} cannot be pickled ({told(exc)}); define it in a module, "
            "and pass as arguments what it now refers to"
        ) from exc
    return CARRIED if buffers or len(pickled) >= OUT_OF_BAND_BYTES else pickled, False


def _culprit(places: Iterable[tuple[str, Any]], name: str, exc: Exception) -> UnserializableArgument:
    for place, value in places:
        try:
            pickles.dumps(value)
        except Exception as own:
            return UnserializableArgument(
                f"{place} of {name} is a {type_name(value)}, which cannot be pickled ({told(own)}); "
                "pass plain data, and open files, locks and connections inside the function"
            )
    return UnserializableArgument(f"the arguments of {name} cannot be pickled ({told(exc)}); pass plain data")


# --- outcomes ------------------------------------------------------------------------------------


def load_gathered(body: memoryview, name: str) -> Outcomes:
    gathered: list[tuple[bytes] | float | str | bytes | None] = pickles.load_plain(body)
    outcomes = Outcomes()
    for item in gathered:
        outcomes.append(load_outcome(item[0], [], name) if isinstance(item, tuple) else Returned(item))
    return outcomes


def load_recorded(recorded: bytes, count: int, name: str) -> Outcomes:
    """What a journal holds. One that cannot be read leaves no way to find the next."""
    outcomes = Outcomes()
    stream = io.BytesIO(recorded)
    try:
        while len(outcomes) < count:
            outcomes.append(Returned(pickles.load_next(stream)))
    except BaseException as exc:  # as below
        outcomes.extend([Raised(unreadable_result(name, exc))] * (count - len(outcomes)))
    return outcomes


def load_value(pickled: bytes | memoryview, name: str) -> Sequence[Outcome]:
    """The outcome of one call, where nothing lies beside the pickle."""
    try:
        return Outcomes([pickles.load_plain(pickled)])
    except BaseException as exc:  # as below
        return (Raised(unreadable_result(name, exc)),)


def load_outcome(pickled: bytes | memoryview, buffers: Buffers, name: str) -> Outcome:
    try:
        return Returned(pickles.load(pickled, buffers))
    # A class whose objects pickle and do not unpickle. Whatever it raises is about this call: a SystemExit or
    # KeyboardInterrupt of the other end's making must not end the program that waits.
    except BaseException as exc:
        return Raised(unreadable_result(name, exc))


def unreadable_result(name: str, exc: BaseException) -> Exception:
    """For a result that was pickled in the child and cannot be unpickled in the parent."""
    text = pickles.bounded(pickles.traceback_of(exc))
    failed = CallFailed(f"the result of {name} cannot be unpickled here ({told(exc)})", type_name(exc), text)
    failed.__cause__ = exc
    return failed
