"""Worker processes as a pool sees them: each has a channel, tells its events, and ends exactly once.

    pool ── send ──> Child ═══ socket, shared page, arena ═══ process
    pool <── events ──

Everything here runs on one loop and nothing blocks it. What becomes of a lost call is the pool's decision.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from omniq.pool import calls, packed, pickles, wire
from omniq.pool.arena import Arena, Slot
from omniq.pool.calls import EncodedCall, Interrupted, Message, Outcome, Outcomes, Raised
from omniq.pool.control import ControlPage
from omniq.pool.lines import INTERRUPT_SIGNAL, MAX_SPARE_GRANTS
from omniq.pool.outbox import Outbox
from omniq.pool.wire import Frame, Inbox, Pieces, Place, ProtocolError, Where

# A process closes its descriptors a moment before it can be waited for.
EOF_GRACE_S: Final = 0.1
# After a death: how long the template may take to tell how it was.
STATUS_GRACE_S: Final = 1.0
MAX_MISSES: Final = 32
# When an interrupt that has ended nothing yet is sent again; then each time after twice as long.
SIGNAL_AGAIN_S: Final = (0.05, 0.2, 0.4, 0.4, 0.8)
# A child that has had nothing to do for so long gives back what it was lent for results to come.
IDLE_S: Final = 0.05


class ChildGone(ConnectionError):
    """The child has ended, so it takes no messages."""


class Exit(msgspec.Struct, frozen=True):
    """How a process ended: by `code` or by `signal`, or neither when nobody could tell."""

    code: int | None = None
    signal: int | None = None
    detail: str = ""

    @classmethod
    def of(cls, exitcode: int, detail: str = "") -> Exit:
        return cls(code=exitcode, detail=detail) if exitcode >= 0 else cls(signal=-exitcode, detail=detail)

    def __str__(self) -> str:
        if self.signal is not None:
            text = f"killed by {_signal_name(self.signal)}"
        elif self.code is not None:
            text = f"exited with code {self.code}"
        else:
            text = "ended in an unknown way"
        return f"{text} ({self.detail})" if self.detail else text


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Events(Protocol):
    """Called on the loop, in the order in which things happened."""

    def ready(self, child: Child) -> None:
        """It takes messages."""

    def outcomes(self, child: Child, first_id: int, outcomes: Sequence[Outcome]) -> None:
        """How calls ended; their ids are consecutive from `first_id` on."""

    def note(self, child: Child, call_id: int, note: Any) -> None:
        """What a body says while it runs."""

    def done(
        self, child: Child, message_id: int, first_id: int = 0, outcomes: Sequence[Outcome] = ()
    ) -> None:
        """It has finished a message; these are its last outcomes, if they have not been told before."""

    def shutdown(self, child: Child) -> None:
        """It was asked to stop, has finished, and says goodbye."""

    def exited(self, child: Child, exit: Exit) -> None:
        """The last event of every child. What has finished was reported before, what has not never will."""


class ResultSize:
    """How large a grant should be sent along: as large as recent results were."""

    def __init__(self) -> None:
        self.bytes = 0
        self._misses = 0

    def saw(self, nbytes: int) -> None:
        if nbytes >= self.bytes:
            self.bytes, self._misses = nbytes, 0
            return
        self._misses += 1
        if self._misses >= MAX_MISSES:
            self.bytes, self._misses = nbytes, 0


class Open:
    """A call, or a range of calls, whose outcomes are still to come. They come in order."""

    __slots__ = ("left", "name", "next_id")

    def __init__(self, call: EncodedCall) -> None:
        self.next_id = call.id
        self.left = call.count
        self.name = call.name

    @property
    def stop_id(self) -> int:
        return self.next_id + self.left


class Child:
    """One process. Every method is for the loop's thread, and none of them waits."""

    def __init__(
        self,
        *,
        pid: int,
        pidfd: int | None,
        sock: socket.socket,
        page: Slot,
        arena: Arena,
        events: Events,
        result_size: ResultSize,
        forget: Callable[[Child], None],
        read_only: bool = False,
    ) -> None:
        self.pid = pid
        self.received_bytes = 0  # of the latest outcome, as it lies in memory
        self.started_at = time.monotonic()
        self.reported_rss_bytes = 0
        self._pidfd = pidfd
        self._sock = sock
        self._page_slot = page
        self._page = ControlPage(page.memory)
        self._run = packed.Run(self._page)
        self._arena = arena
        self._events = events
        self._result_size = result_size
        self._forget = forget
        self._read_only = read_only
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox(sock.recv_into)
        self._outbox = Outbox(sock, self._loop)
        self._open: deque[Open] = deque()
        self._messages: deque[int] = deque()
        self._lent: dict[int, Slot] = {}
        self._grants: dict[int, int] = {}  # number and size of the lent slots that await a result
        self._ended = False
        self._is_broken = False
        self._running_at_end = 0
        self._detail = ""
        self._bell: asyncio.TimerHandle | None = None
        self._idle_bell: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock, self._on_readable)
        if pidfd is not None:
            self._loop.add_reader(pidfd, self._on_death)
            # Also when its end is never told, because its loop was closed first.
            self._close_pidfd = weakref.finalize(self, os.close, pidfd)
            self._close_pidfd.atexit = False

    def __repr__(self) -> str:
        return f"<Child pid={self.pid}{' ended' if self._ended else ''}>"

    # --- what the pool asks ----------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Give it calls to run. A child that is dying takes them silently; its `exited` follows."""
        if self._ended:
            raise ChildGone(f"process {self.pid} has ended; send the message to another one")
        pieces: Pieces = []
        position = 0
        for call in message.calls:
            packed = self._pack(call, position)
            pieces += packed
            position += wire.size_of(packed)
            self._open.append(Open(call))
        self._messages.append(message.id)
        header = wire.HEADER.pack(position, message.id, len(message.calls), wire.CALLS, 0)
        if self._result_size.bytes:
            pieces = [*self._top_up(), header, *pieces]
        elif len(pieces) == 1:
            pieces = [header + pieces[0]]  # as nearly always
        else:
            pieces.insert(0, header)
        self._outbox.write(pieces)

    def _pack(self, call: EncodedCall, position: int) -> Pieces:
        flags = (wire.BY_NAME if call.by_name else 0) | (wire.IS_RANGE if call.is_range else 0)
        function, body = call.function, call.body
        if not call.buffers and len(body) < pickles.OUT_OF_BAND_BYTES:
            head = wire.CALL.pack(call.id, call.count, call.skip, len(function), len(body), flags)
            return [head + function + body]
        head = wire.CALL.pack(call.id, call.count, call.skip, len(function), 0, flags | wire.WITH_PARCEL)
        parts: list[wire.Bytes] = [body, *call.buffers]
        slot = self._arena.take(wire.parcel_bytes(parts))
        if slot is not None:
            self._lent[slot.number] = slot
        before = head + function
        return [before, *wire.pack_parcel(parts, slot, position + len(before))]

    def ask_to_stop(self) -> None:
        """Let it finish what it has, say goodbye and exit."""
        if not self._ended:
            self._outbox.write([wire.frame(wire.STOP)])

    def interrupt(self, call_id: int, count: int = 1) -> None:
        """Ask a call, or `count` calls from it on, to end early and not to begin.

        Nothing happens to those that have ended, or do not listen: then kill.
        """
        if self._ended:
            return
        if count == 1:
            self._page.post(call_id)
        else:
            self._page.post_range(call_id, call_id + count)
        self._signal_while_open(range(call_id, call_id + count), SIGNAL_AGAIN_S)

    def _signal_while_open(self, call_ids: range, pauses_s: Sequence[float]) -> None:
        """A body that was just about to wait hears a signal only when it has waited, and one that imports
        something is not interrupted there: it gets another one."""
        still_open = any(one.next_id < call_ids.stop and call_ids.start < one.stop_id for one in self._open)
        if self._ended or not still_open:
            return
        self._signal(INTERRUPT_SIGNAL)
        later_s = pauses_s[1:] or (2 * pauses_s[0],)
        self._loop.call_later(pauses_s[0], self._signal_while_open, call_ids, later_s)

    def withdraw(self, call_ids: range) -> bool:
        """Take back those of a message's calls that have not begun: True when that is all, for certain."""
        if self._ended:
            return False
        self._page.withdraw(call_ids[0], call_ids[-1] + 1)
        # The child says what it begins before it looks there: we are in time if that is an earlier one.
        begun = packed.begun(self._page, self._run)
        if begun in call_ids:
            self._signal(INTERRUPT_SIGNAL)  # what has begun goes on; the child looks before each further call
        return begun < call_ids[0]

    def kill(self) -> None:
        if not self._ended:
            self._signal(signal.SIGKILL)

    @property
    def running(self) -> int:
        """The id of the call that has begun and is not reported, 0 for none. Valid after the end as well."""
        return self._running_at_end if self._ended else self._running_now()

    @property
    def rss_bytes(self) -> int:
        """Memory of its own, read now: without libraries and the arena. 0 where the system does not tell."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:
                resident, shared = file.read().split()[1:3]
        except (OSError, ValueError):
            return 0
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")

    def _running_now(self) -> int:
        running = packed.running(self._page, self._run)
        if not self._open:
            return 0
        # Results of quick calls before it may be gathered and not yet sent, so it need not be the next one.
        head = self._open[0]
        return running if head.next_id <= running < head.stop_id else 0

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self.pid, number)

    # --- what it tells ---------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            more = self._inbox.fill()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            more = False
        self._take_frames()
        if not more and not self._ended:
            self._on_eof()

    def _take_frames(self) -> None:
        self._outbox.hold()  # answers to several frames go out together
        try:
            while not self._ended and (frame := self._inbox.next()) is not None:
                self._take(frame)
        except Exception as exc:  # nonsense can fail in every way that reading can
            self._is_broken = True
            self._break(f"sent what makes no sense: {exc}")
        finally:
            self._outbox.let_go()

    def _take(self, frame: Frame) -> None:
        kind = frame.kind
        if wire.RETURNED <= kind <= wire.INTERRUPTED:
            self._take_outcome(frame)
        elif kind == wire.FREED:
            self._take_back(frame.body)
        elif kind == wire.NEED:
            self._answer_need(frame.id)
        elif kind == wire.NOTE:
            self._take_note(frame)
        elif kind == wire.READY:
            self._tell(self._events.ready, self)
        elif kind == wire.SHUTDOWN:
            self._tell(self._events.shutdown, self)
        else:
            raise ProtocolError(f"a frame of kind {kind}")

    def _take_outcome(self, frame: Frame) -> None:
        if not self._open or self._open[0].next_id != frame.id:
            raise ProtocolError(f"an outcome of call {frame.id}, which is not the next one")
        head = self._open[0]
        outcomes = self._outcomes(frame, head.name)
        if len(outcomes) > head.left:
            raise ProtocolError(f"{len(outcomes)} outcomes where {head.left} are expected")
        if frame.extra:
            self.reported_rss_bytes = frame.extra * 1024
        self._ended_in_order(head, outcomes)
        if frame.flags & wire.LAST and self._messages:
            self._tell(self._events.done, self, self._messages.popleft(), frame.id, outcomes)
        else:
            self._tell(self._events.outcomes, self, frame.id, outcomes)

    def _ended_in_order(self, head: Open, outcomes: Sequence[Outcome]) -> None:
        head.next_id += len(outcomes)
        head.left -= len(outcomes)
        if not head.left:
            self._open.popleft()
        if not self._open and self._lent and self._idle_bell is None:
            self._idle_bell = self._loop.call_later(IDLE_S, self._reclaim_idle)

    def _outcomes(self, frame: Frame, name: str) -> Sequence[Outcome]:
        kind, flags, _, _, body = frame
        self.received_bytes = len(body)
        if kind == wire.RAISED:
            return (Raised(pickles.load_failure(body)),)
        if kind == wire.INTERRUPTED:
            return (Interrupted(),)
        if flags & wire.SKIPPED:
            return self._skipped(frame)
        if flags & wire.PARCEL:
            return (self._open_parcel(frame, name),)
        if self._result_size.bytes:
            self._result_size.saw(0)
        if flags & wire.PACKED:
            return Outcomes(packed.unpack(body))
        if flags & wire.RANGE:
            return calls.load_gathered(body, name)
        return calls.load_value(body, name)

    def _skipped(self, frame: Frame) -> Sequence[Outcome]:
        [count] = wire.NUMBER.unpack(frame.body)
        if not 0 < count <= self._open[0].left:
            raise ProtocolError(f"{count} calls that never began where {self._open[0].left} are expected")
        return [Interrupted()] * count

    def _open_parcel(self, frame: Frame, name: str) -> Outcome:
        parcel, _ = wire.unpack_parcel(frame.body, 0)
        parts = parcel.inline
        if parcel.where.number != wire.NOWHERE.number:
            parts = parcel.cut(self._looked_at(parcel.where))
        if parcel.places:
            parts = self._collected(parcel.places, parts)
        self._result_size.saw(max(sum(parcel.lengths), max((p.length for p in parcel.places), default=0)))
        if not frame.flags & wire.LAST:
            self._outbox.write(self._top_up())
        pickled, *buffers = parts
        if self._read_only:
            buffers = [buffer.toreadonly() for buffer in buffers]
        return calls.load_outcome(pickled, buffers, name)

    def _looked_at(self, where: Where) -> memoryview:
        slot = self._reclaim(where.number, where.generation)
        self.received_bytes += slot.size
        return slot.export()

    def _collected(self, places: Sequence[Place], others: list[memoryview]) -> list[memoryview]:
        """The parts of a scattered parcel, in their order."""
        rest, seen = iter(others), dict[int, memoryview]()
        for where in {place.where for place in places if place.where.number != wire.NOWHERE.number}:
            seen[where.number] = self._looked_at(where)
        return [
            seen[where.number][start : start + length] if where.number in seen else next(rest)
            for where, start, length in places
        ]

    def _take_note(self, frame: Frame) -> None:
        try:
            note = pickles.load(frame.body, [])
        except BaseException as exc:  # a note is no outcome: the call goes on, and so does this program
            self._loop.call_exception_handler({"message": "a note cannot be unpickled", "exception": exc})
            return
        self._tell(self._events.note, self, frame.id, note)

    def _tell(self, event: Callable[..., None], *args: object) -> None:
        try:
            event(*args)
        except Exception as exc:  # the listener's fault must not stop the channel
            self._loop.call_exception_handler({"message": "an event of a child failed", "exception": exc})

    # --- slots -----------------------------------------------------------------------------------

    def _reclaim(self, number: int, generation: int) -> Slot:
        """The slot that this child was lent under that name, and no other."""
        slot = self._lent.get(number)
        if slot is None or slot.generation != generation:
            raise ProtocolError(f"slot {number} in its use {generation}, which it does not have")
        del self._lent[number]
        self._grants.pop(number, None)
        return slot

    def _take_back(self, body: memoryview) -> None:
        for number, generation in wire.FREED_SLOT.iter_unpack(body):
            self._reclaim(number, generation).free()

    def _answer_need(self, nbytes: int) -> None:
        self._outbox.write([self._grant(self._arena.take(nbytes), wire.ANSWER)])

    def _top_up(self) -> Pieces:
        """See that it holds a slot of the usual size for each result that is to come."""
        size = self._result_size.bytes
        if not size:
            return []
        missing = min(len(self._open), MAX_SPARE_GRANTS) - sum(held >= size for held in self._grants.values())
        grants: Pieces = []
        while missing > 0 and (slot := self._arena.take(size)) is not None:
            grants.append(self._grant(slot, 0))
            missing -= 1
        return grants

    def _reclaim_idle(self) -> None:
        """What is lent counts as used, and nobody else can have it. What a body still looks at stays."""
        self._idle_bell = None
        if not self._open and self._lent:
            self._grants.clear()
            self._outbox.write([wire.frame(wire.RECLAIM)])

    def _grant(self, slot: Slot | None, flags: int) -> bytes:
        where: Where = wire.NOWHERE
        if slot is not None:
            where = slot.where
            self._lent[slot.number] = slot
            self._grants[slot.number] = slot.size
        return wire.frame(wire.GRANT, body=wire.SLOT.pack(*where), flags=flags)

    # --- the end ---------------------------------------------------------------------------------

    def _break(self, detail: str) -> None:
        """It cannot be trusted any more."""
        self._detail = self._detail or detail
        self._loop.remove_reader(self._sock)
        self.kill()

    def _on_eof(self) -> None:
        self._loop.remove_reader(self._sock)
        self._outbox.close()
        self._ring_later(EOF_GRACE_S, lambda: self._break("closed its channel"))

    def _on_death(self) -> None:
        """It is dead; the template will say how it died."""
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
        self._ring_later(STATUS_GRACE_S, lambda: self.finish(Exit(detail=self._detail)))

    def _ring_later(self, delay_s: float, ring: Callable[[], None]) -> None:
        if self._bell is not None:
            self._bell.cancel()
        self._bell = self._loop.call_later(delay_s, ring)

    def ended(self, exitcode: int) -> None:
        """The template has waited for it."""
        self.finish(Exit.of(exitcode, self._detail))

    def orphaned(self) -> None:
        """The template is gone, and the system kills what it made. Nobody can tell the status any more."""
        self._detail = self._detail or "its template process ended"
        self.kill()
        if self._pidfd is None or _is_dead(self._pidfd):
            self.finish(Exit(signal=signal.SIGKILL, detail=self._detail))
            return
        self._loop.remove_reader(self._pidfd)
        killed = Exit(signal=signal.SIGKILL, detail=self._detail)
        self._loop.add_reader(self._pidfd, self.finish, killed)

    def finish(self, exit: Exit) -> None:
        """Report what it left behind, take back what it was lent, and say that it has ended."""
        if self._ended:
            return
        self._drain()
        self._replay_journal()
        self._running_at_end = self._running_now()
        self._ended = True
        self._close()
        self._forget(self)
        self._tell(self._events.exited, self, exit)

    def _drain(self) -> None:
        with suppress(OSError):
            while not self._is_broken and self._inbox.fill():
                self._take_frames()

    def _replay_journal(self) -> None:
        """Report the results that it recorded and did not send; those that it did send are known already."""
        if not self._open:
            return
        head = self._open[0]
        if self._run.kind is not None:
            first, outcomes = self._run.first_id, Outcomes(self._run.values())
        else:
            first, count, pickles = self._page.recorded()
            if not head.next_id - first < count <= head.next_id - first + head.left:
                return
            outcomes = calls.load_recorded(pickles, count, head.name)
        known = head.next_id - first
        if 0 <= known < len(outcomes) <= known + head.left:
            first_id, unknown = head.next_id, outcomes[known:]
            self._ended_in_order(head, unknown)
            self._tell(self._events.outcomes, self, first_id, unknown)

    def _close(self) -> None:
        if self._bell is not None:
            self._bell.cancel()
        if self._idle_bell is not None:
            self._idle_bell.cancel()
        self._outbox.close()
        self._loop.remove_reader(self._sock)
        self._sock.close()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            self._close_pidfd()
        for slot in self._lent.values():
            slot.free()
        self._lent.clear()
        self._run.release()
        self._page.release()
        self._page_slot.free()


def _is_dead(pidfd: int) -> bool:
    import select

    return bool(select.select([pidfd], [], [], 0)[0])
