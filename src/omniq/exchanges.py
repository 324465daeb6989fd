"""All talking of a worker to its storage while it works: what has ended is told, free slots are filled.

One call is under way at a time; what ends meanwhile goes with the next one:

    crew ──> outbox ──┐
     ^                │
     └── exchange(settlements, claim) ── nothing to tell, nothing due: sleep until somebody rings
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from loguru import logger
from msgspec import Struct

from omniq.clock import Clock, wait_for_event
from omniq.crew import STUCK_AFTER_S, Crew
from omniq.errors import StoreUnavailable
from omniq.executors import CANCEL_GRACE_S, trace_of
from omniq.storage.base import BaseStorage, Claimed
from omniq.task import Answer, Claim, Settlement, one_line

# A stop with a time limit does not wait longer than this for a store that is away.
LAST_SETTLE_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.05
# Short enough to be at work again within five seconds of a repair.
LONGEST_PAUSE_S: Final = 2.5
PAUSE_WHILE_STOPPING_S: Final = 0.2
# So many times as many slots were just filled as have ended meanwhile: those are few.
FEW_BESIDE: Final = 4


class Outbox:
    """What the storage is to be told, and a bell for whoever waits for something to do."""

    def __init__(self) -> None:
        self.settlements: list[Settlement] = []
        self.bell = asyncio.Event()

    def tell(self, settlement: Settlement) -> None:
        self.settlements.append(settlement)
        self.bell.set()

    def ring(self) -> None:
        self.bell.set()


class ScarceQueues:
    """Queues with tasks that need a process: from them no more is claimed than processes are free."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._dedicated: frozenset[str] = frozenset()  # those that hold no other tasks
        self._needed: set[str] = set()  # where the latest claim had tasks that need one

    def dedicate(self, queues: Iterable[str]) -> None:
        self._dedicated = frozenset(queues)
        self.names |= self._dedicated

    def needs_process(self, queue: str) -> None:
        self._needed.add(queue)

    def learn(self, claims: list[Claimed]) -> None:
        """What else a queue holds shows when it is claimed from: it is scarce as long as it has to be."""
        if self.names or self._needed:
            for queue in {task.queue for task in claims} - self._dedicated:
                (self.names.add if queue in self._needed else self.names.discard)(queue)
            self._needed.clear()


class Allowance(Struct):
    """How many tasks may still be taken, by all who share it."""

    left: int


class Wishes(Struct, frozen=True):
    """What a worker asks a storage for, the same from its start to its stop."""

    worker: str
    queues: tuple[str, ...] | None
    lease_s: float
    poll_interval_s: float
    wake: bool
    isolates: bool  # tasks that survive this worker are run alone next
    ends_when_idle: bool
    allowance: Allowance | None


class Counts(Struct):
    """What is counted over all starts of a worker."""

    claimed: int = 0
    stale_reports: int = 0


