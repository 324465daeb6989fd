"""The runs of one worker: give a claimed task its body, and decide what becomes of it when that ends.

Knows nothing of the storage: what is to be told it hands to `settled`. Everything happens on one loop;
the few methods that the upkeep calls from its thread say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from loguru import logger

from omniq.clock import Clock
from omniq.coroutines import Coroutines
from omniq.errors import CorruptRecord, StoreUnavailable, UnknownTask, Unsupported, WorkerStuck
from omniq.executors import (
    CANCEL_GRACE_S,
    Deadlines,
    Flight,
    Reason,
    Threads,
    describe,
    encoded,
    failure,
    run_around,
    trace_of,
)
from omniq.hooks import Hook, around, value_of
from omniq.logic.lifecycle import settle
from omniq.logic.retry import RetryPolicy, RetryRules, unserved_delay_s
from omniq.registry import Function, Resolver, Runnable, Unresolvable, runnable_of, with_context
from omniq.reports import PoolInfo
from omniq.running import Begin, Context
from omniq.serializer import Serializer
from omniq.storage.base import Claimed, Transaction
from omniq.task import (
    Action,
    Answer,
    Failed,
    Held,
    Interrupted,
    Outcome,
    Settlement,
    Snoozed,
    StoredTask,
    Succeeded,
    Task,
    TaskError,
    one_line,
    shown,
)
from omniq.workeroptions import ProcessLimits

if TYPE_CHECKING:
    from omniq.metrics import Meter
    from omniq.pool import WorkerPool as ProcessPool
    from omniq.processes import Processes
    from omniq.tracing import Tracing

# Every slot held by a thread that outlived its timeout, for this long: the pool is stuck.
STUCK_AFTER_S: Final = 5.0
# What is unknown here is told for so long, at most so many names: it comes back after a minute at the latest.
UNSERVED_FOR_S: Final = 150.0
MAX_UNSERVED: Final = 20


# Lines that nobody reads still have to be made: two for each task, a twentieth of what it costs. Loguru knows
# the lowest level that anybody reads, but has no public name for it; a loguru without it gets all lines.
_LOGURU: Final = getattr(logger, "_core", None)
_INFO: Final = logger.level("INFO").no


def _info_is_read() -> bool:
    return getattr(_LOGURU, "min_level", _INFO) <= _INFO


class Crew:
    """At most `slots` runs at once. A slot is taken from `start` until the store knows of its end."""

    def __init__(
        self,
        slots: int,
        resolver: Resolver,
        serializer: Serializer,
        policy: RetryPolicy,
        clock: Clock,
        *,
        max_payload: int | None,
        isolates: bool,
        hooks: Sequence[Hook],
        process_pool: ProcessPool | None,
        process_limits: ProcessLimits,
        settled: Callable[[Settlement], None],
        slot_freed: Callable[[], None],
        needs_process: Callable[[str], None],
        begin: Begin | None = None,
        meter: Meter | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._slots = slots
        self._resolver = resolver
        self._serializer = serializer
        self._policy = policy
        self._clock = clock
        self._unserved: dict[tuple[str, str], float] = {}
        self._max_payload = max_payload
        self._isolates = isolates
        self._hooks = hooks  # the application's own list: one that is registered later counts too
        self._process_pool = process_pool
        self._process_limits = process_limits
        self._processes: Processes | None = None
        self._in_process: set[Flight] = set()  # those that asked for one, from their claim on
        self._settled = settled
        self._slot_freed = slot_freed
        self._needs_process = needs_process  # told of every queue that a task for a process came from
        self._begin = None if begin is None else self._only_here(begin)
        self._meter = meter
        self._tracing = tracing
        # Bound once: three objects for each run were half of what the garbage collector counts of it.
        self._when_progressed = self._note_progress
        self._when_landed = self._landed
        self._when_slot_left = self._slot_left
        self._concluding: set[asyncio.Task[None]] = set()
        self._random = random.random
        self._loop = asyncio.get_running_loop()
        self._flights: dict[str, Flight] = {}
        self._strays: set[Flight] = set()  # ended for the store, but a thread is still in them
        self._stuck_since: float | None = None
        self._progress: dict[str, tuple[int, float, float | None]] = {}
        self._deadlines = Deadlines(clock)
        in_threads = contextvars.Context()
        in_threads.run(self.stand_by)
        self._threads = Threads(slots, self._encode, in_threads)
        self._coroutines = Coroutines(self._encode)

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    def free_slots(self) -> int:
        return self._slots - len(self._flights) - len(self._strays)

    async def open(self) -> None:
        """A process pool that was given must be one that can be used here: said now, not task by task."""
        if self._process_pool is not None:
            await self._in_processes().take_over()

    def stand_by(self) -> None:
        """Called where runs begin, once, by whoever will start them."""
        if self._tracing is not None:
            self._tracing.stand_by()

    @property
    def process_count(self) -> int:
        """How many processes there are for bodies now."""
        return 0 if self._processes is None else self._processes.size

    @property
    def free_processes(self) -> int:
        return self._in_processes().free(len(self._in_process))

    def _in_processes(self) -> Processes:
        """Imported and made when the first task needs them: most workers do without."""
        if self._processes is None:
            from omniq.processes import Processes

            self._processes = Processes(
                self._process_pool,
                self._serializer,
                self._max_payload,
                self._resolver.modules,
                self._process_limits,
            )
        return self._processes

    def has(self, task_id: str) -> bool:
        return task_id in self._flights

    def runs_caller(self) -> bool:
        """Whether it is one of the bodies that asks: from its own asyncio task, or from its thread."""
        try:
            asking = asyncio.current_task()
        except RuntimeError:
            return self._threads.run_caller()
        return asking is not None and any(flight.body is asking for flight in self._flights.values())

    async def close(self) -> None:
        self._deadlines.stop()
        self._threads.stop()
        if self._processes is not None:
            await self._processes.close()

    # --- a run -----------------------------------------------------------------------------------

    def start(self, task: Claimed) -> None:
        """Give a claimed task its slot and its body; what cannot run ends here."""
        context = Context(task.id, task.attempts + 1, task.epoch, self._when_progressed, self._begin)
        flight = Flight(task, context, self._when_landed, self._when_slot_left)
        before, self._flights[task.id] = self._flights.get(task.id), flight
        if before is not None:
            before.interrupt("lost")  # it was taken from us and handed to us again, before anybody noticed
        if self._meter is not None:
            flight.began = self._clock.monotonic()
        runnable = self._prepare(flight)
        if runnable is None:
            return
        if self._tracing is not None:
            self._note_start(self._tracing, flight)
        if _info_is_read():
            logger.info(
                "started {task} {func} attempt {attempt}",
                task=one_line(task.id),
                func=task.func_path,
                attempt=task.attempts + 1,
            )
        # In a process the time counts from when it begins there, so the pool watches it.
        if self._isolates and task.suspicions and self._in_processes().can_take(runnable):
            self._fly_around(flight, partial(self._alone, flight))
        elif runnable.kind == "process":
            self._needs_process(task.queue)
            self._in_process.add(flight)
            if self._hooks:
                self._fly_around(flight, partial(self._in_a_process, flight))
            else:
                flight.fly(self._loop, self._in_processes().run_task(flight))
        else:
            self._start_here(flight, runnable)

    def _start_here(self, flight: Flight, runnable: Runnable) -> None:
        if flight.claim.timeout is not None:
            self._watch(flight)
        if self._hooks:
            self._fly_around(flight, partial(self._here, flight, runnable))
        elif runnable.kind == "async":
            self._coroutines.start(flight)
        else:
            self._threads.submit(flight)

    def _watch(self, flight: Flight) -> None:
        if flight.claim.timeout is not None:
            self._deadlines.add(flight, flight.claim.timeout)

    def _fly_around(self, flight: Flight, body: Callable[[], Awaitable[Any]]) -> None:
        hooks = tuple(self._hooks)
        work = run_around(flight, lambda run: around(flight, hooks, run), body, self._encode)
        flight.fly(self._loop, work)

    async def _here(self, flight: Flight, runnable: Runnable) -> Any:
        """The value of a body that is awaited where it stands, in the middle of hooks."""
        if runnable.kind == "async":
            return await runnable.func(*flight.args, **flight.kwargs)
        return await self._threads.call(flight)

    async def _in_a_process(self, flight: Flight) -> Any:
        return value_of(await self._in_processes().outcome(flight), self._serializer)

    async def _alone(self, flight: Flight) -> Any:
        """In a process of its own, unless it turns out that it needs this one."""
        outcome = await self._in_processes().outcome_alone(flight)
        if outcome is not None:
            return value_of(outcome, self._serializer)
        assert flight.runnable is not None
        self._watch(flight)
        return await self._here(flight, flight.runnable)

    def _prepare(self, flight: Flight) -> Runnable | None:
        """Find the function and decode its arguments, or end the flight saying why not."""
        task = flight.claim
        try:
            function, args, kwargs = self._call_of(task)
            runnable = (
                self._resolver.resolve(function) if isinstance(function, str) else runnable_of(function)
            )
        except CorruptRecord as exc:
            flight.end(failure(exc, "undecodable", final=True))
        except UnknownTask as exc:
            logger.warning("unserved: {task}: {why}", task=one_line(task.id), why=str(exc))
            self._note_unserved(task.queue, task.func_path)
            flight.end(Snoozed(unserved_delay_s(task.epoch)))
        except Unresolvable as exc:
            flight.end(Failed(describe(exc, "unresolvable")))
        except (Exception, SystemExit) as exc:  # a serializer or an import of somebody's own
            flight.end(failure(exc, "undecodable", final=True))
        else:
            flight.runnable = runnable
            flight.args, flight.kwargs = with_context(runnable, args, kwargs, flight.context)
            return runnable
        return None

    def _call_of(self, task: Claimed) -> tuple[str | Function, Sequence[Any], dict[str, Any]]:
        """The function, or the path to it, and the arguments. Nothing is imported here."""
        if isinstance(task, Task):
            return task.func_path, task.args, task.kwargs
        limit = self._max_payload
        if limit is not None and len(task.payload) > limit:
            raise CorruptRecord(f"a payload of {len(task.payload):,} bytes is over the limit of {limit:,}")
        carried, args, kwargs = self._serializer.decode_call(task.payload)
        # The task's own path counts before one in the payload, and both are for the resolver to judge.
        function = carried if callable(carried) else task.func_path or carried
        if not function:
            raise CorruptRecord("neither the task nor its payload names a function")
        return function, args, kwargs

    def _encode(self, value: Any) -> Outcome:
        return encoded(value, self._serializer, self._max_payload)

    def _landed(self, flight: Flight, outcome: Outcome) -> None:
        """A run has ended: decide what becomes of its task. The slot is free when the store knows."""
        task = flight.claim
        if self._begin is not None and (begun := flight.context.take_transaction()) is not None:
            # Until it has ended the run is still in flight: it keeps its slot, and its lease is renewed.
            concluding = self._loop.create_task(self._conclude(flight, outcome, begun))
            self._concluding.add(concluding)
            concluding.add_done_callback(self._concluding.discard)
            return
        self._leave(flight)
        if flight.reason == "lost":
            logger.warning(
                "lost {task} epoch {epoch}: its lease is over", task=one_line(task.id), epoch=task.epoch
            )
            self._note_end(flight, None)
            self._slot_freed()
            return
        if isinstance(outcome, Failed) and flight.runnable is not None:
            outcome = _judged(task, outcome, flight.runnable.rules)
        settlement = settle(task, outcome, self._policy, self._random())
        self._settled(settlement)
        if self._meter is not None or flight.span is not None:
            self._note_end(flight, settlement, outcome)
        if type(outcome) is not Succeeded or _info_is_read():
            self._log(settlement)

    def _note_start(self, tracing: Tracing, flight: Flight) -> None:
        try:
            tracing.began(flight)
        except Exception as exc:  # of somebody's sampler or span processor: no reason not to run
            logger.error("a run is not traced: {trace}", trace=trace_of(exc))

    def _note_end(
        self, flight: Flight, settlement: Settlement | None, outcome: Outcome | None = None
    ) -> None:
        """For those who watch. No settlement: nobody asks us any more what becomes of the task."""
        try:
            if self._meter is not None:
                self._meter.ended(flight, settlement)
            if self._tracing is not None and flight.span is not None:
                self._tracing.ended(flight, settlement, outcome)
        except Exception as exc:  # what they do with it is no reason to lose what was done
            logger.error("the end of a run is not told: {trace}", trace=trace_of(exc))

    def _leave(self, flight: Flight) -> None:
        task = flight.claim
        if self._flights.get(task.id) is flight:
            del self._flights[task.id]
        if flight.deadline:
            self._deadlines.remove(flight)
        if self._progress:
            self._progress.pop(task.id, None)
        if flight.occupied:
            self._strays.add(flight)
            self._stuck_since = self._clock.monotonic()
        elif self._in_process:
            self._in_process.discard(flight)

    # --- what a body wrote into the store's own database ------------------------------------------

    def _only_here(self, begin: Begin) -> Begin:
        async def begin_here() -> Transaction:
            if asyncio.get_running_loop() is not self._loop:
                raise Unsupported("ctx.transaction() needs the worker's own loop: an `async def` body")
            return await begin()

        return begin_here

    async def _conclude(self, flight: Flight, outcome: Outcome, begun: asyncio.Task[Transaction]) -> None:
        """The transaction that a body began ends with its run: committed by its success, else undone."""
        if not begun.done():
            begun.cancel()  # the body was cancelled while it waited for it
        try:
            transaction = await begun
        except (Exception, asyncio.CancelledError) as exc:  # the body was told
            away = isinstance(exc, StoreUnavailable) and isinstance(outcome, Failed)
            self._landed(flight, Interrupted() if away else outcome)  # an outage costs no attempt
            return
        if not isinstance(outcome, Succeeded) or flight.reason == "lost":
            await transaction.undo()
            self._landed(flight, outcome)
            return
        settlement = settle(flight.claim, outcome, self._policy, self._random())
        try:
            answer = await transaction.settle(settlement)
        except StoreUnavailable as exc:
            # If it was committed after all, giving back is stale and changes nothing; if not, it runs again.
            name = one_line(flight.claim.id)
            logger.warning("cannot tell whether {task} was committed: {why}", task=name, why=str(exc))
            self._landed(flight, Interrupted())
        except Exception as exc:  # such as a constraint that is checked at the commit
            self._landed(flight, failure(exc))
        else:
            if answer is not Answer.HELD:
                self._landed(flight, outcome)  # whose answer counts and logs it
                return
            self._leave(flight)
            self._note_end(flight, settlement)
            self._log(settlement)
            self._slot_freed()

    def _slot_left(self, flight: Flight) -> None:
        self._strays.discard(flight)
        self._in_process.discard(flight)
        if flight.ended:
            self._slot_freed()

    def _log(self, settlement: Settlement) -> None:
        task, error = settlement.task, settlement.error
        match settlement.action:
            case Action.SUCCEED | Action.REPEAT:
                if _info_is_read():
                    logger.info("succeeded {task}", task=one_line(task.id))
            case Action.RETRY:
                assert isinstance(task, StoredTask | Task)
                logger.debug(
                    "failed {task} attempt {attempt}, next at {eta}: {error}",
                    task=one_line(task.id),
                    attempt=task.attempts + 1,
                    eta=(self._clock.now() + timedelta(seconds=settlement.delay_s)).isoformat(),
                    error=_type_of(error),
                )
            case Action.FAIL | Action.CONTINUE:
                logger.info("failed {task} for good: {error}", task=one_line(task.id), error=_type_of(error))
            case Action.LOSE:
                logger.warning("died {task}: {error}", task=one_line(task.id), error=str(error))
            case Action.GIVE_BACK:
                logger.debug(
                    "gave back {task} for {delay:.3f} s", task=one_line(task.id), delay=settlement.delay_s
                )

    # --- ending early ----------------------------------------------------------------------------

    def interrupt_all(self, reason: Reason) -> None:
        for flight in list(self._flights.values()):
            flight.interrupt(reason)

    def abandon_all(self) -> None:
        """Bodies that did not even end when cancelled: their tasks go back without them."""
        for flight in list(self._flights.values()):
            logger.error("abandoned {task}: its body ignores cancellation", task=one_line(flight.claim.id))
            flight.end(flight.interrupted())

    async def empty(self) -> None:
        """Wait a little for bodies that were given up: they should not go on beside their next run."""
        bodies = [flight.body for flight in self._flights.values() if flight.body is not None]
        if ending := {*bodies, *self._concluding}:
            await asyncio.wait(ending, timeout=CANCEL_GRACE_S)

    @property
    def is_stuck(self) -> bool:
        """Every slot has been held for a while by a thread that nobody can stop."""
        if not self._all_outlived_their_timeout() or self._stuck_since is None:
            return False
        return self._clock.monotonic() - self._stuck_since >= STUCK_AFTER_S

    def raise_if_stuck(self) -> None:
        if self._all_outlived_their_timeout():
            raise WorkerStuck(
                f"all {self._slots} slots are held by bodies that went on after their time was over; "
                "restart the process, or run such tasks with executor='process'"
            )

    def _all_outlived_their_timeout(self) -> bool:
        return sum(flight.reason in ("timeout", "lost") for flight in self._strays) >= self._slots

    @property
    def is_gone(self) -> bool:
        """Its loop has closed without a stop: nobody runs anything here any more."""
        return self._loop.is_closed()

    # --- from any thread -------------------------------------------------------------------------

    def _note_unserved(self, queue: str, func_path: str) -> None:
        self._unserved.pop((queue, func_path), None)  # the latest are the last
        self._unserved[queue, func_path] = self._clock.monotonic()
        if len(self._unserved) > MAX_UNSERVED:
            del self._unserved[next(iter(self._unserved))]

    def unserved(self) -> tuple[tuple[str, str], ...]:
        """Queue and function of what came lately and is not known here. Also asked from another thread."""
        since = self._clock.monotonic() - UNSERVED_FOR_S
        return tuple(sorted(what for what, at in self._unserved.copy().items() if at >= since))

    def pools(self, scarce: Iterable[str] = ()) -> tuple[PoolInfo, ...]:
        """The processes for bodies, as they are now; `scarce` queues are those whose tasks need them."""
        processes = self._processes
        return () if processes is None else processes.seen(len(self._in_process), scarce)

    def holding(self) -> list[Held]:
        return [flight.held for flight in list(self._flights.values())]

    def take_progress(self) -> list[tuple[str, int, float, float | None]]:
        taken: list[tuple[str, int, float, float | None]] = []
        while self._progress:
            with contextlib.suppress(KeyError):
                task_id, (epoch, done, total) = self._progress.popitem()
                taken.append((task_id, epoch, done, total))
        return taken

    def cancel(self, ids: Iterable[str]) -> None:
        self._interrupt_soon([(task_id, None) for task_id in ids], "cancel")

    def lose(self, held: Iterable[Held]) -> None:
        self._interrupt_soon([(one.id, one.epoch) for one in held], "lost")

    def _note_progress(self, task_id: str, epoch: int, done: float, total: float | None) -> None:
        self._progress[task_id] = (epoch, done, total)

    def _interrupt_soon(self, ids: list[tuple[str, int | None]], reason: Reason) -> None:
        if ids:
            with contextlib.suppress(RuntimeError):  # the loop has closed, and everything with it
                self._loop.call_soon_threadsafe(self._interrupt, ids, reason)

    def _interrupt(self, ids: list[tuple[str, int | None]], reason: Reason) -> None:
        for task_id, epoch in ids:
            flight = self._flights.get(task_id)
            if flight is None or epoch not in (None, flight.claim.epoch) or flight.reason == reason:
                continue
            flight.interrupt(reason)


def _judged(task: Claimed, failed: Failed, rules: RetryRules) -> Failed:
    """A failure as its task wants it treated. A function for the delay is somebody else's code."""
    try:
        return rules.judged(failed, task.attempts + 1)
    except Exception as exc:
        logger.error(
            "retry_delay of {func} failed, using the worker's own: {trace}",
            func=task.func_path,
            trace=trace_of(exc),
        )
        return failed


def _type_of(error: TaskError | None) -> str:
    """An error in a log line: its type. The message may quote an argument; it stands on the task."""
    return "" if error is None else shown(f"{error.type} ({error.kind})")[1:-1]
