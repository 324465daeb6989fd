"""Where results wait for whoever reads them: the one place that the loop and the callers' threads share.

    caller ── submit ──> inbox ── loop ──> workers
    caller <── take ──── Stream <── finish ──┘

    Hatch    the lock, what waits to go in, and the figures
    Stream   results in the order of submission, or as they end; `get_result` has one, each `map` another

Everything here is done under one lock, which nobody holds while waiting for anything else.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from loguru import logger
from msgspec import Struct

from omniq.data.condition import Condition
from omniq.data.items import Item
from omniq.errors import CallTimeout, PoolNotRunning, ResultTimeout, TaskFailed, WorkerDied
from omniq.pool.pickles import RemoteTraceback, bounded
from omniq.task import ErrorKind, TaskError

State: TypeAlias = Literal["new", "running", "stopping", "stopped"]
ErrorPolicy: TypeAlias = Literal["skip", "raise"]

# A small result is more than its bytes.
OVERHEAD_BYTES: Final = 512
MAX_REMEMBERED_FAILURES: Final = 1000
WARN_AFTER_S: Final = 10.0


class Result(Struct, eq=False):
    value: Any
    failure: Exception | None
    size_bytes: int


class Skipped(NamedTuple):
    """A call that failed and leaves no result."""


class Work(Struct, frozen=True, eq=False):
    """What is submitted, before it has a number."""

    priority: int
    name: str
    count: int
    body: Any


SKIPPED: Final = Skipped()


class Hatch:
    """What all streams of a pool share."""

    def __init__(self, max_pending: int | None) -> None:
        # Whoever holds it may be interrupted by the garbage collector, which may close a `map` that was left.
        self.lock = threading.RLock()
        self.state: State = "new"
        self.pending = 0  # calls that no worker has
        self.in_flight = 0  # calls that a worker has
        self.ready = 0  # results that nobody has taken
        self.unread_bytes = 0  # that those hold
        self.is_narrow = False  # nothing more is started until somebody reads
        self.wake: Callable[[], None] = lambda: None  # tell the loop that there is something to do
        self.call_soon: Callable[..., object] = lambda *_: None  # have the loop call something
        self._max_pending = max_pending
        self._room = Condition(self.lock)
        self._inbox: deque[Item] = deque()
        self._is_woken = False
        self._submitted = 0
        self._runs_in = 0
        self._streams: set[Stream] = set()
        self._readers: dict[Stream, weakref.ref[object]] = {}

    def open(self, stream: Stream, reader: object | None = None) -> None:
        """With a `reader`, the stream is closed when that is gone."""
        with self.lock:
            self.check_running()
            self._streams.add(stream)
            if reader is not None:
                # Python ignores what is raised in such a callback, or in a __del__: a Ctrl-C that met one of
                # ours would be lost. With uvloop nothing of this runs in Python.
                self._readers[stream] = weakref.ref(reader, partial(self.call_soon, self.close, stream))

    def close(self, stream: Stream, _reader: object = None) -> None:
        """Nobody reads this one any more."""
        with self.lock:
            self._readers.pop(stream, None)
            self._streams.discard(stream)
            stream.forget()
        self.wake()

    def enter(self, state: State) -> None:
        """Go on to another state of the pool. Whoever waits here looks again."""
        with self.lock:
            self.state = state
            self._readers.clear()  # the loop ends, or is a new one
            if state == "running":
                self._runs_in = os.getpid()
            if state in ("stopped", "running"):
                self._inbox.clear()
                self.pending = self.in_flight = 0
                for stream in tuple(self._streams):
                    stream.forget()
                self._streams.clear()
                self.is_narrow = self._is_woken = False
            self._room.notify_all()
            for stream in tuple(self._streams):
                stream.readable.notify_all()

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that has the loop: nobody here would ever answer."""
        return self.state in ("running", "stopping") and os.getpid() != self._runs_in

    def check_running(self) -> None:
        if self.is_inherited:
            raise PoolNotRunning(
                "Worker pool is not running in this process, which was forked from the one that started it; "
                "start() starts one here"
            )
        if self.state == "new":
            raise PoolNotRunning("Worker pool is not running: write `with pool:` or call start() first")
        if self.state != "running":
            raise PoolNotRunning("Worker pool is not running: it was stopped; start() starts it again")

    # --- in --------------------------------------------------------------------------------------

    def submit(self, stream: Stream, works: Sequence[Work]) -> None:
        """Queue these. Waits while as many as allowed wait already."""
        with self.lock:
            for work in works:
                self._submit(stream, work)

    def _submit(self, stream: Stream, work: Work) -> None:
        self._wait_for_room()
        before = (self._submitted, stream.end, stream.unfinished, self.pending)
        item = Item(stream, self._submitted, stream.end, work.priority, work.name, work.count, work.body)
        try:
            self._submitted += 1
            stream.end += work.count
            stream.unfinished += work.count
            self.pending += work.count
            self._wake_once()  # the loop will look when we have let go of the lock
            self._inbox.append(item)
        except BaseException:
            # A Ctrl-C in between: what is counted and not in the inbox would be waited for without an end.
            if not self._inbox or self._inbox[-1] is not item:
                self._submitted, stream.end, stream.unfinished, self.pending = before
                self._is_woken = False
            raise

    def offer(self, stream: Stream, work: Work) -> bool:
        """Queue this, unless it would have to wait while its reader has something to read meanwhile.

        Whoever reads and submits in turns makes room by reading: waiting for it, he would wait for himself.
        """
        with self.lock:
            if stream.outstanding and self._is_full:
                self.check_running()
                return False
            self._submit(stream, work)
            return True

    @property
    def _is_full(self) -> bool:
        return self._max_pending is not None and self.pending >= self._max_pending

    def _wait_for_room(self) -> None:
        self.check_running()
        warn_at: float | None = time.monotonic() + WARN_AFTER_S
        while self._is_full:
            self._room.wait(1.0)
            self.check_running()
            if warn_at is not None and self.is_narrow and time.monotonic() > warn_at:
                warn_at = None
                logger.warning(
                    "submit_task has waited for {seconds:g} s: {ready} results are ready and nobody takes "
                    "them; read results between submissions, or in another thread",
                    seconds=WARN_AFTER_S,
                    ready=self.ready,
                )

    def _wake_once(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self.wake()

    def received(self) -> list[Item]:
        """On the loop: what was submitted since the last time."""
        with self.lock:
            self._is_woken = False
            items = list(self._inbox)
            self._inbox.clear()
            return items

    def started(self, item: Item) -> None:
        with self.lock:
            item.stream.in_flight += item.left
            self.in_flight += item.left
            self.pending -= item.left
            self._room.notify_all()

    def given_back(self, item: Item) -> None:
        with self.lock:
            item.stream.in_flight -= item.left
            self.in_flight -= item.left
            self.pending += item.left

    def dropped(self, count: int) -> None:
        with self.lock:
            self.pending -= count
            self._room.notify_all()

    # --- out -------------------------------------------------------------------------------------

    def recount(self) -> None:
        """Count anew what nobody has taken; the lock is held."""
        self.unread_bytes = sum(stream.recount() for stream in self._streams)
        self.ready = sum(stream.unread for stream in self._streams)
        if self.is_narrow:
            self.wake()  # not only once: where the Ctrl-C came just before, it only seems to be woken

    def took(self, result: Result) -> None:
        """Somebody has read it; the lock is held."""
        self.ready -= 1
        self.unread_bytes -= result.size_bytes
        if self.is_narrow:
            self._wake_once()


class Stream:
    """Calls in the order in which they were submitted, and what became of each."""

    def __init__(self, hatch: Hatch, *, ordered: bool, on_error: ErrorPolicy) -> None:
        self.readable = Condition(hatch.lock)
        self.is_ordered = ordered
        self.is_sticky = False  # all of it goes to one worker, as long as that lives
        self.end = 0  # the number of the next call that is submitted
        self.in_flight = 0  # calls that a worker has
        self.unfinished = 0  # calls of which nobody knows yet what becomes of them
        self.is_forgotten = False
        self._hatch = hatch
        self._on_error = on_error
        self._unread = 0
        self._next = 0  # the number of the next result in order
        self._results: dict[int, Result | Skipped] = {}
        self._ended: deque[int] = deque()  # numbers of results as they came, when order does not matter
        self._left_out = 0  # calls that failed, and of which no reader was told
        self._owed: deque[tuple[int, Exception]] = deque(maxlen=MAX_REMEMBERED_FAILURES)  # the latest of them

    @property
    def head(self) -> int:
        """The number of the next result in order."""
        return self._next

    @property
    def outstanding(self) -> int:
        """How many calls were submitted whose results were neither read nor left out."""
        return self.unfinished + self._unread

    def needs(self, item: Item) -> bool:
        """Whether somebody who reads can only go on when this has run."""
        if self.is_ordered:
            return item.head == self._next
        return not self._ended and not self.in_flight

    # --- on the loop -----------------------------------------------------------------------------

    def finish(self, seq: int, value: Any, size_bytes: int) -> None:
        with self._hatch.lock:
            self._add(seq, Result(value, None, size_bytes + OVERHEAD_BYTES))

    def fail(self, seq: int, name: str, exc: Exception) -> None:
        """A call failed: raised in its place, or logged and left out."""
        if self._on_error == "skip":
            if not self.is_forgotten:
                told = {"name": name, "number": seq, "error": _told(exc)}
                logger.error("{name} (result {number}) failed and is left out: {error}", **told)
            with self._hatch.lock:
                self._left_out += 1
                self._owed.append((seq, exc))
                self._add(seq, SKIPPED)
            return
        with self._hatch.lock:
            self._add(seq, Result(None, exc, OVERHEAD_BYTES))

    def _add(self, seq: int, result: Result | Skipped) -> None:
        hatch = self._hatch
        hatch.in_flight -= 1
        self.in_flight -= 1
        if self.is_forgotten:
            return
        self.unfinished -= 1
        if isinstance(result, Result):
            hatch.ready += 1
            self._unread += 1
            hatch.unread_bytes += result.size_bytes
            self._results[seq] = result
            if not self.is_ordered:
                self._ended.append(seq)
        elif self.is_ordered:
            self._results[seq] = result
        self._pass_skipped()
        if not self.is_ordered or self._next in self._results:
            self.readable.notify()
        if not self.unfinished:
            self.readable.notify_all()

    def _pass_skipped(self) -> None:
        while self._results.get(self._next) is SKIPPED:
            self._next += 1  # before it goes, as in `_popped`
            del self._results[self._next - 1]

    def recount(self) -> int:
        """Drop what was passed and is still there, and count the bytes of the rest; the lock is held."""
        rest = [seq for seq in self._results if seq >= self._next] if self.is_ordered else self._ended
        self._results = {seq: self._results[seq] for seq in rest}
        sizes = [result.size_bytes for result in self._results.values() if isinstance(result, Result)]
        self._unread = len(sizes)
        return sum(sizes)

    @property
    def unread(self) -> int:
        """Results that nobody has taken."""
        return self._unread

    def forget(self) -> None:
        """Let go of every result; the lock is held."""
        self.is_forgotten = True
        for result in self._results.values():
            if isinstance(result, Result):
                self._hatch.ready -= 1
                self._hatch.unread_bytes -= result.size_bytes
        self._results.clear()
        self._ended.clear()
        self._forgive()
        self.readable.notify_all()

    # --- in a caller's thread --------------------------------------------------------------------

    def take(self, timeout_s: float | None) -> Any:
        """The next result, raised if it is an exception. Waits."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        with self._hatch.lock:
            self._hatch.check_running()
            while (result := self._pop()) is None:
                if self.is_forgotten or self._hatch.state != "running":
                    raise PoolNotRunning(
                        "Worker pool is not running: it was stopped while a result was awaited"
                    )
                if not self.unfinished and self._left_out:
                    raise _nothing_left(*self._told_of())
                wait_s = None if ends_at is None else ends_at - time.monotonic()
                if wait_s is not None and wait_s <= 0:
                    raise ResultTimeout(
                        f"no result within {timeout_s:g} s; {self._hatch.in_flight} are running"
                    )
                self.readable.wait(wait_s)
        return _value(result)

    def try_take(self) -> tuple[bool, Any]:
        with self._hatch.lock:
            if self._hatch.state not in ("running", "stopping") or self._hatch.is_inherited:
                return False, None
            result = self._pop()
        return (False, None) if result is None else (True, _value(result))

    def take_until_done(self) -> tuple[bool, Any]:
        """As `take`, but `(False, None)` once every call that was submitted has ended and was read."""
        with self._hatch.lock:
            self._hatch.check_running()
            while (result := self._pop()) is None:
                if self.is_forgotten or self._hatch.state != "running":
                    raise PoolNotRunning(
                        "Worker pool is not running: it was stopped while a result was awaited"
                    )
                if not self.unfinished:
                    self._forgive()  # whoever reads to the end knows that nothing is left
                    return False, None
                self.readable.wait()
        return True, _value(result)

    def _told_of(self) -> tuple[int, Exception]:
        """One failure for each call that was left out, also where there were more than are remembered."""
        self._left_out -= 1
        return self._owed[0] if self._left_out >= len(self._owed) else self._owed.popleft()

    def _forgive(self) -> None:
        self._left_out = 0
        self._owed.clear()

    def _pop(self) -> Result | None:
        try:
            return self._popped()
        except BaseException:  # a Ctrl-C: this result may be lost, and nothing else
            self._hatch.recount()
            raise

    def _popped(self) -> Result | None:
        if self.is_ordered:
            self._pass_skipped()  # again, where a Ctrl-C came before it
            if self._next not in self._results:
                return None
            self._next += 1  # first: what is taken out and not passed would be waited for without an end
            found = self._results.pop(self._next - 1)
            self._pass_skipped()
        elif not self._ended:
            return None
        else:
            found = self._results.pop(self._ended.popleft())
        assert isinstance(found, Result)
        self._unread -= 1
        self._hatch.took(found)
        if self.is_ordered and self._next in self._results:
            self.readable.notify()  # another reader may wait for it
        return found


def _value(result: Result) -> Any:
    failure, result.failure = result.failure, None
    if failure is None:
        return result.value
    try:
        raise failure
    finally:
        # Its traceback has our frames, down to the reader's. If they had it, nobody but the collector would
        # notice that the reader is gone, and what is ahead of it would stay.
        del failure


def _nothing_left(seq: int, exc: Exception) -> TaskFailed:
    cause = exc.__cause__
    traceback = cause.text if isinstance(cause, RemoteTraceback) else ""
    error = TaskError(type(exc).__qualname__, _told(exc), traceback, _kind(exc))
    failed = TaskFailed(
        f"there is no further result: call {seq} failed and was left out ({_told(exc)}); "
        'on_error="raise" raises it in its place',
        error,
    )
    failed.__cause__ = exc
    return failed


def _kind(exc: Exception) -> ErrorKind:
    if isinstance(exc, WorkerDied):
        return "poison"
    return "timeout" if isinstance(exc, CallTimeout) else "error"


def _told(exc: Exception) -> str:
    try:
        return bounded(f"{type(exc).__name__}: {exc}")
    except Exception:  # a __str__ of somebody else
        return type(exc).__name__
