"""OmniQ's process pool, on the loop that `omniq` itself uses, with the bodies' module imported once."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from loguru import logger

from benchmarks.pools.base import PoolSystem


class PoolOmniq(PoolSystem):
    name = "pool-omniq"
    role = "omniq"
    promise = (
        "a death costs one call of a batch, whose cause is known; workers are replaced; calls can be ended"
    )

    def load(self) -> None:
        from benchmarks.pools.bodies import same
        from omniq.loopthread import new_event_loop
        from omniq.pool import WorkerPool

        logger.remove()
        logger.add(sys.stderr, level="WARNING")
        self.same, self.kind = same, WorkerPool
        self.runner = asyncio.Runner(loop_factory=new_event_loop)

    def start(self, workers: int) -> None:
        self.pool = self.kind(workers, workers, preload=["benchmarks.pools.bodies"])
        self.runner.run(self.pool.start())

    def close(self) -> None:
        self.runner.run(self.pool.shutdown())
        self.runner.close()

    def one_by_one(self, calls: int) -> int:
        return self.runner.run(self._one_by_one(calls))

    async def _one_by_one(self, calls: int) -> int:
        for number in range(calls):
            assert await self.pool.submit(self.same, number) == number
        return calls

    def all_at_once(self, calls: int) -> int:
        return self.runner.run(self._all_at_once(calls))

    async def _all_at_once(self, calls: int) -> int:
        results = await asyncio.gather(*(self.pool.submit(self.same, number) for number in range(calls)))
        return sum(result >= 0 for result in results)

    def batches(self, calls: int, size: int) -> int:
        return self.runner.run(self._batches(calls, size))

    async def _batches(self, calls: int, size: int) -> int:
        got = 0
        async for _ in self.pool.map(self.same, range(calls), chunksize=size):
            got += 1
        return got

    def arrays(self, array: Any, calls: int, ahead: int) -> int:
        return self.runner.run(self._arrays(array, calls, ahead))

    async def _arrays(self, array: Any, calls: int, ahead: int) -> int:
        left = iter(range(calls))

        async def one_after_another() -> int:
            got = 0
            for _ in left:
                assert (await self.pool.submit(self.same, array)).nbytes == array.nbytes
                got += 1
            return got

        return sum(await asyncio.gather(*(one_after_another() for _ in range(ahead))))
