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
import os
import random
import secrets
import socket
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

from loguru import logger

from omniq.clock import REAL_CLOCK, Clock, wait_for_event
from omniq.running import Context
from omniq.errors import (
    CorruptRecord,
    InvalidOption,
    PoolNotRunning,
    StoreUnavailable,
    UnknownTask,
    WorkerStuck,
)
from omniq.executors import Deadlines, Flight, Reason, Threads, describe, encoded, failure, run_coroutine
from omniq.logic.lifecycle import settle
from omniq.logic.retry import RetryPolicy
from omniq.loopthread import LoopThread
from omniq.registry import Resolver, Runnable, Unresolvable, runnable_of, with_context
from omniq.serializer import MsgpackSerializer, Serializer
from omniq.storage.backend import Backend
from omniq.storage.base import BaseStorage, Claimed
from omniq.task import (
    Action,
    Answer,
    Claim,
    Duration,
    Failed,
    Held,
    Outcome,
    Settlement,
    Snoozed,
    StoredTask,
    Task,
    TaskError,
    WorkerInfo,
    count,
    new_id,
    positive_seconds,
    queue_name,
    shown,
)
from omniq.upkeep import Upkeep

# After bodies were cancelled: how long they may take to notice before their tasks go back without them.
CANCEL_GRACE_S: Final = 2.0
# A stop with a time limit does not wait longer than this for a store that is away.
LAST_SETTLE_S: Final = 5.0
# Every slot held by a thread that outlived its timeout, for this long: the pool is stuck.
STUCK_AFTER_S: Final = 5.0
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0
PAUSE_WHILE_STOPPING_S: Final = 0.2
# A task that this worker may not run goes back for this long, so that another can have it.
UNSERVED_PAUSE_S: Final = 5.0


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
        clock: Clock | None = None,
        name: str = "worker",
    ) -> None:
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
        self._injected_clock = clock
        self._clock = clock or REAL_CLOCK
        self._name = name
        self._random = random.random
        self._renews = True
        self._identity = ""
        self.id = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_task: asyncio.Task[None] | None = None
        self._starting = False

    # --- how it differs for those who embed it ---------------------------------------------------

    def serve(self, resolver: Resolver) -> Self:
        """Run what `resolver` finds, instead of any path that can be imported."""
        self._resolver = resolver
        return self

    def without_retries(self) -> Self:
        """A failure is final."""
        self._policy = RetryPolicy(retries=False)
        return self

    def supervised(self, identity: str) -> Self:
        """Somebody else renews the leases of this worker, under an identity that they chose."""
        self._identity, self._renews = identity, False
        return self

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
        self._flights: dict[str, Flight] = {}
        self._strays: set[Flight] = set()  # ended for the store, but a thread is still in them
        self._outbox: list[Settlement] = []
        self._strangers: list[Settlement] = []
        self._progress: dict[str, tuple[int, float, float | None]] = {}
        self._bell = asyncio.Event()
        self._stopping = False
        self._stop_asked = asyncio.Event()
        self._give_up_settling_at: float | None = None
        self._stuck_since: float | None = None
        self._look_at = 0.0  # when the next claim may be made, unless something wakes us
        self._found_nothing = False
        self._sleeper: asyncio.Task[None] | None = None
        self._pause_s = FIRST_PAUSE_S
        self._deadlines = Deadlines(self._clock)
        self._threads = Threads(self.concurrency, self._encode, self._thread_left)

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
            self._interrupt_all("stop")
            if not await self._ends_within(loop_task, CANCEL_GRACE_S):
                self._abandon_all()
        # A stop that is itself cancelled leaves the bodies and their leases alone; the next one ends it.
        await asyncio.wait((loop_task,))
        await self._close()
        loop_task.result()
        self._raise_if_stuck()

    async def _ends_within(self, task: asyncio.Task[None], timeout_s: float) -> bool:
        ended = asyncio.Event()
        task.add_done_callback(lambda _: ended.set())
        return await wait_for_event(self._clock, ended, timeout_s)

    async def wait(self) -> None:
        """Until the pool has stopped. Raises what broke it, and `WorkerStuck` when no slot can work."""
        if self._loop_task is None:
            raise PoolNotRunning("the worker is not running; await start() first")
        await asyncio.shield(self._loop_task)
        self._raise_if_stuck()

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
        if self._loop_task is None:
            return
        self._loop_task = None
        self.running = False
        self._deadlines.stop()
        self._threads.stop()
        await self._stop_upkeep()
        try:
            if not self._stopped_for_good():
                await self._take_leave()
        except Exception as exc:
            logger.warning("could not say goodbye to the store: {!r}", exc)
        if self._opened_storage:
            await self.storage.close()
        logger.info("worker stopped: {worker}", worker=self.id)

    def _stopped_for_good(self) -> bool:
        return self._give_up_settling_at is not None and self._clock.monotonic() >= self._give_up_settling_at

    async def _take_leave(self) -> None:
        """Nothing may stay RUNNING in the name of a worker that is gone."""
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
                elif (self._stopping and not self._flights) or self._is_stuck():
                    return
                else:
                    await self._rest()
        finally:
            self.running = False
            self._stop_sleeping()

    def _take_outbox(self) -> list[Settlement]:
        """What is to be told. No exchange is out now, so whoever is still unknown really is a stranger."""
        unknown = [s for s in self._strangers if s.task.id not in self._flights]
        outbox, self._outbox, self._strangers = self._outbox + unknown, [], []
        return outbox

    def _refreshed(self, claim: Claim | None, settling: int) -> Claim | None:
        """The claim to send now: never more than the free slots, nor before its time."""
        free = self.concurrency - len(self._flights) - len(self._strays)
        if self._stopping or free <= 0:
            return None
        if claim is not None:
            return claim
        if self._clock.monotonic() < self._look_at and (self._found_nothing or not settling):
            return None
        return Claim(self.id, self.queues, free, self.lease_s, new_id())

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
        for task in claims:
            self._start(task)
        return True

    async def _pause(self, why: str) -> None:
        logger.warning("{why}; next try in {pause:.2f} s", why=why, pause=self._pause_s)
        self._bell.clear()
        if self._stop_asked.is_set():
            await wait_for_event(self._clock, asyncio.Event(), min(self._pause_s, PAUSE_WHILE_STOPPING_S))
        else:
            await wait_for_event(self._clock, self._stop_asked, self._pause_s)
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)

    def _note_answers(self, settlements: list[Settlement], answers: list[Answer]) -> None:
        for settlement, answer in zip(settlements, answers, strict=True):
            if answer is Answer.UNSENT:
                self._outbox.append(settlement)
            elif answer is Answer.STALE:
                self.stale_reports += 1
                logger.warning(
                    "stale: {task} epoch {epoch} was closed by somebody else; nothing was changed",
                    task=settlement.task.id,
                    epoch=settlement.task.epoch,
                )

    def _plan_next_look(self, claim: Claim, claims: list[Claimed]) -> None:
        full = len(claims) >= claim.limit
        self._found_nothing = not claims
        self._look_at = 0.0 if full else self._clock.monotonic() + self.poll_interval_s
        if claims:
            logger.debug("reserved {n} tasks", n=len(claims))
        else:
            logger.debug("nothing due")

    async def _rest(self) -> None:
        """Until a body ends, the storage wakes us, the poll interval is over, or we are stopped."""
        free = self.concurrency - len(self._flights) - len(self._strays)
        if self._stopping or (free <= 0 and not self._strays):
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

    def _ring(self) -> None:
        self._bell.set()

    # --- one task --------------------------------------------------------------------------------

    def _start(self, task: Claimed) -> None:
        """Give a claimed task its slot and its body; what cannot run ends here."""
        context = Context(task.id, task.attempts + 1, task.epoch, self._note_progress)
        flight = Flight(task, context, self._landed)
        self._flights[task.id] = flight
        runnable = self._prepare(flight)
        if runnable is None:
            return
        logger.info(
            "started {task} {func} attempt {attempt}",
            task=task.id,
            func=task.func_path,
            attempt=task.attempts + 1,
        )
        if task.timeout is not None:
            self._deadlines.add(flight, task.timeout)
        if runnable.kind == "async":
            assert self._loop is not None
            flight.fly(self._loop, run_coroutine(flight, self._encode))
        else:
            self._threads.submit(flight)

    def _prepare(self, flight: Flight) -> Runnable | None:
        """Find the function and decode its arguments, or end the flight saying why not."""
        task = flight.claim
        try:
            carried, args, kwargs = self._call_of(task)
            runnable = self._resolver.resolve(task.func_path) if carried is None else runnable_of(carried)
        except CorruptRecord as exc:
            flight.end(failure(exc, "undecodable", final=True))
        except UnknownTask as exc:
            logger.warning("unserved: {task}: {why}", task=task.id, why=str(exc))
            flight.end(Snoozed(UNSERVED_PAUSE_S))
        except Unresolvable as exc:
            flight.end(Failed(describe(exc, "unresolvable")))
        except (Exception, SystemExit) as exc:  # a serializer or an import of somebody's own
            flight.end(failure(exc, "undecodable", final=True))
        else:
            flight.runnable = runnable
            flight.args, flight.kwargs = with_context(runnable, args, kwargs, flight.context)
            return runnable
        return None

    def _call_of(self, task: Claimed) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """The function if the payload carries it, and the arguments. Nothing is imported here."""
        if isinstance(task, Task):
            return None, task.args, task.kwargs
        limit = getattr(self.storage, "max_payload", None)
        if limit is not None and len(task.payload) > limit:
            raise CorruptRecord(f"a payload of {len(task.payload):,} bytes is over the limit of {limit:,}")
        if not task.func_path:
            return self._serializer.load_call(task.payload)
        carried, args, kwargs = self._serializer.decode_call(task.payload)
        # A path inside a payload is not trusted to choose; only the task's own func_path is.
        return (carried if callable(carried) else None), args, kwargs

    def _encode(self, value: Any) -> Outcome:
        return encoded(value, self._serializer, getattr(self.storage, "max_payload", None))

    def _landed(self, flight: Flight, outcome: Outcome) -> None:
        """A run has ended: decide what becomes of its task. The slot is free when the store knows."""
        task = flight.claim
        if self._flights.get(task.id) is flight:
            del self._flights[task.id]
        if flight.deadline:
            self._deadlines.remove(flight)
        self._progress.pop(task.id, None)
        if flight.occupied:
            self._strays.add(flight)
            self._stuck_since = self._clock.monotonic()
        if flight.reason == "lost":
            logger.warning("lost {task} epoch {epoch}: its lease is over", task=task.id, epoch=task.epoch)
        else:
            settlement = settle(task, outcome, self._policy, self._random())
            self._log(settlement)
            self._outbox.append(settlement)
        self._ring()

    def _thread_left(self, flight: Flight) -> None:
        self._strays.discard(flight)
        if flight.ended:
            self._ring()

    def _log(self, settlement: Settlement) -> None:
        task, error = settlement.task, settlement.error
        match settlement.action:
            case Action.SUCCEED | Action.REPEAT:
                logger.info("succeeded {task}", task=task.id)
            case Action.RETRY:
                assert isinstance(task, StoredTask | Task)
                eta = self._clock.now() + timedelta(seconds=settlement.delay_s)
                logger.debug(
                    "failed {task} attempt {attempt}, next at {eta}: {error}",
                    task=task.id,
                    attempt=task.attempts + 1,
                    eta=eta.isoformat(),
                    error=_type_of(error),
                )
            case Action.FAIL | Action.CONTINUE:
                logger.info("failed {task} for good: {error}", task=task.id, error=_type_of(error))
            case Action.GIVE_BACK:
                logger.debug("gave back {task} for {delay:.3f} s", task=task.id, delay=settlement.delay_s)

    # --- ending early ----------------------------------------------------------------------------

    def _interrupt_all(self, reason: Reason) -> None:
        for flight in list(self._flights.values()):
            flight.interrupt(reason)

    def _abandon_all(self) -> None:
        """Bodies that did not even end when cancelled: their tasks go back without them."""
        for flight in list(self._flights.values()):
            logger.error("abandoned {task}: its body ignores cancellation", task=flight.claim.id)
            flight.end(flight.interrupted())

    def _is_stuck(self) -> bool:
        """Every slot is held by a thread that nobody can stop."""
        if not self._all_stuck() or self._stuck_since is None:
            return False
        return self._clock.monotonic() - self._stuck_since >= STUCK_AFTER_S

    def _all_stuck(self) -> bool:
        return sum(flight.reason == "timeout" for flight in self._strays) >= self.concurrency

    def _raise_if_stuck(self) -> None:
        if self._all_stuck():
            raise WorkerStuck(
                f"all {self.concurrency} slots are held by threads that went on after their timeout; "
                "restart the process, or run such tasks with executor='process'"
            )

    # --- beside the bodies (called by the upkeep, maybe from its thread) --------------------------

    async def _start_upkeep(self) -> None:
        own_loop = self._injected_clock is None and self.storage.overrides("clone")
        storage = self.storage.clone() if own_loop else self.storage
        self._upkeep = Upkeep(storage, self, self.id, self.lease_s, self._clock, renews=self._renews)
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

    def holding(self) -> list[Held]:
        return [flight.held for flight in list(self._flights.values())]

    def info(self) -> WorkerInfo:
        return WorkerInfo(
            id=self.id,
            name=self._name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
            concurrency=self.concurrency,
            in_flight=len(self._flights),
            functions=self._resolver.names,
            started_at=self._started_at,
        )

    def _note_progress(self, task_id: str, epoch: int, done: float, total: float | None) -> None:
        self._progress[task_id] = (epoch, done, total)

    def take_progress(self) -> list[tuple[str, int, float, float | None]]:
        taken: list[tuple[str, int, float, float | None]] = []
        while self._progress:
            with contextlib.suppress(KeyError):
                task_id, (epoch, done, total) = self._progress.popitem()
                taken.append((task_id, epoch, done, total))
        return taken

    def cancel(self, ids: Iterable[str]) -> None:
        self._on_loop(self._interrupt, [(task_id, None) for task_id in ids], "cancel")

    def lose(self, held: Iterable[Held]) -> None:
        self._on_loop(self._interrupt, [(one.id, one.epoch) for one in held], "lost")

    def give_back(self, held: Iterable[Held]) -> None:
        self._on_loop(self._return, [Settlement.give_back(one) for one in held])

    def _on_loop(self, do: Any, items: list[Any], *args: Any) -> None:
        if items and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed, and everything with it
                self._loop.call_soon_threadsafe(do, items, *args)

    def _interrupt(self, ids: list[tuple[str, int | None]], reason: Reason) -> None:
        for task_id, epoch in ids:
            flight = self._flights.get(task_id)
            if flight is None or epoch not in (None, flight.claim.epoch) or flight.reason == reason:
                continue
            flight.interrupt(reason)

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


def _type_of(error: TaskError | None) -> str:
    """An error in a log line: its type. The message may quote an argument; it stands on the task."""
    return "" if error is None else shown(f"{error.type} ({error.kind})")[1:-1]


def _zero_or_seconds(timeout: Duration) -> float:
    return 0.0 if timeout == 0 else positive_seconds(timeout, "timeout")


class WorkerPool:
    """The blocking face of `AsyncWorkerPool`: same arguments, its own thread and event loop."""

    def __init__(self, storage: BaseStorage, *args: Any, **options: Any) -> None:
        self._pool = AsyncWorkerPool(storage, *args, **options)
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
    ) -> None:
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
