"""mpire's pool, whose workers are kept between calls."""

from __future__ import annotations

from typing import Any

from benchmarks.pools.base import FuturePool


class PoolMpire(FuturePool):
    name = "pool-mpire"
    promise = "a death ends every call and the pool"
    package = "mpire"
    needs = ("numpy",)

    def load(self) -> None:
        from mpire import WorkerPool

        from benchmarks.pools.bodies import same

        self.same, self.kind = same, WorkerPool

    def start(self, workers: int) -> None:
        self.pool: Any = self.kind(n_jobs=workers, keep_alive=True)

    def close(self) -> None:
        self.pool.terminate()

    def submit(self, value: Any) -> Any:
        return self.pool.apply_async(self.same, (value,))

    def result(self, future: Any) -> Any:
        return future.get()

    def batches(self, calls: int, size: int) -> int:
        return len(self.pool.map(self.same, range(calls), chunk_size=size))
