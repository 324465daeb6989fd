"""Writes down every write, truncation and sync that SQLite sends to the disk, in order.

The default VFS of the very library that `sqlite3` uses gets another `xOpen`, which exchanges three methods of
each file. So what is recorded is the real engine, not a copy of it. Only for a process of its own.
"""

import _sqlite3
import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p
from typing import Any, ClassVar, NamedTuple


class Op(NamedTuple):
    """`what` is write (offset, data), truncate (offset is the size), sync, delete, or ack (data: of what)."""

    what: str
    file: str
    offset: int = 0
    data: bytes = b""


class Methods(ctypes.Structure):
    """sqlite3_io_methods, of which only three matter here."""

    _fields_: ClassVar = [
        ("version", c_int),
        ("close", c_void_p),
        ("read", c_void_p),
        ("write", c_void_p),
        ("truncate", c_void_p),
        ("sync", c_void_p),
        ("rest", c_void_p * 13),
    ]


class File(ctypes.Structure):
    _fields_: ClassVar = [("methods", POINTER(Methods))]


class Vfs(ctypes.Structure):
    """The beginning of sqlite3_vfs."""

    _fields_: ClassVar = [
        ("version", c_int),
        ("file_bytes", c_int),
        ("longest_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", c_void_p),
        ("delete", c_void_p),
    ]


# A name stays the pointer that it is: SQLite keeps more behind its end, which a copy would not have.
Open = CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(File), c_int, c_void_p)
Delete = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
Write = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
Truncate = CFUNCTYPE(c_int, c_void_p, c_int64)
Sync = CFUNCTYPE(c_int, c_void_p, c_int)


def base_name(name: int) -> str:
    return os.path.basename(ctypes.string_at(name).decode())


class Recorder:
    """Records from `begin` on; lives as long as the process."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # what C points to must not be collected

    def begin(self) -> None:
        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = POINTER(Vfs)
        library.sqlite3_initialize()
        vfs = library.sqlite3_vfs_find(None).contents
        real_open, real_delete = Open(vfs.open), Delete(vfs.delete)

        def on_open(this: int, name: int | None, file: Any, flags: int, out: int) -> int:
            code: int = real_open(this, name, file, flags, out)
            if code == 0 and name is not None:
                self._names[ctypes.addressof(file.contents)] = base_name(name)
                file.contents.methods = ctypes.pointer(self._methods(file.contents.methods.contents))
            return code

        def on_delete(this: int, name: int, sync_folder: int) -> int:
            self.ops.append(Op("delete", base_name(name)))
            return int(real_delete(this, name, sync_folder))

        opener, deleter = Open(on_open), Delete(on_delete)
        self._kept += [opener, deleter]
        vfs.open = ctypes.cast(opener, c_void_p)
        vfs.delete = ctypes.cast(deleter, c_void_p)

    def _methods(self, real: Methods) -> Methods:
        write, truncate, sync = Write(real.write), Truncate(real.truncate), Sync(real.sync)

        def on_write(file: int, data: int, size: int, offset: int) -> int:
            self.ops.append(Op("write", self._names[file], offset, ctypes.string_at(data, size)))
            return int(write(file, data, size, offset))

        def on_truncate(file: int, size: int) -> int:
            self.ops.append(Op("truncate", self._names[file], size))
            return int(truncate(file, size))

        def on_sync(file: int, flags: int) -> int:
            code = int(sync(file, flags))
            self.ops.append(Op("sync", self._names[file]))  # afterwards: only then is it promised
            return code

        ours = Methods.from_buffer_copy(real)
        replaced = (Write(on_write), Truncate(on_truncate), Sync(on_sync))
        ours.write, ours.truncate, ours.sync = (ctypes.cast(function, c_void_p) for function in replaced)
        self._kept += [ours, replaced]
        return ours
