"""What a pool's process does: read a message, run its calls, write their outcomes, until told to stop.

    message ──> call ──> outcome

Knows nothing about tasks, stores, retries or other children, and starts no thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from omniq.errors import CallFailed
from omniq.pool import copies, packed, pickles, wire
from omniq.pool.attempt import Attempts, Ended, failed
from omniq.pool.control import STATE, ControlPage
from omniq.pool.lines import Line, SentBefore, own_memory_kib
from omniq.pool.packed import Run
from omniq.pool.ranges import Ranges
from omniq.pool.wire import Frame, Parcel, Pieces

RSS_EVERY_S: Final = 0.01


class Call(NamedTuple):
    """A call as it lies in a message: nothing of it is unpickled yet."""

    id: int
    many: int
    skip: int
    function: bytes
    flags: int
    body: memoryview
    parcel: Parcel | None


def calls_of(body: memoryview, count: int) -> Iterator[Call]:
    position = 0
    for _ in range(count):
        id_, many, skip, function_len, body_len, flags = wire.CALL.unpack_from(body, position)
        position += wire.CALL.size
        function = bytes(body[position : position + function_len])
        position += function_len
        parcel = None
        if flags & wire.WITH_PARCEL:
            parcel, position = wire.unpack_parcel(body, position)
        pickled = body[position : position + body_len]
        position += body_len
        yield Call(id_, many, skip, function, flags, pickled, parcel)


class CurrentCall:
    """What a body may know and say while it runs. It stays about this call, in whatever thread, for ever."""

    def __init__(self, server: Server, call_id: int) -> None:
        self._server = server
        self.call_id = call_id

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked this call to end. A body that looks here may end in its own way."""
        return self._server.page.posted().has(self.call_id)

    def note(self, value: Any) -> None:
        """Tell the parent something while the call runs. What is said after its end is about nothing."""
        if copies.is_copy() or not self._server.is_running(self.call_id):
            return
        self._server.send([wire.frame(wire.NOTE, self.call_id, pickles.dump_in_band(value))])


class Server:
    def __init__(self, line: Line, page: ControlPage, journal: pickles.Journal) -> None:
        self.page = page
        self._line = line
        self._run = Run(page)
        self._attempts = Attempts(page, self._run, line)
        self._ranges = Ranges(page, journal, self._run, self._attempts, self._report, self._send_range)
        self.on_signal = self._attempts.on_signal
        self.end_soon = self._ranges.end_soon
        self._statm = _open_statm()
        self._rss_kib = 0
        self._rss_read_at = 0.0

    def serve(self) -> None:
        """Work until told to stop, or until the parent is gone."""
        self.send([wire.frame(wire.READY)])
        while (frame := self._line.read()) is not None:
            if frame.kind == wire.CALLS:
                self._run_message(frame)
            elif frame.kind == wire.STOP:
                self.send([wire.frame(wire.SHUTDOWN, extra=self._rss())])
                return

    def current(self) -> CurrentCall | None:
        call_id = packed.running(self.page, self._run)
        return CurrentCall(self, call_id) if call_id else None

    def is_running(self, call_id: int) -> bool:
        return packed.running(self.page, self._run) == call_id

    def _run_message(self, frame: Frame) -> None:
        body, left = frame.body, frame.extra
        if len(body) < wire.INBOX_BYTES:
            body = memoryview(bytes(body))  # asking for a grant fills the inbox again
        for call in calls_of(body, left):
            left -= 1
            if call.flags & wire.IS_RANGE:
                self._run_range(call, is_last=not left)
            else:
                self.page.words[STATE] = 2 * call.id + 1
                self._report(call.id, self._attempts.of(call.id, self._run_call, (call,)), is_last=not left)
        self.page.words[STATE] += self.page.words[STATE] & 1  # nothing runs; the next one has a greater id
        _flush_output()

    # --- one call --------------------------------------------------------------------------------

    def _run_call(self, call: Call) -> Any:
        func, loaded = self._load(call)
        if loaded is None:
            return func()
        args, *rest = loaded
        del loaded
        return func(*args, **rest[0]) if rest else func(*args)

    def _load(self, call: Call) -> tuple[pickles.Function, Any]:
        try:
            pickled, *buffers = [call.body] if call.parcel is None else self._line.open(call.parcel)
            if call.function == pickles.CARRIED:
                return pickles.load_carried(pickled, buffers)
            func = pickles.load_function(call.function, bool(call.flags & wire.BY_NAME))
            if call.parcel is not None:
                return func, pickles.load(pickled, buffers)
            return func, pickles.load(call.body, []) if len(call.body) else None
        except MemoryError:
            raise
        except Exception as exc:
            named = call.function.decode() if call.flags & wire.BY_NAME else "a function sent by value"
            raise CallFailed(
                f"the call of {named} cannot be unpickled in the worker ({type(exc).__name__}: {exc}); "
                "the worker must be able to import and rebuild what it is sent"
            ) from exc

    # --- many calls of one function --------------------------------------------------------------

    def _run_range(self, call: Call, *, is_last: bool) -> None:
        ids = range(call.id, call.id + call.many)
        try:
            func, items = self._load(call)
        except BaseException as exc:
            ended = failed(exc)
            for call_id in ids:
                self._report(call_id, ended, is_last=is_last and call_id == ids[-1])
            return
        items = items[call.skip : call.skip + call.many]
        self._ranges.work_off(ids.stop, func, items, is_last=is_last)

    # --- outcomes --------------------------------------------------------------------------------

    def _report(self, call_id: int, ended: Ended, *, is_last: bool) -> None:
        kind, body, buffers = ended
        flags = wire.LAST if is_last else 0
        if kind != wire.RETURNED or (not buffers and len(body) < pickles.OUT_OF_BAND_BYTES):
            self.send([wire.frame(kind, call_id, body, flags=flags, extra=self._rss())])
            return
        try:
            pieces = self._line.pack([body, *buffers])
        except SentBefore as exc:
            self._report(call_id, failed(exc), is_last=is_last)
            return
        # What the result looked at is let go first, so that the frame which brings it also frees its slots.
        del ended, buffers
        header = wire.HEADER.pack(wire.size_of(pieces), call_id, self._rss(), kind, flags | wire.PARCEL)
        self.send([header, *pieces])

    def _send_range(self, first_id: int, body: bytes, flags: int) -> None:
        self.send([wire.frame(wire.RETURNED, first_id, body, flags=flags, extra=self._rss())])

    def send(self, pieces: Pieces) -> None:
        """Send whole frames: a signal that comes meanwhile takes effect afterwards."""
        self._line.send(pieces)
        self._attempts.look_again()

    def room(self, nbytes: int) -> memoryview | None:
        """Memory for a result. An interrupt takes effect afterwards: half a question must not stay behind."""
        if threading.current_thread() is not threading.main_thread() or copies.is_copy():
            return None
        self._line.is_asking = True
        try:
            found = self._line.room(nbytes)
        finally:
            self._line.is_asking = False
        self._attempts.look_again()
        return found

    def _rss(self) -> int:
        now = time.monotonic()
        if self._statm >= 0 and now - self._rss_read_at > RSS_EVERY_S:
            try:
                self._rss_kib = own_memory_kib(self._statm)
            except (OSError, ValueError):  # a body has closed the file, or put another one in its place
                self._statm = -1
            self._rss_read_at = now
        return self._rss_kib


def _flush_output() -> None:
    # A kill would lose what a body printed; and a reader of ours who has gone must not fail the call.
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        return


def _open_statm() -> int:
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
