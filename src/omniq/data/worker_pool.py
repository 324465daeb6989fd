"""Functions in, results out in the same order: a pool of processes that load data.

    with WorkerPool(num_workers=4) as pool:
        for path in paths:
            pool.submit_task(lambda: load(path))
        for array in pool.results(): ...

Blocking, for ordinary threads. What it decides, it decides on a loop in a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, Self, TypeVar

from loguru import logger

from omniq.data import feeding
from omniq.data.base import BaseWorkerPool
from omniq.data.crew import Crew, ProcessCrew
from omniq.data.engine import Engine
from omniq.data.farewell import Closeable, Farewell
from omniq.data.mapping import Mapped
from omniq.data.options import Options, checked
from omniq.data.stream import ErrorPolicy, Hatch, Stream, Work
from omniq.data.threads import ThreadCrew
from omniq.errors import InvalidOption
from omniq.loopthread import LoopThread, outcome
from omniq.pool.calls import name_of
from omniq.task import Duration, seconds

T = TypeVar("T")
R = TypeVar("R")

# Never freed: a loop that is freed takes back what it waits for, from its parent's twin as well.
_INHERITED: Final[list[object]] = []


class WorkerPool(BaseWorkerPool):
    """Workers that load data in parallel, and give it in the order in which it was asked for."""

    def __init__(
        self,
        num_workers: int = 4,
        *,
        kind: Literal["process", "thread"] = "process",
        ordered: bool = True,
        on_error: ErrorPolicy = "skip",
        max_pending: int | None = None,
        arena: int | None = None,
        init: Callable[[], Any] | None = None,
        timeout: Duration | None = None,
        max_losses: int = 3,
        preload: Sequence[str] = (),
    ) -> None:
        """`num_workers` processes, or threads with `kind="thread"`.

        `ordered`: results in the order of submission; otherwise as they end.
        `on_error`: "skip" logs a call that failed and leaves it out, "raise" raises it in its place.
        `max_pending`: how many calls may wait for a worker; `submit_task` waits when there are more.
        `arena`: bytes of shared memory for results, reserved at start (default: at most 256 MiB).
        `init`: called once in each worker, before anything else.
        `timeout`: how long one call may run; then it is stopped, and treated by `on_error`.
        `max_losses`: how often a call is run again whose worker died.
        `preload`: modules that are imported once, before any worker is started.
        """
        self._options: Options = checked(
            num_workers=num_workers,
            kind=kind,
            ordered=ordered,
            on_error=on_error,
            max_pending=max_pending,
            arena=arena,
            init=init,
            timeout=timeout,
            max_losses=max_losses,
            preload=preload,
        )
        self._lifecycle = threading.Lock()
        self._hatch = Hatch(max_pending)
        self._stream = self._new_stream()
        self._crew: Crew | None = None
        self._engine: Engine | None = None
        self._thread: LoopThread | None = None
        self._farewell: Farewell | None = None
        self._memory: Closeable | None = None  # that workers share, and that goes with the pool

    def __repr__(self) -> str:
        return f"<omniq.data.WorkerPool of {self.num_workers}, {self._hatch.state}>"

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> Self:
        with self._lifecycle:
            if self.is_running:
                logger.debug("the data pool is already running")
                return self
            self._disown()
            options = self._options
            crew = self._new_crew(options)
            thread = LoopThread("omniq-data").start()
            try:
                engine = outcome(thread.submit(_started(crew, self._hatch, options)))
            except BaseException:
                thread.stop()
                raise
            self._crew, self._engine, self._thread = crew, engine, thread
            self._hatch.wake = lambda: thread.call(engine.look)
            self._hatch.call_soon = thread.loop.call_soon_threadsafe
            self._stream = self._new_stream()
            self._hatch.enter("running")
            self._hatch.open(self._stream)
            self._farewell = Farewell(self._hatch, engine, thread, self._memory)
            self._farewell.when_gone(self)
        return self

    def stop(self, timeout: Duration = 30) -> None:
        """Drop what waits, wait for what runs, at most `timeout`, and end. Blocked readers are told."""
        limit_s = seconds(timeout, "timeout")
        if limit_s < 0:
            raise InvalidOption(f"timeout must be 0 seconds or more, not {timeout!r}")
        with self._lifecycle:
            self._disown()
            engine, thread = self._engine, self._thread
            if engine is None or thread is None:
                return
            self._hatch.enter("stopping")
            try:
                outcome(thread.submit(engine.stop(limit_s)))
            finally:
                if self._farewell is not None:
                    self._farewell.detach()
                thread.stop()
                self._crew = self._engine = self._thread = self._farewell = None
                self._hatch.enter("stopped")

    def close(self) -> None:
        self.stop()

    def _disown(self) -> None:
        """After a fork: the workers are the parent's, and so is what its loop waits for."""
        if self._hatch.is_inherited:
            _INHERITED.append((self._crew, self._engine, self._thread))
            if self._farewell is not None:
                self._farewell.detach()
            self._crew = self._engine = self._thread = self._farewell = None
            self._hatch.enter("stopped")

    def _new_crew(self, options: Options) -> Crew:
        if options.kind == "thread":
            return ThreadCrew(options.init)
        return ProcessCrew(options.arena_bytes, options.preload, options.init)

    def _new_stream(self) -> Stream:
        return Stream(self._hatch, ordered=self._options.ordered, on_error=self._options.on_error)

    # --- functions in, results out ---------------------------------------------------------------

    def submit_task(self, fn: Callable[[], Any], *, priority: int = 0) -> None:
        """Queue `fn()`. Higher priorities run earlier; the order of ordered results stays that of submission.

        Waits while `max_pending` calls wait already. What cannot be sent to a worker is an error here.
        """
        self.submit_batch((fn,), priority=priority)

    def submit_batch(self, fns: Iterable[Callable[[], Any]], *, priority: int = 0) -> None:
        """Queue several functions: all of them, or none if one cannot be sent."""
        crew = self._running_crew()
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidOption(f"priority must be a whole number, not {priority!r}")
        works = [Work(priority, name_of(fn), 1, crew.call(_function(fn))) for fn in fns]
        self._hatch.submit(self._stream, works)

    def get_result(self, timeout: Duration | None = None) -> Any:
        """The next result; waits for it, at most `timeout`, and then raises ResultTimeout.

        Raises TaskFailed when every call has ended and the one that is missing had failed and was left out.
        """
        return self._stream.take(None if timeout is None else seconds(timeout, "timeout"))

    def try_get_result(self) -> tuple[bool, Any]:
        return self._stream.try_take()

    def results(self) -> Iterator[Any]:
        """Results until every call that was submitted has ended and was read."""
        while True:
            found, value = self._stream.take_until_done()
            if not found:
                return
            yield value
            del value  # or it would be pinned while the reader waits for the next one

    def map(
        self,
        fn: Callable[[T], R],
        items: Iterable[T],
        *,
        chunksize: int = 1,
        ahead: int | None = None,
        sticky: bool = False,
    ) -> Iterator[R]:
        """`fn(item)` for each item, a bounded number of them ahead of whoever reads.

        `chunksize` items go to a worker at once, and `ahead` chunks before somebody reads (default: four per
        worker, more of those that take less than two milliseconds). `sticky`: all of them to one worker, as
        long as that lives, for a function that goes on where it stopped. These results are apart from those
        of `submit_task`. Leaving the loop drops what is ahead.
        """
        crew = self._running_crew()
        for value, option in ((chunksize, "chunksize"), (ahead, "ahead")):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidOption(f"{option} must be a whole number of at least 1, not {value!r}")
        name, encoded = name_of(_function(fn)), crew.chunks(fn)

        def work(chunk: list[T]) -> Work:
            assert self.num_workers  # whoever reads the results keeps the pool alive
            return Work(0, name, len(chunk), encoded(chunk))

        stream = self._new_stream()
        stream.is_sticky = bool(sticky)
        may_be_ahead = self._usual_ahead if ahead is None else lambda: ahead
        return Mapped(self._hatch, stream, work, items, chunksize=chunksize, ahead=may_be_ahead)

    def _usual_ahead(self) -> int:
        engine, limit = self._engine, self._options.max_pending
        ahead = self.num_workers * feeding.ahead(None if engine is None else engine.usual_s)
        return ahead if limit is None else max(self.num_workers, min(ahead, limit))

    def _running_crew(self) -> Crew:
        crew = self._crew
        with self._hatch.lock:
            self._hatch.check_running()
        assert crew is not None
        return crew

    # --- looking after it ------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._hatch.state in ("running", "stopping") and not self._hatch.is_inherited

    @property
    def num_workers(self) -> int:
        return self._options.num_workers

    @property
    def pending(self) -> int:
        """Calls that wait for a worker."""
        return self._hatch.pending

    @property
    def in_flight(self) -> int:
        """Calls that a worker has."""
        return self._hatch.in_flight

    @property
    def ready(self) -> int:
        """Results that nobody has read yet."""
        return self._hatch.ready

    @property
    def arena_bytes(self) -> int:
        """How much of the arena is in use: lent to workers, unread, or looked at by whoever has read it."""
        crew = self._crew
        return 0 if crew is None else crew.used_bytes

    @property
    def pids(self) -> list[int]:
        """The processes, or system's numbers of the threads, that are ready for work or have some."""
        engine = self._engine
        workers = [] if engine is None else list(engine.workers)
        return [worker.hand.pid for worker in workers if worker.is_ready and worker.hand is not None]

    @property
    def restarts(self) -> int:
        """How many workers were replaced since the start."""
        engine = self._engine
        return 0 if engine is None else engine.restarts


def _function(fn: Any) -> Any:
    if not callable(fn):
        raise TypeError(f"fn must be a function, not {'None' if fn is None else type(fn).__name__}")
    return fn


async def _started(crew: Crew, hatch: Hatch, options: Options) -> Engine:
    engine = Engine(
        crew,
        hatch,
        options.num_workers,
        arena_bytes=options.arena_bytes,
        timeout_s=options.timeout_s,
        max_losses=options.max_losses,
    )
    try:
        await engine.start()
    except BaseException:
        await engine.end()
        raise
    return engine
