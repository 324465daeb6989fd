"""The folder beside a SQLite file: who lives, who sleeps, whose turn it is to write.

    jobs.db-omniq/            0700
      write.lock              taken around a write, so that processes queue up instead of polling
      <digest>.alive          one per worker, locked by its process as long as it lives
      <pid>-<random>.due      a datagram socket of a process that sleeps until work is due
      <pid>-<random>.result   ... until something has ended

Nothing here is needed for correctness: without the folder, leases and polling do the same more slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import secrets
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final, Literal

from loguru import logger

Kind = Literal["due", "result"]
MAX_SOCKET_PATH: Final = 100
FOLDER_TICK_NS: Final = 100_000_000
TURN_TIMEOUT_S: Final = 1.0
FIRST_TURN_PAUSE_S: Final = 0.00005
LONGEST_TURN_PAUSE_S: Final = 0.001
_GONE: Final = (errno.ECONNREFUSED, errno.ENOENT, errno.ENOTSOCK)
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)

if sys.platform == "win32":  # there leases alone say who is dead

    def take_turn(fd: int) -> None: ...
    def end_turn(fd: int) -> None: ...
    def lock_now(fd: int) -> bool:
        return False
else:
    import fcntl

    def take_turn(fd: int) -> None:
        """Wait for the lock, but not for ever: its holder may be stopped, and SQLite decides anyway."""
        pause_s, until = FIRST_TURN_PAUSE_S, 0.0
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:  # nothing wider: a signal handler may raise a TimeoutError here
                until = until or time.monotonic() + TURN_TIMEOUT_S
                if time.monotonic() >= until:
                    return
            except OSError as exc:
                if exc.errno not in _NO_LOCKS:
                    raise
                return
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_TURN_PAUSE_S)

    def end_turn(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)

    def lock_now(fd: int) -> bool:
        """Lock for this process, if nobody else has. A fork does not inherit it; an exit ends it."""
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def check_private(folder_fd: int) -> None:
    """Whoever else could write there could make the living look dead."""
    found = os.fstat(folder_fd)
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, "the folder must belong to this user alone")


class Beside:
    """One per process and file."""

    def __init__(self, database: Path) -> None:
        self.folder = database.with_name(database.name + "-omniq")
        self._alive: dict[str, int] = {}
        self.ears: set[Ear] = set()
        self._lock = threading.Lock()
        self._turn: int | None = None
        self._sender: socket.socket | None = None
        self._folder_fd: int | None = None
        self._seen: tuple[int, tuple[str, ...]] = (-1, ())
        self.usable = sys.platform != "win32" and self._make()

    def _make(self) -> bool:
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            self._folder_fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            check_private(self._folder_fd)
            self._turn = os.open(self.folder / "write.lock", os.O_RDWR | os.O_CREAT, 0o600)
            self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sender.setblocking(False)
        except OSError as exc:
            logger.warning("cannot use {}: {}; wake-ups fall back to polling", self.folder, exc)
            return False
        return True

    def close(self) -> None:
        for worker in list(self._alive):
            self.let_go(worker)
        for fd in (self._turn, self._folder_fd):
            if fd is not None:
                os.close(fd)
        if self._sender is not None:
            self._sender.close()
        self._turn = self._folder_fd = self._sender = None
        self.usable = False

    def leave_to_parent(self) -> None:
        """In a forked child: let go of every descriptor, and remove nothing, for it is all the parent's.

        A turn belongs to the open file that both have: as long as the child kept it, nobody would get it back
        from a parent that was killed.
        """
        for ear in list(self.ears):
            ear.leave_to_parent()
        for fd in (self._turn, self._folder_fd, *self._alive.values()):
            if fd is not None:
                os.close(fd)
        if self._sender is not None:
            self._sender.close()
        self._turn = self._folder_fd = self._sender = None
        self._alive.clear()
        self.ears.clear()
        self.usable = False

    # --- turns -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def turn(self) -> Generator[None]:
        """Wait for this process's turn to write. SQLite's own lock still decides; this only orders."""
        self.take_turn()
        try:
            yield
        finally:
            self.end_turn()

    def take_turn(self) -> None:
        if self._turn is not None:
            take_turn(self._turn)

    def end_turn(self) -> None:
        if self._turn is not None:
            end_turn(self._turn)

    # --- who lives -------------------------------------------------------------------------------

    def _path(self, worker: str) -> Path:
        return self.folder / f"{hashlib.blake2b(worker.encode(), digest_size=16).hexdigest()}.alive"

    def hold(self, worker: str) -> None:
        """Lock a file for as long as this process lives."""
        if not self.usable:
            return
        with self._lock:
            if worker in self._alive:
                return
            path = self._path(worker)
            # Locked before it gets its name, so that nobody ever finds it unlocked while we live.
            hidden = path.with_suffix(f".{secrets.token_hex(4)}")
            try:
                fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                lock_now(fd)
                hidden.rename(path)
            except OSError as exc:  # then its lease alone says that it lives
                logger.warning("no lock file for {}: {}", worker, exc)
                return
            self._alive[worker] = fd

    def let_go(self, worker: str) -> None:
        with self._lock:
            fd = self._alive.pop(worker, None)
        if fd is not None:
            self._path(worker).unlink(missing_ok=True)
            os.close(fd)

    def is_dead(self, worker: str) -> bool:
        """Certain only where a lock file is there and nobody holds it."""
        return self._state(worker) == "free"

    def is_held(self, worker: str) -> bool:
        return self._state(worker) == "held"

    def bury(self, worker: str) -> None:
        """Remove what a dead worker left behind."""
        self._path(worker).unlink(missing_ok=True)

    def _state(self, worker: str) -> Literal["held", "free", "unknown"]:
        if not self.usable:
            return "unknown"
        # A process does not see its own locks as taken, so it must know them.
        if worker in self._alive:
            return "held"
        try:
            fd = os.open(self._path(worker), os.O_RDWR)
        except OSError:
            return "unknown"
        try:
            return "free" if lock_now(fd) else "held"
        finally:
            os.close(fd)

    # --- who sleeps ------------------------------------------------------------------------------

    def address(self, name: str) -> str:
        """A path short enough for a socket, however deep the folder lies."""
        path = str(self.folder / name)
        if len(path.encode()) <= MAX_SOCKET_PATH:
            return path
        return f"/proc/self/fd/{self._folder_fd}/{name}"

    def ring(self, kinds: tuple[Kind, ...]) -> None:
        """Wake every process that sleeps for one of `kinds`. Never blocks, never fails."""
        sender = self._sender
        if sender is None or self._folder_fd is None:
            return
        for name in self._sleepers():
            if not name.endswith(kinds):
                continue
            try:
                sender.sendto(b".", self.address(name))
            except OSError as exc:
                if exc.errno in _GONE:
                    with contextlib.suppress(FileNotFoundError, PermissionError):
                        (self.folder / name).unlink()
                elif exc.errno is None:  # not the kernel's, but a signal handler's
                    raise
                # Otherwise its inbox is full: it will wake up anyway.

    def _sleepers(self) -> tuple[str, ...]:
        """The sockets in the folder; read again only when the folder has changed."""
        assert self._folder_fd is not None
        changed = os.fstat(self._folder_fd).st_mtime_ns
        if changed == self._seen[0]:
            return self._seen[1]
        names = tuple(n for n in os.listdir(self._folder_fd) if n.endswith((".due", ".result")))
        # A socket made in the same tick of the file system's clock would not change it: look again then.
        settled = time.time_ns() - changed > FOLDER_TICK_NS
        self._seen = (changed if settled else -1, names)
        return names


class Ear:
    """A datagram socket on one loop. It is read only while somebody sleeps, so a busy worker pays nothing."""

    def __init__(self, beside: Beside, kind: Kind) -> None:
        self.name = f"{os.getpid()}-{secrets.token_hex(8)}.{kind}"
        self._beside = beside
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._socket.bind(beside.address(self.name))
            os.chmod(beside.address(self.name), 0o600)
        except OSError:
            self._socket.close()
            raise
        self._mine = True
        beside.ears.add(self)

    @contextlib.contextmanager
    def listening(self, heard: Callable[[], None]) -> Generator[None]:
        loop = asyncio.get_running_loop()

        def on_datagram() -> None:
            self.drain()
            heard()

        loop.add_reader(self._socket, on_datagram)
        try:
            yield
        finally:
            loop.remove_reader(self._socket)

    def drain(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._socket.recv(16)

    def close(self) -> None:
        self._socket.close()
        self._beside.ears.discard(self)
        if self._mine:
            with contextlib.suppress(OSError):
                (self._beside.folder / self.name).unlink()

    def leave_to_parent(self) -> None:
        self._socket.close()
        self._mine = False
