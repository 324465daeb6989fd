"""Where a pool gets its processes from: a template process that forks one per request.

    template = Template(preload=["myapp"])
    child = await template.spawn(events)      starts the template first, and again when it has died
    child.send(message)                       see peer.py for the rest
    await template.close()                    nothing is left

Knows nothing about calls: when to have how many processes is the pool's decision.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from loguru import logger

from omniq.errors import StartFailed
from omniq.pool import wire
from omniq.pool.arena import Arena, Slot
from omniq.pool.calls import Outcome
from omniq.pool.child import describe, import_path
from omniq.pool.control import PAGE_BYTES, ControlPage
from omniq.pool.peer import Child, ChildGone, Events, Exit, ResultSize
from omniq.pool.template import LOST_FD, FdInbox, python_command
from omniq.pool.wire import Frame, ProtocolError

__all__ = ["Child", "ChildGone", "Events", "Exit", "Template"]

START_BOUND_S: Final = 60.0
SPAWN_BOUND_S: Final = 30.0
CLOSE_BOUND_S: Final = 2.0
POLL_S: Final = 0.002

# Unless the user says otherwise: a thread pool in each process would have them fight for the same CPUs, and a
# template with threads cannot fork.
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Nobody:
    """Hears the events of a child that nobody waits for any more."""

    def ready(self, child: Child) -> None:
        child.kill()

    def outcomes(self, child: Child, first_id: int, outcomes: Sequence[Outcome]) -> None: ...
    def note(self, child: Child, call_id: int, note: Any) -> None: ...
    def done(
        self, child: Child, message_id: int, first_id: int = 0, outcomes: Sequence[Outcome] = ()
    ) -> None: ...
    def shutdown(self, child: Child) -> None: ...
    def exited(self, child: Child, exit: Exit) -> None: ...


class Request:
    """A child that was asked for: what it will get, and who waits."""

    def __init__(self, sock: socket.socket, page: Slot, events: Events) -> None:
        self.sock = sock
        self.page = page
        self.events = events
        self.answer: asyncio.Future[Child] = asyncio.get_running_loop().create_future()

    def refuse(self, why: str) -> None:
        self.sock.close()
        self.page.free()
        if not self.answer.done():
            self.answer.set_exception(StartFailed(why))


class Preload:
    """What the template is to import, and whether it can start without."""

    def __init__(self, modules: tuple[str, ...], required: bool) -> None:
        self.modules = modules
        self.required = required
        self._told: set[str] = set()

    def told(self, text: str) -> None:
        """Log it once, however often the template is started again."""
        what = text.partition("\n")[0]
        if what not in self._told:
            self._told.add(what)
            logger.warning("not preloaded, so processes that need it import it themselves: {what}", what=what)


class Template:
    """Makes children fast: it has imported what they need and forks. Everything on one loop."""

    def __init__(
        self,
        *,
        preload: Sequence[str] = (),
        preload_required: bool = True,
        arena: Arena | None = None,
        read_only: bool = False,
    ) -> None:
        """With `read_only`, nobody can write to the arrays that results look at."""
        self._preload = Preload(tuple(preload), preload_required)
        self._read_only = read_only
        # Also for a successor of the template, so that no two children differ.
        self._environ = dict(os.environ)
        self._own_arena = arena is None
        self.arena = Arena() if arena is None else arena
        self._result_size = ResultSize()
        self._starting = asyncio.Lock()
        self._program: Program | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Start the template process unless it runs. Raises StartFailed."""
        async with self._starting:
            if self._is_closed:
                raise StartFailed("the template was closed; make a new one")
            if self._program is not None:
                if not self._program.gone.is_set():
                    return
                await self._program.end()
            program = Program(
                self.arena, self._preload, self._result_size, self._environ, read_only=self._read_only
            )
            try:
                async with asyncio.timeout(START_BOUND_S):
                    await program.ready
            except TimeoutError:
                await program.end()
                raise StartFailed(
                    f"the template process has not imported {', '.join(self._preload.modules) or 'omniq'} "
                    f"within {START_BOUND_S:g} s; preload fewer modules"
                ) from None
            except BaseException:
                await program.end()
                raise
            self._program = program

    async def spawn(self, events: Events) -> Child:
        """Make a process; it is ready when `events.ready` says so. Raises StartFailed."""
        await self.start()
        program = self._program
        if program is None or self._is_closed:
            raise StartFailed("the template was closed; make a new one")
        return await program.spawn(events)

    async def close(self) -> None:
        """Kill what is left and end the template. Every child has told that it exited before this returns."""
        self._is_closed = True
        async with self._starting:
            program, self._program = self._program, None
            if program is not None:
                await program.end()
            if self._own_arena:
                self.arena.close()


