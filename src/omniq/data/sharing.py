"""A dataset for all workers at once: pickled into memory without a name, which each of them maps.

Arrays in it are the same memory in every process, until somebody writes to one: that page is then his own.
"""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any, Final, NamedTuple

from omniq.errors import InvalidOption
from omniq.pool import pickles

ALIGNMENT: Final = 4096


class Shared(NamedTuple):
    """Travels to a worker, and finds the dataset there."""

    path: str
    places: tuple[tuple[int, int], ...]  # offset and size: first of the pickle, then of its buffers

    def load(self) -> Any:
        with open(self.path, "rb") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        pickled, *buffers = (memory[offset : offset + size] for offset, size in self.places)
        return pickles.load(pickled, buffers)


class SharedMemory:
    """The owner's end; the memory is there as long as this is."""

    def __init__(self, value: Any) -> None:
        pickled, buffers = pickles.dump_shared(value, "the dataset or collate function of a DataLoader")
        path = self._open()
        places: list[tuple[int, int]] = []
        try:
            offset = 0
            for part in (memoryview(pickled), *(buffer.cast("B") for buffer in buffers)):
                _write(self._fd, part, offset)
                places.append((offset, part.nbytes))
                offset += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
        except OSError as exc:
            self.close()
            raise InvalidOption(
                f"the dataset does not fit into memory that workers share ({exc.strerror}); keep less in it, "
                "and open files in __getitem__"
            ) from exc
        self.shared = Shared(path, tuple(places))

    def _open(self) -> str:
        """Nothing is left behind when everybody is killed, where the system knows files without a name."""
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("omniq-dataset", os.MFD_CLOEXEC)
            self.close = weakref.finalize(self, _closed, self._fd, None, os.getpid())
            return f"/proc/{os.getpid()}/fd/{self._fd}"
        import tempfile  # workers do not need it

        self._fd, path = tempfile.mkstemp(prefix="omniq-dataset-")
        self.close = weakref.finalize(self, _closed, self._fd, path, os.getpid())
        return path


def _write(fd: int, part: memoryview, offset: int) -> None:
    while part:
        written = os.pwrite(fd, part, offset)
        part, offset = part[written:], offset + written


def _closed(fd: int, path: str | None, owner: int) -> None:
    if os.getpid() == owner:
        os.close(fd)
        if path is not None:
            os.unlink(path)
