"""What a pool that loads data can do: take functions, give their results, start and stop.

Whoever writes another one keeps these promises; the tests of the requirements say them one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from omniq.task import Duration


class BaseWorkerPool(ABC):
    """Several independent workers, a queue of functions in front of them, a queue of results behind."""

    @abstractmethod
    def start(self) -> Self:
        """Start the workers. On a running pool it does nothing; after `stop` it starts anew."""

    @abstractmethod
    def stop(self, timeout: Duration = 30) -> None:
        """Drop what waits, wait for what runs, at most `timeout`, and end. Nothing if it does not run."""

    @abstractmethod
    def close(self) -> None:
        """Stop, and let go of everything. Safe to call twice."""

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether it takes functions. A new pool does not."""

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """How many workers it has while it runs."""

    @abstractmethod
    def submit_task(self, fn: Callable[[], Any], *, priority: int = 0) -> None:
        """Queue a function. Raises PoolNotRunning first, then TypeError for what is no function."""

    @abstractmethod
    def get_result(self, timeout: Duration | None = None) -> Any:
        """The next result; waits for it. Raises PoolNotRunning, also when the pool is stopped meanwhile."""

    @abstractmethod
    def try_get_result(self) -> tuple[bool, Any]:
        """`(True, result)`, or `(False, None)` when there is none now. Never waits; running or not."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
