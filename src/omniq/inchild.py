"""What a task is inside a process of its own: decode the call, run it with its context, encode its result.

Runs in children of `omniq.pool`, where nothing of the worker is: it gets what it needs as one value, and
answers with an outcome. Knows nothing of stores or retries.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from msgspec import Struct

from omniq.errors import Unsupported
from omniq.executors import encoded, outcome_of
from omniq.pool import child
from omniq.pool.pickles import CallInterrupted, Function, load_function
from omniq.registry import runnable_of, with_context
from omniq.running import Context, current
from omniq.serializer import Serializer
from omniq.task import Outcome


class Body(Struct, frozen=True):
    """A claimed task on its way to a process."""

    task_id: str
    attempt: int
    epoch: int
    function: bytes | Function | None  # by its name where it has one; None: the payload carries it
    call: bytes | tuple[Sequence[Any], Mapping[str, Any]]
    serializer: Serializer
    max_payload: int | None
    suspect: bool = False  # it would rather run in its worker, and may say that it has to


class NeedsWorker(BaseException):
    """Raised through a body: it wants what only the worker has."""


class ChildContext(Context):
    """The context of a body in a process: what it says goes up to the worker.

    It is bound to its call: a thread that outlives the body must not speak for the next one.
    """

    __slots__ = ("_call", "_suspect")

    def __init__(self, body: Body) -> None:
        super().__init__(body.task_id, body.attempt, body.epoch, self._tell)
        self._call = child.current()
        self._suspect = body.suspect

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        if self._suspect:
            raise NeedsWorker
        raise Unsupported("ctx.transaction() is not there in a process; leave out executor='process'")

    @property
    def cancelled(self) -> bool:
        return self._call is not None and self._call.cancelled

    def _tell(self, _task_id: str, _epoch: int, done: float, total: float | None) -> None:
        if self._call is not None:
            self._call.note((done, total))


def run(body: Body) -> Outcome | None:
    """Run it to its end. Only an interrupt by the pool goes through; everything else is an outcome.

    None: it has to run in its worker, from the start.
    """
    context = ChildContext(body)
    before = current.set(context)
    try:
        func, args, kwargs = _call_of(body)
        runnable = runnable_of(func)
        args, kwargs = with_context(runnable, args, kwargs, context)
        value = func(*args, **kwargs)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        return encoded(value, body.serializer, body.max_payload)
    except CallInterrupted:
        raise
    except NeedsWorker:
        return None
    except BaseException as exc:  # SystemExit too: it ends the task, not the process
        return outcome_of(exc)
    finally:
        current.reset(before)  # the next call here may be no task at all


def _call_of(body: Body) -> tuple[Function, Sequence[Any], dict[str, Any]]:
    carried: Any = None
    args: Sequence[Any]
    if isinstance(body.call, bytes):
        carried, args, kwargs = body.serializer.decode_call(body.call)
    else:
        args, kwargs = body.call[0], dict(body.call[1])
    func: Any = (
        load_function(body.function, by_name=True) if isinstance(body.function, bytes) else body.function
    )
    if func is None:
        assert callable(carried), "the worker has looked"
        func = carried
    return func, args, kwargs


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value
