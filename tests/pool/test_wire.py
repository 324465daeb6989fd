"""Frames and parcels: whatever the pieces in which bytes arrive, what was sent is what is read."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniq.pool import wire
from omniq.pool.control import RING_WORDS, WITHDRAWALS_KEPT, ControlPage
from omniq.pool.outbox import Outbox
from omniq.pool.wire import Inbox, ProtocolError

bodies = st.one_of(st.binary(max_size=40), st.integers(60_000, 70_000).map(bytes))


class Trickle:
    """Delivers bytes in pieces of given sizes, over and over."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._data = data
        self._sizes = sizes
        self._turn = 0

    def receive(self, view: memoryview) -> int:
        size = min(self._sizes[self._turn % len(self._sizes)], len(view), len(self._data))
        self._turn += 1
        view[:size] = self._data[:size]
        self._data = self._data[size:]
        return size


@given(st.lists(bodies, max_size=8), st.lists(st.integers(1, 100_000), min_size=1, max_size=5))
def test_frames_survive_any_cutting(sent: list[bytes], sizes: list[int]) -> None:
    data = b"".join(wire.frame(wire.NOTE, number, body, flags=number % 8) for number, body in enumerate(sent))
    inbox = Inbox(Trickle(data, [size + 100 for size in sizes]).receive)
    read: list[tuple[int, int, bytes]] = []
    while inbox.fill():
        while (frame := inbox.next()) is not None:
            assert frame.kind == wire.NOTE
            read.append((frame.id, frame.flags, bytes(frame.body)))
    assert read == [(number, number % 8, body) for number, body in enumerate(sent)]


def test_one_byte_at_a_time() -> None:
    data = wire.frame(wire.NOTE, 7, b"seven") + wire.frame(wire.READY)
    inbox = Inbox(Trickle(data, [1]).receive)
    kinds: list[int] = []
    while inbox.fill():
        if (frame := inbox.next()) is not None:
            kinds.append(frame.kind)
    assert kinds == [wire.NOTE, wire.READY]


def test_a_big_body_stays_when_the_inbox_is_filled_again() -> None:
    big = bytes(range(256)) * 1000
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        inbox = Inbox(ours.recv_into)
        data = memoryview(wire.frame(wire.NOTE, 1, big) + wire.frame(wire.NOTE, 2, b"x" * 5000))
        frames: list[wire.Frame] = []
        while len(frames) < 2:
            if data:
                data = data[theirs.send(data[:50_000]) :]
            assert inbox.fill()
            while (frame := inbox.next()) is not None:
                frames.append(frame)
        assert frames[0].body == big


def test_a_senseless_length_is_refused() -> None:
    header = wire.HEADER.pack(1 << 60, 1, 0, wire.NOTE, 0)
    inbox = Inbox(Trickle(header, [100]).receive)
    assert inbox.fill()
    with pytest.raises(ProtocolError):
        inbox.next()


