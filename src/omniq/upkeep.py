"""What must go on beside the bodies: renewing, watching for cancels, taking back what the dead left, firing
schedules, pruning.

It runs on a loop of its own in a thread, so that a body that blocks the worker's loop loses no lease; with
an injected clock, or a storage without clones, it runs on the worker's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from loguru import logger

from omniq.clock import Clock, wait_for_event
from omniq.crew import Crew
from omniq.errors import CorruptRecord, OmniqError, StoreUnavailable
from omniq.executors import trace_of
from omniq.loopthread import LoopThread
from omniq.reports import PoolInfo
from omniq.stalls import StallWatch
from omniq.storage.base import BaseStorage
from omniq.task import Held, Settlement, WorkerInfo

# Cancels are known, and the dead are noticed, within a second.
LOOK_EVERY_S: Final = 0.5
PRUNE_EVERY_S: Final = 60.0
# A schedule that somebody saves is known this soon; its ticks are waited for exactly.
FIRE_EVERY_S: Final = 1.0
# Whoever watches a pool of processes grow sees it this soon, and not only at the next beat.
POOLS_EVERY_S: Final = 2.0
BEATS_PER_LEASE: Final = 3
NEARLY: Final = 0.1  # of the time between two looks
LAPSE_PAGE: Final = 100
FIRE_PAGE: Final = 100
PRUNE_PAGE: Final = 1000
MAX_PAGES: Final = 100


class Upkeep:
    """One worker's chores. `renews` is False where a supervisor renews for it."""

    def __init__(
        self,
        storage: BaseStorage,
        crew: Crew,
        info: Callable[[], WorkerInfo],
        give_back: Callable[[list[Held]], None],
        lease_s: float,
        clock: Clock,
        *,
        renews: bool,
        stalls: StallWatch | None = None,
    ) -> None:
        self._storage = storage
        self._crew = crew
        self._info = info
        self._give_back = give_back
        self._worker = info().id
        self._lease_s = lease_s
        self._clock = clock
        self._renews = renews and storage.overrides("renew")
        self._stalls = stalls
        self.lapses = 0  # what was taken back or ended here because its time was over
        self._stopping = asyncio.Event()
        self._renewed_at = clock.monotonic()
        self._answering_since: float | None = clock.monotonic() - lease_s
        self._strangers: set[tuple[str, int]] = set()
        self._next: dict[str, float] = {}
        self._told_pools: tuple[PoolInfo, ...] = ()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def is_forsaken(self) -> bool:
        return self._crew.is_gone

    async def run(self) -> None:
        """Do every chore when its time has come, until stopped."""
        # A third of the lease, so that two renewals in a row may fail before anything is lost.
        renew_every_s = self._lease_s / BEATS_PER_LEASE
        look_every_s = min(LOOK_EVERY_S, renew_every_s)
        chores: list[tuple[str, float, Callable[[], Awaitable[bool]]]] = [
            ("renew", renew_every_s, self._renew),
            ("look", look_every_s, self._look),
            ("lapse", look_every_s, self._lapse),
            ("beat", renew_every_s, self._beat),
            ("pools", POOLS_EVERY_S, self._tell_pools),
            ("prune", PRUNE_EVERY_S, self._prune),
        ]
        if self._storage.overrides("fire_due"):
            chores.append(("fire", FIRE_EVERY_S, self._fire))
        if self._stalls is not None:
            chores.append(("stalls", look_every_s, self._look_at_loop))
        while not self._stopping.is_set():
            if self._crew.is_gone:
                await self._try("farewell", self._farewell)
                return
            # One moment for all, and what is nearly due goes along: each counted for itself, they would drift
            # apart and wake us one by one.
            now = self._clock.monotonic()
            for name, every_s, chore in chores:
                if now + look_every_s * NEARLY >= self._next.get(name, 0.0):
                    self._next[name] = now + every_s
                    await self._try(name, chore)
            wake_at = min(self._next.values())
            await wait_for_event(self._clock, self._stopping, wake_at - self._clock.monotonic())

    async def _try(self, name: str, chore: Callable[[], Awaitable[bool]]) -> None:
        """A chore says whether the store has answered something: one that asked nothing cannot tell."""
        try:
            answered = await chore()
        except (StoreUnavailable, TimeoutError) as exc:
            if self._answering_since is not None:
                logger.warning("store away during {name}: {error}", name=name, error=str(exc))
            self._answering_since = None
            self._lose_what_is_over()
        except OmniqError as exc:
            logger.error("{name} failed: {error}", name=name, error=str(exc))
        except Exception as exc:
            logger.error("{name} failed: {trace}", name=name, trace=trace_of(exc))
        else:
            if answered and self._answering_since is None:
                self._answering_since = self._clock.monotonic()

    # --- leases ----------------------------------------------------------------------------------

    async def _renew(self) -> bool:
        if not self._renews:
            self._renewed_at = self._clock.monotonic()
            return False
        before = self._clock.monotonic()
        holding = self._crew.holding()
        if not holding and self._storage.overrides("held") and not await self._storage.held(self._worker):
            self._renewed_at = before  # an idle worker has nothing to write
            return True
        async with asyncio.timeout(self._lease_s):  # later it would be too late anyway
            renewal = await self._storage.renew(self._worker, self._lease_s, holding)
        self._renewed_at = before  # counted from before the request: never later than the store's lease
        self._crew.lose(one for one in holding if one.id in renewal.lost)
        self._crew.cancel(renewal.cancel)
        self._return_strangers(list(renewal.held.values()), holding)
        return True

    def _return_strangers(self, held: list[Held], holding: list[Held]) -> None:
        """A claim whose answer never came: nobody here runs it, so nobody should keep it.

        Only what was unknown at the look before as well: a claim may be on its way to us right now.
        """
        known = {(one.id, one.epoch) for one in (*holding, *self._crew.holding())}
        strangers = {(one.id, one.epoch): one for one in held if (one.id, one.epoch) not in known}
        returned = [one for key, one in strangers.items() if key in self._strangers]
        if returned:
            self._give_back(returned)
        self._strangers = set(strangers)

    def _lose_what_is_over(self) -> None:
        if self._renews and self._clock.monotonic() - self._renewed_at >= self._lease_s:
            lost = self._crew.holding()
            if lost:
                logger.error("could not renew for a whole lease; {} runs count as lost", len(lost))
                self._crew.lose(lost)

    async def _look(self) -> bool:
        """Who was cancelled, who was lost, how far everybody is."""
        for task_id, epoch, done, total in self._crew.take_progress():
            try:
                await self._storage.progress(task_id, epoch, done, total)
            except CorruptRecord as exc:
                logger.error("cannot note progress: {}", exc)
        holding = self._crew.holding()
        if not self._storage.overrides("held") or (self._renews and not holding):
            return False
        held = {one.id: one for one in await self._storage.held(self._worker)}
        if not self._renews:
            self._return_strangers(list(held.values()), holding)
        self._crew.cancel([one.id for one in held.values() if one.cancel_requested])
        self._crew.lose(one for one in holding if one.id not in held or held[one.id].epoch != one.epoch)
        return True

    # --- for everybody ---------------------------------------------------------------------------

    async def _lapse(self) -> bool:
        """After an outage the living renew first: nobody lapses until a whole lease was answered."""
        since = self._answering_since
        if since is None or self._clock.monotonic() - since < self._lease_s:
            return False
        for _ in range(MAX_PAGES):
            ended = await self._storage.lapse(LAPSE_PAGE)
            if ended:
                self.lapses += ended
                logger.warning("took back or ended {} tasks whose time was over", ended)
            if ended < LAPSE_PAGE:
                break
        return True

    async def _fire(self) -> bool:
        """Every worker does, whatever queues it serves: the store sees to one task per tick."""
        fired = await self._storage.fire_due(FIRE_PAGE)
        for task_id in fired.ids:
            logger.debug("fired {}", task_id)
        # What is due and could not be fired by this call must not keep us busy.
        if fired.next_in_s is not None and (fired.ids or fired.next_in_s > 0):
            self._next["fire"] = min(self._next["fire"], self._clock.monotonic() + fired.next_in_s)
        return True

    async def _prune(self) -> bool:
        """One page at a time: the other chores come in between, and the next page soon."""
        if await self._storage.prune(PRUNE_PAGE) == PRUNE_PAGE:
            self._next["prune"] = self._clock.monotonic()
        return True

    async def _farewell(self) -> bool:
        """The worker's loop ended without a stop: nothing is renewed for nobody."""
        held = await self._storage.held(self._worker)
        if held:
            await self._storage.settle([Settlement.give_back(one) for one in held])
        await self._storage.leave(self._worker)
        return True

    async def _look_at_loop(self) -> bool:
        assert self._stalls is not None
        self._stalls.look()
        return False

    async def _beat(self) -> bool:
        info = self._info()
        await self._storage.beat(info)
        self._told_pools = info.pools
        return True

    async def _tell_pools(self) -> bool:
        """Most workers have no processes: nothing is written then, nor where nothing has changed."""
        pools = self._crew.pools()
        if [_told(one) for one in pools] == [_told(one) for one in self._told_pools]:
            return False
        return await self._beat()


