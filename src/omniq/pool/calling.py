"""From a function and its arguments to a message on its way, and back to a value."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from omniq.clock import Clock
from omniq.pool.calls import EncodedCall, encode, encode_range
from omniq.pool.dispatcher import Dispatcher
from omniq.pool.mapping import mapped
from omniq.pool.message import CallOptions, Message

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

PLAIN: Final = CallOptions()


class Intake:
    """Where calls come in, whatever their options. `check` says the loop; it raises when none are taken."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        check: Callable[[], asyncio.AbstractEventLoop],
        ahead: Callable[[], int],
    ) -> None:
        self.check = check
        self.ahead = ahead
        self._dispatcher = dispatcher
        self._clock = clock
        self._ids = itertools.count(1)

    def message(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions = PLAIN,
    ) -> Message:
        loop = self.check()
        return Message(encode(next(self._ids), fn, args, kwargs), options, self._clock.monotonic(), loop)

    async def run(self, message: Message) -> Any:
        """Dispatch it and wait. Whoever stops waiting cancels it."""
        self._dispatcher.dispatch(message)
        try:
            return await message.future
        except asyncio.CancelledError:
            self._dispatcher.cancel(message)
            raise

    def send_range(
        self, fn: Callable[..., Any], items: list[Any], options: CallOptions, like: EncodedCall | None
    ) -> Message:
        loop = self.check()
        first_id = next(self._ids)
        self._ids = itertools.count(first_id + len(items))
        message = Message(encode_range(first_id, fn, items, like), options, self._clock.monotonic(), loop)
        self._dispatcher.dispatch(message)
        return message

    def withdraw(self, message: Message) -> None:
        self._dispatcher.cancel(message)


class PoolOptions:
    """`submit` and `map` of a pool, with options. Made by `pool.options(...)`."""

    def __init__(self, intake: Intake, options: CallOptions) -> None:
        self._intake = intake
        self._options = options

    async def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """As `WorkerPool.submit`, with these options."""
        value: R = await self._intake.run(self._intake.message(fn, args, kwargs, self._options))
        return value

    def message(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Message:
        """As `WorkerPool.message`, with these options."""
        return self._intake.message(fn, args, kwargs, self._options)

    def map(
        self, fn: Callable[[T], R], items: Iterable[T], *, chunksize: int = 1, ordered: bool = True
    ) -> AsyncIterator[R]:
        """As `WorkerPool.map`, with these options; the timeout is each call's own."""
        self._intake.check()
        return mapped(self._intake, fn, items, self._options, chunksize=chunksize, ordered=ordered)
