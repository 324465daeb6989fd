"""The arena: slots are recycled, pinned by their views, bounded, and gone without a trace."""

import gc
import os
import resource
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniq.pool.arena import (
    MAX_CHILD_MAPPINGS,
    SMALLEST_SLOT,
    Arena,
    Attached,
    Slot,
    default_limit_bytes,
    slot_size,
)

MIB = 1024 * 1024


def taken(arena: Arena, nbytes: int) -> Slot:
    slot = arena.take(nbytes)
    assert slot is not None
    return slot


@given(st.integers(1, 1 << 40))
def test_a_size_class_wastes_little_and_is_made_of_pages(nbytes: int) -> None:
    size = slot_size(nbytes)
    assert size >= nbytes
    assert size % 4096 == 0
    assert size <= max(SMALLEST_SLOT, nbytes * 5 / 4)
    assert slot_size(size) == size


def test_a_slot_comes_back_under_a_new_generation() -> None:
    arena = Arena(4 * MIB)
    first = taken(arena, MIB)
    before = first.where
    first.free()
    again = taken(arena, MIB)
    assert again is first
    assert again.where.offset == before.offset
    assert again.where.generation == before.generation + 1
    assert arena.reserved_bytes == MIB
    arena.close()


def test_a_view_pins_its_slot() -> None:
    arena = Arena(4 * MIB)
    slot = taken(arena, MIB)
    array = np.frombuffer(slot.export(), dtype=np.float64)
    part = array[10:20]
    del array
    assert taken(arena, MIB) is not slot, "a part of the array is still looked at"
    part[:] = 3.0
    del part
    gc.collect()
    assert taken(arena, MIB) is slot
    arena.close()


def test_no_python_runs_when_a_view_goes() -> None:
    """Python ignores what is raised there: a Ctrl-C that met a function of ours would be lost."""
    arena = Arena(4 * MIB)
    slot = taken(arena, MIB)
    held, ran = [slot.export()], list[str]()
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_name) if event == "call" else None)
    try:
        held.clear()
    finally:
        sys.setprofile(None)
    assert ran == []
    assert taken(arena, MIB) is slot
    arena.close()


def test_a_view_that_goes_in_another_thread_frees_its_slot() -> None:
    arena = Arena(4 * MIB)
    slot = taken(arena, MIB)
    held = [slot.export()]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert taken(arena, MIB) is slot
    arena.close()


def test_a_full_arena_says_no_and_gives_idle_slots_of_other_sizes_up() -> None:
    arena = Arena(4 * MIB)
    slots = [taken(arena, MIB) for _ in range(4)]
    assert arena.take(MIB) is None
    assert arena.take(1) is None
    assert arena.take(1, beyond_limit=True) is not None
    for slot in slots[:3]:
        slot.free()
    assert taken(arena, 2 * MIB).size == 2 * MIB
    assert arena.take(2 * MIB) is None
    assert arena.reserved_bytes <= 4 * MIB + SMALLEST_SLOT
    arena.close()


def test_memory_given_up_is_given_back_to_the_system() -> None:
    arena = Arena(8 * MIB)
    slot = taken(arena, 8 * MIB)
    slot.memory[:] = b"x" * len(slot.memory)
    assert os.fstat(arena.fileno()).st_blocks * 512 == 8 * MIB
    slot.free()
    del slot
    taken(arena, MIB)
    assert os.fstat(arena.fileno()).st_blocks * 512 == MIB
    arena.close()


def test_memory_that_is_not_there_is_an_answer_and_no_signal() -> None:
    """D6: pages are reserved before they are touched."""
    arena = Arena(1 << 60)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, hard))
    try:
        assert arena.take(4 * MIB) is None
        assert arena.take(MIB) is not None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        arena.close()


def test_views_stay_valid_when_the_arena_is_gone() -> None:
    arena = Arena(4 * MIB)
    slot = taken(arena, MIB)
    slot.memory[:4] = b"here"
    view = slot.export()
    arena.close()
    del arena, slot
    gc.collect()
    assert bytes(view[:4]) == b"here"


def test_a_closed_arena_gives_nothing() -> None:
    arena = Arena(MIB)
    arena.close()
    arena.close()
    assert arena.take(1) is None


def test_both_ends_see_the_same_bytes() -> None:
    arena = Arena(4 * MIB)
    attached = Attached(arena.fileno())
    slot = taken(arena, MIB)
    attached.map(slot.where)[:5] = b"hello"
    assert bytes(slot.memory[:5]) == b"hello"
    assert attached.map(slot.where) is attached.map(slot.where)
    arena.close()


def test_nobody_can_make_the_file_shorter() -> None:
    arena = Arena(MIB)
    taken(arena, 1)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fileno(), 0)
    arena.close()


def test_without_memfd_there_is_a_file_without_a_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    arena = Arena(MIB)
    slot = taken(arena, 1)
    slot.memory[:2] = b"ok"
    assert list(tmp_path.iterdir()) == []
    arena.close()


def test_the_default_limit_is_a_part_of_what_there_is() -> None:
    assert 64 * MIB <= default_limit_bytes() <= 1024 * MIB


def test_closing_unmaps_what_nobody_looks_at() -> None:
    """At once, though somebody still knows the slots; each mapping is a descriptor as well."""
    arena = Arena(64 * MIB)
    large, idle, seen = arena.take(16 * MIB), arena.take(MIB), arena.take(MIB)
    assert large is not None and idle is not None and seen is not None
    view = seen.export()
    large.free()
    idle.free()
    file = os.dup(arena.fileno())
    arena.close()
    assert large.map.closed
    assert os.fstat(file).st_blocks * 512 == MIB, "what is left is looked at"
    os.close(file)
    view[0] = 7
    assert view[0] == 7


def test_results_that_are_kept_do_not_use_up_the_descriptors() -> None:
    """D7: a program may keep any number of them, and has other uses for its descriptors."""

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    arena = Arena(64 * MIB)
    child = Attached(arena.fileno())
    kept: list[memoryview] = []
    for number in range(500):
        slot = arena.take(64 * 1024)
        assert slot is not None
        child.view(slot.where)[0] = number % 256
        kept.append(slot.export())
    assert [view[0] for view in kept] == [number % 256 for number in range(500)]
    assert descriptors() - before <= 1 + 4 + MAX_CHILD_MAPPINGS
    child._maps.clear()
    kept.clear()
    arena.close()
    assert descriptors() == before
