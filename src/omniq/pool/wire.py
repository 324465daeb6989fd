"""Frames between parent and child, and where the bytes of a call lie.

    frame    header (length, id, extra, kind, flags) and a body of that length
    parcel   a pickle and its big buffers: in a slot of the arena, or inline where there is none;
             buffers that lie in slots already stay there (scattered)

Only layout: nothing here waits, decides or pickles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol

from omniq.errors import OmniqError

Bytes = bytes | bytearray | memoryview
Pieces = list[Bytes]

# length of the body, id (of what: see the kind), extra (calls in a message, KiB in an outcome), kind, flags
HEADER: Final = Struct("<QQIBBxx")

# parent to child
START, CALLS, GRANT, STOP, RECLAIM = 1, 2, 3, 4, 5
# child to parent
READY, RETURNED, RAISED, INTERRUPTED, NOTE, NEED, FREED, SHUTDOWN = 11, 12, 13, 14, 15, 16, 17, 18

LAST: Final = 1  # the message has no further outcome
PARCEL: Final = 2  # the body is a parcel with buffers, not just a pickle
RANGE: Final = 4  # the body has the results of several calls, with consecutive ids
ANSWER: Final = 8  # this grant answers a NEED
PACKED: Final = 16  # they are packed, not pickled
SKIPPED: Final = 32  # they should not run and never began; the body says how many they are

MAX_FRAME_BYTES: Final = 1 << 40
INBOX_BYTES: Final = 64 * 1024
SLOT_ALIGNMENT: Final = 64
INLINE_ALIGNMENT: Final = 16
MAX_PIECES: Final = 512  # the system takes 1024 at once

# between parent and template
SPAWN, FORKED, NOT_FORKED, EXITED, BROKEN, THREADED, NOT_IMPORTED = 21, 22, 23, 24, 25, 26, 27
NUMBER: Final = Struct("<q")


class ProtocolError(OmniqError):
    """The other end sent what makes no sense. It cannot be trusted any more."""


class Frame(NamedTuple):
    kind: int
    flags: int
    id: int
    extra: int
    body: memoryview


class Where(NamedTuple):
    """A slot of the arena as both ends name it; the generation tells this use of it from earlier ones."""

    number: int
    generation: int
    offset: int
    size: int


SLOT: Final = Struct("<IIQQ")
FREED_SLOT: Final = Struct("<II")
NOWHERE: Final = Where(0xFFFFFFFF, 0, 0, 0)


def frame(kind: int, id: int = 0, body: Bytes = b"", *, flags: int = 0, extra: int = 0) -> bytes:
    return HEADER.pack(len(body), id, extra, kind, flags) + body


def size_of(pieces: Sequence[Bytes]) -> int:
    return sum(len(piece) for piece in pieces)


class Inbox:
    """Cuts what `receive` delivers into frames. A small body is good until the next `fill` only."""

    def __init__(self, receive: Callable[[memoryview], int]) -> None:
        self._receive = receive
        self._buffer = memoryview(bytearray(INBOX_BYTES))
        self._start = 0
        self._end = 0
        self._big: memoryview | None = None
        self._big_header = (0, 0, 0, 0, 0)
        self._big_end = 0

    def fill(self) -> bool:
        """Receive once; False at the end of the channel. Raises BlockingIOError as the socket does."""
        if self._big is not None:
            got = self._receive(self._big[self._big_end :])
            self._big_end += got
            return got > 0
        if self._start:
            self._compact()
        got = self._receive(self._buffer[self._end :])
        self._end += got
        return got > 0

    def _compact(self) -> None:
        left = self._end - self._start
        if left:
            self._buffer[:left] = bytes(self._buffer[self._start : self._end])
        self._start, self._end = 0, left

    def next(self) -> Frame | None:
        """The next whole frame, or None until more has been received."""
        if self._big is not None:
            return self._finish_big()
        start, end = self._start, self._end
        body = start + HEADER.size
        if body > end:
            return None
        length, id_, extra, kind, flags = HEADER.unpack_from(self._buffer, start)
        stop = body + length
        if stop <= end:
            self._start = stop
            return Frame(kind, flags, id_, extra, self._buffer[body:stop])
        if length > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of kind {kind} with {length} bytes")
        if length + HEADER.size > INBOX_BYTES:
            self._begin_big((length, id_, extra, kind, flags), body)
        return None

    def _begin_big(self, header: tuple[int, int, int, int, int], body: int) -> None:
        """A frame over the buffer's size gets memory of its own, which its views may keep."""
        here = self._end - body
        self._big = memoryview(bytearray(header[0]))
        self._big[:here] = self._buffer[body : self._end]
        self._big_header, self._big_end = header, here
        self._start = self._end = 0

    def _finish_big(self) -> Frame | None:
        big = self._big
        if big is None or self._big_end < len(big):
            return None
        self._big = None
        _, id_, extra, kind, flags = self._big_header
        return Frame(kind, flags, id_, extra, big)


# --- parcels -------------------------------------------------------------------------------------

