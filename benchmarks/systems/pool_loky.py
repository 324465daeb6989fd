"""loky's executor. Its workers are programs of their own, so none of them inherits what is imported here."""

from __future__ import annotations

from typing import Any

from benchmarks.pools.base import FuturePool


class PoolLoky(FuturePool):
    name = "pool-loky"
    promise = "a death ends every call and the pool; get_reusable_executor makes the next one"
    package = "loky"
    needs = ("cloudpickle", "numpy")

    def load(self) -> None:
        from loky import ProcessPoolExecutor

        from benchmarks.pools.bodies import same

        self.same, self.kind = same, ProcessPoolExecutor

    def start(self, workers: int) -> None:
        self.pool: Any = self.kind(workers)

    def close(self) -> None:
        self.pool.shutdown(kill_workers=True)

    def submit(self, value: Any) -> Any:
        return self.pool.submit(self.same, value)

    def result(self, future: Any) -> Any:
        return future.result()

    def batches(self, calls: int, size: int) -> int:
        return sum(1 for _ in self.pool.map(self.same, range(calls), chunksize=size))
