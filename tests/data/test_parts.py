"""The parts of the data pool that decide or keep something, without any worker."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniq.data import mapping as mapping_module
from omniq.data import stream as stream_module
from omniq.data.feeding import ahead, fits, places
from omniq.data.items import Item
from omniq.data.mapping import Mapped
from omniq.data.stream import Hatch, Stream, Work
from omniq.data.waiting import Waiting
from omniq.errors import StartFailed, TaskFailed
from omniq.loopthread import LoopThread
from omniq.pool.arena import slot_size
from omniq.pool.reserved import Ranges, ReservedArena
from tests.data.bodies import until

MIB = 1 << 20
KIB = 1024

# --- decisions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unread", "in_flight", "usual", "answer"),
    [
        (0, 0, 0, True),  # nothing is known yet
        (0, 0, MIB, True),
        (0, 5, MIB, True),
        (0, 6, MIB, False),  # the seventh would need what readers look at
        (6 * MIB, 0, MIB, False),
        (5 * MIB, 0, MIB, True),
        (7 * MIB, 0, 0, False),
        (0, 0, 100 * MIB, False),  # larger than the arena: only what somebody waits for
    ],
)
def test_when_one_more_may_start(unread: int, in_flight: int, usual: int, answer: bool) -> None:
    assert fits(unread, in_flight, usual, arena_bytes=8 * MIB) is answer


@pytest.mark.parametrize(
    ("usual_s", "many"), [(None, 1), (1.0, 1), (0.021, 1), (0.01, 2), (0.001, 4), (0.0001, 16)]
)
def test_how_many_a_worker_gets_beforehand(usual_s: float | None, many: int) -> None:
    assert places(usual_s) == many


@pytest.mark.parametrize(("usual_s", "many"), [(None, 4), (1.0, 4), (0.01, 4), (0.001, 8), (0.0001, 32)])
def test_how_many_are_ahead_of_a_reader_who_says_nothing(usual_s: float | None, many: int) -> None:
    assert ahead(usual_s) == many


# --- what waits ----------------------------------------------------------------------------------


def a_stream(*, ordered: bool = True, on_error: Any = "skip") -> tuple[Hatch, Stream]:
    hatch = Hatch(None)
    hatch.enter("running")
    stream = Stream(hatch, ordered=ordered, on_error=on_error)
    hatch.open(stream)
    return hatch, stream


def submitted(hatch: Hatch, stream: Stream, *priorities: int) -> list[Item]:
    hatch.submit(stream, [Work(priority, "work", 1, None) for priority in priorities])
    return hatch.received()


def test_the_most_urgent_first_then_the_oldest() -> None:
    hatch, stream = a_stream()
    waiting = Waiting()
    for item in submitted(hatch, stream, 0, 5, 0, 9, 5, -1):
        waiting.add(item)
    order = []
    while (item := waiting.first()) is not None:
        waiting.take(item)
        order.append(item.seq)
    assert order == [3, 1, 4, 0, 2, 5]


def test_what_comes_back_has_its_old_place() -> None:
    hatch, stream = a_stream()
    waiting, items = Waiting(), submitted(hatch, stream, 0, 0, 0)
    for item in items[1:]:
        waiting.add(item)
    waiting.add(items[0])
    assert waiting.first() is items[0]


def test_the_one_that_a_reader_needs() -> None:
    hatch, ordered = a_stream()
    unordered = Stream(hatch, ordered=False, on_error="skip")
    hatch.open(unordered)
    waiting = Waiting()
    first, second = submitted(hatch, ordered, 0, 9)
    waiting.add(second)
    assert waiting.first_needed() is None, "the first one runs somewhere"
    waiting.add(first)
    assert waiting.first_needed() is first, "whatever its priority"
    waiting.take(first)
    [third] = submitted(hatch, unordered, 0)
    waiting.add(third)
    assert waiting.first_needed() is third, "nothing of its stream runs or can be read"
    assert waiting.take_all(ordered) == [second]
    assert waiting.take_all() == [third]
    assert waiting.first() is None


# --- results -------------------------------------------------------------------------------------


@given(st.permutations(range(8)), st.sets(st.integers(0, 7)), st.booleans())
def test_results_come_in_order_whatever_ends_first(ends: list[int], bad: set[int], ordered: bool) -> None:
    hatch, stream = a_stream(ordered=ordered)
    for item in submitted(hatch, stream, *[0] * 8):
        hatch.started(item)
    for seq in ends:
        if seq in bad:
            stream.fail(seq, "work", ValueError(str(seq)))
        else:
            stream.finish(seq, seq, 10)
    good = [seq for seq in ends if seq not in bad]
    got = [stream.take(0.01) for _ in good]
    assert got == (sorted(good) if ordered else good)
    for _ in bad:
        with pytest.raises(TaskFailed):
            stream.take(0.01)
    assert stream.try_take() == (False, None)
    assert (hatch.pending, hatch.in_flight, hatch.ready, hatch.unread_bytes) == (0, 0, 0, 0)


def test_nobody_is_told_too_early_that_nothing_is_left() -> None:
    hatch, stream = a_stream()
    for item in submitted(hatch, stream, 0, 0):
        hatch.started(item)
    stream.fail(0, "work", ValueError("no"))
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.append(stream.take(20)))
    reader.start()
    reader.join(0.05)
    assert reader.is_alive(), "the second one may still bring something"
    stream.finish(1, "yes", 10)
    reader.join(20)
    assert got == ["yes"]


# --- memory --------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.integers(0, 1000))
def test_ranges_never_overlap_and_come_back_whole(sizes: list[int], seed: int) -> None:
    ranges, taken = Ranges(40), dict[int, int]()
    chance = random.Random(seed)
    for size in sizes:
        offset = ranges.take(size)
        if offset is None:
            assert taken
            given = chance.choice(list(taken))
            ranges.give_back(given, taken.pop(given))
            continue
        assert all(offset + size <= other or other + length <= offset for other, length in taken.items())
        assert offset + size <= 40
        taken[offset] = size
    for offset, size in taken.items():
        ranges.give_back(offset, size)
    assert ranges.take(40) == 0


def test_an_arena_is_cut_anew_without_more_memory() -> None:
    arena = ReservedArena(4 * MIB).reserve()
    for kib in (64, 1024, 200, 4096, 64, 3000):
        slots = []
        while (slot := arena.take(kib * KIB)) is not None:
            slots.append(slot)
        assert len(slots) == 4 * MIB // slot_size(kib * KIB)
        assert arena.used_bytes == sum(slot.size for slot in slots)
        assert arena.take(kib * KIB, beyond_limit=True) is not None, "a page of a process is not counted"
        for slot in slots:
            slot.free()
        assert arena.used_bytes == 0
    arena.close()


def test_slots_are_told_apart_by_number_and_generation() -> None:
    arena, seen = ReservedArena(2 * MIB).reserve(), set[tuple[int, int]]()
    for kib in (64, 512, 64, 1024, 64) * 3:
        slot = arena.take(kib * KIB)
        assert slot is not None
        assert (slot.number, slot.generation) not in seen
        seen.add((slot.number, slot.generation))
        slot.free()
    arena.close()


def test_a_view_keeps_the_memory_of_a_closed_arena() -> None:
    arena = ReservedArena(MIB).reserve()
    slot = arena.take(100 * KIB)
    assert slot is not None
    view = np.frombuffer(slot.export(), np.uint8)
    view[:] = 7
    arena.close()
    assert arena.take(100 * KIB) is None
    assert (view == 7).all()


def test_more_than_there_is_cannot_be_reserved() -> None:
    arena = ReservedArena(1 << 60)
    with pytest.raises(StartFailed, match=r"write a smaller arena="):
        arena.reserve()
    arena.close()


def test_an_arena_grows_within_its_bounds() -> None:
    """What was cut stays where it is; a slot that did not fit does, then."""
    arena = ReservedArena(MIB, 4 * MIB).reserve()
    first = arena.take(900 * KIB)
    assert first is not None and arena.take(2 * MIB) is None
    arena.grow(100 * MIB)
    assert arena.limit_bytes == 4 * MIB
    second = arena.take(2 * MIB)
    assert second is not None and arena.take(2 * MIB) is None
    second.memory[:] = b"x" * len(second.memory)
    for slot in (first, second):
        slot.free()
    assert arena.used_bytes == 0
    del slot, first, second
    arena.close()


# --- Ctrl-C --------------------------------------------------------------------------------------


def test_a_ctrl_c_while_a_reader_begins_to_wait_is_a_ctrl_c() -> None:
    """It came out as a RuntimeError: Python's condition had left its lock, and did not yet take it again."""
    hatch = Hatch(None)
    hatch.enter("running")
    stream = Stream(hatch, ordered=True, on_error="raise")
    hatch.open(stream)
    hatch.submit(stream, [Work(0, "nap", 1, None)])
    leave: Any = stream.readable._release_save  # type: ignore[attr-defined]

    def press() -> None:
        leave()
        raise KeyboardInterrupt

    stream.readable._release_save = press  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        stream.take(None)
    with pytest.raises(KeyboardInterrupt):
        stream.take_until_done()
    assert hatch.lock.acquire(blocking=False), "and nobody holds the lock"


