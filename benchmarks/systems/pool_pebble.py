"""pebble's process pool."""

from __future__ import annotations

from typing import Any

from benchmarks.pools.base import FuturePool


class PoolPebble(FuturePool):
    name = "pool-pebble"
    promise = "a death costs the call that ran; workers are replaced; calls can be ended"
    package = "pebble"
    needs = ("numpy",)

    def load(self) -> None:
        from pebble import ProcessPool

        from benchmarks.pools.bodies import same

        self.same, self.kind = same, ProcessPool

    def start(self, workers: int) -> None:
        self.pool: Any = self.kind(max_workers=workers)

    def close(self) -> None:
        self.pool.stop()
        self.pool.join()

    def submit(self, value: Any) -> Any:
        return self.pool.schedule(self.same, args=(value,))

    def result(self, future: Any) -> Any:
        return future.result()

    def batches(self, calls: int, size: int) -> int:
        return sum(1 for _ in self.pool.map(self.same, range(calls), chunksize=size).result())
