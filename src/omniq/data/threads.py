"""Workers that are threads of this process: the same face as a child process, nothing travels.

A thread cannot be killed. One that is asked to end early says so at once, and is free when it really is.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from omniq.data.captured import captured
from omniq.data.crew import Hand
from omniq.data.sealed import sealed
from omniq.pool.calls import Interrupted, Outcome, Raised, Returned, name_of
from omniq.pool.peer import Events, Exit
from omniq.pool.pickles import raisable


class ThreadCall(Struct, frozen=True, eq=False):
    """A call, or a chunk of them with the ids from `id` on, of which the first `skip` are left out."""

    id: int
    fn: Callable[..., Any]
    items: tuple[Any, ...] | None
    skip: int = 0

    @property
    def name(self) -> str:
        return name_of(self.fn)

    @property
    def count(self) -> int:
        return 1 if self.items is None else len(self.items)


class ThreadHand:
    """One worker thread. Its methods are for the loop, except for `_run` and what that calls."""

    def __init__(self, number: int, events: Events) -> None:
        self.received_bytes = 0
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[ThreadCall | None] = queue.SimpleQueue()
        self._running = 0
        self._begun = 0  # the latest call that has begun, ended or not
        self._unwanted: set[int] = set()
        self._given_up: set[int] = set()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=f"omniq-data-{number}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._thread.native_id or 0

    @property
    def running(self) -> int:
        return self._running

    def send(self, call: ThreadCall) -> None:
        self._calls.put(call)

    def withdraw(self, call_ids: range) -> bool:
        self._unwanted.update(call_ids)
        # A call says that it begins before it looks there: we are in time if that was an earlier one.
        return self._begun < call_ids[0]

    def interrupt(self, call_id: int) -> None:
        if call_id == self._running and call_id not in self._given_up:
            self._given_up.add(call_id)
            self._events.outcomes(self, call_id, (Interrupted(),))  # type: ignore[arg-type]

    def ask_to_stop(self) -> None:
        self._calls.put(None)

    def kill(self) -> None:
        """It goes on until its call returns, and nobody listens."""
        self.ask_to_stop()
        self._over(Exit(detail="its thread was left behind"))

    # --- in the thread ---

    def _run(self) -> None:
        self._tell(self._events.ready, self)
        while (call := self._calls.get()) is not None and not self._is_over:
            for nth in range(call.skip, call.count):
                call_id = call.id + nth
                self._running = self._begun = call_id
                outcome, size = self._outcome(call, nth, call_id)
                self._tell(self._report, call_id, outcome, size)
                del outcome
            self._running = 0
            self._tell(self._events.done, self, call.id + call.skip)
            del call
        self._tell(self._over, Exit(code=0))

    def _outcome(self, call: ThreadCall, nth: int, call_id: int) -> tuple[Outcome, int]:
        if call_id in self._unwanted:
            return Interrupted(), 0
        try:
            value = call.fn() if call.items is None else call.fn(call.items[nth])
            value, size = sealed(value)
            return Returned(value), size
        except BaseException as exc:  # also SystemExit: the thread goes on, as a process does
            return Raised(raisable(exc)), 0

    def _tell(self, event: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody listens any more
            self._loop.call_soon_threadsafe(event, *args)

    # --- on the loop ---

    def _report(self, call_id: int, outcome: Outcome, size_bytes: int) -> None:
        self._unwanted.discard(call_id)
        if call_id in self._given_up:
            self._given_up.discard(call_id)
            return
        self.received_bytes = size_bytes
        self._events.outcomes(self, call_id, (outcome,))  # type: ignore[arg-type]

    def _over(self, exit: Exit) -> None:
        if not self._is_over:
            self._is_over = True
            self._events.exited(self, exit)  # type: ignore[arg-type]


class ThreadCrew:
    def __init__(self, init: Callable[[], Any] | None) -> None:
        self._init = init
        self._hired = 0

    def call(self, fn: Callable[[], Any]) -> ThreadCall:
        return ThreadCall(0, captured(fn), None)

    def chunks(self, fn: Callable[[Any], Any]) -> Callable[[list[Any]], ThreadCall]:
        now = captured(fn)
        return lambda items: ThreadCall(0, now, tuple(items))

    async def start(self) -> None:
        self._hired = 0

    async def hire(self, events: Events) -> ThreadHand:
        self._hired += 1
        return ThreadHand(self._hired, events)

    def prepare(self, hand: Hand, call_id: int) -> None:
        assert isinstance(hand, ThreadHand)
        hand.send(ThreadCall(call_id, self._init or _nothing, None))

    def give(self, hand: Hand, base: int, work: ThreadCall, done: int) -> None:
        assert isinstance(hand, ThreadHand)
        hand.send(replace(work, id=base, skip=done))

    async def close(self) -> None:
        """Threads were asked to stop before; they end with their calls."""

    def grow(self, arena_bytes: int) -> int:
        return arena_bytes

    @property
    def used_bytes(self) -> int:
        return 0


def _nothing() -> None:
    return None
