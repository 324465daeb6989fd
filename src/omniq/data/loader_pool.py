"""Who loads: workers that all have the dataset, or the caller itself. One face for both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Literal, Protocol

from omniq.data import sharing, source
from omniq.data.crew import Crew, ProcessCrew
from omniq.data.feeding import wanted_arena_bytes
from omniq.data.mapping import Mapped
from omniq.data.options import Options
from omniq.data.producers import Results
from omniq.data.sealed import sealed
from omniq.data.seeding import own_chance_kept
from omniq.data.sharing import SharedMemory
from omniq.data.source import Loaded, Source
from omniq.data.worker_pool import WorkerPool
from omniq.loopthread import outcome
from omniq.pool.arena import default_limit_bytes
from omniq.pool.pickles import raisable

Verb = Literal["fetch", "read"]
FIRST_ARENA_BYTES: Final = 64 * 1024**2
MOST_SHARE: Final = 2  # times an eighth of the machine's memory
# A script's own names are in no module that another process could import.
NOT_IMPORTED: Final = ("__main__", "__mp_main__", "builtins")


class Runner(Protocol):
    def run(self, verb: Verb, jobs: Iterable[Any], *, ahead: int, sticky: bool = False) -> Results:
        """What becomes of each job, in order. An exception comes in its place, and the next ones follow."""
        ...


class Here:
    """In the caller, when the consumer asks for it."""

    def __init__(self, found: Source, *, writable: bool) -> None:
        self._source = found
        self._writable = writable

    def run(self, verb: Verb, jobs: Iterable[Any], *, ahead: int, sticky: bool = False) -> Results:
        return _InTurn(partial(self._load, getattr(self._source, verb)), iter(jobs))

    def _load(self, load: Callable[[Any], Loaded], job: Any) -> Loaded:
        with own_chance_kept():
            try:
                loaded = load(job)
            except StopIteration as exc:  # whoever iterates would take it for the end
                raise raisable(exc) from exc
        if self._writable:
            return loaded
        batch, _ = sealed(loaded.batch)
        return loaded._replace(batch=batch)


class _InTurn:
    """Job by job."""

    def __init__(self, load: Callable[[Any], Loaded], jobs: Iterator[Any]) -> None:
        self._load = load
        self._jobs = jobs
        self.taken = 0

    def __next__(self) -> Loaded:
        self.taken += 1  # first: a Ctrl-C may come from here on
        return self._load(next(self._jobs))

    def close(self) -> None:
        """Nothing is ahead."""


class LoaderPool(WorkerPool):
    """Workers that have a source, from shared memory, and load batches of it."""

    def __init__(self, found: Source, num_workers: int, *, writable: bool) -> None:
        memory = SharedMemory(found)
        self._writable = writable
        super().__init__(
            num_workers,
            on_error="raise",
            init=partial(source.install, memory.shared.load),
            arena=min(FIRST_ARENA_BYTES, default_limit_bytes()),
            preload=("numpy.random", source.__name__, sharing.__name__, *found.modules()),
        )
        self._memory = memory

    def _new_crew(self, options: Options) -> Crew:
        return ProcessCrew(
            options.arena_bytes,
            [name for name in options.preload if name not in NOT_IMPORTED],
            options.init,
            preload_required=False,
            read_only=not self._writable,
            most_arena_bytes=MOST_SHARE * default_limit_bytes(),
        )

    def make_room(self, batch_bytes: int, ahead: int) -> None:
        """How large batches are is known by the first one: make the arena as large as it should be."""
        engine, thread = self._engine, self._thread
        wanted = wanted_arena_bytes(batch_bytes, ahead)
        if wanted > self._options.arena_bytes and engine is not None and thread is not None:
            outcome(thread.submit(engine.grow(wanted)))

    def run(self, verb: Verb, jobs: Iterable[Any], *, ahead: int, sticky: bool = False) -> Results:
        function: Any = source.fetch if verb == "fetch" else source.read
        results = self.map(function, jobs, ahead=ahead, sticky=sticky)
        assert isinstance(results, Mapped)
        results.begin()
        return results

    def close(self) -> None:
        super().close()
        if self._memory is not None:
            self._memory.close()
