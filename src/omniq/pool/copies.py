"""A body may fork. Its copy of this process is no worker: when the body ends there, the copy ends as well.

It has the same socket and the same page. If it came back to our loop it would answer calls that the worker
answers, too, run the rest of a range a second time, and take messages that are not its own.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

MAP_FIXED: Final = 0x10

_is_copy = False


def watch(page: mmap.mmap, told: Callable[[], None]) -> None:
    """From now on whoever is forked here is a copy. It gets a page of its own, and then calls `told`."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))

    def mark() -> None:
        global _is_copy  # noqa: PLW0603 - about this process, of which there is one
        _is_copy = True
        written, size = page[:], len(page)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
        libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        ctypes.memmove(address, written, size)
        told()

    os.register_at_fork(after_in_child=mark)


def is_copy() -> bool:
    return _is_copy


def leave(exc: BaseException | None = None) -> NoReturn:
    """End as a program does that has come to its end, or raised this."""
    code = 0
    with suppress(BaseException):
        if isinstance(exc, SystemExit):
            code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        elif exc is not None:
            code = 1
            traceback.print_exception(exc)
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF)
