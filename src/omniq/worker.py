"""The workers: `AsyncWorkerPool`, its blocking twin `WorkerPool`, and `Worker` in the words of seed 002.

A pool fills its free slots from a storage, runs what it got, and tells the storage what became of it. Here
are its options and its life, from start to stop; what goes on in between is in three files:

    exchanges.py   claim ──> crew.py   start ──> body ──> outcome ──> decide ──> outbox ──┐
      ^                                                                                   │
      └──────────────── exchange(settlements, claim) <────────────────────────────────────┘
    upkeep.py      renew, watch, take back
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Never, Self, Unpack

from loguru import logger

from omniq.clock import REAL_CLOCK, Clock, wait_for_event
from omniq.crew import Crew
from omniq.errors import (
    InvalidOption,
    PoolNotRunning,
    StoreUnavailable,
)
from omniq.exchanges import Allowance, Counts, Exchanges, Outbox, ScarceQueues, Wishes
from omniq.executors import CANCEL_GRACE_S
from omniq.hooks import Hook
from omniq.logic.retry import RetryPolicy
from omniq.loopthread import LoopThread, forbid_running_loop
from omniq.registry import Resolver
from omniq.serializer import MsgpackSerializer, Serializer
from omniq.stalls import StallWatch
from omniq.storage.backend import Backend
from omniq.storage.base import BaseStorage
from omniq.task import (
    Duration,
    Held,
    Settlement,
    WorkerInfo,
    check_text,
    count,
    positive_seconds,
    refuse_unknown,
    shown,
)
from omniq.upkeep import Caretaker, Upkeep
from omniq.workeroptions import (
    PoolOptions,
    ProcessLimits,
    check_process_pool,
    check_queues,
    check_serializer,
    check_storage,
    zero_or_seconds,
)

if TYPE_CHECKING:
    from omniq.metrics import Meter
    from omniq.pool import WorkerPool as ProcessPool
    from omniq.tracing import Tracing

MAX_WORKER_NAME: Final = 128


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
        self.storage = check_storage(storage)
        self.concurrency = count(concurrency, "concurrency", least=1)
        self.poll_interval_s = positive_seconds(poll_interval, "poll_interval")
        self.lease_s = positive_seconds(lease, "lease")
        self.queues = check_queues(queues)
        self.running = False
        self._counts = Counts()
        self._policy = RetryPolicy(
            positive_seconds(base_retry_delay, "base_retry_delay"),
            positive_seconds(max_retry_delay, "max_retry_delay"),
        )
        self._wake = wake
        self._serializer = check_serializer(serializer) or MsgpackSerializer()
        if serializer is not None:
            storage.serializer = serializer  # results are read with what they were written with
        self._resolver = Resolver(allow=allow)
        self._hooks: Sequence[Hook] = ()
        self._tracing: Callable[[], Tracing | None] = lambda: None  # asked at each start
        self._process_pool = check_process_pool(process_pool)
        self._process_limits = ProcessLimits()
        self._injected_clock = clock
        self._scarce = ScarceQueues()
        self._can_isolate = process_pool is not None
        self._clock = clock or REAL_CLOCK
        self._name = check_text(name, "name", MAX_WORKER_NAME)
        self._renews = True
        self._ends_when_idle = False
        self._allowance: Allowance | None = None
        self._stalls: StallWatch | None = None
        self._meter: Meter | None = None
        self._identity = ""
        self.id = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._borrows = False
        self._starting: asyncio.Event | None = None  # while a start is under way

    # --- how it differs for those who embed it ---------------------------------------------------

    def serve(
        self,
        resolver: Resolver,
        scarce: Iterable[str] = (),
        hooks: Sequence[Hook] = (),
        tracing: Callable[[], Tracing | None] = lambda: None,
    ) -> Self:
        """Run what `resolver` finds, instead of any path that can be imported, with `hooks` around it.

        From the `scarce` queues no more is claimed than processes are free. Tasks of an application can run
        in any process that imports it, so what survives a death of this worker runs in one of its own next.
        """
        self._resolver = resolver
        self._hooks = hooks
        self._tracing = tracing
        self._scarce.dedicate(scarce)
        outlived = self._injected_clock is None and self.storage.capabilities.durable
        # Where one function has no name in another process, its deaths must count here.
        self._can_isolate = outlived and resolver.all_have_names
        return self

    def without_retries(self) -> Self:
        """A failure is final."""
        self._policy = RetryPolicy(retries=False)
        return self

    def until_idle(self, allowance: Allowance | None = None) -> Self:
        """Stop by itself as soon as nothing is due and nothing runs, or all that may run did: for tests."""
        self._ends_when_idle, self._allowance = True, allowance
        return self

    def supervised(self, identity: str) -> Self:
        """Somebody else renews the leases of this worker, under an identity that they chose."""
        self._identity, self._renews = identity, False
        return self

    def limited(self, limits: ProcessLimits) -> Self:
        """Keep the processes that it starts for tasks within these; a pool that was given has its own."""
        self._process_limits = limits
        return self

    def measured(self) -> Meter:
        """Count and time runs from the next start on, for Prometheus; without this nothing is imported."""
        from omniq.metrics import Meter

        self._meter = self._meter or Meter(self)
        return self._meter

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the storage and begin. Returns when the pool is running; starting twice does nothing."""
        await self._until_started()
        if self._loop is not None and self._loop.is_closed():
            self._forget_loop()
        if self._loop_task is not None:
            logger.debug("the worker is already running")
            return
        starting = self._starting = asyncio.Event()
        try:
            await self._begin()
        finally:
            self._starting = None
            starting.set()

    async def _until_started(self) -> None:
        """Whoever starts or stops meanwhile finds it running, or not: nothing in between."""
        while self._starting is not None:
            await self._starting.wait()

    def _forget_loop(self) -> None:
        """The loop that it ran on has closed without a stop, and everything on it."""
        self._loop = self._loop_task = self._closing = None
        self.running = False
        if self._is_last_borrower():
            self.storage.abandon()

    def _borrow(self) -> None:
        """Take note that the storage is open for our sake, unless somebody else has opened it for theirs."""
        self._borrows = self.storage.borrowers > 0 or not self.storage.is_open
        self.storage.borrowers += self._borrows

    def _is_last_borrower(self) -> bool:
        """Give it back; whether it is for us to close."""
        borrows, self._borrows = self._borrows, False
        self.storage.borrowers -= borrows
        return borrows and self.storage.borrowers == 0

    async def _begin(self) -> None:
        if not self.storage.capabilities.batched:
            self.storage.clock, self.storage.serializer = self._clock, self._serializer
        self._reset()
        await self._crew.open()
        self._borrow()
        try:
            await self.storage.open()
            # Known to be alive before it holds anything, so that its death is noticed at once.
            await self.storage.beat(self.info())
        except StoreUnavailable as exc:
            logger.warning("the store is away, will try again: {}", exc)
        except BaseException:
            await self._crew.close()
            if self.storage.is_open:  # cancelled just now, it may be among the living all the same
                with contextlib.suppress(Exception):
                    await self.storage.leave(self.id)
            if self._is_last_borrower():
                await self.storage.close()
            raise
        self._start_upkeep()
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
        self._outbox = Outbox()
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
            process_limits=self._process_limits,
            settled=self._outbox.tell,
            slot_freed=self._outbox.ring,
            needs_process=self._scarce.needs_process,
            begin=self.storage.begin if self.storage.capabilities.transacts else None,
            meter=self._meter,
            tracing=self._tracing(),
        )
        self._exchanges = Exchanges(
            self.storage, self._crew, self._outbox, self._scarce, self._wishes(), self._counts, self._clock
        )

    def _wishes(self) -> Wishes:
        return Wishes(
            worker=self.id,
            queues=self.queues,
            lease_s=self.lease_s,
            poll_interval_s=self.poll_interval_s,
            wake=self._wake,
            isolates=self._isolates,
            ends_when_idle=self._ends_when_idle,
            allowance=self._allowance,
        )

    async def _run_loop(self) -> None:
        self._crew.stand_by()
        try:
            await self._exchanges.run()
        finally:
            self.running = False

    @property
    def _isolates(self) -> bool:
        """Whether tasks that survive this worker are run alone next."""
        return self._can_isolate and self.storage.capabilities.batched

    async def stop(self, *, timeout: Duration | None = None, cancel_in_flight: bool = False) -> None:
        """Claim nothing more, let bodies finish, settle everything, close what `start` opened.

        After `timeout`, bodies are cancelled and their tasks go back with nothing spent.
        """
        timeout_s = None if timeout is None else zero_or_seconds(timeout)
        await self._until_started()
        loop_task = self._loop_task
        if loop_task is None:
            return
        if self._loop is not None and self._loop.is_closed():
            self._forget_loop()
            return
        if timeout_s is None and not cancel_in_flight:
            self.forbid_own_body()
        self.running = False
        self._exchanges.stop()
        if cancel_in_flight:
            timeout_s = 0.0
        if timeout_s is not None and not await self._ends_within(loop_task, timeout_s):
            self._exchanges.give_up_soon()
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

    def forbid_own_body(self) -> None:
        """A body that waits for all bodies to end waits for itself."""
        if self._loop_task is not None and self._crew.runs_caller():
            raise InvalidOption(
                "stop() waits for running bodies, and this is one of them; "
                "give it a limit, as in stop(timeout=5), or stop the worker from outside"
            )

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
        await self._caretaker.stop()
        try:
            if not self._exchanges.stopped_for_good:
                await self._take_leave()
        except Exception as exc:
            logger.warning("could not say goodbye to the store: {!r}", exc)
        if self._is_last_borrower():
            await self.storage.close()
        self._loop_task = None
        logger.info("worker stopped: {worker}", worker=self.id)

    async def _take_leave(self) -> None:
        """Nothing may stay RUNNING in the name of a worker that is gone, and no end untold."""
        if self._outbox.settlements:  # its loop was cancelled before it could tell
            await self.storage.settle(self._outbox.settlements)
        left = await self.storage.held(self.id)
        if left:
            await self.storage.settle([Settlement.give_back(one) for one in left])
        await self.storage.leave(self.id)

    # --- beside the bodies -----------------------------------------------------------------------

    def _start_upkeep(self) -> None:
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
        self._caretaker = Caretaker(self._upkeep, storage if own_loop else None)

    def _give_back(self, strangers: list[Held]) -> None:
        """Called by the upkeep, maybe from its thread."""
        assert self._loop is not None
        settlements = [Settlement.give_back(one) for one in strangers]
        with contextlib.suppress(RuntimeError):  # the loop has closed, and everything with it
            self._loop.call_soon_threadsafe(self._exchanges.give_back, settlements)

    # --- what others may ask ---------------------------------------------------------------------

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
            blocked_s=0.0 if self._stalls is None else self._stalls.blocked_s,
            unserved=self._crew.unserved(),
            pools=self._crew.pools(tuple(self._scarce.names)),
        )

    @property
    def claimed(self) -> int:
        """How many tasks it has taken so far."""
        return self._counts.claimed

    @property
    def stale_reports(self) -> int:
        """How many of its reports came too late: somebody else had closed the run."""
        return self._counts.stale_reports

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
        self._starting = threading.RLock()

    @classmethod
    def of(cls, pool: AsyncWorkerPool) -> Self:
        """The blocking face of a pool that was made already."""
        face = cls.__new__(cls)
        face._pool, face._thread, face._starting = pool, None, threading.RLock()
        return face

    @property
    def running(self) -> bool:
        return self._pool.running

    @property
    def concurrency(self) -> int:
        return self._pool.concurrency

    def start(self) -> None:
        """Returns once the pool is running; what went wrong is raised here."""
        with self._starting:
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
        if timeout is not None:
            zero_or_seconds(timeout)  # refused before anything has ended
        elif not cancel_in_flight:
            self._pool.forbid_own_body()
        with self._starting:  # one that is under way
            thread = self._thread
        if thread is None:
            return
        try:
            thread.run(
                self._pool.stop(timeout=timeout, cancel_in_flight=cancel_in_flight),
                "use AsyncWorkerPool here",
            )
        except StoreUnavailable:
            if self._thread is thread:
                raise
            # Somebody else stopped it meanwhile, and has ended the thread under us.
        except KeyboardInterrupt:
            # Nobody waits for the bodies any more: they are given back, or would stay RUNNING in our name.
            thread.run(self._pool.stop(timeout=0))
            raise
        finally:
            if self._thread is thread:
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
            logger.info("interrupted; letting running tasks finish (again, and they are given back)")
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
            raise InvalidOption(f"backend must be a Backend or a BaseStorage, not {shown(backend)}")
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
