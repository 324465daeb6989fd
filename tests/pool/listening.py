"""A child with a listener that remembers: what the tests of wire, template and child share."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from omniq.pool.arena import Arena
from omniq.pool.calls import EncodedCall, Message, Outcome, Raised, Returned, encode, encode_range
from omniq.pool.process import Child, Exit, Template

BOUND_S = 20.0
POLL_S = 0.005
TRIES = 5


async def eventually(condition: Callable[[], object], what: str, bound_s: float = BOUND_S) -> None:
    ends_at = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < ends_at, f"not within {bound_s:g} s: {what}"
        await asyncio.sleep(POLL_S)


async def within_a_second(trial: Callable[[], Awaitable[float]]) -> None:
    """`trial` says how many seconds it took. What is slow for want of a CPU is quick at another time; what is
    slow by design never is."""
    took_s = [await trial()]
    while min(took_s) >= 1.0:
        assert len(took_s) < TRIES, f"never within a second: {took_s}"
        took_s.append(await trial())


class Heard:
    """Remembers the events of one child."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self.is_ready = False
        self.outcome_of: dict[int, Outcome] = {}
        self.order: list[str] = []
        self.notes: list[tuple[int, Any]] = []
        self.messages_done: list[int] = []
        self.said_goodbye = False
        self.exit: Exit | None = None
        self._ids = itertools.count(1)
        self._changed = asyncio.Event()

    def _note(self, event: str) -> None:
        self.order.append(event)
        self._changed.set()

    def ready(self, child: Child) -> None:
        self.is_ready = True
        self._note("ready")

    def outcomes(self, child: Child, first_id: int, outcomes: Sequence[Outcome]) -> None:
        for call_id, outcome in enumerate(outcomes, first_id):
            assert call_id not in self.outcome_of, "a call ended twice"
            self.outcome_of[call_id] = outcome
        self._note("outcomes")

    def note(self, child: Child, call_id: int, note: Any) -> None:
        self.notes.append((call_id, note))
        self._note("note")

    def done(
        self, child: Child, message_id: int, first_id: int = 0, outcomes: Sequence[Outcome] = ()
    ) -> None:
        if outcomes:
            self.outcomes(child, first_id, outcomes)
        self.messages_done.append(message_id)
        self._note("done")

    def shutdown(self, child: Child) -> None:
        self.said_goodbye = True
        self._note("shutdown")

    def exited(self, child: Child, exit: Exit) -> None:
        assert self.exit is None, "a child exited twice"
        self.exit = exit
        self._note("exited")

    async def until(self, condition: Callable[[], object], bound_s: float = BOUND_S) -> None:
        async with asyncio.timeout(bound_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def send(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
        """Send one call, and tell its id."""
        call_id = next(self._ids)
        self.send_encoded(encode(call_id, func, args, kwargs))
        return call_id

    def send_range(self, func: Callable[..., Any], items: Sequence[Any]) -> range:
        ids = range(first := next(self._ids), first + len(items))
        self._ids = itertools.count(ids.stop)
        self.send_encoded(encode_range(first, func, items))
        return ids

    def send_encoded(self, *calls: EncodedCall) -> None:
        assert self.child is not None
        self.child.send(Message(calls[0].id, calls))

    async def outcome(self, call_id: int) -> Outcome:
        await self.until(lambda: call_id in self.outcome_of or self.exit)
        assert call_id in self.outcome_of, f"the child has {self.exit}"
        return self.outcome_of.pop(call_id)

    async def call(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run one call to its end: its result, or its exception raised."""
        outcome = await self.outcome(self.send(func, *args, **kwargs))
        if isinstance(outcome, Raised):
            raise outcome.exception
        assert isinstance(outcome, Returned)
        return outcome.value

    async def end(self, bound_s: float = BOUND_S) -> Exit:
        await self.until(lambda: self.exit, bound_s)
        assert self.exit is not None
        assert self.order[-1] == "exited"
        return self.exit


async def spawned(template: Template) -> Heard:
    heard = Heard()
    heard.child = await template.spawn(heard)
    await heard.until(lambda: heard.is_ready or heard.exit)
    return heard


@asynccontextmanager
async def a_template(preload: Sequence[str] = (), arena: Arena | None = None) -> AsyncIterator[Template]:
    template = Template(preload=preload, arena=arena)
    try:
        yield template
    finally:
        await template.close()


@asynccontextmanager
async def a_child(preload: Sequence[str] = (), arena: Arena | None = None) -> AsyncIterator[Heard]:
    async with a_template(preload, arena) as template:
        yield await spawned(template)
