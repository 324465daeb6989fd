"""`concurrent.futures.ProcessPoolExecutor`, with what it starts its workers by when nothing is said."""

from __future__ import annotations

from typing import Any

from benchmarks.pools.base import FuturePool


class PoolExecutor(FuturePool):
    name = "pool-executor"
    promise = "a death ends every call and the pool"

    def load(self) -> None:
        from concurrent.futures import ProcessPoolExecutor

        from benchmarks.pools.bodies import same

        self.same, self.kind = same, ProcessPoolExecutor

    def start(self, workers: int) -> None:
        self.pool: Any = self.kind(workers)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)

    def submit(self, value: Any) -> Any:
        return self.pool.submit(self.same, value)

    def result(self, future: Any) -> Any:
        return future.result()

    def batches(self, calls: int, size: int) -> int:
        return sum(1 for _ in self.pool.map(self.same, range(calls), chunksize=size))
