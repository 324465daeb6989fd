"""One connection that speaks the Redis protocol: commands go out at once, answers come back in order.

Any number of calls may be under way. A caller that gives up leaves the connection as it is: its answer is
passed over. A server that owes an answer for too long counts as gone; before that, whoever wants to know is
told that it is late, and may find out why.

Knows nothing about tasks, scripts or who connects again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

import hiredis

# No call of ours takes this long: a server that has not answered by then does not answer.
ANSWER_TIMEOUT_S: Final = 10.0
LATE_S: Final = 3.0
LOOK_EVERY_S: Final = 1.0

Argument = bytes | str | int
Message = Callable[[bytes, bytes], None]
_NOTHING: Final = object()
_pack = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)


def pack(command: tuple[Argument, ...]) -> bytes:
    """A command as it is sent.

    Numbers become text here. hiredis makes text of them too, but does not look whether that went well: where
    a signal handler raises meanwhile, as a Ctrl-C does, it crashes the interpreter.
    """
    if int in map(type, command):
        command = tuple([str(one) if type(one) is int else one for one in command])
    return _pack(command)


class Wire(asyncio.Protocol):
    def __init__(self, heard: Message | None = None, doubted: Callable[[Wire], None] | None = None) -> None:
        self._heard = heard
        self._doubted = doubted
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._owed: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._transport: asyncio.WriteTransport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._why: Exception | None = None
        self.lost = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_heard(self) -> bool:
        return self._heard_at > 0.0

    def call(self, *command: Argument) -> asyncio.Future[Any]:
        """The answer, to be awaited. What the server refuses is a `ReplyError` as a value."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            answer.set_exception(self._why or ConnectionError("the connection is closed"))
            return answer
        packed = pack(command)  # first: what cannot be sent must not leave an answer owed
        self._owed.append((answer, self._loop.time()))
        self._transport.write(packed)
        if self._watch is None:
            self._watch = self._loop.call_later(LOOK_EVERY_S, self._look)
        return answer

    def close(self) -> None:
        if self._transport is not None:
            with contextlib.suppress(RuntimeError):  # its loop has closed: the collector closes the socket
                self._transport.abort()

    # --- called by the loop ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _NOTHING:
                self._deliver(reply)
        except hiredis.ProtocolError as exc:
            self.fail(ConnectionError(f"the answer is no Redis protocol: {exc}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._why = self._why or ConnectionError(f"the connection was lost{f': {exc}' if exc else ''}")
        if self._watch is not None:
            self._watch.cancel()
        owed, self._owed = self._owed, deque()
        for answer, _ in owed:
            if not answer.done():
                answer.set_exception(self._why)
        self.lost.set()

    def _deliver(self, reply: Any) -> None:
        if self._heard is not None and not isinstance(reply, bytes | Exception) and reply[0] == b"message":
            self._heard(reply[1], reply[2])
            return
        if not self._owed:
            self.fail(ConnectionError("an answer to nothing"))
            return
        answer, _ = self._owed.popleft()
        if not answer.done():
            answer.set_result(reply)

    def _look(self) -> None:
        """Whether the oldest call has waited too long. Only while there is one."""
        self._watch = None
        if not self._owed:
            return
        if self._loop.time() - self._owed[0][1] > ANSWER_TIMEOUT_S:
            self.fail(TimeoutError(f"no answer within {ANSWER_TIMEOUT_S:g} s"))
            return
        self._watch = self._loop.call_later(LOOK_EVERY_S, self._look)
        if self.is_late and self._doubted is not None:
            self._doubted(self)

    @property
    def is_late(self) -> bool:
        """An answer is owed, nothing is on its way there any more, and nothing has come back for a while."""
        if not self._owed or self._transport is None or self._transport.get_write_buffer_size():
            return False
        return self._loop.time() - max(self._owed[0][1], self._heard_at) > LATE_S

    def fail(self, why: Exception) -> None:
        self._why = self._why or why
        self.close()
