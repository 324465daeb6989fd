"""Async bodies on the loop. Those that never wait for anything share one asyncio task.

    start ──> [flight, flight, flight] ──> runner: first step, first step, first step that waits
                                                                           └──> the runner is its task now,
                                                                                and another takes the rest

Half of what a short body costs is its asyncio task: made, put on the loop, entered among all tasks, and
collected. Only a body that waits needs one of its own, and one that leaves something on its task: a name, a
callback, a cancellation, or a reference to it somewhere. Each has its own context variables, as in a task.
"""

from __future__ import annotations

import asyncio
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any

from omniq.executors import Flight, failure, run_coroutine
from omniq.task import Outcome


class Coroutines:
    """Starts bodies in the order in which they came, at the loop's next turn."""

    def __init__(self, encode: Callable[[Any], Outcome]) -> None:
        self._encode = encode
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Flight] = deque()
        self._runner: asyncio.Task[None] | None = None

    def start(self, flight: Flight) -> None:
        self._waiting.append(flight)
        if self._runner is None:
            self._start_runner()

    def _start_runner(self) -> None:
        # Not by the loop's factory: one that starts tasks at once would start them inside of each other.
        self._runner = asyncio.Task(self._run(), loop=self._loop)
        self._runner.add_done_callback(self._runner_gone)

    def _runner_gone(self, runner: asyncio.Task[None]) -> None:
        """Somebody cancelled it before its first step, and with it all that it was to run."""
        if self._runner is runner:
            self._runner = None
            left, self._waiting = self._waiting, deque()
            for flight in left:
                flight.end(flight.interrupted())

    async def _run(self) -> None:
        runner = self._runner
        assert runner is not None
        untouched = _marks_on(runner)
        while self._waiting:
            flight = self._waiting.popleft()
            if flight.ended:  # interrupted before its first step
                continue
            flight.body = runner
            body, context = run_coroutine(flight, self._encode), flight.variables or copy_context()
            try:
                waits_for = context.run(body.send, None)
            except StopIteration:
                flight.body = None
                if _marks_on(runner) == untouched:
                    continue
                self._hand_over()  # what it did to its task, or does to it later, is nothing to the next body
                return
            except Exception as broken:  # the engine's own doing
                flight.end(failure(broken))
                self._hand_over()
                return
            runner.add_done_callback(flight.body_gone)
            self._hand_over()
            await _rest_of(body, context, waits_for)
            return
        self._runner = None

    def _hand_over(self) -> None:
        self._runner = None
        if self._waiting:
            self._start_runner()


def _marks_on(task: asyncio.Task[None]) -> tuple[object, ...]:
    """All that a body could leave behind on the task that it ran in."""
    return (
        sys.getrefcount(task),  # such as a key of a dict, or a timer that is to cancel it
        weakref.getweakrefcount(task),
        task.cancelling(),
        getattr(task, "_must_cancel", False),  # which `uncancel` does not always take back
        len(task._callbacks),  # pyright: ignore[reportPrivateUsage]
        task.get_name(),
    )


@types.coroutine
def _rest_of(body: Coroutine[Any, Any, None], context: Context, waits_for: Any) -> Generator[Any, Any, None]:
    """What is left of a body after its first step, each step in its own context."""
    while True:
        step: Callable[[Any], Any]
        try:
            argument, step = (yield waits_for), body.send
        except GeneratorExit:  # the loop has closed
            context.run(body.close)
            raise
        except BaseException as exc:  # a cancellation, on its way to the body
            argument, step = exc, body.throw
        try:
            waits_for = context.run(step, argument)
        except StopIteration:
            return
