"""One attempt at a call, in the child: run it, encode what came of it, and let a signal end it while it runs.

The parent writes into the page which calls should end, and sends a signal. The handler may raise only while
such a call runs, never in our own code around it: that is what is kept here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final, NamedTuple

from omniq.pool import copies, pickles, wire
from omniq.pool.control import POSTED, ControlPage, Unwanted
from omniq.pool.lines import INTERRUPT_SIGNAL, Line
from omniq.pool.packed import Run
from omniq.pool.pickles import Buffers, CallInterrupted

# Between the call and whoever reads its traceback: nothing that they could have done anything about.
_OUR_FRAMES: Final = frozenset(
    os.path.join(os.path.dirname(__file__), name)
    for name in ("attempt.py", "packed.py", "ranges.py", "serving.py")
)

_IMPORT_FRAMES: Final = "<frozen importlib._bootstrap"


class Ended(NamedTuple):
    """How a call ended, as bytes."""

    kind: int
    body: bytes
    buffers: Buffers


INTERRUPTED: Final = Ended(wire.INTERRUPTED, b"", [])


def returned(value: Any) -> Ended:
    return Ended(wire.RETURNED, *pickles.dump_result(value))


def failed(exc: BaseException) -> Ended:
    if copies.is_copy():
        copies.leave(exc)
    return Ended(wire.RAISED, pickles.dump_failure(exc, _OUR_FRAMES), [])


def _is_importing(frame: FrameType | None) -> bool:
    """Whether the body imports something here. Half an import stays behind in the process, where many modules
    cannot be imported a second time: every later call that needs one would fail. The parent asks again.
    """
    while frame is not None and frame.f_code.co_filename != __file__:
        if frame.f_code.co_filename.startswith(_IMPORT_FRAMES):
            return True
        frame = frame.f_back
    return False


class Attempts:
    """Which call runs, and which ones should not."""

    def __init__(self, page: ControlPage, run: Run, line: Line) -> None:
        self.running = 0  # the call that a signal may end now, 0 for none
        self.block: list[Any] | None = None  # or: the calls that fill the run now; the next one may be ended
        self.stop_id = 0  # the first call after the range of the block
        self._line = line
        self._words = page.words
        self._page = page
        self._run = run
        self._seen_posts = 0
        self._unwanted = Unwanted(frozenset(), range(0))
        self._last_unwanted = 0
        self._withdrawn: list[range] = []

    def of(self, call_id: int, func: pickles.Function, args: Sequence[Any]) -> Ended:
        """Begin it, run it, and encode what came of it. Whatever a body raises, its process goes on."""
        if self._words[POSTED] and self.must_not_begin(call_id):
            return INTERRUPTED
        return self.ended(call_id, func, args)

    def ended(self, call_id: int, func: pickles.Function, args: Sequence[Any]) -> Ended:
        """The same for one that has begun, so that it cannot be withdrawn any more."""
        try:
            try:
                self.running = call_id
                if self._words[POSTED] and self.is_unwanted(call_id):
                    raise CallInterrupted
                return returned(func(*args))
            except CallInterrupted:
                raise
            except BaseException as exc:
                return failed(exc)
            finally:
                self.running = 0
        except CallInterrupted:
            return INTERRUPTED

    def on_signal(self, _signal: int, frame: FrameType | None) -> None:
        if self._line.is_sending or self._line.is_asking:
            return  # `look_again` follows
        block, call_id = self.block, self._interruptible()
        if call_id and self.is_unwanted(call_id) and not _is_importing(frame):
            self.running, self.block = 0, None  # once only: not again while it cleans up
            raise CallInterrupted
        if block is not None:
            block.clear()  # a later call may be meant, so whoever runs them has to look before each

    def _interruptible(self) -> int:
        if self.block is None:
            return self.running
        call_id = self._run.next_id
        return call_id if call_id < self.stop_id else 0

    def is_unwanted(self, call_id: int) -> bool:
        self._look()
        return self._unwanted.has(call_id)

    def must_not_begin(self, call_id: int) -> bool:
        """Asked once, after the page says that it has begun: so the parent knows whether it was in time."""
        return self.is_unwanted(call_id) or any(call_id in span for span in self._withdrawn)

    def any_unwanted(self, from_id: int) -> bool:
        """Whether this call or a later one, of the block that runs, should not run."""
        self._look()
        if self._last_unwanted >= from_id:
            return True
        return any(span.start < self.stop_id and from_id < span.stop for span in self._withdrawn)

    def unwanted_from(self, call_id: int) -> int:
        """How many calls from this one on are in a range that should not run."""
        self._look()
        spans = (self._unwanted.span, *self._withdrawn)
        return max((span.stop - call_id for span in spans if call_id in span), default=0)

    def _look(self) -> None:
        posts = self._words[POSTED]
        if posts != self._seen_posts:
            self._unwanted = self._page.posted()
            self._withdrawn = self._page.withdrawn()
            self._last_unwanted = self._unwanted.last
            self._seen_posts = posts

    def look_again(self) -> None:
        """After something was sent: a signal that came meanwhile takes effect now."""
        if not self._words[POSTED] or (self.block is None and not self.running):
            return
        call_id = self._interruptible()
        if (call_id and self.is_unwanted(call_id)) or (self.block and self.any_unwanted(call_id)):
            # This may be a thread of the body; the handler runs in ours.
            os.kill(os.getpid(), INTERRUPT_SIGNAL)