def test_a_ctrl_c_in_a_submission_leaves_nothing_half_submitted() -> None:
    """What was counted and not in the inbox, or lay there unheard, was waited for without an end."""
    for moment in itertools.count():
        hatch = Hatch(None)
        hatch.enter("running")
        stream, woken = Stream(hatch, ordered=True, on_error="raise"), list[bool]()
        hatch.open(stream)
        hatch.wake = lambda woken=woken: woken.append(True)  # type: ignore[misc]
        pressed = pressed_at(moment, lambda: hatch.submit(stream, [Work(0, "nap", 1, None)]))  # noqa: B023
        for more in range(2):
            assert bool(woken) >= bool(hatch._inbox)
            known = sum(item.count for item in hatch._inbox)
            assert (stream.end, stream.unfinished, hatch.pending) == (known,) * 3
            if not more:
                hatch.submit(stream, [Work(0, "nap", 1, None)])
        if not pressed:
            return


def test_a_ctrl_c_in_a_map_submits_each_item_once() -> None:
    for moment in itertools.count():
        hatch = Hatch(None)
        hatch.enter("running")
        stream = Stream(hatch, ordered=True, on_error="raise")
        mapped = Mapped(
            hatch, stream, lambda chunk: Work(0, "nap", len(chunk), list(chunk)), range(7), chunksize=3,
            ahead=lambda: 9,
        )  # fmt: skip
        pressed = pressed_at(moment, mapped.begin)
        mapped.begin()
        assert [item.work for item in hatch.received()] == [[0, 1, 2], [3, 4, 5], [6]], moment
        if not pressed:
            return


