"""The workers: `AsyncWorkerPool`, its blocking twin `WorkerPool`, and `Worker` in the words of seed 002.

A pool fills its free slots from a storage, runs what it got, and tells the storage what became of it.
One loop does all talking to the storage; what ends while a call is on its way goes with the next one:

    claim ──> start ──> body ──> outcome ──> decide ──> outbox ──┐
      ^                                                          │
      └──────────── exchange(settlements, claim) <───────────────┘
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import secrets
import socket
from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Never, Self, TypedDict, Unpack

from loguru import logger

from omniq.clock import REAL_CLOCK, Clock, wait_for_event
from omniq.crew import STUCK_AFTER_S, Crew
from omniq.errors import (
    InvalidOption,
    PoolNotRunning,
    StoreUnavailable,
)
from omniq.executors import CANCEL_GRACE_S, trace_of
from omniq.hooks import Hook
from omniq.logic.retry import RetryPolicy
from omniq.loopthread import LoopThread, forbid_running_loop
from omniq.registry import Resolver
from omniq.serializer import MsgpackSerializer, Serializer
from omniq.stalls import StallWatch
from omniq.storage.backend import Backend
from omniq.storage.base import BaseStorage, Claimed
from omniq.task import (
    Answer,
    Claim,
    Duration,
    Held,
    Settlement,
    WorkerInfo,
    check_text,
    count,
    one_line,
    positive_seconds,
    queue_name,
    refuse_unknown,
    shown,
)
from omniq.upkeep import Upkeep

if TYPE_CHECKING:
    from omniq.metrics import Meter
    from omniq.pool import WorkerPool as ProcessPool

# A stop with a time limit does not wait longer than this for a store that is away.
LAST_SETTLE_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.05
# Short enough to be at work again within five seconds of a repair.
LONGEST_PAUSE_S: Final = 2.5
PAUSE_WHILE_STOPPING_S: Final = 0.2
# So many times as many slots were just filled as have ended meanwhile: those are few.
FEW_BESIDE: Final = 4
MAX_WORKER_NAME: Final = 128


class PoolOptions(TypedDict, total=False):
    """What a worker pool takes by name only, for type checkers; `AsyncWorkerPool` checks it."""

    max_retry_delay: Duration
    queues: Sequence[str] | None
    lease: Duration
    wake: bool
    allow: Sequence[str] | None
    serializer: Serializer | None
    process_pool: ProcessPool | None
    clock: Clock | None
    name: str


class WorkerOptions(PoolOptions, total=False):
    """What a worker pool takes besides its storage, all of it by name."""

    concurrency: int
    poll_interval: Duration
    base_retry_delay: Duration


class AsyncWorkerPool:
    """Polls a storage for due tasks and runs at most `concurrency` of them at once."""

    def __init__(
        self,
        storage: BaseStorage,
        concurrency: int = 1,
        poll_interval: Duration = 1.0,
        base_retry_delay: Duration = 1.0,
        *,
        max_retry_delay: Duration = 3600,
        queues: Sequence[str] | None = None,
        lease: Duration = 30.0,
        wake: bool = True,
        allow: Sequence[str] | None = None,
        serializer: Serializer | None = None,
        process_pool: ProcessPool | None = None,
        clock: Clock | None = None,
        name: str = "worker",
        **unknown: Never,
    ) -> None:
        if unknown:
            refuse_unknown(
                unknown, list(inspect.signature(AsyncWorkerPool).parameters)[1:-1], "a worker pool"
            )
        if not isinstance(storage, BaseStorage):
            raise InvalidOption(
                f"storage must be a BaseStorage, such as SQLiteStorage('jobs.db'), not {storage!r}"
            )
        self.storage = storage
        self.concurrency = count(concurrency, "concurrency", least=1)
        self.poll_interval_s = positive_seconds(poll_interval, "poll_interval")
        self.lease_s = positive_seconds(lease, "lease")
        self.queues = _queue_names(queues)
        self.running = False
        self.stale_reports = 0
        self._policy = RetryPolicy(
            positive_seconds(base_retry_delay, "base_retry_delay"),
            positive_seconds(max_retry_delay, "max_retry_delay"),
        )
        self._wake = wake
        if serializer is not None and not isinstance(serializer, Serializer):
            raise InvalidOption(f"serializer must be a Serializer, not {shown(serializer)}")
        self._serializer = serializer or MsgpackSerializer()
        if serializer is not None:
            storage.serializer = serializer  # results are read with what they were written with
        self._resolver = Resolver(allow=allow)
        self._hooks: Sequence[Hook] = ()
        if process_pool is not None and not callable(getattr(process_pool, "dispatch_task", None)):
            raise InvalidOption(f"process_pool must be an omniq.pool.WorkerPool, not {shown(process_pool)}")
        self._process_pool = process_pool
        self._injected_clock = clock
        self._scarce: set[str] = set()  # queues with tasks that need a process
        self._dedicated: frozenset[str] = frozenset()  # those that hold no other tasks
        self._needed_process: set[str] = set()  # where the latest claim had tasks that need one
        self._can_isolate = process_pool is not None
        self._clock = clock or REAL_CLOCK
        self._name = check_text(name, "name", MAX_WORKER_NAME)
        self._renews = True
        self._ends_when_idle = False
        self._stalls: StallWatch | None = None
        self._meter: Meter | None = None
        self.claimed = 0
        self._identity = ""
        self.id = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._starting = False

    # --- how it differs for those who embed it ---------------------------------------------------

    def serve(self, resolver: Resolver, scarce: Iterable[str] = (), hooks: Sequence[Hook] = ()) -> Self:
        """Run what `resolver` finds, instead of any path that can be imported, with `hooks` around it.

        From the `scarce` queues no more is claimed than processes are free. Tasks of an application can run
        in any process that imports it, so what survives a death of this worker runs in one of its own next.
        """
        self._resolver = resolver
        self._hooks = hooks
        self._scarce.update(scarce)
        self._dedicated = frozenset(scarce)
        outlived = self._injected_clock is None and self.storage.capabilities.durable
        # Where one function has no name in another process, its deaths must count here.
        self._can_isolate = outlived and resolver.all_have_names
        return self

    def without_retries(self) -> Self:
        """A failure is final."""
        self._policy = RetryPolicy(retries=False)
        return self

    def until_idle(self) -> Self:
        """Stop by itself as soon as nothing is due and nothing runs: for tests."""
        self._ends_when_idle = True
        return self

    def supervised(self, identity: str) -> Self:
        """Somebody else renews the leases of this worker, under an identity that they chose."""
        self._identity, self._renews = identity, False
        return self

    def measured(self) -> Meter:
        """Count and time runs from the next start on, for Prometheus; without this nothing is imported."""
        from omniq.metrics import Meter

        self._meter = self._meter or Meter(self)
        return self._meter

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the storage and begin. Returns when the pool is running; starting twice does nothing."""
        if self._loop_task is not None or self._starting:
            logger.debug("the worker is already running")
            return
        self._starting = True
        try:
            await self._begin()
        finally:
            self._starting = False

    async def _begin(self) -> None:
        if not self.storage.capabilities.batched:
            self.storage.clock, self.storage.serializer = self._clock, self._serializer
        self._reset()
        await self._crew.open()
        self._opened_storage = not self.storage.is_open
        try:
            await self.storage.open()
            # Known to be alive before it holds anything, so that its death is noticed at once.
            await self.storage.beat(self.info())
        except StoreUnavailable as exc:
            logger.warning("the store is away, will try again: {}", exc)
        await self._start_upkeep()
        self.running = True
        self._loop_task = asyncio.create_task(self._run_loop(), name="omniq-worker")
        logger.info(
            "worker started: {worker}, concurrency {concurrency}, queues {queues}",
            worker=self.id,
            concurrency=self.concurrency,
            queues="all" if self.queues is None else ", ".join(self.queues),
        )

    def _reset(self) -> None:
        self._loop = asyncio.get_running_loop()
        # A random boot id: a worker started again under the same name is another worker.
        self.id = (
            self._identity or f"{self._name}@{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        )
        self._started_at: datetime = self._clock.now()
        self._stalls = None
        self._closing = None
        self._outbox: list[Settlement] = []
        self._strangers: list[Settlement] = []
        self._claims = 0  # numbers the claims of this worker; its id is nobody else's
        self._bell = asyncio.Event()
        self._stopping = False
        self._stop_asked = asyncio.Event()
        self._give_up_settling_at: float | None = None
        self._look_at = 0.0  # when the next claim may be made, unless something wakes us
        self._found_nothing = False
        self._falls_in = False  # the next exchange only settles
        self._sleeper: asyncio.Task[None] | None = None
        self._pause_s = FIRST_PAUSE_S
        self._crew = Crew(
            self.concurrency,
            self._resolver,
            self._serializer,
            self._policy,
            self._clock,
            max_payload=getattr(self.storage, "max_payload", None),
            isolates=self._isolates,
            hooks=self._hooks,
            process_pool=self._process_pool,
            settled=self._tell,
            slot_freed=self._ring,
            needs_process=self._needed_process.add,
            begin=self.storage.begin if self.storage.capabilities.transacts else None,
            meter=self._meter,
        )

    @property
    def _isolates(self) -> bool:
        """Whether tasks that survive this worker are run alone next."""
        return self._can_isolate and self.storage.capabilities.batched

    async def stop(self, *, timeout: Duration | None = None, cancel_in_flight: bool = False) -> None:
        """Claim nothing more, let bodies finish, settle everything, close what `start` opened.

        After `timeout`, bodies are cancelled and their tasks go back with nothing spent.
        """
        loop_task = self._loop_task
        if loop_task is None:
            return
        timeout_s = None if timeout is None else _zero_or_seconds(timeout)
        self._stopping = True
        self._stop_asked.set()
        self.running = False
        self._ring()
        if cancel_in_flight:
            timeout_s = 0.0
        if timeout_s is not None and not await self._ends_within(loop_task, timeout_s):
            self._give_up_settling_at = self._clock.monotonic() + CANCEL_GRACE_S + LAST_SETTLE_S
            self._crew.interrupt_all("stop")
            if not await self._ends_within(loop_task, CANCEL_GRACE_S):
                self._crew.abandon_all()
        # A stop that is itself cancelled leaves the bodies and their leases alone; the next one ends it.
        await asyncio.wait((loop_task,))
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="omniq-close")
        await asyncio.shield(self._closing)  # whoever else stops meanwhile waits for the same end
        if not loop_task.cancelled():  # which was not whoever stops it here
            loop_task.result()
        self._crew.raise_if_stuck()

    async def _ends_within(self, task: asyncio.Task[None], timeout_s: float) -> bool:
        ended = asyncio.Event()
        task.add_done_callback(lambda _: ended.set())
        return await wait_for_event(self._clock, ended, timeout_s)

    async def wait(self) -> None:
        """Until the pool has stopped. Raises what broke it, and `WorkerStuck` when no slot can work."""
        if self._loop_task is None:
            raise PoolNotRunning("the worker is not running; await start() first")
        await asyncio.shield(self._loop_task)
        self._crew.raise_if_stuck()

    async def run(self) -> None:
        """Start, and return when the pool has stopped. Cancelling this stops it in good order."""
        await self.start()
        try:
            await self.wait()
        finally:
            await self.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    async def _close(self) -> None:
        self.running = False
        await self._crew.empty()
        await self._crew.close()
        await self._stop_upkeep()
        try:
            if not self._stopped_for_good():
                await self._take_leave()
        except Exception as exc:
            logger.warning("could not say goodbye to the store: {!r}", exc)
        if self._opened_storage:
            await self.storage.close()
        self._loop_task = None
        logger.info("worker stopped: {worker}", worker=self.id)

    def _stopped_for_good(self) -> bool:
        return self._give_up_settling_at is not None and self._clock.monotonic() >= self._give_up_settling_at

    async def _take_leave(self) -> None:
        """Nothing may stay RUNNING in the name of a worker that is gone, and no end untold."""
        if self._outbox:  # its loop was cancelled before it could tell
            await self.storage.settle(self._outbox)
        left = await self.storage.held(self.id)
        if left:
            await self.storage.settle([Settlement.give_back(one) for one in left])
        await self.storage.leave(self.id)

    # --- the loop --------------------------------------------------------------------------------

    async def _run_loop(self) -> None:
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
                    elif self._stopped_for_good():
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
            self.running = False
            self._outbox = settlements + self._outbox
            self._stop_sleeping()

    @property
    def _is_over(self) -> bool:
        return self._stopping or (self._ends_when_idle and self._found_nothing)

    def _take_outbox(self) -> list[Settlement]:
        """What is to be told. No exchange is out now, so whoever is still unknown really is a stranger."""
        unknown = [s for s in self._strangers if not self._crew.has(s.task.id)]
        outbox, self._outbox, self._strangers = self._outbox + unknown, [], []
        return outbox

    def _refreshed(self, claim: Claim | None, settling: int) -> Claim | None:
        """The claim to send now: never more than the free slots, nor before its time."""
        free = self._crew.free_slots
        if self._stopping or free <= 0:
            return None
        if claim is not None:
            return claim
        if settling and self._falls_in:
            return None
        if self._clock.monotonic() < self._look_at and (self._found_nothing or not settling):
            return None
        self._claims += 1
        scarce = tuple(sorted(self._scarce))
        return Claim(
            self.id,
            self.queues,
            free,
            self.lease_s,
            f"{self._claims:x}",
            scarce,
            max(0, self._crew.free_processes) if scarce else 0,
            self._isolates,
        )

    async def _exchange(self, settlements: list[Settlement], claim: Claim | None) -> bool:
        """One round trip: tell, and take. False when the store is away; then it is to be repeated."""
        if claim is not None:
            self._stop_sleeping()
        try:
            answers, claims = await self.storage.exchange(settlements, claim)
        except StoreUnavailable as exc:
            await self._pause(f"the store is away: {exc}")
            return False
        except Exception as exc:
            if self.storage.capabilities.batched:
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
            self._outbox += [Settlement.give_back(task) for task in claims]
            return True
        self.claimed += len(claims)
        # Slots that end together share a commit. A few that are out of step would stay so, and pay for one of
        # their own each time round; they settle alone once, and are filled together with the others again.
        self._falls_in = self._look_at == 0.0 and len(claims) >= FEW_BESIDE * len(self._outbox) > 0
        for task in claims:
            self._crew.start(task)
        self._learn_scarce(claims)
        return True

    def _learn_scarce(self, claims: list[Claimed]) -> None:
        """From a queue whose tasks need processes no more is claimed than are free, as long as they do."""
        if self._scarce or self._needed_process:
            for queue in {task.queue for task in claims} - self._dedicated:
                (self._scarce.add if queue in self._needed_process else self._scarce.discard)(queue)
            self._needed_process.clear()

    async def _pause(self, why: str) -> None:
        logger.warning("{why}; next try in {pause:.2f} s", why=why, pause=self._pause_s)
        self._bell.clear()
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
                self._outbox.append(settlement)
            elif answer is Answer.STALE:
                self.stale_reports += 1
                logger.warning(
                    "stale: {task} epoch {epoch} was closed by somebody else; nothing was changed",
                    task=one_line(settlement.task.id),
                    epoch=settlement.task.epoch,
                )

    def _plan_next_look(self, claim: Claim, claims: list[Claimed]) -> None:
        scarce = sum(task.queue in claim.scarce for task in claims) if claim.scarce else 0
        full = len(claims) >= claim.limit or scarce >= claim.scarce_limit > 0
        self._found_nothing = not claims
        self._look_at = 0.0 if full else self._clock.monotonic() + self.poll_interval_s
        if claims:
            logger.debug("reserved {n} tasks", n=len(claims))
        else:
            logger.debug("nothing due")

    async def _rest(self) -> None:
        """Until a body ends, the storage wakes us, the poll interval is over, or we are stopped."""
        free = self._crew.free_slots
        if self._stopping or (free <= 0 and self._crew.in_flight):
            await self._bell.wait()
        elif self._wake and self.storage.capabilities.wakes and free > 0:
            if self._sleeper is None:
                left_s = self._look_at - self._clock.monotonic()
                self._sleeper = asyncio.create_task(self._sleep(left_s), name="omniq-sleep")
            await self._bell.wait()
        else:
            left_s = STUCK_AFTER_S if free <= 0 else self._look_at - self._clock.monotonic()
            await wait_for_event(self._clock, self._bell, left_s)
        self._bell.clear()

    async def _sleep(self, left_s: float) -> None:
        try:
            await self.storage.wait(left_s)
        except Exception as exc:
            logger.warning("cannot be woken by the store: {!r}", exc)
            await wait_for_event(self._clock, asyncio.Event(), left_s)
        self._look_at = 0.0
        self._sleeper = None
        self._ring()

    def _stop_sleeping(self) -> None:
        if self._sleeper is not None:
            self._sleeper.cancel()
            self._sleeper = None

    def _tell(self, settlement: Settlement) -> None:
        self._outbox.append(settlement)
        if self._scarce and getattr(settlement.task, "queue", None) in self._scarce:
            self._look_at = 0.0  # a process is free again, which the last look may have found wanting
        self._bell.set()

    def _ring(self) -> None:
        self._bell.set()

    # --- beside the bodies -----------------------------------------------------------------------

    async def _start_upkeep(self) -> None:
        own_loop = self._injected_clock is None and self.storage.overrides("clone")
        self._stalls = StallWatch()
        storage = self.storage.clone() if own_loop else self.storage
        self._upkeep = Upkeep(
            storage,
            self._crew,
            self.info,
            self._give_back,
            self.lease_s,
            self._clock,
            renews=self._renews,
            stalls=self._stalls if own_loop else None,
        )
        self._upkeep_thread = LoopThread("omniq-upkeep").start() if own_loop else None
        work = _keep_up(self._upkeep, storage if own_loop else None)
        if self._upkeep_thread is not None:
            self._upkeep_done = asyncio.wrap_future(self._upkeep_thread.submit(work))
        else:
            self._upkeep_done = asyncio.ensure_future(work)

    async def _stop_upkeep(self) -> None:
        if self._upkeep_thread is None:
            self._upkeep.stop()
        else:
            self._upkeep_thread.call(self._upkeep.stop)
        await asyncio.gather(self._upkeep_done, return_exceptions=True)
        if self._upkeep_thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._upkeep_thread.stop)

    def info(self) -> WorkerInfo:
        return WorkerInfo(
            id=self.id,
            name=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
            concurrency=self.concurrency,
            in_flight=self._crew.in_flight,
            functions=self._resolver.names,
            started_at=self._started_at,
            loop_stalls=self.loop_stalls,
        )

    @property
    def loop_stalls(self) -> int:
        """How often the event loop was found blocked since the start."""
        return 0 if self._stalls is None else self._stalls.stalls

    @property
    def lapses(self) -> int:
        """How many tasks of the dead, or past their time, this worker took back or ended since the start."""
        return self._upkeep.lapses if hasattr(self, "_upkeep") else 0  # somebody may ask before the start

    @property
    def in_flight(self) -> int:
        return self._crew.in_flight if hasattr(self, "_crew") else 0

    @property
    def process_count(self) -> int:
        return self._crew.process_count

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        return self._loop

    @property
    def clock(self) -> Clock:
        return self._clock

    def _give_back(self, strangers: list[Held]) -> None:
        """Called by the upkeep, maybe from its thread."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has closed, and everything with it
            self._loop.call_soon_threadsafe(self._return, [Settlement.give_back(one) for one in strangers])

    def _return(self, settlements: list[Settlement]) -> None:
        self._strangers += settlements
        self._ring()


async def _keep_up(upkeep: Upkeep, own_storage: BaseStorage | None) -> None:
    try:
        await upkeep.run()
    finally:
        if own_storage is not None:
            await own_storage.close()


def _queue_names(queues: Sequence[str] | None) -> tuple[str, ...] | None:
    if queues is None:
        return None
    if isinstance(queues, str) or not queues:
        raise InvalidOption(f"queues must be a list of names, such as ['default'], not {queues!r}")
    return tuple(queue_name(queue) for queue in queues)


def _zero_or_seconds(timeout: Duration) -> float:
    return 0.0 if timeout == 0 else positive_seconds(timeout, "timeout")


class WorkerPool:
    """The blocking face of `AsyncWorkerPool`: same arguments, its own thread and event loop."""

    def __init__(
        self,
        storage: BaseStorage,
        concurrency: int = 1,
        poll_interval: Duration = 1.0,
        base_retry_delay: Duration = 1.0,
        **options: Unpack[PoolOptions],
    ) -> None:
        # What else a dict may hold when it runs is refused there, by name.
        self._pool = AsyncWorkerPool(
            storage,
            concurrency,
            poll_interval,
            base_retry_delay,
            **options,  # pyright: ignore[reportArgumentType]
        )
        # A clone: the storage itself belongs to whoever made it, on whatever loop that is.
        self._pool.storage = storage.clone()
        self._thread: LoopThread | None = None

    @classmethod
    def of(cls, pool: AsyncWorkerPool) -> Self:
        """The blocking face of a pool that was made already."""
        face = cls.__new__(cls)
        face._pool, face._thread = pool, None
        return face

    @property
    def running(self) -> bool:
        return self._pool.running

    @property
    def concurrency(self) -> int:
        return self._pool.concurrency

    def start(self) -> None:
        """Returns once the pool is running; what went wrong is raised here."""
        if self._thread is not None:
            logger.debug("the worker is already running")
            return
        thread = LoopThread("omniq-worker").start()
        try:
            thread.run(self._pool.start(), "use AsyncWorkerPool here")
        except BaseException:
            thread.stop()
            raise
        self._thread = thread

    def stop(self, *, timeout: Duration | None = None, cancel_in_flight: bool = False) -> None:
        """Returns when everything has ended and the thread is gone."""
        forbid_running_loop("use AsyncWorkerPool here")
        thread = self._thread
        if thread is None:
            return
        try:
            thread.run(
                self._pool.stop(timeout=timeout, cancel_in_flight=cancel_in_flight),
                "use AsyncWorkerPool here",
            )
        finally:
            self._thread = None
            thread.stop()

    def wait(self) -> None:
        """Until the pool has stopped."""
        if self._thread is None:
            raise PoolNotRunning("the worker is not running; call start() first")
        self._thread.run(self._pool.wait(), "use AsyncWorkerPool here")

    def run(self) -> None:
        """Start, and return when the pool has stopped; Ctrl-C stops it in good order."""
        self.start()
        try:
            self.wait()
        except KeyboardInterrupt:
            logger.info("interrupted; letting running tasks finish")
        finally:
            self.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()


class Worker:
    """Seed 002: reserves from a backend, runs, marks success or failure. A failure is final here."""

    def __init__(
        self,
        backend: Backend | BaseStorage,
        serializer: Serializer | None = None,
        max_concurrency: int = 10,
        poll_interval: Duration = 1.0,
        **unknown: Never,
    ) -> None:
        refuse_unknown(unknown, ("serializer", "max_concurrency", "poll_interval"), "a Worker")
        count(max_concurrency, "max_concurrency", least=1)
        if not isinstance(backend, Backend | BaseStorage):
            raise InvalidOption(f"backend must be a Backend or a BaseStorage, not {backend!r}")
        storage = backend.as_storage() if isinstance(backend, Backend) else backend
        self._pool = AsyncWorkerPool(
            storage, max_concurrency, poll_interval, wake=False, serializer=serializer
        )
        self._pool.without_retries()

    @property
    def running(self) -> bool:
        return self._pool.running

    async def start(self) -> None:
        """Connect the backend if it is not, and begin to reserve."""
        await self._pool.start()

    async def stop(self) -> None:
        """Reserve nothing more; returns after everything in flight has ended."""
        await self._pool.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()