class Program:
    """One run of the template program, and the children it made."""

    def __init__(
        self,
        arena: Arena,
        preload: Preload,
        result_size: ResultSize,
        environ: Mapping[str, str],
        *,
        read_only: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_only = read_only
        self._arena = arena
        self._preload = preload
        self._result_size = result_size
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.gone = asyncio.Event()
        self._numbers = itertools.count(1)
        self._requests: dict[int, Request] = {}
        self._children: dict[int, Child] = {}
        self._empty = asyncio.Event()
        self._sock, theirs = _channel()
        try:
            self._popen = _start_program(theirs, arena, environ)
        except OSError as exc:
            self._sock.close()
            raise StartFailed(f"the template process cannot be started: {exc}") from exc
        finally:
            theirs.close()
        told = {**describe(), "preload": preload.modules, "preload_required": preload.required}
        with suppress(OSError):  # it has ended already, of which the end of its channel tells
            self._sock.sendall(wire.frame(wire.START, body=json.dumps(told).encode()))
        self._sock.setblocking(False)
        self._inbox = FdInbox(self._sock)
        self._loop.add_reader(self._sock, self._on_readable)

    # --- making children -------------------------------------------------------------------------

    async def spawn(self, events: Events) -> Child:
        number = next(self._numbers)
        request = self._ask(number, events)
        try:
            async with asyncio.timeout(SPAWN_BOUND_S):
                return await request.answer
        except TimeoutError:
            self._popen.kill()  # it hangs: whatever it made goes with it
            raise StartFailed(f"no process was started within {SPAWN_BOUND_S:g} s") from None
        finally:
            if request.answer.cancelled() or not request.answer.done():
                request.events = Nobody()

    def _ask(self, number: int, events: Events) -> Request:
        if self.gone.is_set():
            raise StartFailed("the template process has ended")
        ours, theirs = _channel()
        page = self._arena.take(PAGE_BYTES, beyond_limit=True)
        if page is None:
            ours.close()
            theirs.close()
            raise StartFailed("no memory for the control page of a process")
        ControlPage(page.memory).clear()
        request = self._requests[number] = Request(ours, page, events)
        try:
            asked = wire.frame(wire.SPAWN, number, wire.SLOT.pack(*page.where))
            socket.send_fds(self._sock, [asked], [theirs.fileno()])
        except OSError as exc:
            del self._requests[number]
            request.refuse(f"the template process does not answer: {exc}")
        finally:
            theirs.close()
        return request

    def _on_readable(self) -> None:
        try:
            more = self._inbox.fill()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            more = False
        try:
            while (frame := self._inbox.next()) is not None:
                self._take(frame)
        except ProtocolError:
            more = False
        if not more:
            self._on_gone()

    def _take(self, frame: Frame) -> None:
        if frame.kind == wire.FORKED:
            [pid] = wire.NUMBER.unpack(frame.body)
            fd = self._inbox.fds.popleft() if frame.flags else LOST_FD
            self._begin(frame.id, pid, None if fd == LOST_FD else fd)
        elif frame.kind == wire.EXITED:
            [exitcode] = wire.NUMBER.unpack(frame.body)
            child = self._children.get(frame.id)
            if child is not None:
                child.ended(exitcode)
        elif frame.kind == wire.NOT_FORKED:
            [code] = wire.NUMBER.unpack(frame.body)
            self._requests.pop(frame.id).refuse(f"the system starts no further process: {os.strerror(code)}")
        elif frame.kind == wire.READY and not self.ready.done():
            self.ready.set_result(None)
        elif frame.kind == wire.BROKEN and not self.ready.done():
            self.ready.set_exception(StartFailed(f"cannot preload {bytes(frame.body).decode()}"))
        elif frame.kind == wire.NOT_IMPORTED:
            self._preload.told(bytes(frame.body).decode())
        elif frame.kind == wire.THREADED:
            logger.warning(
                "a preloaded module has started threads, so processes are started afresh and not forked, "
                "which is slower; threads: {} ({})",
                frame.id,
                bytes(frame.body).decode(),
            )

    def _begin(self, number: int, pid: int, pidfd: int | None) -> None:
        request = self._requests.pop(number)
        told = {**describe(), "arena": self._arena.whole_bytes, "filled": self._arena.is_filled}
        start = wire.frame(wire.START, body=json.dumps(told).encode())
        with suppress(OSError):  # it died at birth: that is its own end, of which EXITED tells
            request.sock.sendall(start)
        request.sock.setblocking(False)

        def forget(_child: Child) -> None:
            del self._children[number]
            if not self._children:
                self._empty.set()

        child = self._children[number] = Child(
            pid=pid,
            pidfd=pidfd,
            sock=request.sock,
            page=request.page,
            arena=self._arena,
            events=request.events,
            result_size=self._result_size,
            forget=forget,
            read_only=self._read_only,
        )
        self._empty.clear()
        if not request.answer.done():
            request.answer.set_result(child)

    # --- the end ---------------------------------------------------------------------------------

    def _on_gone(self) -> None:
        """The template has ended, so the system kills every child of it."""
        self._close_channel()
        if not self.ready.done():
            self.ready.set_exception(StartFailed("the template process ended while it started"))
        for request in self._requests.values():
            request.refuse("the template process ended")
        self._requests.clear()
        for child in tuple(self._children.values()):
            child.orphaned()
        self._popen.poll()

    def _close_channel(self) -> None:
        self.gone.set()
        self._loop.remove_reader(self._sock)
        self._sock.close()
        while self._inbox.fds:
            if (fd := self._inbox.fds.popleft()) != LOST_FD:
                os.close(fd)

    async def end(self) -> None:
        for child in tuple(self._children.values()):
            child.kill()
        if self._children:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_BOUND_S):
                    await self._empty.wait()
        if not self.gone.is_set():
            self._on_gone()
        await self._reap()

    async def _reap(self) -> None:
        """Wait for the template itself: with its channel closed it ends at once."""
        ends_at = self._loop.time() + CLOSE_BOUND_S
        while self._popen.poll() is None:
            if self._loop.time() > ends_at:
                self._popen.kill()
            await asyncio.sleep(POLL_S)


def _channel() -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair()
    except OSError as exc:
        raise StartFailed(f"there is no channel for another process: {exc}") from exc


def _start_program(sock: socket.socket, arena: Arena, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    fds = (sock.fileno(), arena.fileno())
    return subprocess.Popen(
        [*python_command("omniq.pool.template"), *map(str, fds)],
        stdin=subprocess.DEVNULL,
        pass_fds=fds,
        env={
            **ONE_THREAD,
            **environ,
            "PYTHONPATH": os.pathsep.join(import_path()),
        },
    )