class Caretaker:
    """An upkeep at work, from now to `stop`: in a thread of its own, if it has a storage of its own."""

    def __init__(self, upkeep: Upkeep, own_storage: BaseStorage | None) -> None:
        self._upkeep = upkeep
        self._own_storage = own_storage
        if own_storage is not None:
            own_storage.alone_on_loop = True
        self._thread = None if own_storage is None else LoopThread("omniq-upkeep").start()
        self._done: asyncio.Future[None] = (
            asyncio.ensure_future(self._work())
            if self._thread is None
            else asyncio.wrap_future(self._thread.submit(self._work()))
        )

    async def _work(self) -> None:
        try:
            await self._upkeep.run()
        finally:
            if self._own_storage is not None:
                await self._own_storage.close()
            if self._thread is not None and self._upkeep.is_forsaken:
                self._thread.loop.stop()  # nobody will

    async def stop(self) -> None:
        if self._thread is None:
            self._upkeep.stop()
        else:
            self._thread.call(self._upkeep.stop)
        await asyncio.gather(self._done, return_exceptions=True)
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.stop)


def _told(pool: PoolInfo) -> tuple[object, ...]:
    """What is news: who does what, not since when, which is counted anew at each look."""
    scalings = [(one.before, one.after, one.reason) for one in pool.scalings]
    return (pool.reason, scalings, [(one.pid, one.status, one.task_id) for one in pool.processes])
