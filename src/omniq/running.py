"""What a running body may know and say about its own run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from loguru import logger

from omniq.errors import InvalidOption, Unsupported
from omniq.storage.base import Transaction
from omniq.task import check_progress

if TYPE_CHECKING:
    from loguru import Logger

Report = Callable[[str, int, float, float | None], None]
Begin = Callable[[], Awaitable[Transaction]]


class Context:
    """Given to a body that has a parameter annotated `Context`, and by `omniq.context()`."""

    __slots__ = ("_begin", "_cancel", "_report", "_transaction", "attempt", "epoch", "sent_with", "task_id")

    def __init__(
        self, task_id: str, attempt: int, epoch: int, report: Report, begin: Begin | None = None
    ) -> None:
        self.task_id = task_id
        self.attempt = attempt
        self.epoch = epoch
        self._report = report
        self._cancel: threading.Event | None = None
        self.sent_with: dict[str, str] | None = None  # the task's headers, where a trace needs them
        self._begin = begin
        self._transaction: asyncio.Task[Transaction] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked this run to stop: cancelled, timed out, lost, or the worker stops."""
        return self._cancel is not None and self._cancel.is_set()

    def tell_cancelled(self) -> None:
        self._cancel = self._cancel or threading.Event()
        self._cancel.set()

    def progress(self, done: float, total: float | None = None) -> None:
        """Say how far this run is. Cheap: only the latest word is stored, about twice a second."""
        check_progress(done, total)
        self._report(self.task_id, self.epoch, done, total)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A connection to the store's own database, for `async with`; do not commit on it.

        What the body writes there is committed together with its success, or not at all: neither if the body
        raises, nor if its lease was lost. All blocks of one run are parts of one transaction.
        """
        if self._begin is None:
            raise Unsupported(
                "ctx.transaction() is not there on this store; it needs tasks in PostgreSQL. Use ctx.task_id "
                "and ctx.epoch to make the body's own writes idempotent"
            )
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise Unsupported(
                "ctx.transaction() needs an `async def` body: a thread cannot share the worker's connection"
            ) from None
        return self._block()

    @asynccontextmanager
    async def _block(self) -> AsyncGenerator[Any]:
        if self._transaction is None:
            assert self._begin is not None
            # A task of its own: what is cancelled half-way is still there to be undone.
            self._transaction = asyncio.ensure_future(self._begin())
        async with (await asyncio.shield(self._transaction)).block() as conn:
            yield conn

    def take_transaction(self) -> asyncio.Task[Transaction] | None:
        """What the body began, to be ended by whoever runs it."""
        taken, self._transaction = self._transaction, None
        return taken

    @property
    def log(self) -> Logger:
        """A logger that names this task."""
        return logger.bind(task=self.task_id, attempt=self.attempt)

    def __repr__(self) -> str:
        return f"Context(task_id={self.task_id!r}, attempt={self.attempt}, epoch={self.epoch})"


current: ContextVar[Context] = ContextVar("omniq_context")


def context() -> Context:
    """The context of the task that is running here, in async and thread bodies alike."""
    try:
        return current.get()
    except LookupError:
        raise InvalidOption("omniq.context() is only there while a task runs") from None
