"""Gives items to workers, takes their results, and replaces workers that die. All of it on one loop.

hatch ── received ──> waiting ── give ──> worker ── outcome ──> stream
                         ^                  │
                         └──── lost <───────┘ died
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from loguru import logger

from omniq.data.crew import Crew
from omniq.data.feeding import fits, places
from omniq.data.items import MAX_FALSE_STARTS, Item
from omniq.data.stream import Hatch, Stream
from omniq.data.waiting import Waiting
from omniq.data.worker import Worker
from omniq.errors import StartFailed, WorkerDied
from omniq.logic.scaling import start_pause_s
from omniq.pool.peer import ResultSize
from omniq.pool.pickles import told
from omniq.pool.starts import Starts

if TYPE_CHECKING:
    from omniq.pool.peer import Exit

START_BOUND_S: Final = 300.0
GRACE_S: Final = 2.0  # how long an interrupted call may go on
LAST_GRACE_S: Final = 0.5  # the same, when the pool stops and its time is up
LOOKS_PER_TIMEOUT: Final = 8
REMEMBERED: Final = 0.8  # of the usual duration, at each new one


class Engine:
    """Every method is for the loop."""

    def __init__(
        self,
        crew: Crew,
        hatch: Hatch,
        num_workers: int,
        *,
        arena_bytes: int,
        timeout_s: float | None,
        max_losses: int,
    ) -> None:
        self.timeout_s = timeout_s
        self.restarts = 0
        self.usual_s: float | None = None  # that an item takes, all its calls together
        self.workers: list[Worker] = []
        self._crew = crew
        self._hatch = hatch
        self._num_workers = num_workers
        self._arena_bytes = arena_bytes
        self._max_losses = max_losses
        self._waiting = Waiting()
        self._sizes = ResultSize()
        self._next_id = 1
        self._hired = 0
        self._deaths = 0  # in a row, of workers that had finished nothing
        self._starts = Starts()
        self._has_priorities = False  # somebody has asked for another than the usual one
        self._is_stopping = False
        self._starting: asyncio.Future[None] | None = None
        self._all_gone = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def now(self) -> float:
        return self._loop.time()

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Have every worker ready. Raises StartFailed, also when the pool's `init` raises."""
        self._starting = self._loop.create_future()
        await self._crew.start()
        for _ in range(self._num_workers):
            self._begin(self._hire(0.0))
        try:
            async with asyncio.timeout(START_BOUND_S):
                await self._starting
        except TimeoutError:
            raise StartFailed(
                f"the workers were not ready within {START_BOUND_S:g} s; give init less to do"
            ) from None
        if self.timeout_s is not None:
            self._begin(self._watch(self.timeout_s))

    async def stop(self, timeout_s: float) -> None:
        """Drop what waits, let what runs end within `timeout_s`, and end every worker."""
        try:
            await self._let_end(timeout_s)
        finally:
            await self.end()

    async def _let_end(self, timeout_s: float) -> None:
        self._is_stopping = True
        for item in (*self._hatch.received(), *self._waiting.take_all()):
            self._hatch.dropped(item.left)
        await self._cancel_tasks()
        self.workers = [worker for worker in self.workers if worker.hand is not None]
        for worker in tuple(self.workers):
            self._ask_to_stop(worker)
        if not self.workers:
            self._all_gone.set()
        if not await self._gone_within(timeout_s):
            for worker in self.workers:
                if worker.hand is not None and (running := worker.hand.running):
                    worker.hand.interrupt(running)
            await self._gone_within(LAST_GRACE_S)

    async def end(self) -> None:
        """Now, whatever runs."""
        self._is_stopping = True
        for worker in self.workers:
            if worker.hand is not None:
                worker.hand.kill()
        await self._cancel_tasks()
        await self._crew.close()

    async def _cancel_tasks(self) -> None:
        """Nobody is hired any more, nor watched."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _ask_to_stop(self, worker: Worker) -> None:
        assert worker.hand is not None
        for sent in worker.sent:
            worker.ask_back(sent)  # also of a chunk that has begun: its further calls do not begin
        if worker.is_ready:
            worker.hand.ask_to_stop()
        else:
            worker.hand.kill()  # it has nothing to finish

    async def _gone_within(self, timeout_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._all_gone.wait()
        return self._all_gone.is_set()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended_task)

    def _ended_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            logger.opt(exception=exc).error("a fault in the data pool")

    # --- workers ---------------------------------------------------------------------------------

    async def _hire(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        self._hired += 1
        worker = Worker(self, self._crew, self._hired, self._ids(1))
        self.workers.append(worker)
        try:
            worker.hand = await self._crew.hire(worker)
        except StartFailed as exc:
            self.workers.remove(worker)
            self._failed_start(str(exc), was_ready=False)
            self._replace()

    def prepared(self, worker: Worker) -> None:
        self._starts.came_to_life()
        is_complete = sum(one.is_ready for one in self.workers) == self._num_workers
        if is_complete and self._starting is not None and not self._starting.done():
            self._starting.set_result(None)
        self._share_with(worker)
        self.feed()

    def not_prepared(self, worker: Worker, exc: Exception) -> None:
        logger.error("init failed in data worker {worker}: {error}", worker=worker.number, error=told(exc))
        self._refuse_start(StartFailed(f"init failed in a worker: {told(exc)}"), exc)
        if worker.hand is not None:
            worker.hand.kill()

    def gone(self, worker: Worker, exit: Exit) -> None:
        if worker in self.workers:
            self.workers.remove(worker)
        if self._is_stopping:
            worker.sent.clear()
            if not self.workers:
                self._all_gone.set()
            return
        logger.warning("data worker {worker} died: {exit}", worker=worker.number, exit=str(exit))
        running = 0 if worker.hand is None else worker.hand.running
        lost = worker.lost(running)
        for nth, (item, was_running) in enumerate(lost):
            self._lost(item, was_running, is_first=nth == 0, exit=exit)
        if worker.has_finished or any(was_running for _, was_running in lost):
            self._starts.did_something()
        else:
            self._failed_start(str(exit), was_ready=worker.was_ready)
        # What finished something was no bad start: it is replaced at once, however often that happens.
        self._deaths = 0 if worker.has_finished else self._deaths + 1
        self._replace()
        self.feed()

    def _replace(self) -> None:
        if not self._is_stopping:
            self.restarts += 1
            pause_s = max(start_pause_s(self._deaths), start_pause_s(self._starts.fruitless))
            self._begin(self._hire(pause_s))

    def _failed_start(self, cause: str, *, was_ready: bool) -> None:
        """With no hope for a worker, what waits for one would wait for ever."""
        self._starts.failed(was_ready=was_ready)
        self._refuse_start(StartFailed(f"a worker could not be started: {cause}"), None)
        if any(worker.is_ready for worker in self.workers) or not self._starts.is_hopeless(self._max_losses):
            return
        text = f"{self._starts.fruitless} workers in a row could not start, the last one: {cause}"
        for item in self._waiting.take_all():
            self._hatch.started(item)
            while item.left:
                was_given = item.losses + item.false_starts > 0
                told = WorkerDied(f"{item.name} did not run: {text}", cause, has_begun=was_given)
                self.failed(item, told)

    def _refuse_start(self, refusal: StartFailed, cause: Exception | None) -> None:
        if self._starting is not None and not self._starting.done():
            refusal.__cause__ = cause
            self._starting.set_exception(refusal)

    def _lost(self, item: Item, was_running: bool, *, is_first: bool, exit: Exit) -> None:
        """Its worker has died. Exactly this is done again, unless it has killed too many."""
        cause = str(exit)
        if was_running:
            item.losses += 1
            if item.losses > self._max_losses:
                times = f"{item.losses} times" if item.losses > 1 else "once"
                text = (
                    f"the worker that ran {item.name} died, {times} ({cause}); max_losses={self._max_losses}"
                )
                self.failed(item, WorkerDied(text, cause))
        elif is_first:
            item.false_starts += 1
            if item.false_starts >= max(MAX_FALSE_STARTS, self._max_losses):
                text = f"{item.false_starts} workers in a row died before {item.name} began"
                self.failed(item, WorkerDied(f"{text}, the last one: {cause}", cause))
        if item.left:
            self.put_back(item)

    # --- items -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Somebody has submitted, read, or gone."""
        for item in self._hatch.received():
            self._has_priorities |= item.priority != 0
            self._waiting.add(item)
        for stream in self._waiting.streams():
            if stream.is_forgotten:
                for item in self._waiting.take_all(stream):
                    self._hatch.dropped(item.left)
        if not self._is_stopping:
            self._make_way()
            self.feed()

    def feed(self) -> None:
        """Give what may start to whoever is free."""
        while not self._is_stopping:
            item = self._chosen()
            worker = None if item is None else self._worker_for(item.stream)
            if item is not None and worker is not None:
                self._waiting.take(item)
                self._hatch.started(item)
                worker.give(item, self._ids(item.count))
            elif item is not None or not self._take_from_busy():
                return

    def _chosen(self) -> Item | None:
        first = self._waiting.first(self._may_run)
        hatch = self._hatch
        with hatch.lock:
            enough = fits(hatch.unread_bytes, hatch.in_flight, self._sizes.bytes, self._arena_bytes)
            hatch.is_narrow = first is not None and not enough
            if first is None or enough:
                return first
            return self._waiting.first_needed(self._may_run)

    def _has_place(self, worker: Worker) -> bool:
        return worker.is_ready and len(worker.sent) < places(self.usual_s)

    def _owner(self, stream: Stream) -> Worker | None:
        """The one living worker that a sticky stream goes to."""
        return next((worker for worker in self.workers if stream in worker.streams), None)

    def _assign(self, stream: Stream) -> Worker | None:
        ready = [worker for worker in self.workers if worker.is_ready]
        found = min(ready, key=lambda worker: len(worker.streams), default=None)
        if found is not None:
            found.streams.add(stream)
        return found

    def _share_with(self, worker: Worker) -> None:
        """A worker that is new takes its part of the sticky streams from the others."""
        while (most := max(self.workers, key=lambda one: len(one.streams))) is not worker:
            if len(most.streams) - len(worker.streams) < 2:
                return
            worker.streams.add(most.streams.pop())

    def _may_run(self, stream: Stream) -> bool:
        """A sticky stream waits for its worker, others only for any."""
        if not stream.is_sticky:
            return True
        owner = self._owner(stream) or self._assign(stream)
        return owner is not None and self._has_place(owner)

    def _worker_for(self, stream: Stream) -> Worker | None:
        if stream.is_sticky:
            return self._owner(stream)
        free = [worker for worker in self.workers if self._has_place(worker)]
        return min(free, key=lambda worker: len(worker.sent), default=None)

    def _take_from_busy(self) -> bool:
        """Somebody is idle: let him have what waits behind a call that takes longer than it should."""
        if not any(worker.is_ready and not worker.sent for worker in self.workers):
            return False
        return any(self._ask_back(worker, math.inf) for worker in self.workers)

    def _make_way(self) -> None:
        """What was given beforehand comes back if something more urgent has come meanwhile."""
        first = self._waiting.first(self._may_run) if self._has_priorities else None
        if first is None:
            return
        for worker in self.workers:
            while self._ask_back(worker, first.priority):
                pass

    def _ask_back(self, worker: Worker, below: float) -> bool:
        """Take back the last item of a worker that it has not begun and that is less urgent."""
        for sent in reversed(tuple(worker.sent)[1:]):
            if sent.was_asked_back or sent.item.priority >= below or sent.item.stream.is_sticky:
                continue
            if worker.ask_back(sent):
                self.put_back(sent.item)
                return True
        return False

    def _ids(self, count: int) -> int:
        self._next_id += count
        return self._next_id - count

    def ended(self, item: Item, value: Any, size_bytes: int) -> None:
        self._deaths = 0
        self._sizes.saw(size_bytes)
        item.stream.finish(item.ended_one(), value, size_bytes)

    def failed(self, item: Item, exc: Exception) -> None:
        if not isinstance(exc, WorkerDied):
            self._deaths = 0
        item.stream.fail(item.ended_one(), item.name, exc)

    def put_back(self, item: Item) -> None:
        self._hatch.given_back(item)
        self._waiting.add(item)

    def freed(self, worker: Worker, took_s: float | None) -> None:
        if took_s is not None:
            usual_s = self.usual_s
            self.usual_s = took_s if usual_s is None else REMEMBERED * usual_s + (1 - REMEMBERED) * took_s
        self.feed()

    async def grow(self, arena_bytes: int) -> None:
        self._arena_bytes = max(self._arena_bytes, self._crew.grow(arena_bytes))
        self.feed()

    # --- time ------------------------------------------------------------------------------------

    async def _watch(self, timeout_s: float) -> None:
        """End calls that run for too long. Which one runs is only known by looking."""
        while True:
            await asyncio.sleep(timeout_s / LOOKS_PER_TIMEOUT)
            for worker in tuple(self.workers):
                self._look_at(worker, timeout_s)

    def _look_at(self, worker: Worker, timeout_s: float) -> None:
        if worker.hand is None or not worker.sent:
            return
        sent, running, now = worker.sent[0], worker.hand.running, self.now()
        if running not in sent.ids:
            worker.watched = 0
        elif running != worker.watched:
            worker.watched, worker.watched_at = running, now
        elif sent.late == running:
            if now - worker.watched_at >= timeout_s + GRACE_S:
                worker.hand.kill()
        elif now - worker.watched_at >= timeout_s * (1 - 1 / LOOKS_PER_TIMEOUT):
            sent.late = running
            worker.hand.interrupt(running)
