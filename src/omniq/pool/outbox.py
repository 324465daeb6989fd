"""What is written to a child goes out at once where the socket takes it, and later where it does not."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Iterable

from omniq.pool.wire import MAX_PIECES, Bytes, Pieces


class Outbox:
    """Never blocks and never raises: that nobody reads any more is noticed by whoever reads."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._sock = sock
        self._loop = loop
        self._waiting: deque[memoryview] = deque()
        self._is_closed = False
        self._held: Pieces | None = None

    def hold(self) -> None:
        """Keep what is written from now on, until `let_go`: then it goes out with one call of the system."""
        if self._held is None:
            self._held = []

    def let_go(self) -> None:
        held, self._held = self._held, None
        if held:
            self.write(held)

    def write(self, pieces: Pieces) -> None:
        if self._is_closed or not pieces:
            return
        if self._held is not None:
            self._held += pieces
            return
        if self._waiting:
            self._keep(pieces)
            return
        whole: Bytes = pieces[0] if len(pieces) == 1 else b""
        if not whole and sum(map(len, pieces)) <= 16 * 1024:
            whole = b"".join(pieces)
        if not whole:
            self._keep(pieces)
            self._send_waiting()
            return
        try:
            sent = self._sock.send(whole)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close()
            return
        if sent < len(whole):
            self._keep([memoryview(whole)[sent:]])
            self._loop.add_writer(self._sock, self._send_waiting)

    def _keep(self, pieces: Iterable[Bytes]) -> None:
        self._waiting.extend(memoryview(piece) for piece in pieces if len(piece))

    def _send_waiting(self) -> None:
        waiting = self._waiting
        try:
            sent = self._sock.sendmsg([waiting[n] for n in range(min(len(waiting), MAX_PIECES))])
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close()
            return
        while waiting and sent >= len(waiting[0]):
            sent -= len(waiting.popleft())
        if sent:
            waiting[0] = waiting[0][sent:]
        if waiting:
            self._loop.add_writer(self._sock, self._send_waiting)
        else:
            self._loop.remove_writer(self._sock)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._waiting.clear()
            self._loop.remove_writer(self._sock)