class Exchanges:
    """The loop of one worker, from its start to its stop."""

    def __init__(
        self,
        storage: BaseStorage,
        crew: Crew,
        outbox: Outbox,
        scarce: ScarceQueues,
        wishes: Wishes,
        counts: Counts,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._crew = crew
        self._outbox = outbox
        self._scarce = scarce
        self._wishes = wishes
        self._counts = counts
        self._clock = clock
        self._strangers: list[Settlement] = []
        self._claims = 0  # numbers the claims of this worker; its id is nobody else's
        self._stopping = False
        self._stop_asked = asyncio.Event()
        self._give_up_settling_at: float | None = None
        self._look_at = 0.0  # when the next claim may be made, unless something wakes us
        self._found_nothing = False
        self._falls_in = False  # the next exchange only settles
        self._sleeper: asyncio.Task[None] | None = None
        self._pause_s = FIRST_PAUSE_S

    async def run(self) -> None:
        claim: Claim | None = None
        settlements: list[Settlement] = []
        try:
            while True:
                # What could not be sent is sent again as it was, with the same claim id.
                settlements += self._take_outbox()
                claim = self._refreshed(claim, len(settlements))
                if settlements or claim is not None:
                    if await self._exchange(settlements, claim):
                        settlements, claim = [], None
                    elif self.stopped_for_good:
                        logger.error(
                            "the store is away: {} reports are lost, leases will lapse", len(settlements)
                        )
                        return
                elif (self._is_over and not self._crew.in_flight) or self._crew.is_stuck:
                    return
                else:
                    await self._rest()
        except Exception as exc:
            logger.error("the worker broke, what it runs is given up: {trace}", trace=trace_of(exc))
            self._crew.interrupt_all("lost")
            raise
        except asyncio.CancelledError:  # by a body that cancels all tasks, or a loop that is shut down
            logger.warning("the worker's own asyncio task was cancelled; it claims nothing more")
            raise
        finally:
            self._outbox.settlements[:0] = settlements
            self._stop_sleeping()

    # --- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Claim nothing more. The loop ends when all is told."""
        self._stopping = True
        self._stop_asked.set()
        self._outbox.ring()

    def give_up_soon(self) -> None:
        """Bodies are cancelled now: what cannot be told a while after that is left to the leases."""
        self._give_up_settling_at = self._clock.monotonic() + CANCEL_GRACE_S + LAST_SETTLE_S

    @property
    def stopped_for_good(self) -> bool:
        return self._give_up_settling_at is not None and self._clock.monotonic() >= self._give_up_settling_at

    @property
    def _is_over(self) -> bool:
        return self._stopping or (self._wishes.ends_when_idle and self._found_nothing) or self._has_taken_all

    @property
    def _has_taken_all(self) -> bool:
        return self._wishes.allowance is not None and self._wishes.allowance.left <= 0

    # --- telling and taking ----------------------------------------------------------------------

    def give_back(self, strangers: list[Settlement]) -> None:
        """What the store thinks that we run, unless it turns out that we do."""
        self._strangers += strangers
        self._outbox.ring()

    def _take_outbox(self) -> list[Settlement]:
        """What is to be told. No exchange is out now, so whoever is still unknown really is a stranger."""
        unknown = [s for s in self._strangers if not self._crew.has(s.task.id)]
        told, self._outbox.settlements, self._strangers = self._outbox.settlements + unknown, [], []
        scarce = self._scarce.names
        if scarce and any(getattr(one.task, "queue", None) in scarce for one in told):
            self._look_at = 0.0  # a process is free again, which the last look may have found wanting
        return told

    def _refreshed(self, claim: Claim | None, settling: int) -> Claim | None:
        """The claim to send now: never more than the free slots, nor before its time."""
        free = self._crew.free_slots
        if (allowance := self._wishes.allowance) is not None:
            free = min(free, allowance.left)
        if self._stopping or free <= 0:
            return None
        if claim is not None:
            return claim
        if settling and self._falls_in:
            return None
        if self._clock.monotonic() < self._look_at and (self._found_nothing or not settling):
            return None
        self._claims += 1
        wishes, scarce = self._wishes, tuple(sorted(self._scarce.names))
        return Claim(
            wishes.worker,
            wishes.queues,
            free,
            wishes.lease_s,
            f"{self._claims:x}",
            scarce,
            max(0, self._crew.free_processes) if scarce else 0,
            wishes.isolates,
        )

    async def _exchange(self, settlements: list[Settlement], claim: Claim | None) -> bool:
        """One round trip: tell, and take. False when the store is away; then it is to be repeated."""
        if claim is not None:
            self._stop_sleeping()
        try:
            answers, claims = await self._storage.exchange(settlements, claim)
        except StoreUnavailable as exc:
            await self._pause(f"the store is away: {exc}")
            return False
        except Exception as exc:
            if self._storage.capabilities.batched:
                raise
            await self._pause(f"the storage failed: {exc!r}")
            return False
        self._note_answers(settlements, answers)
        if Answer.UNSENT in answers:
            await self._pause("the storage went away while settling")
        else:
            self._pause_s = FIRST_PAUSE_S
        if claim is not None:
            self._plan_next_look(claim, claims)
        if self._stopping:  # a claim that was on its way when the stop came
            self._outbox.settlements += [Settlement.give_back(task) for task in claims]
            return True
        self._counts.claimed += len(claims)
        if (allowance := self._wishes.allowance) is not None:
            allowance.left -= len(claims)
        # Slots that end together share a commit. A few that are out of step would stay so, and pay for one of
        # their own each time round; they settle alone once, and are filled together with the others again.
        ended_meanwhile = len(self._outbox.settlements)
        self._falls_in = self._look_at == 0.0 and len(claims) >= FEW_BESIDE * ended_meanwhile > 0
        for task in claims:
            self._crew.start(task)
        self._scarce.learn(claims)
        return True

    async def _pause(self, why: str) -> None:
        logger.warning("{why}; next try in {pause:.2f} s", why=why, pause=self._pause_s)
        self._outbox.bell.clear()
        if self._stop_asked.is_set():
            await wait_for_event(self._clock, asyncio.Event(), min(self._pause_s, PAUSE_WHILE_STOPPING_S))
        else:
            await wait_for_event(self._clock, self._stop_asked, self._pause_s)
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)

    def _note_answers(self, settlements: list[Settlement], answers: list[Answer]) -> None:
        if answers.count(Answer.HELD) == len(answers) == len(settlements):
            return
        for settlement, answer in zip(settlements, answers, strict=True):
            if answer is Answer.UNSENT:
                self._outbox.settlements.append(settlement)
            elif answer is Answer.STALE:
                self._counts.stale_reports += 1
                logger.warning(
                    "stale: {task} epoch {epoch} was closed by somebody else; nothing was changed",
                    task=one_line(settlement.task.id),
                    epoch=settlement.task.epoch,
                )

    def _plan_next_look(self, claim: Claim, claims: list[Claimed]) -> None:
        # With less than that, all that was due elsewhere came along. A scarce queue may hold more, but no
        # process is free for it: when one is, its settlement asks again.
        full = len(claims) >= claim.limit
        self._found_nothing = not claims
        self._look_at = 0.0 if full else self._clock.monotonic() + self._wishes.poll_interval_s
        if claims:
            logger.debug("reserved {n} tasks", n=len(claims))
        else:
            logger.debug("nothing due")

    # --- sleeping --------------------------------------------------------------------------------

    async def _rest(self) -> None:
        """Until a body ends, the storage wakes us, the poll interval is over, or we are stopped."""
        bell, free = self._outbox.bell, self._crew.free_slots
        if self._stopping or self._has_taken_all or (free <= 0 and self._crew.in_flight):
            await bell.wait()
        elif self._wishes.wake and self._storage.capabilities.wakes and free > 0:
            if self._sleeper is None:
                left_s = self._look_at - self._clock.monotonic()
                self._sleeper = asyncio.create_task(self._sleep(left_s), name="omniq-sleep")
            await bell.wait()
        else:
            left_s = STUCK_AFTER_S if free <= 0 else self._look_at - self._clock.monotonic()
            await wait_for_event(self._clock, bell, left_s)
        bell.clear()

    async def _sleep(self, left_s: float) -> None:
        try:
            await self._storage.wait(left_s)
        except Exception as exc:
            logger.warning("cannot be woken by the store: {!r}", exc)
            await wait_for_event(self._clock, asyncio.Event(), left_s)
        self._look_at = 0.0
        self._sleeper = None
        self._outbox.ring()

    def _stop_sleeping(self) -> None:
        if self._sleeper is not None:
            self._sleeper.cancel()
            self._sleeper = None
