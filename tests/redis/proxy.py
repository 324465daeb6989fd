"""The network of tests/faults/network.py in front of Redis: which call is made, which answer is its."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path

import hiredis

from omniq.storage.redis.address import Address
from tests.faults.network import Link, Network, Where

_NOTHING = object()


class RedisLink(Link):
    def __init__(self, network: Network, ours: asyncio.StreamWriter, theirs: asyncio.StreamWriter) -> None:
        super().__init__(network, ours, theirs)
        self._calls = hiredis.Reader(notEnoughData=_NOTHING)
        self._answers = hiredis.Reader(notEnoughData=_NOTHING)
        self._meant: deque[bool] = deque()  # for each call without an answer yet: whether it is looked for

    def look_at_calls(self, data: bytes) -> None:
        self._calls.feed(data)
        while (call := self._calls.gets()) is not _NOTHING:
            pattern = self.network.pattern
            meant = self.network.losses > 0 and pattern is not None and pattern in b" ".join(call)
            if meant and self.network.unheard:
                self.lose_unheard()
            self._meant.append(meant)

    def lets_through(self, data: bytes) -> bool:
        """A refusal is no loss: such a script has not run."""
        self._answers.feed(data)
        while (answer := self._answers.gets()) is not _NOTHING:
            if isinstance(answer, list) and answer and answer[0] == b"message":
                continue
            if self._meant.popleft() and self.network.losses and not isinstance(answer, hiredis.ReplyError):
                self.lose_answer()
                return False
        return True


class Proxy(Network):
    kind = RedisLink

    def __init__(self, url: str) -> None:
        super().__init__(where(url))

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


def where(url: str) -> Where:
    address = Address(url, None)
    return Path(address.path) if address.path is not None else (address.host, address.port)
