"""Shared memory of a pool: one nameless file, cut into slots that the parent alone hands out.

    Arena (parent)     take -> Slot -> export -> a view; the slot comes back when its last view is gone
    Attached (child)   the same slots, mapped when first seen

Slots are recycled because fresh pages cost more than the copy into them. A slot's generation rises with each
use, so that a late frame about an earlier use is refused. There is nothing to clean up: the memory goes when
the last process and the last view have gone.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from omniq.pool.wire import Where

SMALLEST_SLOT: Final = 64 * 1024
MAX_DEFAULT_BYTES: Final = 1024**3
MIN_DEFAULT_BYTES: Final = 64 * 1024**2
MAX_CHILD_MAPPED_BYTES: Final = 512 * 1024**2
# A mapping costs a descriptor for as long as it is looked at, and a program may keep any number of results.
# So the parent cuts small slots out of stretches (1 GiB of them costs 128), and a child keeps few. What is
# looked at when the arena is closed keeps its whole stretch, which is why those are not larger.
STRETCH_BYTES: Final = 8 * 1024**2
MAX_CHILD_MAPPINGS: Final = 64
_POPULATE: Final = 23  # MADV_POPULATE_WRITE, from Linux 5.14 on

_MAP_FLAGS: Final = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


def mapped(fd: int, size: int, offset: int = 0, *, is_filled: bool = True) -> mmap.mmap:
    """`is_filled`: all of it has memory, so that it can be looked up now and not page by page."""
    return mmap.mmap(fd, size, flags=_MAP_FLAGS if is_filled else mmap.MAP_SHARED, offset=offset)


def slot_size(nbytes: int) -> int:
    """The size class: four to each power of two, so at most a fifth is unused."""
    if nbytes <= SMALLEST_SLOT:
        return SMALLEST_SLOT
    step = 1 << ((nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step


def default_limit_bytes() -> int:
    """An eighth of the memory that this process may use, within reason."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            memory = min(memory, int(file.read()))
    except (OSError, ValueError):  # no such file, or "max"
        pass
    return max(MIN_DEFAULT_BYTES, min(MAX_DEFAULT_BYTES, memory // 8))


_array_types: dict[int, type[ctypes.Array[ctypes.c_ubyte]]] = {}


def exporter_of(memory: mmap.mmap, size: int, start: int) -> ctypes.Array[ctypes.c_ubyte]:
    """Every view keeps the object that exported it, and unlike an mmap this one can be watched."""
    array_type = _array_types.get(size)
    if array_type is None:
        array_type = _array_types[size] = ctypes.c_ubyte * size
    return array_type.from_buffer(memory, start)


def address_of(view: memoryview) -> int:
    """Where the bytes lie in this process, also those that may only be read."""
    if not view.readonly and len(view):
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    import numpy as np

    found: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return found


class Watch(weakref.ref[Any]):
    """Notices that the last view of a slot is gone.

    Python ignores what is raised in such a callback, so a Ctrl-C, or the interrupt of a call, that met one of
    ours in Python was lost. `append` of a deque leaves no place where a signal could be handled.
    """

    __slots__ = ("slot", "where")
    slot: Slot  # in the parent
    where: Where  # in a child


class Slot:
    """A range of the arena in the parent. In the free list, lent to a child, or seen through a view."""

    __slots__ = ("_arena", "_start", "generation", "map", "memory", "number", "offset", "size")

    def __init__(
        self, arena: Arena, number: int, offset: int, size: int, memory: mmap.mmap, start: int
    ) -> None:
        """It begins at `offset` in the file, and at `start` in `memory`, which may be that of many slots."""
        self._arena = arena
        self.number = number
        self.offset = offset
        self.size = size
        self.generation = 0
        self._start = start
        self.map = memory
        self.memory = memoryview(memory)[start : start + size]

    @property
    def where(self) -> Where:
        return Where(self.number, self.generation, self.offset, self.size)

    def export(self) -> memoryview:
        """The slot's bytes; the slot is free again when the last view of them is gone."""
        exporter = exporter_of(self.map, self.size, self._start)
        self._arena.watch(exporter, self)
        return memoryview(exporter).cast("B")

    def free(self) -> None:
        self._arena.take_back(self)

    def give_back(self) -> None:
        """Let the system have its memory. It is not used again."""
        remove = getattr(mmap, "MADV_REMOVE", None)
        if remove is not None:
            self.map.madvise(remove, self._start, self.size)

    def close(self) -> None:
        """Let go of its mapping, which is closed with the last slot that lies in it."""
        self.memory.release()
        with suppress(BufferError):
            self.map.close()


class Arena:
    """The parent's end. `take` belongs to one thread; slots may come back from any."""

    whole_bytes = 0  # how much of the file a child may map at once
    is_filled = True  # whether all of that has memory

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes: int = default_limit_bytes() if limit_bytes is None else limit_bytes
        self.reserved_bytes = 0
        self._fd = _nameless_file()
        # Also when nobody closes it, because its loop was closed first.
        self._close_file = weakref.finalize(self, os.close, self._fd)
        self._close_file.atexit = False
        self._end = 0
        self._made = 0
        self._stretch: mmap.mmap | None = None
        self._stretch_at = 0
        self._free: dict[int, list[Slot]] = {}
        # A view can go at any moment, also in the middle of `take`: it only leaves a note.
        self._coming_back: deque[Slot | Watch] = deque()
        self._watches: dict[int, Watch] = {}

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        """Views that are still held stay valid. The memory that nobody looks at goes now."""
        self._close_file()
        self._fd = -1
        self._stretch = None
        self._watches.clear()
        for slot in (
            *map(slot_of, self._coming_back),
            *(slot for slots in self._free.values() for slot in slots),
        ):
            slot.give_back()
            slot.close()
        self._free.clear()
        self._coming_back.clear()

    def take(self, nbytes: int, *, beyond_limit: bool = False) -> Slot | None:
        """A slot for `nbytes` with a new generation, or None when the arena is full."""
        while self._coming_back:
            idle = self._next_back()
            self._free.setdefault(idle.size, []).append(idle)
        size = slot_size(nbytes)
        free = self._free.get(size)
        slot = free.pop() if free else self._new(size, beyond_limit)
        if slot is not None:
            slot.generation = (slot.generation + 1) & 0xFFFFFFFF
        return slot

    def take_back(self, slot: Slot) -> None:
        if self._fd >= 0:  # else nobody will need it, and it must not keep its memory
            self._coming_back.append(slot)

    def watch(self, exporter: ctypes.Array[ctypes.c_ubyte], slot: Slot) -> None:
        """Take the slot back when `exporter` is gone."""
        if self._fd < 0:
            return
        watch = Watch(exporter, self._coming_back.append)
        watch.slot = slot
        self._watches[id(watch)] = watch

    def _next_back(self) -> Slot:
        back = self._coming_back.popleft()
        self._watches.pop(id(back), None)
        return slot_of(back)

    def _new(self, size: int, beyond_limit: bool) -> Slot | None:
        if self._fd < 0:
            return None
        if not beyond_limit and not self._make_room(size):
            return None
        offset = self._end
        try:
            # Memory that is not there must be an error here: at the first touch it would be a fatal signal.
            os.posix_fallocate(self._fd, offset, size)
            slot = Slot(self, self._made, offset, size, *self._mapping(offset, size))
        except OSError:
            return None
        self._end += size
        self._made += 1
        self.reserved_bytes += size
        return slot

    def _mapping(self, offset: int, size: int) -> tuple[mmap.mmap, int]:
        """Memory with this slot, which has just been added to the end of the file, and where it begins."""
        if size >= STRETCH_BYTES:
            return mapped(self._fd, size, offset), 0
        if self._stretch is None or offset + size > self._stretch_at + len(self._stretch):
            try:
                os.ftruncate(self._fd, offset + STRETCH_BYTES)  # costs nothing until it is filled
                self._stretch = mapped(self._fd, STRETCH_BYTES, offset, is_filled=False)
            except OSError:  # a limit on addresses, or on files
                return mapped(self._fd, size, offset), 0
            self._stretch_at = offset
        start = offset - self._stretch_at
        if hasattr(self._stretch, "madvise"):
            with suppress(OSError):  # then its pages are looked up one by one
                self._stretch.madvise(_POPULATE, start, size)
        return self._stretch, start

    def _make_room(self, size: int) -> bool:
        """Give idle slots of other sizes back to the system until `size` fits under the limit."""
        while self.reserved_bytes + size > self.limit_bytes:
            idle = next((slots for slots in self._free.values() if slots), None)
            if idle is None:
                return False
            self._release(idle.pop(0))
        return True

    def _release(self, slot: Slot) -> None:
        slot.give_back()
        slot.memory.release()
        self.reserved_bytes -= slot.size

    @property
    def free_bytes(self) -> int:
        """What is reserved and lies idle."""
        idle = sum(slot.size for slots in self._free.values() for slot in slots)
        return idle + sum(slot.size for slot in map(slot_of, tuple(self._coming_back)))


def slot_of(back: Slot | Watch) -> Slot:
    return back.slot if isinstance(back, Watch) else back


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("omniq", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        # Whoever made the file shorter would kill every process that looks at it.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        os.fchmod(fd, 0o600)
        return fd
    import tempfile

    with tempfile.TemporaryDirectory(prefix="omniq-") as folder:
        return os.open(
            os.path.join(folder, "arena"), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )


class Attached:
    """The child's end: maps all of the file, or a slot when it first sees it, and the latest ones stay."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._whole: mmap.mmap | None = None
        self._maps: OrderedDict[int, mmap.mmap] = OrderedDict()
        self._mapped_bytes = 0
        self._gone: deque[Watch] = deque()
        self._watches: dict[int, Watch] = {}

    def map_whole(self, size: int, is_filled: bool) -> None:
        """The file begins with `size` bytes that are always there. Each mapping costs a descriptor."""
        with suppress(OSError):  # a limit on addresses: then slot by slot
            self._whole = mapped(self._fd, size, is_filled=is_filled)

    def view(self, where: Where) -> memoryview:
        memory, start = self._find(where)
        return memoryview(memory)[start : start + where.size]

    def export(self, where: Where) -> memoryview:
        """The slot's bytes; `left` tells of it when the last view of them is gone."""
        memory, start = self._find(where)
        exporter = exporter_of(memory, where.size, start)
        watch = Watch(exporter, self._gone.append)
        watch.where = where
        self._watches[id(watch)] = watch
        return memoryview(exporter).cast("B")

    def left(self) -> Iterator[Where]:
        """The slots that nobody looks at any more, each once."""
        while self._gone:  # a view may go at any moment, in any thread
            watch = self._gone.popleft()
            del self._watches[id(watch)]
            yield watch.where

    def _find(self, where: Where) -> tuple[mmap.mmap, int]:
        if self._whole is not None and where.offset + where.size <= len(self._whole):
            return self._whole, where.offset
        return self.map(where), 0

    def map(self, where: Where) -> mmap.mmap:
        found = self._maps.get(where.offset)
        if found is not None and len(found) >= where.size:
            self._maps.move_to_end(where.offset)
            return found
        if found is not None:  # memory that was cut anew, into larger slots
            self._mapped_bytes -= len(self._maps.pop(where.offset))
        while self._maps and (
            len(self._maps) >= MAX_CHILD_MAPPINGS or self._mapped_bytes + where.size > MAX_CHILD_MAPPED_BYTES
        ):
            self._forget_oldest()
        try:
            made = self.map_alone(where)
        except OSError:  # a limit on addresses: try again with as few as possible
            while self._maps:
                self._forget_oldest()
            made = self.map_alone(where)
        self._maps[where.offset] = made
        self._mapped_bytes += where.size
        return made

    def map_alone(self, where: Where) -> mmap.mmap:
        return mapped(self._fd, where.size, where.offset)

    def _forget_oldest(self) -> None:
        # Not closed: views may be left, and the memory is unmapped when the last one goes.
        _, oldest = self._maps.popitem(last=False)
        self._mapped_bytes -= len(oldest)
