"""What a running body may know and say about its own run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from loguru import logger

from omniq.errors import InvalidOption
from omniq.task import check_progress

if TYPE_CHECKING:
    from loguru import Logger

Report = Callable[[str, int, float, float | None], None]


class Context:
    """Given to a body that has a parameter annotated `Context`, and by `omniq.context()`."""

    __slots__ = ("_cancel", "_report", "attempt", "epoch", "task_id")

    def __init__(self, task_id: str, attempt: int, epoch: int, report: Report) -> None:
        self.task_id = task_id
        self.attempt = attempt
        self.epoch = epoch
        self._report = report
        self._cancel: threading.Event | None = None

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
