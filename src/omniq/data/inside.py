"""What the data pool needs inside a worker: arrays that lie in the arena, views that travel, an `init`."""

from __future__ import annotations

import array
import copyreg
import ctypes
import math
import mmap
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from omniq.pool import child, pickles

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# A smaller one is cheaper inside the pickle than beside it.
SMALLEST_BYTES: Final = 64 * 1024
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
KEPT_BYTES: Final = 32 * 1024**2


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = float) -> np.ndarray[Any, Any]:
    """An array of this shape whose memory is where results go, so that returning it copies nothing.

    Its content is arbitrary until it is written. Each result needs an array of its own: once returned, it
    belongs to whoever reads the result. Outside of a worker process, when the array is small or when the
    arena is full, it is an ordinary one.
    """
    import numpy as np

    kind = np.dtype(dtype)
    count = math.prod((shape,) if isinstance(shape, (int, np.integer)) else shape)
    size = count * kind.itemsize
    room = None if size < SMALLEST_BYTES or kind.hasobject else child.room(size)
    if room is None:
        return np.empty(shape, kind)
    return np.frombuffer(room, kind, count).reshape(shape)


def prepare(init: Callable[[], Any] | None) -> None:
    """Runs once in each worker, before its first call."""
    for kind in (memoryview, array.array, mmap.mmap):
        copyreg.pickle(kind, _reduced)
    keep_memory()
    if init is not None:
        init()


def keep_memory() -> None:
    """Ask the C library to keep what was freed, as far as it can be asked.

    A worker makes arrays of some 100 KiB, one like the other, and frees them. By default each goes back to
    the system and comes again page by page: decoding a picture took 145 page faults and 1.6 times as long.
    """
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, 2 * KEPT_BYTES)


def _reduced(value: Any) -> tuple[Any, ...]:
    """A buffer goes beside the pickle, and arrives as a view of the same format and shape."""
    view = memoryview(value)
    if not view.c_contiguous or len(view.format) > 1:
        return seen_as, (view.tobytes(), "B", None)
    return seen_as, (pickles.beside(view), view.format, view.shape)


def seen_as(data: Any, form: str, shape: tuple[int, ...] | None) -> memoryview:
    if not memoryview(data).nbytes:  # cannot be cast
        nothing: array.array[Any] = array.array(form if form in array.typecodes else "B")
        return memoryview(nothing).toreadonly()
    flat = memoryview(data).cast("B").toreadonly()
    return flat if shape is None else flat.cast(form, shape)  # type: ignore[call-overload]
