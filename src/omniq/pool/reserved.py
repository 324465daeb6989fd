"""An arena whose memory is there from the start: reserved at once, and cut anew without asking for more.

Whatever fills the machine afterwards cannot take it away, and there is no size that it can grow to. Only the
pages of processes lie beside it.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import Final, Self

from omniq.errors import StartFailed
from omniq.pool.arena import Arena, Slot, mapped, slot_of, slot_size

PAGE: Final = 4096
CGROUP: Final = "/sys/fs/cgroup/memory"


def available_bytes() -> int | None:
    """What this process could still be given; None where the system does not tell."""
    found: list[int] = []
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found += [int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        pass
    try:
        with (
            open(f"{CGROUP}.max", encoding="ascii") as most,
            open(f"{CGROUP}.current", encoding="ascii") as now,
        ):
            found.append(int(most.read()) - int(now.read()))
    except (OSError, ValueError):  # no such file, or "max"
        pass
    return min(found, default=None)


class Ranges:
    """Free ranges of the arena, in order of their offsets; neighbours are one range."""

    def __init__(self, size: int) -> None:
        self._free: list[tuple[int, int]] = [(0, size)]

    def take(self, size: int) -> int | None:
        """The offset of the first range that is large enough."""
        for index, (offset, length) in enumerate(self._free):
            if length >= size:
                rest = [(offset + size, length - size)] if length > size else []
                self._free[index : index + 1] = rest
                return offset
        return None

    def give_back(self, offset: int, size: int) -> None:
        merged: list[tuple[int, int]] = []
        for start, length in sorted([*self._free, (offset, size)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        self._free = merged


class ReservedArena(Arena):
    """`limit_bytes` of memory, all of it taken from the system by `reserve`. Slots can be had afterwards.

    It can `grow` to `most_bytes`: there are addresses for so many from the start, which cost nothing.
    """

    def __init__(self, limit_bytes: int, most_bytes: int = 0) -> None:
        super().__init__(_pages(limit_bytes))
        self._lent_bytes = 0
        self._outside: list[Slot] = []  # pages of processes that have ended
        self._ranges = Ranges(self.limit_bytes)
        self.whole_bytes = self._end = max(self.limit_bytes, _pages(most_bytes))
        self.is_filled = self.whole_bytes == self.limit_bytes
        self._whole: mmap.mmap | None = None

    def reserve(self) -> Self:
        """Raises StartFailed if it cannot be had. Takes a moment; any thread may wait for it."""
        available = available_bytes()
        wanted = f"an arena of {_mib(self.limit_bytes)} cannot be had"
        advice = "write a smaller arena=..., in bytes"
        if available is not None and self.limit_bytes > available:
            raise StartFailed(f"{wanted}: {_mib(available)} are available; {advice}")
        try:
            # Here, where it is an error. Memory that is missing at the first touch is a fatal signal.
            os.posix_fallocate(self.fileno(), 0, self.limit_bytes)
            os.ftruncate(self.fileno(), self.whole_bytes)
            self._whole = mapped(self.fileno(), self.whole_bytes, is_filled=self.is_filled)
        except OSError as exc:
            raise StartFailed(f"{wanted}: {exc.strerror}; {advice}") from exc
        return self

    def grow(self, limit_bytes: int) -> None:
        """Take more from the system, as far as it has that."""
        size = min(_pages(limit_bytes), self.whole_bytes) - self.limit_bytes
        available = available_bytes()
        if self._whole is None or size <= 0 or (available is not None and size > available):
            return
        with suppress(OSError):
            os.posix_fallocate(self.fileno(), self.limit_bytes, size)
            self._ranges.give_back(self.limit_bytes, size)
            self.limit_bytes += size

    def close(self) -> None:
        """Views that are still held stay valid, and keep the memory."""
        self._take_in()
        for slot in (*self._outside, *(slot for slots in self._free.values() for slot in slots)):
            slot.close()
        self._outside.clear()
        self._free.clear()
        self._whole = None
        super().close()

    def take(self, nbytes: int, *, beyond_limit: bool = False) -> Slot | None:
        self._take_in()
        size = slot_size(nbytes)
        slot = self._take_outside(size) if beyond_limit else self._take_inside(size)
        if slot is not None:
            slot.generation = (slot.generation + 1) & 0xFFFFFFFF
        return slot

    def _take_in(self) -> None:
        while self._coming_back:
            idle = self._next_back()
            if idle.offset >= self.whole_bytes:
                self._outside.append(idle)
            else:
                self._free.setdefault(idle.size, []).append(idle)
                self._lent_bytes -= idle.size

    def _take_outside(self, size: int) -> Slot | None:
        found = next((slot for slot in self._outside if slot.size == size), None)
        if found is None:
            return self._new(size, beyond_limit=True)
        self._outside.remove(found)
        return found

    def _take_inside(self, size: int) -> Slot | None:
        free = self._free.get(size)
        slot = free.pop() if free else self._cut(size)
        if slot is not None:
            self._lent_bytes += size
        return slot

    def _cut(self, size: int) -> Slot | None:
        """A slot where nothing lies, if need be in the place of idle slots of other sizes."""
        if self._whole is None:
            return None
        while (offset := self._ranges.take(size)) is None:
            idle = next((slots for slots in self._free.values() if slots), None)
            if idle is None:
                return None
            slot = idle.pop(0)
            slot.memory.release()
            self._ranges.give_back(slot.offset, slot.size)
        self._made += 1
        return Slot(self, self._made, offset, size, self._whole, offset)

    @property
    def used_bytes(self) -> int:
        """What workers have been lent, results lie in, or views of results look at. For any thread."""
        while True:
            try:
                slots = [slot_of(back) for back in tuple(self._coming_back)]
            except RuntimeError:  # one more came back meanwhile
                continue
            back = sum(slot.size for slot in slots if slot.offset < self.whole_bytes)
            return max(0, self._lent_bytes - back)


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE) * PAGE


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