_PARCEL: Final = Struct("<IIQQI4x")
_LENGTH: Final = Struct("<Q")
_PLACE: Final = Struct("<IIQQQQ")
SCATTERED: Final = 0xFFFFFFFE  # instead of a slot's number
NO_BYTES: Final = memoryview(b"")


class SlotMemory(Protocol):
    """What a parcel needs of a slot: its name, and its bytes to write to."""

    @property
    def where(self) -> Where: ...
    @property
    def memory(self) -> memoryview: ...


class Place(NamedTuple):
    """Where one part of a scattered parcel lies: in a slot of its own, or, NOWHERE, with the others."""

    where: Where
    start: int
    length: int


class Parcel(NamedTuple):
    """A parcel as it was found in a frame. `inline` is empty when the bytes lie in the slot `where`.

    With `places` it is a scattered one: these say where each part lies, and the rest is about the others.
    """

    where: Where
    lengths: tuple[int, ...]
    inline: list[memoryview]
    places: tuple[Place, ...] = ()

    def cut(self, memory: memoryview) -> list[memoryview]:
        """The pickle and its buffers, as views of the slot's memory."""
        views: list[memoryview] = []
        position = 0
        for length in self.lengths:
            views.append(memory[position : position + length])
            position += _aligned(length, SLOT_ALIGNMENT)
        return views


def parcel_bytes(parts: Sequence[Bytes]) -> int:
    """How large a slot must be for these parts."""
    return sum(_aligned(len(part), SLOT_ALIGNMENT) for part in parts)


def pack_parcel(parts: Sequence[Bytes], slot: SlotMemory | None, position: int) -> Pieces:
    """Copy the parts into `slot`, or lay them out inline in a frame body that has `position` bytes so far."""
    where = NOWHERE if slot is None else slot.where
    head = _PARCEL.pack(*where, len(parts)) + b"".join([_LENGTH.pack(len(part)) for part in parts])
    if slot is not None:
        memory, at = slot.memory, 0
        for part in parts:
            memory[at : at + len(part)] = part
            at += _aligned(len(part), SLOT_ALIGNMENT)
        return [head]
    pieces: Pieces = [head]
    position += len(head)
    for part in parts:
        padding = -position % INLINE_ALIGNMENT
        pieces += (bytes(padding), part)
        position += padding + len(part)
    return pieces


def pack_scattered(places: Sequence[Place], others: Sequence[Bytes], slot: SlotMemory | None) -> Pieces:
    """A parcel of which some parts lie in slots already. `others` are the parts whose place is NOWHERE."""
    head = _PARCEL.pack(SCATTERED, 0, 0, 0, len(places))
    head += b"".join([_PLACE.pack(*where, start, length) for where, start, length in places])
    return [head, *pack_parcel(others, slot, len(head))]


def _unpack_places(body: memoryview, position: int, count: int) -> tuple[tuple[Place, ...], int]:
    end = position + count * _PLACE.size
    if end > len(body):
        raise ProtocolError(f"a parcel of {count} places in {len(body)} bytes")
    places: list[Place] = []
    for number, generation, offset, size, start, length in _PLACE.iter_unpack(body[position:end]):
        if number != NOWHERE.number and start + length > size:
            raise ProtocolError(f"{length} bytes at {start} in a slot of {size}")
        places.append(Place(Where(number, generation, offset, size), start, length))
    return tuple(places), end


def unpack_parcel(body: memoryview, position: int) -> tuple[Parcel, int]:
    """Read a parcel at `position`; also says where the body goes on."""
    if len(body) - position < _PARCEL.size:
        raise ProtocolError("a parcel that is cut short")
    number, generation, offset, size, count = _PARCEL.unpack_from(body, position)
    position += _PARCEL.size
    if number == SCATTERED:
        places, position = _unpack_places(body, position, count)
        others, position = unpack_parcel(body, position)
        return others._replace(places=places), position
    if count * _LENGTH.size > len(body) - position:
        raise ProtocolError(f"a parcel of {count} parts in {len(body)} bytes")
    lengths = tuple(_LENGTH.unpack_from(body, position + nth * _LENGTH.size)[0] for nth in range(count))
    position += count * _LENGTH.size
    inline: list[memoryview] = []
    if number == NOWHERE.number:
        for length in lengths:
            position += -position % INLINE_ALIGNMENT
            inline.append(body[position : position + length])
            position += length
    elif sum(_aligned(length, SLOT_ALIGNMENT) for length in lengths) > size:
        raise ProtocolError(f"a parcel of {lengths} bytes in a slot of {size}")
    if position > len(body):
        raise ProtocolError("a parcel that goes on after the end of its frame")
    return Parcel(Where(number, generation, offset, size), lengths, inline), position


def _aligned(length: int, alignment: int) -> int:
    return length + -length % alignment


# --- calls ---------------------------------------------------------------------------------------

# id, calls in it, calls of its list to leave out, length of the function, length of the pickle, flags
CALL: Final = Struct("<QIIIIBxxx")
BY_NAME: Final = 1
WITH_PARCEL: Final = 2
IS_RANGE: Final = 4
