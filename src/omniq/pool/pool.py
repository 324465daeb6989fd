"""Calls in a set of processes that grows and shrinks with the work.

    async with WorkerPool(min_workers=1, max_workers=4) as pool:
        value = await pool.submit(function, argument)
        async for value in pool.map(function, items, chunksize=10): ...

All of it lives on the loop that started it.
"""

from __future__ import annotations

import asyncio
import fnmatch
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from loguru import logger

from omniq.clock import REAL_CLOCK, Clock
from omniq.errors import InvalidOption, PoolClosed, PoolNotRunning, StartFailed
from omniq.pool.autoscaler import STOP_GRACE_S, Autoscaler, Decision
from omniq.pool.calling import PLAIN, Intake, PoolOptions
from omniq.pool.dispatcher import Dispatcher
from omniq.pool.eager import Eager
from omniq.pool.events import WorkerEvents
from omniq.pool.limits import changed_limits, changed_worker_limits, pool_limits, worker_limits
from omniq.pool.message import CallOptions, Message
from omniq.pool.process import Template
from omniq.pool.registry import WorkerData
from omniq.pool.starting import Starting
from omniq.pool.status import CallState, CallStatus, EndedWorker, PoolState, PoolStatus, WorkerStatus
from omniq.pool.worker import GONE, PoolWorker
from omniq.task import Duration, positive_seconds

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

AHEAD_PER_WORKER: Final = 2


