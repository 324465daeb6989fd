"""`map`: chunks of calls in a stream of their own, a bounded number of them ahead of whoever reads.

Leaving the loop that reads is enough to drop what is ahead: the hatch notices that the reader is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Self, TypeVar

from omniq.data.stream import Hatch, Stream, Work

T = TypeVar("T")


class Mapped(Iterator[Any]):
    """Results in turn. One that is an exception is raised in its place, and the next ones follow."""

    def __init__(
        self,
        hatch: Hatch,
        stream: Stream,
        work: Callable[[list[T]], Work],
        items: Iterable[T],
        *,
        chunksize: int,
        ahead: Callable[[], int],
    ) -> None:
        self._is_closed = True
        self._hatch = hatch
        self._stream = stream
        self._work = work
        self._items = iter(items)
        self._chunksize = chunksize
        self._ahead = ahead
        self._more = True
        self._held: Work | None = None  # for which there was no room
        hatch.open(stream, reader=self)
        self._is_closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        while not self._is_closed:
            self.begin()
            found, value = self._stream.take_until_done()
            if found:
                return value
            if not self._more:
                self.close()
        raise StopIteration

    def begin(self) -> None:
        """Submit what may be ahead. Only what was read makes room, so a slow reader is not overtaken."""
        while self._more and self._stream.outstanding < self._ahead() * self._chunksize:
            if self._held is None:
                chunk = list(islice(self._items, self._chunksize))
                if not chunk:
                    self._more = False
                    return
                self._held = self._work(chunk)
            if not self._hatch.offer(self._stream, self._held):
                return
            self._held = None

    def close(self) -> None:
        """Drop what is ahead."""
        if not self._is_closed:
            self._is_closed = True
            self._hatch.close(self._stream)
