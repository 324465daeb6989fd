"""`map`: chunks of calls in a stream of their own, a bounded number of them ahead of whoever reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from omniq.data.stream import Hatch, Stream, Work

T = TypeVar("T")


def mapped(
    hatch: Hatch,
    stream: Stream,
    work: Callable[[list[T]], Work],
    items: Iterable[T],
    *,
    chunksize: int,
    ahead: int,
) -> Iterator[Any]:
    hatch.open(stream)
    return _results(hatch, stream, work, iter(items), chunksize, ahead)


def _results(
    hatch: Hatch,
    stream: Stream,
    work: Callable[[list[T]], Work],
    items: Iterator[T],
    chunksize: int,
    ahead: int,
) -> Iterator[Any]:
    more = True
    try:
        while True:
            # Only what was read makes room, so that nothing runs far ahead of a slow reader.
            while more and stream.outstanding < ahead * chunksize:
                chunk = list(islice(items, chunksize))
                if more := bool(chunk):
                    hatch.submit(stream, [work(chunk)])
            found, value = stream.take_until_done()
            if found:
                yield value
            elif not more:
                return
            del value  # or it would be pinned while its reader waits for the next one
    finally:
        hatch.close(stream)