class WorkerPool:
    """An autoscaled set of processes. `workers` is its registry."""

    def __init__(
        self,
        min_workers: int = 1,
        max_workers: int | None = None,
        *,
        scaledown_wait: Duration = 15.0,
        target_wait: Duration = 0.02,
        max_tasks_per_worker: int | None = None,
        worker_lifetime: Duration | None = None,
        worker_memory: int | None = None,
        grace: Duration = 2.0,
        preload: Sequence[str] = (),
        preload_required: bool = True,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """At least `min_workers` processes, at most `max_workers` (default: the CPUs that may be used).

        `scaledown_wait`: how long a worker must have been superfluous before it is let go.
        `target_wait`: how long a call may wait before another worker is started for it.
        `max_tasks_per_worker`, `worker_lifetime`, `worker_memory` (bytes): when a worker is replaced.
        `grace`: how long an interrupted call may go on before its process is killed.
        `preload`: modules that are imported once, before any worker is started.
        `preload_required`: whether one that cannot be imported there fails the start, or is only logged.
        """
        self.workers = WorkerData()
        self._clock = clock
        self._dispatcher = Dispatcher(self.workers, clock, positive_seconds(grace, "grace"))
        self._dispatcher.worker_limits = worker_limits(max_tasks_per_worker, worker_lifetime, worker_memory)
        limits = pool_limits(min_workers, max_workers, scaledown_wait, target_wait)
        self._autoscaler = Autoscaler(self._dispatcher, limits, clock, self._add_worker)
        self._dispatcher.nudge = self._autoscaler.nudge
        self._dispatcher.look_soon = self._autoscaler.look_soon
        self._preload = tuple(preload)
        self._preload_required = preload_required
        self._state: PoolState = "new"
        self._intake = Intake(self._dispatcher, clock, self._check_running, self._ahead)
        self._worker_ids = itertools.count()
        self._spawning = Eager()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._template: Template | None = None
        self._scaling: asyncio.Task[None] | None = None
        self._starting: Starting | None = None
        self._ending: asyncio.Task[None] | None = None

    # --- life ---

    async def start(self) -> Self:
        """Start the first workers. Once is enough; a second time does nothing.

        Whoever else calls this meanwhile waits for the same start, and fails with it. It is given up when
        nobody waits for it any more, and when the pool is shut down. Then nothing is left of it: where this
        raises, also CancelledError in the last moment, the pool does not run unless somebody else started it.
        """
        self._check_loop()
        while (starting := self._starting) is not None and starting.is_given_up:
            await starting.over()  # what was given up is undone first
        if self._state in ("closing", "closed"):
            raise PoolClosed("this pool was shut down; make a new WorkerPool")
        if starting is None:
            if self._state == "running":
                logger.debug("the pool is already running")
                return self
            self._state = "running"
            self._loop = asyncio.get_running_loop()
            starting = self._starting = Starting(self._begin)
        await starting.wait()
        return self

    async def _begin(self, start: Starting) -> None:
        self._template = self._new_template()
        try:
            await self._template.start()
            await self._autoscaler.look()
            await self._spawning.join()
            await start.taken()
            self._scaling = asyncio.get_running_loop().create_task(self._autoscaler.run())
        except BaseException as exc:
            if self._state == "running":
                self._state = "new"
            await self._template.close()
            why = f"did not run, because the pool has not started: {exc}"
            await self._clear(lambda name: StartFailed(f"{name} {why}"))
            raise
        finally:
            self._starting = None

    async def _clear(self, why: Callable[[str], Exception]) -> None:
        """With no process left: end every call, and forget every worker."""
        await self._spawning.join()
        await self._dispatcher.join()
        self._dispatcher.fail_all(why)
        for worker_id in await self.workers.snapshot():
            await self.workers.remove(worker_id)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown(cancel=exc is not None)

    async def shutdown(self, *, timeout: Duration | None = None, cancel: bool = False) -> None:
        """Take no more calls, let those that are there end, and end every process.

        After `timeout`, or at once with `cancel=True`, calls that have not ended are cancelled.
        Whoever else calls this meanwhile waits for the same end.
        """
        limit_s = None if timeout is None else positive_seconds(timeout, "timeout")
        self._check_loop()
        if self._state == "new" and self._starting is None:
            self._state = "closed"
            return
        if self._ending is None:
            self._state = "closing"
            self._ending = asyncio.get_running_loop().create_task(self._end(0.0 if cancel else limit_s))
        elif cancel or (
            limit_s is not None and not await self._in_time(asyncio.shield(self._ending), limit_s)
        ):
            self._cancel_all()
        await asyncio.shield(self._ending)

    async def _end(self, patience_s: float | None) -> None:
        if self._starting is not None:
            await self._starting.end()
        try:
            await self._let_calls_end(patience_s)
        finally:
            if self._scaling is not None:
                self._scaling.cancel()
                await asyncio.wait([self._scaling])
            await self._stop_workers()
            if self._template is not None:
                await self._template.close()
            await self._clear(lambda name: PoolClosed(f"the pool was shut down before {name} had ended"))
            self._state = "closed"

    async def _let_calls_end(self, patience_s: float | None) -> None:
        if patience_s is None:
            await self._dispatcher.all_ended()
            return
        if await self._in_time(self._dispatcher.all_ended(), patience_s):
            return
        self._cancel_all()
        await self._in_time(self._dispatcher.all_ended(), STOP_GRACE_S)

    async def _stop_workers(self) -> None:
        for worker in (await self.workers.snapshot()).values():
            async with worker.lock:
                if worker.child is None and worker.status not in GONE:
                    worker.enter("error", "the pool was shut down before it had a process")
                elif worker.status not in GONE and worker.status != "stopping":
                    worker.ask_to_stop("the pool is shut down")
        if await self._in_time(self._all_gone(), STOP_GRACE_S):
            return
        for worker in (await self.workers.snapshot()).values():
            async with worker.lock:
                if worker.status not in ("retired", "error"):
                    worker.kill("killed: it did not end when the pool was shut down")
        await self._in_time(self._all_gone(), STOP_GRACE_S)

    async def _all_gone(self) -> None:
        while not await self.workers.every(lambda worker: worker.status in ("retired", "error")):
            await self._dispatcher.next_exit()

    @staticmethod
    async def _in_time(work: Any, limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                await work
        except TimeoutError:
            return False
        return True

    # --- calls ---

    async def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `fn(*args, **kwargs)` in a process and return what it returns, or raise what it raises.

        Raises `WorkerDied` when the process died. Cancelling the task that awaits this cancels the call.
        """
        message = self._intake.message(fn, args, kwargs)
        self._dispatcher.dispatch(message)
        try:
            value: R = await message.future
        except asyncio.CancelledError:
            self._dispatcher.cancel(message)
            raise
        return value

    def map(
        self, fn: Callable[[T], R], items: Iterable[T], *, chunksize: int = 1, ordered: bool = True
    ) -> AsyncIterator[R]:
        """`fn(item)` for each item: in the order of `items`, or as they end with `ordered=False`.

        `chunksize` items are sent to a worker at once. The first exception ends it; so does leaving the loop.
        """
        return PoolOptions(self._intake, PLAIN).map(fn, items, chunksize=chunksize, ordered=ordered)

    def options(
        self,
        *,
        retries: int = 0,
        timeout: Duration | None = None,
        on_note: Callable[[Any], object] | None = None,
    ) -> PoolOptions:
        """`submit` and `map` with other limits.

        `retries`: how often a call is run again whose process died.
        `timeout`: how long it may run; then it is interrupted, and its process killed if that does not help.
        `on_note`: called with whatever the running function says by `omniq.pool.child.current().note(...)`.
        """
        limit_s = None if timeout is None else positive_seconds(timeout, "timeout")
        return PoolOptions(self._intake, CallOptions(retries, limit_s, on_note))

    def message(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Message:
        """A call that can be dispatched: `submit` in two steps."""
        return self._intake.message(fn, args, kwargs)

    async def dispatch_task(self, message: Message) -> None:
        """Give `message` to the worker whose turn it is, or let it wait. `message.result()` is its result."""
        self._check_running()
        if message.future.done() or message.id in self._dispatcher.messages:
            raise InvalidOption(
                f"{message!r} was dispatched before; make another one with pool.message(...) for each call"
            )
        message.future.add_done_callback(_seen)  # whether somebody asks for it or not
        self._dispatcher.dispatch(message)

    def _ahead(self) -> int:
        return AHEAD_PER_WORKER * self._autoscaler.limits.max_workers

    def check_running(self) -> None:
        """Raise `PoolNotRunning` unless calls can be made here, on this loop."""
        self._check_running()

    def _check_running(self) -> asyncio.AbstractEventLoop:
        if self._state == "new":
            raise PoolNotRunning("the pool is not running; write `async with pool:` or `await pool.start()`")
        if self._state != "running":
            raise PoolClosed("this pool was shut down; make a new WorkerPool")
        return self._check_loop()

    def _check_loop(self) -> asyncio.AbstractEventLoop:
        """Nothing of a pool that runs may be awaited anywhere else."""
        loop = asyncio.get_running_loop()
        if self._state in ("running", "closing") and loop is not self._loop:
            raise PoolNotRunning(
                "this pool runs on another event loop; call it there, for example with "
                "asyncio.run_coroutine_threadsafe"
            )
        return loop

    # --- looking after it ---

    def status(self) -> PoolStatus:
        """What every worker does and since when, what waits, and what the autoscaler decided and why."""
        now, dispatcher = self._clock.monotonic(), self._dispatcher
        workers = [WorkerStatus.of(view, now) for view in self.workers.views()]
        last = self._autoscaler.trace[-1].wanted if self._autoscaler.trace else None
        waiting = len(dispatcher.backlog)
        return PoolStatus(
            state=self._state,
            workers=workers,
            waiting=waiting,
            running=len(dispatcher.messages) - waiting,
            wanted=0 if last is None else last.workers,
            reason="not started" if last is None else last.reason,
            limits=self._autoscaler.limits,
            ended=[EndedWorker(end.worker, end.pid, now - end.at, end.reason) for end in dispatcher.ends],
        )

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def min_workers(self) -> int:
        """How many processes there are at least."""
        return self._autoscaler.limits.min_workers

    @property
    def max_workers(self) -> int:
        """How many processes there may be at once."""
        return self._autoscaler.limits.max_workers

    @property
    def free_workers(self) -> int:
        """How many more calls could begin at once: `max_workers` less those that run or wait."""
        if self._state in ("closing", "closed"):
            return 0
        return max(0, self.max_workers - len(self._dispatcher.messages))

    def scaling_trace(self) -> list[Decision]:
        """The latest decisions of the autoscaler that changed something, oldest first."""
        return list(self._autoscaler.trace)

    def calls(self, *, name: str | None = None, state: CallState | None = None) -> list[CallStatus]:
        """The calls that have not ended, oldest first; `name` may be a pattern such as `resize*`."""
        return [CallStatus.of(message, self._clock.monotonic()) for message in self._chosen(name, state)]

    async def cancel(
        self, *, id: int | None = None, name: str | None = None, state: CallState | None = None
    ) -> int:
        """Cancel the calls that fit, all of them without a filter. Returns how many, when they have ended."""
        self._check_loop()
        chosen = [message for message in self._chosen(name, state) if id is None or message.id == id]
        for message in chosen:
            self._dispatcher.cancel(message)
        if chosen:
            await asyncio.wait([message.future for message in chosen])
        return len(chosen)

    def _chosen(self, name: str | None, state: CallState | None) -> list[Message]:
        return [
            message
            for message in self._dispatcher.messages.values()
            if (name is None or fnmatch.fnmatchcase(message.name, name))
            and (state is None or (message.worker is None) == (state == "waiting"))
        ]

    def set_limits(
        self,
        *,
        min_workers: int | None = None,
        max_workers: int | None = None,
        scaledown_wait: Duration | None = None,
        target_wait: Duration | None = None,
        max_tasks_per_worker: int | None = None,
        worker_lifetime: Duration | None = None,
        worker_memory: int | None = None,
    ) -> None:
        """Change limits while the pool runs. What is not given stays."""
        limits = changed_limits(
            self._autoscaler.limits, min_workers, max_workers, scaledown_wait, target_wait
        )
        changes = worker_limits(max_tasks_per_worker, worker_lifetime, worker_memory)
        self._dispatcher.worker_limits = changed_worker_limits(self._dispatcher.worker_limits, changes)
        self._autoscaler.limits = limits
        self._autoscaler.look_soon()

    async def drain(self) -> int:
        """Wait until every call that is there now has ended; returns how many there were."""
        self._check_loop()
        return await self._dispatcher.all_ended()

    def _cancel_all(self) -> None:
        for message in list(self._dispatcher.messages.values()):
            self._dispatcher.cancel(message)

    # --- workers ---

    def _new_template(self) -> Template:
        return Template(preload=self._preload, preload_required=self._preload_required)

    def _new_worker(self, worker_id: int) -> PoolWorker:
        return PoolWorker(worker_id, self._clock)

    async def _add_worker(self) -> None:
        assert self._template is not None
        worker = self._new_worker(next(self._worker_ids))
        await self.workers.add(worker)
        async with worker.lock:
            worker.enter("spawned")
        # Not awaited: a template that is slow to answer must not keep the autoscaler from looking.
        self._spawning.begin_as_task(self._spawn(self._template, worker))

    async def _spawn(self, template: Template, worker: PoolWorker) -> None:
        try:
            child = await template.spawn(WorkerEvents(self._dispatcher, worker))
        except StartFailed as exc:
            await self._dispatcher.not_started(worker, str(exc))
            return
        async with worker.lock:
            worker.bind(child)


def _seen(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
