"""`map` over a pool: chunks of calls, a bounded number of them ahead of whoever consumes the results."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol, TypeVar

from omniq.errors import InvalidOption
from omniq.pool.calls import EncodedCall, Outcome, Raised
from omniq.pool.message import CallOptions, Message

T = TypeVar("T")
R = TypeVar("R")


class Taker(Protocol):
    """What `map` needs of a pool. `ahead` is how many chunks may be on their way."""

    @property
    def ahead(self) -> Callable[[], int]: ...
    def send_range(
        self, fn: Callable[..., Any], items: list[Any], options: CallOptions, like: EncodedCall | None
    ) -> Message: ...
    def withdraw(self, message: Message) -> None: ...


def mapped(
    pool: Taker,
    fn: Callable[[T], R],
    items: Iterable[T],
    options: CallOptions,
    *,
    chunksize: int,
    ordered: bool,
) -> AsyncIterator[R]:
    if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1:
        raise InvalidOption(f"chunksize must be a whole number of at least 1, not {chunksize!r}")
    earlier: EncodedCall | None = None

    def send(chunk: list[T]) -> Message:
        nonlocal earlier
        message = pool.send_range(fn, chunk, options, earlier)
        earlier = message.encoded  # the function is pickled once, however many chunks there are
        return message

    return _results(pool, send, _chunks(items, chunksize), ordered)


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


async def _results(
    pool: Taker, send: Callable[[list[T]], Message], chunks: Iterator[list[T]], ordered: bool
) -> AsyncIterator[Any]:
    ahead: set[Message] = set()
    line = _Ordered() if ordered else _AsTheyEnd()
    try:
        while True:
            while len(ahead) < pool.ahead() and (chunk := next(chunks, None)) is not None:
                message = send(chunk)
                ahead.add(message)
                line.add(message)
            if not ahead:
                return
            message = await line.next()
            ahead.remove(message)
            outcomes = message.outcomes
            failed = min(outcomes.others, default=None)
            for value in outcomes.values[:failed]:
                yield value
            if failed is not None:
                raise _exception(outcomes[failed])
    finally:
        for message in ahead:
            pool.withdraw(message)


def _exception(outcome: Outcome) -> Exception:
    assert isinstance(outcome, Raised), "interrupts have been given a meaning"
    return outcome.exception


class _Ordered:
    def __init__(self) -> None:
        self._line: deque[Message] = deque()

    def add(self, message: Message) -> None:
        self._line.append(message)

    async def next(self) -> Message:
        message = self._line.popleft()
        await message.future
        return message


class _AsTheyEnd:
    def __init__(self) -> None:
        self._ended: asyncio.Queue[Message] = asyncio.Queue()

    def add(self, message: Message) -> None:
        message.future.add_done_callback(lambda _: self._ended.put_nowait(message))

    async def next(self) -> Message:
        return await self._ended.get()
