"""Batches in the order of the stream, and the position after each: for both kinds of datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, count
from typing import Any, Protocol

from omniq.data.position import Position
from omniq.data.source import MAX_TOLD_CHARS, Job, LaneJob, Loaded
from omniq.errors import PoolNotRunning, WorkerDied


class Results(Protocol):
    """What becomes of jobs, in their order."""

    @property
    def taken(self) -> int:
        """How many were taken out or raised. Whether whoever asked has the last one, is another question."""
        ...

    def __next__(self) -> Loaded: ...
    def close(self) -> None: ...


Run = Callable[[Iterable[Any]], Results]


class Producer(Protocol):
    position: Position  # after what `next` has given or raised

    def __next__(self) -> Loaded: ...

    def go_back(self, position: Position) -> None:
        """A Ctrl-C came when this was reached. What it may have cut off on its way comes next."""
        ...

    def close(self) -> None: ...


class Keyed:
    """Jobs that are all known: one stream."""

    def __init__(self, run: Run, jobs_from: Callable[[Position], Iterator[Job]], begin: Position) -> None:
        self.position = begin
        self._run, self._jobs_from = run, jobs_from
        self._broken: Exception | None = None
        self._taken = 0  # out of the results, when the next one was asked for
        self._is_cut = False
        self._begin()

    def _begin(self) -> None:
        self._asked: dict[int, Job] = {}  # by the numbers of their batches: on their way, or just given
        self._has_ended = False
        self._jobs = self._noted(self._jobs_from(self.position))
        self._results = self._run(self._jobs)

    def _noted(self, jobs: Iterator[Job]) -> Iterator[Job]:
        try:
            for number, job in enumerate(jobs, self.position.batches):
                self._asked[number] = job
                yield job
        except Exception as exc:  # of a sampler: its turn comes after what is on its way
            self._broken = exc
        self._has_ended = True

    def __next__(self) -> Loaded:
        if self._is_cut:
            self._resume()
        number = self.position.batches
        self._asked.pop(number - 1, None)  # whoever asks for the next one has it
        self._taken = self._results.taken
        try:
            loaded = next(self._results)
        except StopIteration:
            if self._broken is not None:
                broken, self._broken = self._broken, None
                raise broken from None
            if self._has_ended:
                raise
            # A Ctrl-C that met a generator has ended it. All that was on its way has been given.
            self._results.close()
            self._begin()
            return next(self)
        except PoolNotRunning:
            raise
        except Exception as exc:
            keys = self._asked[number].keys
            self.position = self.position.after(len(keys))
            _say_where(exc, lambda: f"while samples {_cut_short(keys)} of the dataset were loaded")
            raise
        self.position = self.position.after(len(self._asked[number].keys))
        return loaded

    def go_back(self, position: Position) -> None:
        if self.position != position or self._results.taken != self._taken:
            self.position = position
            self._is_cut = True

    def _resume(self) -> None:
        """Not by asking the sampler anew: that may give another order."""
        self._results.close()
        again = [job for number, job in self._asked.items() if number >= self.position.batches]
        self._results = self._run(chain(again, self._jobs))
        self._is_cut = False

    def close(self) -> None:
        self._results.close()


class InLanes:
    """An iterable dataset: one stream for each of its lanes, read in turns until all are over."""

    def __init__(self, run: Run, seed: int, run_number: int, size: int, begin: Position) -> None:
        self.position = begin
        self._size = size
        self._lanes: dict[int, Results] = {}
        self._deadly: set[int] = set()  # lanes whose latest batch has killed its workers
        self._run, self._seed, self._run_number = run, seed, run_number
        self._begin_all()

    def _begin_all(self) -> None:
        for number, lane in enumerate(self.position.lanes):
            if not lane.is_over:
                self._begin(number)
        self._is_cut = False
        self._taken = self._all_taken

    @property
    def _all_taken(self) -> int:
        return sum(results.taken for results in self._lanes.values())

    def _begin(self, number: int) -> None:
        epoch, lanes = self.position.epoch, self.position.lanes
        samples = lanes[number].samples
        first = LaneJob(self._seed, epoch, self._run_number, number, len(lanes), samples, self._size)
        self._lanes[number] = self._run(_jobs(first))

    def __next__(self) -> Loaded:
        if self._is_cut:
            self.close()
            self._begin_all()
        self._taken = self._all_taken
        while not self.position.is_exhausted:
            turn = self.position.turn
            try:
                loaded = next(self._lanes[turn])
            except StopIteration:  # these jobs have no end: a Ctrl-C has cut them off
                self._lanes[turn].close()
                self._begin(turn)
                self._taken = self._all_taken  # without those that this lane gave before
                continue
            except PoolNotRunning:
                raise
            except Exception as exc:
                self._failed(turn, exc)
                raise
            self._deadly.discard(turn)
            self.position = self.position.after_lane(loaded.samples, loaded.is_last)
            if loaded.is_last:
                self._lanes.pop(turn).close()
            if loaded.samples or loaded.left_out:
                return loaded
        raise StopIteration

    def _failed(self, turn: int, exc: Exception) -> None:
        """The lane goes on after this batch, unless no worker survives the way there."""
        is_over = isinstance(exc, WorkerDied) and turn in self._deadly
        if isinstance(exc, WorkerDied):
            self._deadly.add(turn)
        first = self.position.lanes[turn].samples
        last = first + self._size - 1
        _say_where(exc, lambda: f"while samples {first} to {last} of lane {turn} were loaded")
        self.position = self.position.after_lane(self._size, is_over)
        if is_over:
            self._lanes.pop(turn).close()

    def go_back(self, position: Position) -> None:
        if self.position != position or self._all_taken != self._taken:
            self.position = position
            self._is_cut = True

    def close(self) -> None:
        while self._lanes:
            self._lanes.popitem()[1].close()


def _jobs(first: LaneJob) -> Iterator[LaneJob]:
    """Without an end: where it is, only the worker finds out."""
    for position in count(first.position, first.size):
        yield first._replace(position=position)


def _say_where(exc: Exception, where: Callable[[], str]) -> None:
    """Of a failure that does not say it itself: a worker that died, a batch that could not be made."""
    with suppress(Exception):  # its own add_note, or the repr of a key
        if not getattr(exc, "__notes__", None):
            exc.add_note(where())


def _cut_short(keys: list[Any]) -> str:
    text = repr(keys)
    return text if len(text) <= MAX_TOLD_CHARS else f"{text[:MAX_TOLD_CHARS]}...]"
