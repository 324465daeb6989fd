"""What a process pool must be able to do to be measured. All of it happens in a child process.

Knows the standard library only; a peer's package is imported in `load`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import Any

from benchmarks.systems.base import System


class PoolSystem(System):
    """No task queue: processes that run calls of the program that waits for them."""

    group = "pools"
    store = "processes"
    across = False

    def load(self) -> None:
        """Import what it takes to make the pool."""

    @abstractmethod
    def start(self, workers: int) -> None: ...

    # Each of these says how many results it has got.

    @abstractmethod
    def one_by_one(self, calls: int) -> int:
        """Calls that do nothing, each after the result of the one before."""

    @abstractmethod
    def all_at_once(self, calls: int) -> int:
        """Calls that do nothing, each sent by itself, none of them waiting for another."""

    @abstractmethod
    def batches(self, calls: int, size: int) -> int:
        """Calls that do nothing, `size` of them sent at a time."""

    @abstractmethod
    def arrays(self, array: Any, calls: int, ahead: int) -> int:
        """The array there and back, with at most `ahead` calls on their way."""


class FuturePool(PoolSystem):
    """A pool that gives something to wait for in exchange for a call."""

    role = "peer"

    @abstractmethod
    def submit(self, value: Any) -> Any:
        """Send a call that gives back `value`."""

    @abstractmethod
    def result(self, future: Any) -> Any:
        """Wait for it."""

    def one_by_one(self, calls: int) -> int:
        for number in range(calls):
            assert self.result(self.submit(number)) == number
        return calls

    def all_at_once(self, calls: int) -> int:
        futures = [self.submit(number) for number in range(calls)]
        return sum(self.result(future) >= 0 for future in futures)

    def arrays(self, array: Any, calls: int, ahead: int) -> int:
        futures = deque(self.submit(array) for _ in range(min(calls, ahead)))
        got = 0
        while futures:
            assert self.result(futures.popleft()).nbytes == array.nbytes
            got += 1
            if got + len(futures) < calls:
                futures.append(self.submit(array))
        return got
