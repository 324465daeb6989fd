"""`multiprocessing.Pool`, with `map` for batches, which is faster than its `imap`."""

from __future__ import annotations

from typing import Any

from benchmarks.pools.base import FuturePool


class PoolMultiprocessing(FuturePool):
    name = "pool-multiprocessing"
    promise = "a worker is replaced, but whoever waits for the call that it ran waits for ever"

    def load(self) -> None:
        import multiprocessing

        from benchmarks.pools.bodies import same

        self.same, self.kind = same, multiprocessing.Pool

    def start(self, workers: int) -> None:
        self.pool: Any = self.kind(workers)

    def close(self) -> None:
        self.pool.terminate()
        self.pool.join()

    def submit(self, value: Any) -> Any:
        return self.pool.apply_async(self.same, (value,))

    def result(self, future: Any) -> Any:
        return future.get()

    def batches(self, calls: int, size: int) -> int:
        return sum(1 for _ in self.pool.map(self.same, range(calls), chunksize=size))
