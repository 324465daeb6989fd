"""All talking of a worker to its storage while it works: what has ended is told, free slots are filled.

    crew ──> outbox ──┐
     ^                │
     └── exchange(settlements, claim) ── nothing to tell, nothing due: sleep until somebody rings

One call is under way at a time, and what ends meanwhile goes with the next one. Where the store works while
the worker does (`capabilities.lanes`), a second one goes beside the first as soon as it is worth a commit.
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
from omniq.lanes import LEAST_BESIDE, Lanes, Sent
from omniq.storage.base import BaseStorage, Claimed
from omniq.task import Answer, Claim, Settlement, one_line

# A stop with a time limit does not wait longer than this for a store that is away.
LAST_SETTLE_S: Final = 5.0
RING_LATER_S: Final = 0.02
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
        self.least = 1  # fewer would not be sent now, so they wake nobody

    def tell(self, settlement: Settlement) -> None:
        self.settlements.append(settlement)
        if len(self.settlements) >= self.least:
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
        self._lanes = Lanes(storage.capabilities.lanes, crew.slots, outbox.ring)
        self._calls = 0  # numbers the calls, and so the claims of this worker, whose id is nobody else's
        self._unanswered: list[Sent] = []  # claims to be repeated as they were, under their own ids
        self._surplus: list[Claimed] = []  # more than was asked for, by a store that does not count
        self._strangers: list[tuple[int, Settlement]] = []  # with the latest call when we heard of each
        self._looks = 0  # numbers them as they are made: a claim that is repeated looks again
        self._latest_look = 0  # of all claims that were answered, the one that was made last
        self._stopping = False
        self._stop_asked = asyncio.Event()
        self._give_up_settling_at: float | None = None
        self._look_at = 0.0  # when the next claim may be made, unless something wakes us
        self._found_nothing = False
        self._found_plenty = False
        self._falls_in = False  # the next exchange only settles
        self._sleeper: asyncio.Task[None] | None = None
        self._pause_s = FIRST_PAUSE_S

    async def run(self) -> None:
        try:
            while await self._mend():
                if self._surplus:
                    self._start_surplus()
                if (sent := self._next()) is not None:
                    self._send(sent)
                elif self._lanes.busy and not self.stopped_for_good:
                    await self._until_rung()
                elif self._lanes.busy:
                    logger.error("the store does not answer: its last calls are given up, leases will lapse")
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
            self._stop_sleeping()
            self._outbox.settlements[:0] = await self._lanes.call_off()
            self._give_back_surplus()

    # --- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Claim nothing more. The loop ends when all is told."""
        self._stopping = True
        self._stop_asked.set()
        self._outbox.ring()

    def give_up_soon(self) -> None:
        """Bodies are cancelled now: what cannot be told a while after that is left to the leases."""
        self._give_up_settling_at = self._clock.monotonic() + CANCEL_GRACE_S + LAST_SETTLE_S
        # A little later: a timer may ring a moment too soon, and this one rings only once.
        self._give_back_surplus()
        self._clock.call_later(CANCEL_GRACE_S + LAST_SETTLE_S + RING_LATER_S, self._outbox.ring)

    @property
    def stopped_for_good(self) -> bool:
        return self._give_up_settling_at is not None and self._clock.monotonic() >= self._give_up_settling_at

    @property
    def _is_over(self) -> bool:
        return self._stopping or (self._wishes.ends_when_idle and self._found_nothing) or self._has_taken_all

    @property
    def _has_taken_all(self) -> bool:
        return self._wishes.allowance is not None and self._wishes.allowance.left <= 0

    # --- what to send ----------------------------------------------------------------------------

    def give_back(self, strangers: list[Settlement]) -> None:
        """What the store thinks that we run, unless it turns out that we do."""
        self._strangers += [(self._calls, one) for one in strangers]
        self._outbox.ring()

    def _next(self) -> Sent | None:
        """The call to make now, if there is one."""
        beside = self._lanes.busy
        self._outbox.least = LEAST_BESIDE if beside else 1
        if self._lanes.full or (beside and not self._is_worth_a_call()):
            return None
        told = self._take_outbox()
        sent = self._to_repeat() or Sent(self._calls + 1, [], self._claim(len(told)))
        sent.settlements = told
        if not told and sent.claim is None:
            return None
        self._calls = max(self._calls, sent.number)
        return sent

    def _is_worth_a_call(self) -> bool:
        free = self._free_slots if self._found_plenty else 0
        return max(len(self._outbox.settlements), free) >= LEAST_BESIDE

    @property
    def _free_slots(self) -> int:
        """A slot is taken until the store knows of the end, whoever is about to say so."""
        return self._crew.free_slots - self._lanes.slots - len(self._outbox.settlements)

    def _take_outbox(self) -> list[Settlement]:
        self._outbox.settlements += self._known_strangers()
        told = self._outbox.settlements[: self._lanes.share]
        del self._outbox.settlements[: self._lanes.share]
        scarce = self._scarce.names
        if scarce and any(getattr(one.task, "queue", None) in scarce for one in told):
            self._look_at = 0.0  # a process is free again, which the last look may have found wanting
        return told

    def _known_strangers(self) -> list[Settlement]:
        """Whoever is still unknown when every call from before is answered really is a stranger."""
        if not self._strangers:
            return []
        open_calls = [sent.number for sent in self._unanswered]
        if self._lanes.oldest is not None:
            open_calls.append(self._lanes.oldest)
        known = [(heard, one) for heard, one in self._strangers if heard < min(open_calls, default=heard + 1)]
        self._strangers = [one for one in self._strangers if one not in known]
        return [one for _, one in known if not self._crew.has(one.task.id)]

    def _to_repeat(self) -> Sent | None:
        """A claim whose answer never came; its slots are still free, because no other was made since."""
        if self._stopping:
            self._unanswered.clear()
        return self._unanswered.pop(0) if self._unanswered else None

    def _claim(self, settling: int) -> Claim | None:
        """Never more than the free slots, nor before its time."""
        free = min(self._free_slots, self._lanes.share)
        if (allowance := self._wishes.allowance) is not None:
            free = min(free, allowance.left - self._lanes.slots)
        if self._stopping or free <= 0:
            return None
        if settling and self._falls_in:
            return None
        if self._clock.monotonic() < self._look_at and (self._found_nothing or not settling):
            return None
        wishes, scarce = self._wishes, tuple(sorted(self._scarce.names))
        return Claim(
            wishes.worker,
            wishes.queues,
            free,
            wishes.lease_s,
            f"{self._calls + 1:x}",
            scarce,
            max(0, self._crew.free_processes - self._lanes.scarce_slots) if scarce else 0,
            wishes.isolates,
        )

    # --- telling and taking ----------------------------------------------------------------------

    def _send(self, sent: Sent) -> None:
        if sent.claim is not None:
            self._stop_sleeping()
            self._looks += 1
            sent.look = self._looks
        self._lanes.send(sent, self._exchange(sent))

    async def _until_rung(self) -> None:
        await self._outbox.bell.wait()
        self._outbox.bell.clear()

    async def _mend(self) -> bool:
        """Calls that failed are made again, after one pause for all. False when the store is given up."""
        why = self._take_back()
        if why is None:
            return True
        await self._pause(why)
        self._take_back()  # what failed meanwhile was made before the pause
        if self.stopped_for_good:
            reports = len(self._outbox.settlements)
            logger.error("the store is away: {} reports are lost, leases will lapse", reports)
            return False
        return True

    def _take_back(self) -> str | None:
        """What failed calls were to tell and ask for; why, if there were any."""
        why: str | None = None
        while (failed := self._lanes.take_failed()) is not None:
            sent, exc = failed
            self._outbox.settlements[:0] = sent.settlements
            if sent.claim is not None:
                self._unanswered.append(sent)
            explained = self._explained(exc)
            why = why or explained
        return why

    def _explained(self, exc: BaseException) -> str:
        """Why a call is to be made again. What that would not mend is raised."""
        if isinstance(exc, StoreUnavailable):
            return f"the store is away: {exc}"
        if isinstance(exc, Exception) and not self._storage.capabilities.batched:
            return f"the storage failed: {exc!r}"
        raise exc

    async def _exchange(self, sent: Sent) -> None:
        """One round trip: tell, take, and start what came."""
        answers, claims = await self._storage.exchange(sent.settlements, sent.claim)
        self._note_answers(sent.settlements, answers)
        if Answer.UNSENT in answers:
            await self._pause("the storage went away while settling")
        else:
            self._pause_s = FIRST_PAUSE_S
        if sent.claim is not None:
            self._plan_next_look(sent.look, sent.claim, claims)
        if self._stopping:  # a claim that was on its way when the stop came
            self._outbox.settlements += [Settlement.give_back(task) for task in claims]
            return
        self._counts.claimed += len(claims)
        if (allowance := self._wishes.allowance) is not None:
            allowance.left -= len(claims)
        # Slots that end together share a commit. A few that are out of step would stay so, and pay for one of
        # their own each time round; they settle alone once, and are filled together with the others again.
        ended_meanwhile = len(self._outbox.settlements)
        self._falls_in = self._look_at == 0.0 and len(claims) >= FEW_BESIDE * ended_meanwhile > 0
        if sent.claim is not None and len(claims) > sent.claim.limit:
            self._surplus += claims[sent.claim.limit :]
            claims = claims[: sent.claim.limit]
        for task in claims:
            self._crew.start(task)
        self._scarce.learn(claims)

    def _start_surplus(self) -> None:
        while self._surplus and self._free_slots > 0:
            self._crew.start(self._surplus.pop(0))

    def _give_back_surplus(self) -> None:
        self._outbox.settlements += [Settlement.give_back(task) for task in self._surplus]
        self._surplus.clear()

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

    def _plan_next_look(self, look: int, claim: Claim, claims: list[Claimed]) -> None:
        if claims:
            logger.debug("reserved {n} tasks", n=len(claims))
        else:
            logger.debug("nothing due")
        if look < self._latest_look:
            return  # a later look was answered first, and has seen more
        self._latest_look = look
        # With less than that, all that was due elsewhere came along. A scarce queue may hold more, but no
        # process is free for it: when one is, its settlement asks again.
        full = len(claims) >= claim.limit
        self._found_nothing, self._found_plenty = not claims, full
        self._look_at = 0.0 if full else self._clock.monotonic() + self._wishes.poll_interval_s

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
