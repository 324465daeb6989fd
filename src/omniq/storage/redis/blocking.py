"""Calls in the thread of whoever blocks: to the loop's thread and back would cost more than the call itself.

One connection, one call at a time. Otherwise as in `connections`: a server is examined at every connection, a
script goes by its digest, a slot is followed to its node, and who is told `StoreUnavailable` calls again.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import threading
import time
from typing import Any, Final

import hiredis
from hiredis import ReplyError

from omniq.errors import BlockingCallInHandler, StoreUnavailable
from omniq.storage.redis.address import BORDER, CONNECT_TIMEOUT_S, Address
from omniq.storage.redis.durability import QUESTIONS, Durability, decide, facts_of
from omniq.storage.redis.errors import explained
from omniq.storage.redis.scripts import Script
from omniq.storage.redis.wire import ANSWER_TIMEOUT_S, LATE_S, Argument, pack

MOVES: Final = 3
CLOSE_WITHIN_S: Final = 2.0
_CHUNK: Final = 1 << 16
_NOTHING: Final = object()


class WaitsForDisk(Exception):
    """The server syncs its file once a second: waiting for that is shared, on the loop."""


class Blocking:
    def __init__(self, address: Address, durability: Durability) -> None:
        self._address = address
        self._durability: Durability = durability
        self._lock = (
            threading.RLock()
        )  # a signal handler gets in, and is refused instead of waiting for itself
        self._is_calling = False
        self._line: Line | None = None
        self._closed = False

    def write(self, script: Script, *arguments: Argument) -> Any:
        """Run a script; only where the server syncs by itself, or need not."""
        with self._lock:
            if self._is_calling:
                raise BlockingCallInHandler(
                    f"this signal handler interrupted a call to {self._address.shown} in its own thread, "
                    "which cannot go on before the handler returns; set a flag here and enqueue later, or in "
                    "another thread"
                )
            self._is_calling = True
            try:
                return self._write(script, arguments)
            finally:
                self._is_calling = False
                if self._closed:
                    self._drop()

    def _write(self, script: Script, arguments: tuple[Argument, ...]) -> Any:
        for _ in range(MOVES):
            if self._closed:
                raise StoreUnavailable("the storage is closed; repeat the call")
            try:
                reply = self._run(script, arguments)
            except BORDER as exc:
                self._drop()
                raise explained(exc, self._address.shown) from exc
            except BaseException:  # interrupted: the answer would be the next one's
                self._drop()
                raise
            if not isinstance(reply, ReplyError):
                return reply
            self._drop()  # it may be a replica by now, or our slot elsewhere
            if not str(reply).startswith("MOVED "):
                raise explained(reply, self._address.shown)
            host, _, port = str(reply).split()[2].rpartition(":")
            self._address.move_to(host, int(port))
        raise StoreUnavailable(f"{self._address.shown}: the cluster is moving these keys")

    def _run(self, script: Script, arguments: tuple[Argument, ...]) -> Any:
        line = self._line
        if line is None:
            line = self._line = self._connect()
        reply = line.call(b"EVALSHA", script.sha, b"1", self._address.prefix, *arguments)
        if isinstance(reply, ReplyError) and str(reply).startswith("NOSCRIPT"):
            reply = line.call(b"EVAL", script.text, b"1", self._address.prefix, *arguments)
        return reply

    def _connect(self) -> Line:
        try:
            line = Line(self._address, "blocking")
        except BaseException:
            self._address.begin_again()
            raise
        try:
            facts = facts_of([line.call(*question) for question in QUESTIONS])
            if decide(facts, self._durability, self._address.shown).waits:
                raise WaitsForDisk
        except BaseException:
            line.close()
            raise
        return line

    def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def close(self) -> None:
        """Whoever is in the middle of a call ends it first, and nobody comes after it."""
        self._closed = True
        if self._lock.acquire(timeout=CLOSE_WITHIN_S):
            try:
                self._drop()
            finally:
                self._lock.release()

    def abandon(self) -> None:
        """After a fork the lock may be held by a thread that is not there."""
        self._drop()


class Line:
    """A socket that is signed in. What the server refuses is a `ReplyError` as a value."""

    def __init__(self, address: Address, what_for: str) -> None:
        self._address = address
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._is_signed_in = self._has_heard = False
        try:
            self._socket: socket.socket = address.dial(CONNECT_TIMEOUT_S)
        except BORDER as exc:
            raise address.told(exc, is_dialled=False, has_heard=False) from None
        try:
            _limit_waits(self._socket)
            self._sign_in(what_for)
        except BORDER as exc:
            self.close()
            raise address.told(exc, is_dialled=True, has_heard=self._has_heard) from None
        except BaseException:
            self.close()
            raise
        self._is_signed_in = True

    def _sign_in(self, what_for: str) -> None:
        name: Any = None
        for command in self._address.words(what_for):
            try:
                reply = self.call(*command)
            except OSError:
                if isinstance(name, ReplyError):
                    raise name from None  # the last word before it hung up says why
                raise
            if command[0] == "CLIENT":
                name = reply  # for people: whoever may not set it goes without
            elif isinstance(reply, ReplyError):
                raise reply

    def call(self, *command: Argument) -> Any:
        self._send(pack(command))
        until, reply = time.monotonic() + ANSWER_TIMEOUT_S, _NOTHING
        try:
            while reply is _NOTHING:
                self._reader.feed(self._received(until))
                reply = self._reader.gets()
        except hiredis.ProtocolError as exc:
            raise ConnectionError(f"the answer is no Redis protocol: {exc}") from exc
        return reply

    def _send(self, packed: bytes) -> None:
        if len(packed) <= _CHUNK:  # nothing else is under way, so it goes at once
            try:
                self._socket.sendall(packed)
            except BlockingIOError:
                raise TimeoutError("timed out") from None
            return
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        self._socket.sendall(packed)
        _limit_waits(self._socket)

    def _received(self, until: float) -> bytes:
        while True:
            try:
                data = self._socket.recv(_CHUNK)
            except (TimeoutError, BlockingIOError):
                if not self._is_signed_in or time.monotonic() > until or self._another_is_answered():
                    raise TimeoutError("timed out") from None
                continue
            if not data:
                raise ConnectionError("the connection was lost")
            self._has_heard = True
            return data

    def _another_is_answered(self) -> bool:
        """Then this connection died without a word: a server does one thing after the other."""
        try:
            with self._address.dial(LATE_S) as other:
                other.sendall(pack(("PING",)))
                return bool(other.recv(1))
        except OSError:
            return False

    def close(self) -> None:
        self._socket.close()


def _limit_waits(line: socket.socket) -> None:
    """By the kernel where it can be: Python's own limit costs a system call before each that it limits."""
    if sys.platform == "win32" or isinstance(line, ssl.SSLSocket):  # which would wait for ever
        line.settimeout(LATE_S)
        return
    line.settimeout(None)
    limit = struct.pack("ll", int(LATE_S), int(LATE_S % 1 * 1_000_000))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        line.setsockopt(socket.SOL_SOCKET, option, limit)
