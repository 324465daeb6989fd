"""Run one call: a coroutine on the loop, anything else in a thread. Knows nothing of stores or retries.

    call ──> Flight ──> body ──> Outcome ──> on_end(flight, outcome)

A flight ends exactly once, whoever is first: the body, its timeout, a cancel request, or a stop.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Final, Literal, TypeVar, cast

from msgspec import Struct

from omniq.clock import Bell, Clock
from omniq.errors import GiveUp, PayloadTooLarge, Retry, Snooze, UnserializableArgument
from omniq.names import class_names
from omniq.registry import Runnable
from omniq.running import Context, current
from omniq.serializer import Serializer
from omniq.storage.base import Claimed
from omniq.task import (
    Duration,
    ErrorKind,
    Failed,
    Held,
    Interrupted,
    Outcome,
    Snoozed,
    Succeeded,
    TaskError,
    last_words,
    seconds,
    task_error,
)

E = TypeVar("E", bound=BaseException)
Reason = Literal["timeout", "cancel", "stop", "lost"]
DEADLINE_GRAIN_S: Final = 0.05
# Sync bodies that take no longer may be run one behind the other in one thread. Then the loop looks this
# often whether they still do: what is behind one that blocks has waited for two looks at most.
QUICK_S: Final = 0.0002
LOOK_EVERY_S: Final = 0.001
# After a body was cancelled: how long it may take to notice before its task goes on without it.
CANCEL_GRACE_S: Final = 2.0
# What nobody can await: asking `inspect` costs as much as many a body.
PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes, dict, list, tuple})


class Flight(Struct, eq=False):
    """One run on its way: what was claimed, where it runs, and why it should end early."""

    claim: Claimed
    context: Context
    on_end: Callable[[Flight, Outcome], None]
    on_free: Callable[[Flight], None]  # a body that went on after its end has left its slot
    began: float = 0.0  # only where it is measured
    runnable: Runnable | None = None
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] = {}
    body: asyncio.Task[None] | None = None
    reason: Reason | None = None
    ended: bool = False
    deadline: int = 0  # its bucket among the deadlines
    occupied: bool = False  # a thread, or a coroutine that cannot be cancelled, is still in it
    in_thread: bool = False
    answer: asyncio.Future[Returned | Raised] | None = None  # for a hook that awaits the thread
    variables: contextvars.Context | None = None  # what a hook or a trace has set for the body
    span: Any = None  # only where it is traced

    @property
    def held(self) -> Held:
        return Held(self.claim.id, self.claim.epoch)

    @property
    def is_over(self) -> bool:
        """Nobody asks for the body's answer any more."""
        return self.ended or (self.answer is not None and self.answer.done())

    def fly(self, loop: asyncio.AbstractEventLoop, body: Coroutine[Any, Any, None]) -> None:
        """Run `body` as a task of its own, which ends this flight."""
        self.body = loop.create_task(body, context=self.variables)
        self.body.add_done_callback(self.body_gone)

    def body_gone(self, body: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step never runs: then this is its end.
        if self.occupied and not self.in_thread:
            self.occupied = False
            self.on_free(self)
        if not self.ended:
            broken = None if body.cancelled() else body.exception()
            self.end(self.interrupted() if broken is None else failure(broken))

    def outlived(self) -> None:
        """The body goes on although it was cancelled: its task ends without it, its slot does not."""
        if not self.ended:
            self.occupied = True
            self.end(self.interrupted())

    def left_thread(self) -> None:
        self.in_thread = False
        if not self.ended:  # the slot is free when the store knows of its end
            self.occupied = False
        elif self.body is None or self.body.done():
            self.occupied = False
            self.on_free(self)
        # Otherwise the hook around it goes on although it was cancelled.

    def end(self, outcome: Outcome) -> None:
        if not self.ended:
            self.ended = True
            self.on_end(self, outcome)

    def interrupt(self, reason: Reason) -> None:
        """Ask the body to end. A coroutine is cancelled; a thread can only be told."""
        if self.ended:
            return
        if self.reason != "lost":  # what is lost stays lost: nothing is to be reported for it
            self.reason = reason
        self.context.tell_cancelled()
        if self.in_thread and reason == "cancel":
            return
        if self.body is not None:
            self.body.cancel()
        else:
            self.end(self.interrupted())

    def interrupted(self) -> Outcome:
        if self.reason == "timeout":
            message = f"ran longer than its timeout of {self.claim.timeout:g} s"
            return Failed(TaskError("TimeoutError", message, "", "timeout"), kinds=class_names(TimeoutError))
        return Interrupted()


# --- what a body's end means ---------------------------------------------------------------------


def failure(exc: BaseException, kind: ErrorKind = "error", *, final: bool = False) -> Failed:
    """An exception as text, bounded, without the frames of the engine."""
    return Failed(describe(exc, kind), final=final, kinds=class_names(type(exc)))


def describe(exc: BaseException, kind: ErrorKind = "error") -> TaskError:
    frames = exc.__traceback__.tb_next if exc.__traceback__ is not None else None
    try:
        text = "".join(traceback.format_exception(type(exc), exc, frames))
    except BaseException:  # a __str__ that raises must not hide the failure
        text = "".join(traceback.format_tb(frames))
    try:
        message = str(exc)
    except BaseException as worse:
        message = f"<its text could not be made: {type(worse).__name__}>"
    return task_error(type(exc).__qualname__, message, text, kind)


def trace_of(exc: BaseException) -> str:
    """A traceback for the log: code only, where a logger might show the values of variables."""
    return last_words("".join(traceback.format_tb(exc.__traceback__)) + type(exc).__qualname__)


def outcome_of(exc: BaseException) -> Outcome:
    """What a body's exception asks for."""
    try:
        match exc:
            case Snooze():
                return Snoozed(_delay_s(exc.delay))
            case Retry(delay=None):
                return Failed(describe(exc))
            case Retry():
                return Failed(describe(exc), _delay_s(cast("Duration", exc.delay)))
            case GiveUp():
                return failure(exc, final=True)
            case _:
                return failure(exc)
    except Exception as bad_signal:  # such as a Retry whose own __init__ forgot its delay
        return failure(bad_signal)


def carrying(outcome: Outcome, exc: E) -> E:
    """An exception for hooks to see, that stands for an outcome that is known already."""
    exc.__omniq_outcome__ = outcome  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    return exc


def carried(exc: BaseException) -> Outcome | None:
    # Not `getattr`: an exception of somebody's own may have an answer to every name.
    return exc.__dict__.get("__omniq_outcome__")


def _delay_s(delay: Duration) -> float:
    return max(0.0, seconds(delay, "delay"))


def encoded(value: Any, serializer: Serializer, max_bytes: int | None) -> Outcome:
    """A returned value as an outcome; one that cannot be stored is a failure that says so."""
    try:
        data = serializer.dumps(value)
        if max_bytes is not None and len(data) > max_bytes:
            raise PayloadTooLarge(
                f"the result takes {len(data):,} bytes, more than {max_bytes:,}; store it elsewhere "
                "and return a key"
            )
    except (UnserializableArgument, PayloadTooLarge) as exc:
        return failure(exc, "unserializable")
    except Exception as exc:
        return failure(exc, "unserializable")
    return Succeeded(data)


# --- coroutines ----------------------------------------------------------------------------------


def run_coroutine(flight: Flight, encode: Callable[[Any], Outcome]) -> Coroutine[Any, Any, None]:
    """The body of a flight on the loop."""
    assert flight.runnable is not None
    return _conclude(flight, flight.runnable.func, encode)


def run_around(
    flight: Flight,
    around: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
    body: Callable[[], Awaitable[Any]],
    encode: Callable[[Any], Outcome],
) -> Coroutine[Any, Any, None]:
    """The body of a flight, wherever it runs, with hooks around it on the loop."""
    return _conclude(flight, lambda *_, **__: around(body), encode)


async def _conclude(
    flight: Flight, call: Callable[..., Awaitable[Any]], encode: Callable[[Any], Outcome]
) -> None:
    current.set(flight.context)
    try:
        outcome = encode(await call(*flight.args, **flight.kwargs))
    except asyncio.CancelledError as exc:
        # Without a reason of ours it is the body's own doing, and a failure like any other.
        outcome = carried(exc) or (failure(exc) if flight.reason is None else flight.interrupted())
    except BaseException as exc:  # SystemExit too: a task never ends its worker
        outcome = carried(exc) or outcome_of(exc)
    flight.end(outcome)


# --- threads -------------------------------------------------------------------------------------


class Returned(Struct, frozen=True):
    """What a body in a thread gave back, for a hook that awaits it."""

    value: Any


class Raised(Struct, frozen=True):
    exc: BaseException


class Threads:
    """Daemon threads for sync bodies, one per busy slot, made when needed.

    Threads wake each other: one call wakes the first, and whoever takes a flight and leaves others behind
    wakes the next before it begins. So nothing waits for a body that goes on.

    A function that was quick the last time is trusted to be quick again: nobody is woken beside it, because
    two threads that let go of the interpreter's lock for a moment each, and want it back, cost more than
    such bodies do. The loop looks whether they move on; if not, nobody is trusted any more.

    What ends is brought to the loop in one hop for all that ended meanwhile; a hop per task would cost more
    than most tasks.
    """

    def __init__(
        self, limit: int, encode: Callable[[Any], Outcome], variables: contextvars.Context | None = None
    ) -> None:
        self._limit = limit
        self._variables = variables or contextvars.Context()  # what bodies find, each in a copy of its own
        self._encode = encode
        self._loop = asyncio.get_running_loop()
        self._work: deque[Flight] = deque()
        self._calls: SimpleQueue[bool] = SimpleQueue()  # each wakes one thread; False ends it
        self._called = False  # a call is out that nobody has heard yet
        self._ended: deque[tuple[Flight, Outcome | Awaitable[Any] | Returned | Raised]] = deque()
        self._armed = False
        self._busy = 0
        self._threads: list[threading.Thread] = []
        self._quick: set[str] = set()  # paths of functions whose latest run was quick
        self._begun = 0  # bodies so far, about: two threads may count one; and as of the loop's latest look
        self._begun_before = 0
        self._looks = False

    async def call(self, flight: Flight) -> Any:
        """Run the body for a hook that waits for it, with what the hook has set in context variables."""
        flight.answer = self._loop.create_future()
        flight.variables = contextvars.copy_context()
        self.submit(flight)
        answer = await flight.answer
        if isinstance(answer, Raised):
            raise answer.exc
        # A sync function may return something to await; that belongs on the loop.
        return await answer.value if inspect.isawaitable(answer.value) else answer.value

    def submit(self, flight: Flight) -> None:
        flight.occupied = flight.in_thread = True
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._limit:
            thread = threading.Thread(target=self._serve, name=f"omniq-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._work.append(flight)
        self._call_next()
        if not self._looks:
            self._look_soon()

    def stop(self) -> None:
        for _ in self._threads:
            self._calls.put(False)

    def run_caller(self) -> bool:
        return threading.current_thread() in self._threads

    def _call_next(self) -> None:
        if not self._called:
            self._called = True
            self._calls.put(True)

    def _look_soon(self) -> None:
        self._looks, self._begun_before = True, self._begun
        self._loop.call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        """See whether what waits behind quick bodies moves on; bring home what they leave untold."""
        self._looks = False
        moved_on = self._begun != self._begun_before
        if self._work and not moved_on:
            self._quick.clear()
            self._called = False  # whoever was called may be the one who is held up
            self._call_next()
        if self._ended:
            self._drain()
        if self._work or moved_on:
            self._look_soon()

    def _serve(self) -> None:
        while self._calls.get():
            self._called = False  # before the first look, or what was added meanwhile could be left lying
            while self._work:
                self._serve_next()
            self._tell_loop()

    def _serve_next(self) -> None:
        try:
            flight = self._work.popleft()
        except IndexError:  # another thread was faster
            return
        # A body may take its time: before it begins, somebody must be on the way for the next one, and the
        # loop must know what has ended.
        path = flight.claim.func_path
        if path not in self._quick:
            if self._work:
                self._call_next()
            self._tell_loop()
        self._begun += 1
        began = perf_counter()
        result: Outcome | Awaitable[Any] | Returned | Raised
        if not flight.is_over:  # what was stopped before its first step must not run beside its next run
            result = (flight.variables or self._variables.copy()).run(self._call, flight)
        elif flight.answer is None:
            result = Interrupted()
        else:  # a hook that goes on although it was cancelled may still wait for it
            result = Raised(asyncio.CancelledError())
        self._ended.append((flight, result))
        if perf_counter() - began <= QUICK_S:
            self._quick.add(path)
        else:
            self._quick.discard(path)

    def _tell_loop(self) -> None:
        if self._ended and not self._armed:
            self._armed = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop has closed: nobody asks for these runs any more
                while self._ended:
                    _, result = self._ended.popleft()
                    _close(result.value if isinstance(result, Returned) else result)
                self._work.clear()
                self._armed = False
                self.stop()

    def _call(self, flight: Flight) -> Outcome | Awaitable[Any] | Returned | Raised:
        assert flight.runnable is not None
        current.set(flight.context)
        try:
            value = flight.runnable.func(*flight.args, **flight.kwargs)
            if flight.answer is not None:
                return Returned(value)
            # A sync function may return something to await; that belongs on the loop.
            return value if type(value) not in PLAIN and inspect.isawaitable(value) else self._encode(value)
        except BaseException as exc:
            return outcome_of(exc) if flight.answer is None else Raised(exc)

    def _drain(self) -> None:
        self._armed = False  # before the first is taken, or a completion could be left lying
        while self._ended:
            flight, result = self._ended.popleft()
            self._busy -= 1
            flight.left_thread()
            if type(result) is Succeeded:  # nearly always
                flight.end(result)
            elif isinstance(result, Returned | Raised):
                _answer(flight, result)
            elif not inspect.isawaitable(result):
                flight.end(result)
            else:
                self._await(flight, result)

    def _await(self, flight: Flight, awaitable: Awaitable[Any]) -> None:
        if flight.ended:
            _close(awaitable)
            return
        flight.fly(self._loop, _conclude(flight, lambda *_, **__: awaitable, self._encode))


def _answer(flight: Flight, result: Returned | Raised) -> None:
    assert flight.answer is not None
    if not flight.answer.done():
        flight.answer.set_result(result)
    elif isinstance(result, Returned):
        _close(result.value)


def _close(value: object) -> None:
    """Whoever would have awaited it is gone."""
    if inspect.iscoroutine(value):
        value.close()


# --- deadlines -----------------------------------------------------------------------------------


class Deadlines:
    """Timeouts of all flights on one bell: cheaper than a timer each, and at most 50 ms late."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: defaultdict[int, set[Flight]] = defaultdict(set)
        self._bell: Bell | None = None
        self._rings_at = 0

    def add(self, flight: Flight, timeout_s: float) -> None:
        bucket = int((self._clock.monotonic() + timeout_s) / DEADLINE_GRAIN_S) + 1
        flight.deadline = bucket
        self._buckets[bucket].add(flight)
        if self._bell is None or bucket < self._rings_at:
            self._arm(bucket)

    def remove(self, flight: Flight) -> None:
        """Most bodies end in time: what stays behind would be remembered until the deadline."""
        if (bucket := self._buckets.get(flight.deadline)) is not None:
            bucket.discard(flight)
            if not bucket:
                del self._buckets[flight.deadline]

    def _arm(self, bucket: int) -> None:
        if self._bell is not None:
            self._bell.cancel()
        self._rings_at = bucket
        delay_s = max(0.0, bucket * DEADLINE_GRAIN_S - self._clock.monotonic())
        self._bell = self._clock.call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._bell = None
        now = int(self._clock.monotonic() / DEADLINE_GRAIN_S + 1e-6)
        for bucket in sorted(due for due in self._buckets if due <= now):
            for flight in self._buckets.pop(bucket):
                flight.interrupt("timeout")
                if not flight.ended:
                    self._clock.call_later(CANCEL_GRACE_S, flight.outlived)
        if self._buckets:
            self._arm(min(self._buckets))

    def stop(self) -> None:
        if self._bell is not None:
            self._bell.cancel()
        self._buckets.clear()