@pytest.mark.parametrize("ordered", [True, False])
def test_a_ctrl_c_in_a_reading_costs_at_most_that_result(ordered: bool) -> None:
    """One that was taken out and not passed was waited for, and what was behind it was given to nobody."""
    for moment in itertools.count():
        hatch = Hatch(None)
        hatch.enter("running")
        stream = Stream(hatch, ordered=ordered, on_error="skip")
        hatch.open(stream)
        hatch.submit(stream, [Work(0, "nap", 1, None)] * 4)
        for item in hatch.received():
            hatch.started(item)
        stream.fail(1, "nap", ValueError("left out"))
        for seq in (0, 2, 3):
            stream.finish(seq, seq, 10)
        pressed = pressed_at(moment, stream.take_until_done)
        rest: list[int] = []
        while (found := stream.take_until_done())[0]:
            rest.append(found[1])
        assert rest in ([0, 2, 3], [2, 3]), moment
        assert (hatch.ready, hatch.unread_bytes, stream.outstanding) == (0, 0, 0)
        if not pressed:
            return


def test_a_ctrl_c_in_a_reading_wakes_a_loop_that_waits_for_readers() -> None:
    """It makes room as any reading does; nobody else would say so, and the reader would wait for ever."""
    for moment in itertools.count():
        hatch = Hatch(None)
        hatch.enter("running")
        stream, woken = Stream(hatch, ordered=True, on_error="raise"), list[bool]()
        hatch.open(stream)
        hatch.submit(stream, [Work(0, "nap", 1, None)] * 2)
        for item in hatch.received():
            hatch.started(item)
        stream.finish(0, 0, 10)
        hatch.is_narrow = True
        hatch.wake = lambda woken=woken: woken.append(True)  # type: ignore[misc]
        pressed = pressed_at(moment, stream.take_until_done)
        assert bool(woken) >= (not hatch.ready), moment
        if not pressed:
            return


def pressed_at(moment: int, call: Callable[[], object]) -> bool:
    """Ctrl-C before the line of that number which `call` runs in our own modules; False if it runs fewer."""
    left = moment

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in (stream_module.__file__, mapping_module.__file__):
            return None
        if event == "line":
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_ctrl_c_that_ends_no_wait_is_seen_all_the_same() -> None:
    """As one that comes just before a reader begins to wait: here the signal goes to another thread."""
    hatch = Hatch(None)
    hatch.enter("running")
    stream = Stream(hatch, ordered=True, on_error="raise")
    hatch.open(stream)
    hatch.submit(stream, [Work(0, "nap", 1, None)])
    for wait in (stream.take_until_done, lambda: stream.take(None), lambda: stream.take(3600.0)):
        with pressed_elsewhere(), pytest.raises(KeyboardInterrupt):
            wait()


def test_a_ctrl_c_that_ends_no_wait_ends_a_blocking_call() -> None:
    with LoopThread("test") as loop, pressed_elsewhere(), pytest.raises(KeyboardInterrupt):
        loop.run(asyncio.Event().wait())


def test_a_timeout_of_the_work_itself_is_told_at_once() -> None:
    async def late() -> None:
        raise TimeoutError("its own")

    with LoopThread("test") as loop, pytest.raises(TimeoutError, match="its own"):
        loop.run(late())


@contextlib.contextmanager
def pressed_elsewhere() -> Iterator[None]:
    """A Ctrl-C that interrupts no system call of this thread, soon after it has begun to wait."""
    me = threading.get_ident()
    begin = threading.Event()

    def press() -> None:
        begin.wait()
        until(lambda: is_waiting(me), "it waits")
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()  # which waits itself, until it has
    begin.set()
    try:
        yield
    finally:
        thread.join()


def is_waiting(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code.co_name == "wait" and frame.f_globals is vars(threading)
