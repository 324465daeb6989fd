"""What `omniq doctor` sees in the folder of a SQLite store: modes, and what the dead left behind."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from omniq.cli.examine_store import Finding
from omniq.storage.sqlite.beside import MAX_SOCKET_PATH, lock_now
from omniq.storage.sqlite.file import is_world_writable


def examine_files(path: Path) -> list[Finding]:
    beside = path.with_name(path.name + "-omniq")
    return [*_modes(path, beside), *_leftovers(beside)]


def _modes(path: Path, beside: Path) -> Iterator[Finding]:
    files = [path, *(Path(f"{path}{suffix}") for suffix in ("-wal", "-shm")), beside]
    well = True
    for file in files:
        if file.exists() and (mode := stat.S_IMODE(file.stat().st_mode)) & 0o077:
            well = False
            wanted = "700" if file.is_dir() else "600"
            yield Finding(
                "warning", "files", f"{file} has mode {mode:o}; others can get at it: chmod {wanted}"
            )
    if is_world_writable(path.parent):
        well = False
        yield Finding("warning", "files", f"everybody can write in {path.parent}, and exchange the file")
    if well:
        size = sum(file.stat().st_size for file in files[:2] if file.exists())
        yield Finding("ok", "files", f"for this user only; {size:,} bytes with the log")


def _leftovers(beside: Path) -> Iterator[Finding]:
    """Harmless: workers remove sockets when they meet them. Many of them mean that workers get killed."""
    left = Counter(file.suffix for file in (beside.iterdir() if beside.is_dir() else ()) if _is_left(file))
    if not left:
        yield Finding("ok", "leftovers", "none")
    else:
        named = ", ".join(f"{count} {suffix}" for suffix, count in sorted(left.items()))
        whose = "of programs that ended without q.close(), or were killed"
        yield Finding("note", "leftovers", f"in {beside}, {whose}: {named}")


def _is_left(file: Path) -> bool:
    if file.suffix in (".due", ".result"):
        return _nobody_listens(file)
    return file.suffix != ".lock" and _nobody_locks(file)


def _nobody_listens(file: Path) -> bool:
    if len(os.fsencode(file)) > MAX_SOCKET_PATH:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        try:
            ear.connect(str(file))
        except OSError as exc:
            return exc.errno == errno.ECONNREFUSED
        return False


def _nobody_locks(file: Path) -> bool:
    try:
        fd = os.open(file, os.O_RDWR)
    except OSError:
        return False
    try:
        return lock_now(fd)
    finally:
        os.close(fd)
