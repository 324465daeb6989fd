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
        # What comes next, and where in the stream: so that a Ctrl-C neither loses a chunk nor sends it twice.
        self._chunk: list[Any] = []
        self._held: Work | None = None  # the same, as it is submitted
        self._place = stream.end
        self._is_refused = False  # the chunk cannot be sent, which is told when its turn comes
        self._refusals = 0
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
            if self._is_refused:
                self._try_again()
            elif not self._more:
                self.close()
        raise StopIteration

    @property
    def taken(self) -> int:
        """How many results were taken out of the stream, or refusals told, whether or not they arrived."""
        return self._stream.head + self._refusals

    def begin(self) -> None:
        """Submit what may be ahead. Only what was read makes room, so a slow reader is not overtaken."""
        if self._is_refused:
            return
        while self._more and self._stream.outstanding < self._ahead() * self._chunksize:
            if self._stream.end != self._place:  # it was submitted, and then somebody pressed Ctrl-C
                self._go_on()
            if self._held is None:
                self._fill()
                if not self._chunk:
                    self._more = False
                    return
                try:
                    self._held = self._work(self._chunk)
                except Exception:  # not kept until then: it has our frames, which would keep the reader
                    self._is_refused = True
                    return
            if not self._hatch.offer(self._stream, self._held):
                return
            self._go_on()

    def _fill(self) -> None:
        try:
            self._chunk.extend(islice(self._items, self._chunksize - len(self._chunk)))
        except Exception:
            self._chunk = []  # what cannot be had is told once
            raise

    def _try_again(self) -> None:
        """Whatever was before it has been read: what is raised here is raised in its place, and once."""
        self._is_refused = False
        try:
            self._held = self._work(self._chunk)
        except Exception:
            self._refusals, self._chunk = self._refusals + 1, []
            raise

    def _go_on(self) -> None:
        self._chunk, self._held = [], None
        self._place = self._stream.end

    def close(self) -> None:
        """Drop what is ahead."""
        if not self._is_closed:
            self._is_closed = True
            self._hatch.close(self._stream)
