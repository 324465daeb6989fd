"""The child's end of its channel: frames in, frames out, and the slots it was lent.

A slot of arguments is pinned by whatever looks at it and reported as freed with the next frame. A result is
written into a grant: a slot that the parent sent ahead, or gives when asked. Without one it goes inline.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from omniq.pool import copies, wire
from omniq.pool.arena import SMALLEST_SLOT, Attached, address_of
from omniq.pool.wire import Bytes, Frame, Inbox, Parcel, Pieces, Place, Where

MAX_SPARE_GRANTS: Final = 16
INTERRUPT_SIGNAL: Final = signal.SIGUSR1


class Memory:
    """A granted slot as a parcel is packed into it."""

    def __init__(self, where: Where, memory: memoryview) -> None:
        self.where = where
        self.memory = memory


class Room:
    """A granted slot in which a body makes its result. Once it is sent, the slot is the parent's."""

    def __init__(self, where: Where, address: int) -> None:
        self.where = where
        self.address = address
        self.is_sent = False


class SentBefore(ValueError):
    """The memory of a result belongs to the parent since it was sent."""


class ParentGone(Exception):
    """Nobody reads any more."""


class Line:
    def __init__(self, sock: socket.socket, arena: Attached) -> None:
        self._sock = sock
        self._arena = arena
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._inbox = Inbox(self._wait)
        self._early: deque[Frame] = deque()
        self._grants: list[Where] = []
        self._freed: deque[Where] = deque()
        self._rooms: dict[Where, Room] = {}  # also one that is sent, as long as somebody here looks at it
        self._sending = threading.Lock()  # a body's own threads may send notes
        self.is_sending = False  # a whole frame is on its way: nothing may be raised in here
        self.is_asking = False  # nor between a question and its answer

    # --- in --------------------------------------------------------------------------------------

    def read(self) -> Frame | None:
        """The next frame that is not about slots; None when the parent is gone."""
        while (frame := self._early.popleft() if self._early else self._receive()) is not None:
            if frame.kind == wire.GRANT:
                self._keep(_granted(frame))
            elif frame.kind == wire.RECLAIM:
                self._give_back()
            else:
                break
        return frame

    def _receive(self) -> Frame | None:
        while (frame := self._inbox.next()) is None:
            try:
                if not self._inbox.fill():
                    return None
            except ConnectionError:
                return None
        return frame

    def _wait(self, memory: memoryview) -> int:
        # Whoever waits in recv is also woken, for nothing, when the other end takes what was sent before.
        self._poll.poll()
        return self._sock.recv_into(memory)

    def open(self, parcel: Parcel) -> list[memoryview]:
        """The parts of a parcel; the slot they lie in is pinned as long as there is a view of any of them."""
        where = parcel.where
        if where.number == wire.NOWHERE.number:
            return parcel.inline
        try:
            memory = self._arena.export(where)
        except OSError as exc:
            self._freed.append(where)
            raise MemoryError(f"no addresses left to map {where.size} bytes of arguments") from exc
        return parcel.cut(memory)

    # --- out -------------------------------------------------------------------------------------

    def send(self, pieces: Pieces) -> None:
        """Send it all, and with it which slots are free again."""
        if copies.is_copy():
            copies.leave()
        with self._sending:
            self.is_sending = True
            try:
                if freed := self._freed_frame():
                    pieces = [*pieces, freed]
                if pieces:
                    _send_all(self._sock, pieces)
            except ConnectionError as exc:
                raise ParentGone from exc
            finally:
                self.is_sending = False

    def _freed_frame(self) -> bytes:
        """Empty where nothing is free. What was a room and is sent belongs to the parent."""
        for where in self._arena.left():
            room = self._rooms.pop(where, None)
            if room is None or not room.is_sent:
                self._freed.append(where)
        freed: list[bytes] = []
        while self._freed:  # this may be a thread of a body, while another one adds to it
            where = self._freed.popleft()
            freed.append(wire.FREED_SLOT.pack(where.number, where.generation))
        return wire.frame(wire.FREED, body=b"".join(freed)) if freed else b""

    def pack(self, parts: list[Bytes]) -> Pieces:
        """A parcel with these parts, in a granted slot where there is one. What is in a room stays there."""
        if self._rooms:
            places = [self._place(part) for part in parts]
            if any(place.where is not wire.NOWHERE for place in places):
                return self._pack_scattered(parts, places)
        return wire.pack_parcel(parts, self._grant_for(wire.parcel_bytes(parts)), 0)

    # --- rooms -----------------------------------------------------------------------------------

    def room(self, nbytes: int) -> memoryview | None:
        """Memory in a slot for a part of a result, or None. The slot is pinned as long as it is looked at."""
        granted = self._grant_for(nbytes)
        if granted is None:
            return None
        where = granted.where
        view = self._arena.export(where)
        self._rooms[where] = Room(where, ctypes.addressof(view.obj))  # type: ignore[arg-type]
        return view[:nbytes]

    def _place(self, part: Bytes) -> Place:
        if isinstance(part, memoryview):
            address = address_of(part)
            for room in reversed(tuple(self._rooms.values())):  # the latest use of a slot
                start = address - room.address
                if 0 <= start < room.where.size:
                    if room.is_sent:
                        raise SentBefore(
                            "an array of omniq.data.empty was returned a second time; make a new one"
                        )
                    return Place(room.where, start, len(part))
        return Place(wire.NOWHERE, 0, len(part))

    def _pack_scattered(self, parts: list[Bytes], places: list[Place]) -> Pieces:
        others = [part for part, place in zip(parts, places, strict=True) if place.where is wire.NOWHERE]
        nbytes = wire.parcel_bytes(others)
        slot = self._grant_for(nbytes) if nbytes >= SMALLEST_SLOT else None
        for place in places:
            if place.where is not wire.NOWHERE:
                self._rooms[place.where].is_sent = True
        return wire.pack_scattered(places, others, slot)

    # --- grants ----------------------------------------------------------------------------------

    def _grant_for(self, nbytes: int) -> Memory | None:
        where = self._best(nbytes)
        if where is None:
            self._look_for_grants()
            where = self._best(nbytes) or self._ask_for(nbytes)
        if where is None:
            return None
        try:
            return Memory(where, self._arena.view(where))
        except OSError:  # no addresses left: the parent keeps its slot
            self._freed.append(where)
            return None

    def _best(self, nbytes: int) -> Where | None:
        best: Where | None = None
        for where in self._grants:
            if where.size >= nbytes and (best is None or where.size < best.size):
                best = where
        if best is not None:
            self._grants.remove(best)
        return best

    def _look_for_grants(self) -> None:
        """Take in what the parent has sent meanwhile, without waiting.

        The socket stays as it is: a thread of the body may be sending a note through it.
        """
        with suppress(ConnectionError):
            while self._poll.poll(0) and self._inbox.fill():
                self._take_in(lambda _: None)

    def _ask_for(self, nbytes: int) -> Where | None:
        self.send([wire.frame(wire.NEED, nbytes)])
        answers: list[Where] = []
        self._take_in(answers.append)
        while not answers:
            try:
                if not self._inbox.fill():
                    raise ParentGone
            except ConnectionError as exc:
                raise ParentGone from exc
            self._take_in(answers.append)
        return answers[0] if answers[0].size else None

    def _take_in(self, answer: Callable[[Where], None]) -> None:
        while (frame := self._inbox.next()) is not None:
            if frame.kind != wire.GRANT:
                # It is read later, when the inbox may have been filled again.
                body = frame.body if len(frame.body) >= wire.INBOX_BYTES else memoryview(bytes(frame.body))
                self._early.append(frame._replace(body=body))
            elif frame.flags & wire.ANSWER:
                answer(_granted(frame))
            else:
                self._keep(_granted(frame))

    def _keep(self, where: Where) -> None:
        self._grants.append(where)
        if len(self._grants) > MAX_SPARE_GRANTS:
            smallest = min(self._grants, key=lambda grant: grant.size)
            self._grants.remove(smallest)
            self._freed.append(smallest)

    def _give_back(self) -> None:
        """Nothing is to do: others may need what lies here unused."""
        self._freed.extend(self._grants)
        self._grants.clear()
        self.send([])


def _granted(frame: Frame) -> Where:
    return Where(*wire.SLOT.unpack(frame.body))


def _send_all(sock: socket.socket, pieces: Pieces) -> None:
    if len(pieces) == 1:
        sock.sendall(pieces[0])
        return
    left = [memoryview(piece) for piece in pieces if len(piece)]
    while left:
        sent = sock.sendmsg(left[: wire.MAX_PIECES])
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = left[0][sent:]


def own_memory_kib(statm: int) -> int:
    """What the process has for itself, in KiB: without libraries, and without the arena."""
    resident, shared = os.pread(statm, 100, 0).split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE") // 1024
