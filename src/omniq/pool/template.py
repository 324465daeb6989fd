"""The program that makes worker processes: `python -m omniq.pool.template`. It imports once and forks often.

    parent ── SPAWN + socket ──> template ── fork ──> child
           <── FORKED + pidfd ──
           <── EXITED, status ──

It has one thread and no event loop, so forking it is safe. When something that it imported has started a
thread, it starts its children as fresh programs instead. It ends when its parent does, its children with it.
"""

from __future__ import annotations

import array
import errno
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from contextlib import suppress
from typing import Final, NoReturn

from omniq.pool import child, wire
from omniq.pool.pickles import bounded
from omniq.pool.wire import Frame, Inbox, Where

MAX_FDS: Final = 8
# In the place of a descriptor that came when this process could not have another one.
LOST_FD: Final = -1
IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class FdInbox(Inbox):
    """An inbox for frames that bring descriptors along."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(self._receive_with_fds)
        self._with_fds = sock
        self.fds: deque[int] = deque()

    def _receive_with_fds(self, view: memoryview) -> int:
        size = array.array("i").itemsize
        got, ancillary, flags, _ = self._with_fds.recvmsg_into([view], socket.CMSG_SPACE(MAX_FDS * size))
        if flags & socket.MSG_CTRUNC:
            self.fds.append(LOST_FD)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(data[: len(data) - len(data) % size])
                self.fds.extend(found)
        return got


class Template:
    def __init__(self, sock: socket.socket, arena_fd: int) -> None:
        self._sock = sock
        self._arena_fd = arena_fd
        self._inbox = FdInbox(sock)
        self._pid = os.getpid()
        self._spawned: dict[int, int] = {}
        self._told_threads = False
        self._wake_out, self._wake_in = socket.socketpair()

    def run(self) -> None:
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        signal.set_wakeup_fd(self._wake_in.fileno(), warn_on_full_buffer=False)
        # The thread that started us may have blocked some, and what is blocked is inherited.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if not self._prepare():
            return
        # What is here now is shared with every child as long as nobody writes to it. Without a collection:
        # that takes longer than a fork, and what it freed would be holes in shared pages.
        gc.freeze()
        self._sock.sendall(wire.frame(wire.READY))
        self._loop()

    def _prepare(self) -> bool:
        """Import what the parent asked for; False when that cannot be done."""
        while (start := self._inbox.next()) is None:
            if not self._inbox.fill():
                return False
        told = json.loads(bytes(start.body))
        child.settle_in(told)
        for module in told["preload"]:
            try:
                importlib.import_module(module)
            except BaseException as exc:
                text = f"{module}: {type(exc).__name__}: {exc}\n{traceback.format_exc()}"
                if not told["preload_required"]:
                    self._sock.sendall(wire.frame(wire.NOT_IMPORTED, body=bounded(text).encode()))
                    continue
                self._sock.sendall(wire.frame(wire.BROKEN, body=bounded(text).encode()))
                return False
        return True

    def _loop(self) -> None:
        watch = select.poll()
        watch.register(self._sock, select.POLLIN)
        watch.register(self._wake_out, select.POLLIN)
        parent = _pidfd(os.getppid())  # somebody may hold the parent's end of the socket after its death
        if parent is not None:
            watch.register(parent, select.POLLIN)
        while True:
            ready = {fd for fd, _ in watch.poll()}
            if parent in ready:
                return
            if self._wake_out.fileno() in ready:
                self._reap()
            if self._sock.fileno() in ready:
                if not self._inbox.fill():
                    return
                while (frame := self._inbox.next()) is not None:
                    self._spawn(frame)

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_out.recv(4096):
                pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            spawn_id = self._spawned.pop(pid, None)
            if spawn_id is not None:  # else a process of something that was imported
                code = os.waitstatus_to_exitcode(status)
                self._sock.sendall(wire.frame(wire.EXITED, spawn_id, wire.NUMBER.pack(code)))

    # --- children --------------------------------------------------------------------------------

    def _spawn(self, frame: Frame) -> None:
        page = Where(*wire.SLOT.unpack(frame.body))
        fd = self._inbox.fds.popleft()
        if fd == LOST_FD:
            self._refuse(frame.id, errno.EMFILE)
            return
        sock = socket.socket(fileno=fd)
        try:
            pid = self._fork(sock, page) if self._may_fork() else self._start_program(sock, page)
        except OSError as exc:
            self._refuse(frame.id, exc.errno or errno.EIO)
            return
        finally:
            sock.close()
        self._spawned[pid] = frame.id
        self._tell_forked(frame.id, pid)

    def _refuse(self, spawn_id: int, code: int) -> None:
        self._sock.sendall(wire.frame(wire.NOT_FORKED, spawn_id, wire.NUMBER.pack(code)))

    def _tell_forked(self, spawn_id: int, pid: int) -> None:
        """Send a pidfd along: nobody but us has waited for the process, so it cannot name another one."""
        pidfd = _pidfd(pid)
        fds = [] if pidfd is None else [pidfd]
        told = wire.frame(wire.FORKED, spawn_id, wire.NUMBER.pack(pid), flags=len(fds))
        socket.send_fds(self._sock, [told], fds)
        if pidfd is not None:
            os.close(pidfd)

    def _may_fork(self) -> bool:
        threads = _threads()
        if threads == 1:
            return True
        if not self._told_threads:
            self._told_threads = True
            names = ", ".join(sorted(thread.name for thread in threading.enumerate()))
            self._sock.sendall(wire.frame(wire.THREADED, threads, names.encode("utf-8", "replace")))
        return False

    def _fork(self, sock: socket.socket, page: Where) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            for own in (self._sock, self._wake_in, self._wake_out):
                own.close()
            child.after_fork()
            child.run(sock, self._arena_fd, page, self._pid)
        finally:
            os._exit(child.EXIT_BROKEN)

    def _start_program(self, sock: socket.socket, page: Where) -> int:
        for fd in (sock.fileno(), self._arena_fd):
            os.set_inheritable(fd, True)
        numbers = (sock.fileno(), self._arena_fd, *page)
        return os.posix_spawn(
            sys.executable,
            [*python_command("omniq.pool.child"), *map(str, numbers)],
            {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            setsigdef=[*IGNORED, signal.SIGCHLD],
        )


def python_command(module: str) -> list[str]:
    """This interpreter with its own options. With -P: the folder it starts in must not hide our modules."""
    import subprocess  # the template itself needs it only where it cannot fork

    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *options, "-P", "-m", module]


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))  # also those that Python does not know of
    except OSError:
        return threading.active_count()


def main() -> NoReturn:
    code = child.EXIT_BROKEN
    try:
        template = Template(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
        template.run()
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        code = 0  # the parent is gone
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
