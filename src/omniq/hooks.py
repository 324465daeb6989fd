"""Hooks around runs: what `@q.around` registers, from the first, outermost, to the body itself.

    hook(context, call) ── await call() ──> hook(context, call) ── await call() ──> body

Hooks run on the worker's loop, wherever the body runs: on the loop too, in a thread, or in a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from omniq.errors import InvalidOption, Snooze, TaskFailed, WorkerDied
from omniq.executors import Flight, carrying
from omniq.running import Context
from omniq.serializer import Serializer
from omniq.task import Died, Failed, Interrupted, Outcome, Snoozed, Succeeded


class Call:
    """The run that a hook is around: what it is of, and `await call()`, which runs it and gives its value."""

    __slots__ = ("_called", "_proceed", "headers", "name", "queue")

    def __init__(
        self, name: str, queue: str, headers: dict[str, str], proceed: Callable[[], Awaitable[Any]]
    ) -> None:
        self.name = name
        self.queue = queue
        self.headers = headers
        self._proceed = proceed
        self._called = False

    async def __call__(self) -> Any:
        if self._called:
            raise InvalidOption("a hook calls the run once; raise Retry(delay) for another one")
        self._called = True
        return await self._proceed()

    def __repr__(self) -> str:
        return f"<run of {self.name}>"


Hook: TypeAlias = Callable[[Context, Call], Awaitable[Any]]


def around(flight: Flight, hooks: Sequence[Hook], body: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
    """`body` with `hooks` around it, begun."""
    task, proceed = flight.claim, body
    for hook in reversed(hooks):
        proceed = _linked(hook, flight.context, Call(task.func_path, task.queue, dict(task.headers), proceed))
    return proceed()


def _linked(hook: Hook, context: Context, call: Call) -> Callable[[], Awaitable[Any]]:
    return lambda: hook(context, call)


def value_of(outcome: Outcome, serializer: Serializer) -> Any:
    """What a hook sees of a body in a process: its value, or an exception that stands for its end.

    The body's own exception stays in its process. A hook that lets this one through changes nothing.
    """
    match outcome:
        case Succeeded(result):
            return serializer.loads(result)
        case Failed(error):
            raise carrying(outcome, TaskFailed(str(error), error))
        case Snoozed(delay_s):
            raise carrying(outcome, Snooze(delay_s))
        case Died(cause):
            raise carrying(outcome, WorkerDied(cause))
        case Interrupted():
            raise carrying(outcome, asyncio.CancelledError())
