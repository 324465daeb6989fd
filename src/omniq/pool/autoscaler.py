"""Looks at the pool, asks `omniq.logic.scaling` how many workers there should be, and sees to it.

Also lets go of workers that are worn out, kills those that hold too much memory, and takes those that
are gone out of the registry.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from loguru import logger
from msgspec import Struct

from omniq.clock import Clock, wait_for_event
from omniq.logic.scaling import History, Limits, Load, Wanted, next_look_s, start_pause_s, wanted_workers
from omniq.pool.dispatcher import Dispatcher
from omniq.pool.registry import WorkerData
from omniq.pool.worker import COMING, PoolWorker

MEMORY_LOOK_S: Final = 0.2
# How long processes that were asked to end may take, before they are killed.
STOP_GRACE_S: Final = 5.0
AFTER_A_FAULT_S: Final = 1.0
REMEMBERED_DECISIONS: Final = 512

Doing = Literal["busy", "idle", "starting", "leaving", "gone"]


class Decision(Struct, frozen=True):
    """One look: when, what was seen, and what followed from it."""

    at: float
    load: Load
    wanted: Wanted


class Autoscaler:
    def __init__(
        self,
        dispatcher: Dispatcher,
        limits: Limits,
        clock: Clock,
        add_worker: Callable[[], Awaitable[None]],
    ) -> None:
        self.limits = limits
        self.trace: deque[Decision] = deque(maxlen=REMEMBERED_DECISIONS)
        self._dispatcher = dispatcher
        self._workers: WorkerData = dispatcher.workers
        self._clock = clock
        self._add_worker = add_worker
        self._history = History(clock.monotonic())
        self._nudged = asyncio.Event()
        self._knows = False  # that calls wait; it will look again by itself

    def nudge(self) -> None:
        """A call waits and nobody is ready. Free of charge if that is known already."""
        if not self._knows:
            self._nudged.set()

    def look_soon(self) -> None:
        self._knows = False
        self._nudged.set()

    async def run(self) -> None:
        while True:
            self._nudged.clear()
            try:
                wait_s = await self.look()
            except Exception as exc:  # a fault in one look must not leave the pool without any
                logger.opt(exception=exc).error("the autoscaler failed, will look again")
                wait_s = AFTER_A_FAULT_S
            if wait_s is None:
                await self._nudged.wait()
            else:
                await wait_for_event(self._clock, self._nudged, wait_s)

    async def look(self) -> float | None:
        """One pass. Returns in how many seconds to look again; None: when something happens."""
        load, gone = await self._seen()
        wanted = wanted_workers(load, self.limits)
        self._remember(load, wanted)
        for worker_id in gone:
            await self._workers.remove(worker_id)
        more = wanted.workers - load.workers
        for _ in range(more):
            await self._add_worker()
        stopped = await self._stop_idle(-more, wanted.reason) if more < 0 else 0
        over = load.workers - self.limits.max_workers
        self._dispatcher.excess = max(0, over - stopped)
        # With all places taken, or the next look already set, another call that waits is no news.
        full = load.workers + load.leaving >= self.limits.max_workers
        self._knows = load.waiting > 0 and more <= 0 and (full or load.needed > load.workers)
        return self._sooner(next_look_s(load, self.limits, wanted), load.leaving)

    async def _seen(self) -> tuple[Load, list[int]]:
        now, doing, gone = self._clock.monotonic(), Counter[Doing](), list[int]()
        for worker in (await self._workers.snapshot()).values():
            async with worker.lock:
                does = self._looked_after(worker, now)
            doing[does] += 1
            if does == "gone":
                gone.append(worker.id)
        dispatcher = self._dispatcher
        lowest = min(dispatcher.fewest_idle, doing["idle"])
        self._history = self._history.noting(now, lowest, self.limits.scaledown_wait_s)
        dispatcher.fewest_idle = doing["idle"]
        oldest = dispatcher.backlog.first()
        load = Load(
            waiting=len(dispatcher.backlog),
            oldest_wait_s=0.0 if oldest is None else now - oldest.since,
            busy=doing["busy"],
            idle=doing["idle"],
            starting=doing["starting"],
            leaving=doing["leaving"],
            spare=self._history.spare(now, self.limits.scaledown_wait_s),
            deaths=dispatcher.deaths,
            held_s=max(0.0, dispatcher.last_death_at + start_pause_s(dispatcher.deaths) - now),
        )
        return load, gone

    def _looked_after(self, worker: PoolWorker, now: float) -> Doing:
        """What a worker does, after what its limits ask for. Its lock is held."""
        limits = self._dispatcher.worker_limits
        if worker.status in COMING:
            return "starting"
        if worker.status in ("retired", "error"):
            return "gone"
        if worker.current_task is not None and (reason := limits.too_big(worker)):
            worker.kill(f"killed: {reason}")
        if worker.is_idle and (reason := limits.worn_out(worker, now)):
            worker.ask_to_stop(reason)
        if worker.status != "ready":
            # It holds a place until it is gone: one that hangs as it leaves must not hold it for ever.
            if worker.current_task is None and now - worker.since >= STOP_GRACE_S:
                worker.kill("killed: it did not end when it was asked to")
            return "leaving"
        return "idle" if worker.current_task is None else "busy"

    async def _stop_idle(self, count: int, reason: str) -> int:
        """Ask at most `count` workers to stop, those that have been idle the longest; says how many."""
        snapshot, stopped = await self._workers.snapshot(), 0
        for worker_id in tuple(self._workers.ready_queue):
            if stopped == count:
                break
            if (worker := snapshot.get(worker_id)) is None:
                continue
            async with worker.lock:
                if worker.is_idle:
                    worker.ask_to_stop(reason)
                    stopped += 1
        return stopped

    def _remember(self, load: Load, wanted: Wanted) -> None:
        last = self.trace[-1] if self.trace else None
        if last is not None and last.wanted == wanted and last.load.workers == load.workers:
            return
        self.trace.append(Decision(self._clock.monotonic(), load, wanted))
        if wanted.workers != load.workers:
            logger.debug(
                "scaling from {have} to {want} workers: {why}",
                have=load.workers,
                want=wanted.workers,
                why=wanted.reason,
            )

    def _sooner(self, wait_s: float | None, leaving: int) -> float | None:
        """Worn-out workers, and those that take too long to leave, have to be looked for as well."""
        limits = self._dispatcher.worker_limits
        waits_s = [wait_s] if wait_s is not None else []
        waits_s += [STOP_GRACE_S] if leaving else []
        waits_s += [MEMORY_LOOK_S] if limits.memory_bytes is not None else []
        waits_s += [limits.lifetime_s / 4] if limits.lifetime_s is not None else []
        return min(waits_s, default=None)