@given(st.binary(max_size=30), st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_an_inline_parcel_is_read_as_it_was_packed(before: bytes, parts: list[bytes]) -> None:
    packed = before + b"".join(wire.pack_parcel(parts, None, len(before))) + b"after"
    parcel, position = wire.unpack_parcel(memoryview(packed), len(before))
    assert [bytes(part) for part in parcel.inline] == parts
    assert packed[position:] == b"after"
    assert parcel.where == wire.NOWHERE


class FakeSlot:
    def __init__(self, size: int) -> None:
        self.where = wire.Where(3, 8, 4096, size)
        self.memory = memoryview(bytearray(size))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_a_parcel_in_a_slot_is_read_as_it_was_packed(parts: list[bytes]) -> None:
    slot = FakeSlot(wire.parcel_bytes(parts))
    packed = b"".join(wire.pack_parcel(parts, slot, 0))
    parcel, _ = wire.unpack_parcel(memoryview(packed), 0)
    assert parcel.where == slot.where
    assert [bytes(part) for part in parcel.cut(slot.memory)] == parts


@pytest.mark.parametrize("keep", [10, 35, 39, 60])
def test_a_parcel_that_was_cut_short_is_refused(keep: int) -> None:
    packed = b"".join(wire.pack_parcel([b"x" * 20, b"y" * 30], None, 0))
    with pytest.raises(ProtocolError):
        wire.unpack_parcel(memoryview(packed)[:keep], 0)


def test_a_parcel_larger_than_its_slot_is_refused() -> None:
    slot = FakeSlot(4096)
    packed = bytearray(b"".join(wire.pack_parcel([b"x" * 4096], slot, 0)))
    packed[-8:] = (4097).to_bytes(8, "little")
    with pytest.raises(ProtocolError):
        wire.unpack_parcel(memoryview(packed), 0)


def test_the_page_remembers_the_latest_interrupts() -> None:
    page = ControlPage(memoryview(bytearray(64 * 1024)))
    assert page.posted().ids == frozenset()
    page.post(5)
    assert page.posted().ids == {5}
    for call_id in range(100, 100 + RING_WORDS):
        page.post(call_id)
    assert page.posted().ids == set(range(100, 100 + RING_WORDS))
    page.clear()
    assert page.posted().ids == frozenset()


def test_the_page_keeps_withdrawals_apart_from_interrupts() -> None:
    page = ControlPage(memoryview(bytearray(64 * 1024)))
    page.post(5)
    for first in range(0, 1000 * WITHDRAWALS_KEPT, 1000):
        assert page.withdrawn() == [range(n, n + 900) for n in range(0, first, 1000)]
        page.withdraw(first, first + 900)
    assert page.posted().ids == {5}
    page.withdraw(7, 8)
    assert page.withdrawn()[:2] == [range(7, 8), range(1000, 1900)], "the oldest is forgotten"
    assert page.words[0] == 1 + WITHDRAWALS_KEPT + 1, "whoever looks there sees that there is something new"


class Written:
    """Words of a page; before they are read for the `nth` time, the other end writes there."""

    def __init__(self, words: memoryview, nth: int, write: Callable[[], None]) -> None:
        self._words = words
        self._left = nth
        self._write = write

    def __getitem__(self, where: Any) -> Any:
        self._left -= 1
        if not self._left:
            self._write()
        return self._words[where]


@pytest.mark.parametrize("nth", range(1, 6))
def test_a_range_that_is_half_written_is_no_larger_one(nth: int) -> None:
    """The end of the new one with the beginning of an old one: calls between them did not run."""
    memory = memoryview(bytearray(64 * 1024))
    page, other = ControlPage(memory), ControlPage(memory)
    for first in range(0, 10 * WITHDRAWALS_KEPT, 10):
        other.withdraw(first, first + 1)
    other.post_range(5, 6)

    def write() -> None:
        other.withdraw(10_000, 10_001)
        other.post_range(20_000, 20_001)

    page.words = Written(page.words, nth, write)  # type: ignore[assignment]
    assert not any(5000 in span for span in page.withdrawn())
    page.words = Written(other.words, nth, lambda: other.post_range(30_000, 30_001))  # type: ignore[assignment]
    assert not page.posted().has(15_000) and not page.posted().has(25_000)


# --- what is written ---


@pytest.mark.parametrize("sizes", [(10,), (10, 20, 30), (70_000, 10, 400_000)])
async def test_what_is_held_goes_out_later_and_in_order(sizes: tuple[int, ...]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        outbox = Outbox(ours, loop)
        outbox.write([b"first"])
        outbox.hold()
        outbox.hold()  # again, while frames of frames are taken
        for nth, size in enumerate(sizes):
            outbox.write([bytes([nth]) * size])
        with pytest.raises(BlockingIOError):
            theirs.recv(5) and theirs.recv(1)
        outbox.let_go()
        outbox.write([b"last"])
        expected = b"".join(bytes([nth]) * size for nth, size in enumerate(sizes)) + b"last"
        got = b""
        async with asyncio.timeout(10):
            while len(got) < len(expected):
                got += await loop.sock_recv(theirs, 1 << 20)
        assert got == expected
