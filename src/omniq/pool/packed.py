"""Results that are numbers or nothing: eight bytes each in a process's page, and one store per call.

    slot 0 .. n-1   results        slot n ..   holes

A run holds results of one type. Before it begins its slots are made holes: a value that no result in it has,
because one that equals it is not packed. So storing a result also says that its call has ended and the next
one begins. After a death the first hole is the call that ran, and nothing had to be counted on the way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from struct import Struct
from types import NoneType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from omniq.pool.control import COUNT, FIRST, JOURNAL_BYTES, KIND, STATE, ControlPage

SLOTS: Final = JOURNAL_BYTES // 8
HEAD: Final = Struct("<QQ")  # the code of a kind, and how many results follow

Format: TypeAlias = Literal["q", "d"]
Slots: TypeAlias = Any  # a memoryview of ints, or of floats


class Kind(NamedTuple):
    """A type of results, how one is stored, and what is stored where there is none."""

    code: int
    type: type
    format: Format
    hole: float
    holes: Slots


# Any value would do as a hole. These are rare as results, and comparing with a small one is cheap.
_HOLE_Q: Final = -0x2BAD_F00D
_HOLE_D: Final = -2.718281828459045e-201
_HOLES_Q: Final = memoryview(Struct("q").pack(_HOLE_Q) * SLOTS).cast("q")
_HOLES_D: Final = memoryview(Struct("d").pack(_HOLE_D) * SLOTS).cast("d")
KINDS: Final = (
    Kind(1, NoneType, "q", _HOLE_Q, _HOLES_Q),
    Kind(2, bool, "q", _HOLE_Q, _HOLES_Q),
    Kind(3, int, "q", _HOLE_Q, _HOLES_Q),
    Kind(4, float, "d", _HOLE_D, _HOLES_D),
)
_BY_TYPE: Final[dict[type, Kind]] = {kind.type: kind for kind in KINDS}
NOTHING: Final = KINDS[0]
_BY_CODE: Final = {kind.code: kind for kind in KINDS}

Odd = tuple[Any] | None  # a result that the run cannot hold, None for none


def fill_numbers(func: Callable[[Any], Any], block: Sequence[Any], slots: Slots, at: int, kind: Kind) -> Odd:
    """Call `func` with each of `block`, and store what it returns from slot `at` on: the inner loop."""
    type_, hole = kind.type, kind.hole
    for item in block:
        value = func(item)
        if type(value) is not type_ or value == hole:
            return (value,)
        try:
            slots[at] = value
        except ValueError:  # an int of more than 64 bits
            return (value,)
        at += 1
    return None


def fill_nothing(func: Callable[[Any], Any], block: Sequence[Any], slots: Slots, at: int) -> Odd:
    """The same where nothing is returned."""
    for item in block:
        value = func(item)
        if value is not None:
            return (value,)
        slots[at] = 1
        at += 1
    return None


def kind_of(value: object) -> Kind | None:
    """The kind of run that can hold this value, if any."""
    kind = _BY_TYPE.get(type(value))
    if kind is None or value == kind.hole:
        return None
    return None if isinstance(value, int) and not -(2**63) <= value < 2**63 else kind


class Run:
    """The run in the page of this process, or in that of a process which has died."""

    def __init__(self, page: ControlPage) -> None:
        self._words = page.words
        self._memory = page.journal
        self.views: dict[Format, Slots] = {"q": page.journal.cast("q"), "d": page.journal.cast("d")}

    # --- both ends ---

    @property
    def kind(self) -> Kind | None:
        """What it holds; None where there is none."""
        return _BY_CODE.get(self._words[KIND])

    @property
    def filled(self) -> int:
        """How many results it has: up to the first hole."""
        kind = self.kind
        if kind is None:
            return 0
        slots, hole = self.views[kind.format], kind.hole
        return bisect_left(range(min(self._words[COUNT], SLOTS)), True, key=lambda at: slots[at] == hole)

    @property
    def next_id(self) -> int:
        """The call that runs or is the next one; 0 where there is no run."""
        return self._words[FIRST] + self.filled if self._words[KIND] else 0

    @property
    def first_id(self) -> int:
        return self._words[FIRST]

    @property
    def stop_id(self) -> int:
        """The first call for which it has no room."""
        return self._words[FIRST] + self._words[COUNT]

    def done(self, call_id: int, count: int, kind: Kind) -> int:
        """How many of the `count` calls from `call_id` on have their results in it."""
        first = self._words[FIRST]
        if self.views[kind.format][call_id - first + count - 1] != kind.hole:
            return count
        return first + self.filled - call_id

    def values(self) -> list[Any]:
        kind = self.kind
        return [] if kind is None else _values(kind, self.views[kind.format][: self.filled])

    # --- in the child ---

    def begin(self, kind: Kind, first_id: int, count: int) -> Kind:
        """Make room for `count` results of this kind from the call `first_id` on."""
        assert not self._words[KIND] and 0 < count <= SLOTS
        self.views[kind.format][:count] = kind.holes[:count]
        self._words[COUNT] = count
        self._words[FIRST] = first_id
        self._words[KIND] = kind.code  # last: whoever sees it finds the rest
        return kind

    def frame_body(self, count: int) -> bytes:
        """Its first `count` results, as the parent reads them in a frame."""
        kind = self.kind
        assert kind is not None
        head = HEAD.pack(kind.code, count)
        return head if kind is NOTHING else head + self._memory[: count * 8]

    def end(self) -> None:
        """Forget it, once it has been sent. Word 1 says what has begun, from the first of these stores on."""
        self._words[KIND] = 0
        self._words[FIRST] = 0

    def release(self) -> None:
        for view in self.views.values():
            view.release()


def running(page: ControlPage, run: Run) -> int:
    """The call that has begun and whose result is neither sent nor recorded, 0 for none."""
    state = page.words[STATE]
    if not state & 1:
        return 0
    return run.next_id or state >> 1


def begun(page: ControlPage, run: Run) -> int:
    """The latest call that has begun, ended or not. Below the ids of all that it has not begun."""
    state = page.words[STATE]  # read once: the child goes on meanwhile
    if state & 1:
        return run.next_id or state >> 1
    return (state >> 1) - 1


def unpack(body: memoryview) -> list[Any]:
    """The results in a frame."""
    code, count = HEAD.unpack_from(body)
    kind = _BY_CODE[code]
    if kind is NOTHING:
        if len(body) != HEAD.size:
            raise ValueError(f"{len(body)} bytes for nothing")
        return [None] * count
    stored = body[HEAD.size : HEAD.size + 8 * count]
    return _values(kind, stored.cast("q") if kind.format == "q" else stored.cast("d"))


def _values(kind: Kind, stored: Slots) -> list[Any]:
    values: list[Any] = stored.tolist()
    if kind.type is NoneType:
        return [None] * len(values)
    return list(map(bool, values)) if kind.type is bool else values
