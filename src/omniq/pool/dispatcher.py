"""Who runs what: messages to workers that are ready, and what children say back.

    dispatch ─> backlog ─> reserve_ready_worker ─> child
                   ^                                 │ outcomes, done, exited
                   └──── unreported calls <──────────┘

A worker's state is touched under that worker's lock only; what follows from it happens after the lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from loguru import logger
from msgspec import Struct

from omniq.clock import Clock
from omniq.errors import CallCancelled, WorkerDied
from omniq.pool.backlog import Backlog
from omniq.pool.calls import Outcome
from omniq.pool.eager import Eager
from omniq.pool.limits import NO_LIMITS
from omniq.pool.message import Ending, Message
from omniq.pool.registry import WorkerData
from omniq.pool.starts import Starts
from omniq.pool.worker import COMING, GONE, PoolWorker

if TYPE_CHECKING:
    from omniq.pool.process import Child, Exit

RANGE_CHECKS: Final = 8  # how often, within its timeout, a call of a range is looked at
REMEMBERED_ENDS: Final = 20


class Ended(Struct, frozen=True):
    """A worker that has gone, and how."""

    worker: int
    pid: int | None
    at: float
    reason: str


class Dispatcher:
    def __init__(self, workers: WorkerData, clock: Clock, grace_s: float) -> None:
        self.workers = workers
        self.backlog = Backlog()
        self.messages: dict[int, Message] = {}  # all that have not ended
        self.worker_limits = NO_LIMITS
        self.nudge: Callable[[], None] = lambda: None  # a message waits, and nobody is ready
        self.look_soon: Callable[[], None] = lambda: None  # a worker has gone, or should
        self.excess = 0  # workers over the limit, which leave when they have finished
        self.fewest_idle = 0  # since somebody last asked
        self.deaths = 0  # in a row, without a finished call in between
        self.last_death_at = 0.0
        self.ends: deque[Ended] = deque(maxlen=REMEMBERED_ENDS)
        self._starts = Starts()
        self._clock = clock
        self._grace_s = grace_s
        self._eager = Eager()
        self._draining = False
        self._exit = asyncio.Event()
        self._watchers: list[tuple[int, asyncio.Future[None]]] = []

    # --- messages to workers ---

    def dispatch(self, message: Message) -> None:
        """Give it to whoever is ready, or let it wait behind the others."""
        self.messages[message.id] = message
        self.backlog.append(message)
        self.begin_drain()

    def begin_drain(self) -> None:
        self._eager.begin(self._drain())

    async def _drain(self) -> None:
        """Give what waits to those who are ready, oldest first."""
        if self._draining:
            return  # whoever does it already sees what has been added meanwhile
        self._draining = True
        try:
            while (message := self.backlog.first()) is not None:
                worker = await self.workers.reserve_ready_worker(message)
                if worker is None:
                    self.nudge()
                    break
                # Nothing is awaited between the reservation and here, unless a lock had to be waited for.
                if self.backlog.take(message):
                    self._dispatched(message, worker)
                else:
                    await self._release(worker)
        finally:
            self._draining = False

    def _dispatched(self, message: Message, worker: PoolWorker) -> None:
        logger.trace("dispatched {call} to worker {worker}", call=message.title, worker=worker.id)
        self.fewest_idle = min(self.fewest_idle, len(self.workers.ready_queue))
        message.worker = worker
        message.since = self._clock.monotonic()
        if message.options.timeout_s is not None:
            self._watch(message)

    async def _release(self, worker: PoolWorker) -> None:
        """What it was reserved for has been cancelled meanwhile, and was not sent."""
        async with worker.lock:
            worker.finish_task(0)
            if worker.is_idle:
                self.workers.line_up(worker)

    # --- what children say ---

    def ready(self, worker: PoolWorker, child: Child) -> None:
        self._eager.begin(self._ready(worker, child))

    async def _ready(self, worker: PoolWorker, child: Child) -> None:
        async with worker.lock:
            if worker.status not in COMING:
                return
            worker.bind(child)
            worker.enter("ready")
            self._line_up_or_leave(worker)  # also where it is worn out: it must do something first
        self._starts.came_to_life()
        await self._drain()

    def outcomes(self, worker: PoolWorker, first_id: int, outcomes: Sequence[Outcome]) -> None:
        self._eager.begin(self._outcomes(worker, first_id, outcomes))

    async def _outcomes(self, worker: PoolWorker, first_id: int, outcomes: Sequence[Outcome]) -> None:
        async with worker.lock:
            message = worker.current_task
            if isinstance(message, Message):
                message.report(first_id, outcomes)

    def note(self, worker: PoolWorker, call_id: int, note: Any) -> None:
        self._eager.begin(self._note(worker, call_id, note))

    async def _note(self, worker: PoolWorker, call_id: int, note: Any) -> None:
        async with worker.lock:
            message = worker.current_task
            # A thread may outlive the call that started it, and what it says then is not about the next one.
            if not isinstance(message, Message) or call_id not in message.unreported:
                return
        if message.options.on_note is not None:
            try:
                message.options.on_note(note)
            except Exception as exc:  # somebody else's code: it must not take the pool with it
                logger.error("on_note of {call} raised {exc!r}", call=message.title, exc=exc)

    def done(
        self, worker: PoolWorker, message_id: int, first_id: int = 0, outcomes: Sequence[Outcome] = ()
    ) -> None:
        """It has finished its message; these are the last outcomes, if they have not been told before."""
        self._eager.begin(self._done(worker, message_id, first_id, outcomes))

    async def _done(
        self, worker: PoolWorker, message_id: int, first_id: int, outcomes: Sequence[Outcome]
    ) -> None:
        lock = worker.lock
        await lock.acquire()  # a little quicker than `async with`, which counts here
        try:
            message = worker.current_task
            if not isinstance(message, Message) or message.id != message_id:
                return
            if outcomes:
                message.report(first_id, outcomes)
            assert not message.left, "done comes after the last outcome"
            worker.finish_task(message.encoded.count)
            if worker.status == "ready":
                self._go_on(worker)
        finally:
            lock.release()
        self.deaths = 0
        self._starts.did_something()
        # Only now: whoever waits for the result finds the worker free again.
        self.conclude(message)
        if self.backlog:
            await self._drain()

    def _go_on(self, worker: PoolWorker) -> None:
        """Let an idle worker have its next turn, or leave if it has reached a limit. Its lock is held."""
        limits = self.worker_limits
        worn_out = "" if limits is NO_LIMITS else limits.worn_out(worker, self._clock.monotonic())
        self._line_up_or_leave(worker, worn_out)

    def _line_up_or_leave(self, worker: PoolWorker, reason: str = "") -> None:
        if self.excess > 0 and not reason:
            self.excess -= 1
            reason = "there are more workers than allowed"
        if reason:
            worker.ask_to_stop(reason)
            self.look_soon()
        else:
            self.workers.line_up(worker)

    def shutdown(self, worker: PoolWorker) -> None:
        self._eager.begin(self._shutdown(worker))

    async def _shutdown(self, worker: PoolWorker) -> None:
        async with worker.lock:
            if worker.status not in GONE:
                worker.enter("exited")

    def exited(self, worker: PoolWorker, exit: Exit, running: int) -> None:
        self._eager.begin(self._exited(worker, str(exit), running))

    async def _exited(self, worker: PoolWorker, exit: str, running: int) -> None:
        async with worker.lock:
            was, cause = worker.status, worker.condemned or exit
            is_our_doing = was in GONE or was == "stopping" or bool(worker.condemned)
            did_something = worker.calls_done > 0 or running > 0
            message = worker.finish_task(0)
            worker.enter("retired" if was == "exited" else "error", "" if was == "exited" else cause)
            self.ends.append(Ended(worker.id, worker.view.pid, worker.since, worker.reason))
        if not is_our_doing:
            self._count_death(worker, cause)
        if isinstance(message, Message):
            self._lost(message, running, cause)
        if did_something:
            self._starts.did_something()
        elif not is_our_doing:
            await self._start_failed(cause, was_ready=was not in COMING)
        self._tell_exit()

    async def not_started(self, worker: PoolWorker, cause: str) -> None:
        """There is no process for it."""
        async with worker.lock:
            worker.enter("error", cause)
            self.ends.append(Ended(worker.id, None, worker.since, cause))
        self._count_death(worker, cause)
        await self._start_failed(cause, was_ready=False)
        self._tell_exit()

    def _tell_exit(self) -> None:
        self.look_soon()
        self._exit.set()
        self._exit = asyncio.Event()

    async def next_exit(self) -> None:
        await self._exit.wait()

    def _count_death(self, worker: PoolWorker, cause: str) -> None:
        logger.warning("worker {worker} died: {cause}", worker=worker.id, cause=cause)
        # Several that die together are one blow. What counts is that their successors die as well.
        if self.deaths == 0 or worker.created_at >= self.last_death_at:
            self.deaths += 1
            self.last_death_at = self._clock.monotonic()

    async def _start_failed(self, cause: str, *, was_ready: bool) -> None:
        """With no hope for a worker, what waits for one would wait for ever."""
        self._starts.failed(was_ready=was_ready)
        if await self.workers.count(lambda worker: worker.status == "ready"):
            return  # those who live will come to what waits
        text = (
            f"{self._starts.fruitless} workers in a row died before they began a call, the last one: {cause}"
        )
        for message in self.backlog.all():
            if self._starts.is_hopeless(message.options.retries) and self.backlog.take(message):
                self._give_up(message, text, cause)

    def _give_up(self, message: Message, text: str, cause: str) -> None:
        was_given = message.deaths + message.false_starts > 0
        message.fail(lambda name: WorkerDied(f"{name} did not run: {text}", cause, has_begun=was_given))
        self.conclude(message)

    def _lost(self, message: Message, running: int, cause: str) -> None:
        message.lost(running, cause)
        if message.left == 0:
            self.conclude(message)
            return
        message.since = self._clock.monotonic()
        message.doomed = 0
        if message.bell is not None:
            message.bell.cancel()
        self.backlog.put_back(message)
        self.begin_drain()

    # --- ends ---

    def conclude(self, message: Message) -> None:
        message.conclude()
        self.messages.pop(message.id, None)
        if self._watchers:
            self._tell_watchers()

    def fail_all(self, why: Callable[[str], Exception]) -> None:
        """There are no processes any more: every call ends like this, and what was counted is forgotten."""
        for message in list(self.messages.values()):
            self.backlog.take(message)
            message.fail(why)
            self.conclude(message)
        self.deaths = self.excess = 0
        self._starts = Starts()

    async def all_ended(self) -> int:
        """Wait until everything that is here now has ended; says how many messages that were."""
        if not self.messages:
            return 0
        count, last = len(self.messages), max(self.messages)
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append((last, watcher))
        await watcher
        return count

    def _tell_watchers(self) -> None:
        first = next(iter(self.messages), None)
        for last, watcher in self._watchers:
            if (first is None or first > last) and not watcher.done():
                watcher.set_result(None)
        self._watchers = [(last, watcher) for last, watcher in self._watchers if not watcher.done()]

    def cancel(self, message: Message) -> None:
        """Let it end now if it waits, soon if it runs."""
        if message.id not in self.messages:
            return
        if message.worker is None:
            message.withdrawn = True
            self.backlog.take(message)
            message.fail(lambda name: CallCancelled(f"{name} was cancelled before it began"))
            self.conclude(message)
            return
        self._end_early(message, message.unreported, "cancel")

    def _end_early(self, message: Message, call_ids: range, why: Ending) -> None:
        for call_id in call_ids:
            message.endings.setdefault(call_id, why)
        if message.worker is not None:
            self._eager.begin(self._interrupt(message, message.worker, call_ids))

    async def _interrupt(self, message: Message, worker: PoolWorker, call_ids: range) -> None:
        async with worker.lock:
            if worker.current_task is not message or worker.child is None:
                return
            first = max(call_ids.start, message.head)
            if first < call_ids.stop:
                worker.child.interrupt(first, call_ids.stop - first)
            running = worker.child.running or message.head
        if message.doomed == running:
            return  # asking again gives it no more time
        message.doomed = running
        if message.bell is not None:
            message.bell.cancel()
        message.bell = self._clock.call_later(
            self._grace_s, lambda: self._eager.begin(self._kill(message, worker))
        )

    async def _kill(self, message: Message, worker: PoolWorker) -> None:
        async with worker.lock:
            if worker.current_task is not message or worker.child is None:
                return
            message.doomed = 0
            running = worker.child.running or message.head
            if running in message.endings:
                worker.kill(f"killed: {message.name} did not end within {self._grace_s:g} s of its interrupt")
                return
        if message.options.timeout_s is not None:
            self._watch(message)

    # --- time ---

    def _watch(self, message: Message) -> None:
        """Look when its time is up. Which call of a range runs is only known by looking, so: more often."""
        assert message.options.timeout_s is not None
        message.watched, message.watched_at = message.head, self._clock.monotonic()
        self._ring_later(message)

    def _ring_later(self, message: Message) -> None:
        limit_s = message.options.timeout_s
        assert limit_s is not None
        delay_s = limit_s / RANGE_CHECKS if message.encoded.is_range else limit_s
        message.bell = self._clock.call_later(delay_s, lambda: self._eager.begin(self._check(message)))

    async def _check(self, message: Message) -> None:
        worker, limit_s = message.worker, message.options.timeout_s
        if worker is None or limit_s is None:
            return
        async with worker.lock:
            if worker.current_task is not message or worker.child is None or not message.left:
                return
            if message.doomed:
                return  # another bell is set
            running = max(worker.child.running, message.head)
        now = self._clock.monotonic()
        if running != message.watched:
            message.watched, message.watched_at = running, now
        # A timer may ring a little early by the clock that is read here.
        if now - message.watched_at >= limit_s * 0.99:
            self._end_early(message, range(running, running + 1), "timeout")
        else:
            self._ring_later(message)

    async def join(self) -> None:
        """Wait until everything that was begun for an event has ended."""
        await self._eager.join()
