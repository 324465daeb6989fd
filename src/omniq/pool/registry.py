"""Which workers there are, and whose turn it is. What a worker does is under that worker's own lock.

    management_lock   adding, removing, taking a snapshot; never held while waiting for anything else
    worker.lock       whatever can change in that worker
    ready_queue       ids of workers in the order in which they became ready

Nobody holds two worker locks, nor takes `management_lock` while holding a worker's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from omniq.pool.eager import Eager
from omniq.pool.worker import GONE, PoolWorker, WorkerView


class WorkerData:
    """The registry of a pool's workers."""

    def __init__(self) -> None:
        self.management_lock = asyncio.Lock()
        self.ready_queue: deque[int] = deque()
        self.workers: dict[int, PoolWorker] = {}
        self._published: tuple[PoolWorker, ...] = ()
        self._eager = Eager()

    # --- who is there ---

    async def add(self, worker: PoolWorker) -> None:
        async with self.management_lock:
            assert worker.id not in self.workers
            self.workers[worker.id] = worker
            self._published = tuple(self.workers.values())

    async def remove(self, worker_id: int) -> None:
        """Take a worker out. Should its id still stand in the ready queue, it is passed over there."""
        async with self.management_lock:
            self.workers.pop(worker_id, None)
            self._published = tuple(self.workers.values())

    async def snapshot(self) -> dict[int, PoolWorker]:
        async with self.management_lock:
            return dict(self.workers)

    def views(self) -> list[WorkerView]:
        """What was last published of each worker: for those who only look, and cannot wait for a lock."""
        return [worker.view for worker in self._published]

    # --- what they do, counted when asked ---

    async def count(self, holds: Callable[[PoolWorker], bool]) -> int:
        """Of how many workers this holds, each asked under its lock."""
        found = 0
        for worker in (await self.snapshot()).values():
            async with worker.lock:
                found += holds(worker)
        return found

    async def every(self, holds: Callable[[PoolWorker], bool]) -> bool:
        return await self.count(lambda worker: not holds(worker)) == 0

    async def busy_count(self) -> int:
        """How many workers have a task right now."""
        return await self.count(lambda worker: worker.current_task is not None)

    async def all_idle(self) -> bool:
        """Whether no worker has a task."""
        return await self.every(lambda worker: worker.current_task is None)

    async def all_ready(self) -> bool:
        """Whether every worker has said that it is ready, and none has been asked to stop."""
        return await self.every(lambda worker: worker.status == "ready")

    async def all_inactive(self) -> bool:
        """Whether nothing more is to be expected of any worker."""
        return await self.every(lambda worker: worker.status in GONE)

    # --- whose turn it is ---

    def line_up(self, worker: PoolWorker) -> None:
        """Let `worker` have its next turn. Only on becoming idle, so that no id stands here twice."""
        assert worker.lock.locked() and worker.is_idle
        self.ready_queue.append(worker.id)

    async def reserve_ready_worker(self, message: Any) -> PoolWorker | None:
        """Give `message` to the worker that became ready first, and return it, already busy.

        Whatever in the queue is no longer ready (removed, stopping, gone) is dropped on the way.
        """
        while self.ready_queue:
            worker = self.workers.get(self.ready_queue.popleft())
            if worker is None:
                continue
            try:
                await worker.lock.acquire()
            except asyncio.CancelledError:
                self._eager.begin(self._return_turn(worker))
                raise
            try:
                if worker.is_idle:
                    worker.start_task(message)
                    return worker
            finally:
                worker.lock.release()
        return None

    async def _return_turn(self, worker: PoolWorker) -> None:
        """Whoever was to use this turn was cancelled while waiting for the lock: it is still the worker's."""
        async with worker.lock:
            if worker.is_idle:
                self.line_up(worker)
