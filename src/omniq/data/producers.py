"""Batches in the order of the stream, and the position after each: for both kinds of datasets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

from omniq.data.position import Position
from omniq.data.source import Job, LaneJob, Loaded
from omniq.errors import PoolNotRunning, WorkerDied

Results = Callable[[Iterable[Any]], Iterator[Loaded]]


class Producer(Protocol):
    position: Position  # after what `next` has given or raised

    def __next__(self) -> Loaded: ...
    def close(self) -> None: ...


class Keyed:
    """Jobs that are all known: one stream."""

    def __init__(self, run: Results, jobs_from: Callable[[Position], Iterator[Job]], begin: Position) -> None:
        self.position = begin
        self._run, self._jobs_from = run, jobs_from
        self._broken: Exception | None = None
        self._begin()

    def _begin(self) -> None:
        self._asked: deque[int] = deque()  # how many samples each job has that is on its way
        self._has_ended = False
        self._results = self._run(self._noted(self._jobs_from(self.position)))

    def _noted(self, jobs: Iterator[Job]) -> Iterator[Job]:
        try:
            for job in jobs:
                self._asked.append(len(job.keys))
                yield job
        except Exception as exc:  # of a sampler: its turn comes after what is on its way
            self._broken = exc
        self._has_ended = True

    def __next__(self) -> Loaded:
        try:
            loaded = next(self._results)
        except StopIteration:
            if self._broken is not None:
                broken, self._broken = self._broken, None
                raise broken from None
            if self._has_ended:
                raise
            # A Ctrl-C that met a generator has ended it. All that was on its way has been given.
            _close(self._results)
            self._begin()
            return next(self)
        except PoolNotRunning:
            raise
        except Exception:
            self.position = self.position.after(self._asked.popleft())
            raise
        self.position = self.position.after(self._asked.popleft())
        return loaded

    def close(self) -> None:
        _close(self._results)


class InLanes:
    """An iterable dataset: one stream for each of its lanes, read in turns until all are over."""

    def __init__(self, run: Results, seed: int, run_number: int, size: int, begin: Position) -> None:
        self.position = begin
        self._size = size
        self._lanes: dict[int, Iterator[Loaded]] = {}
        self._deadly: set[int] = set()  # lanes whose latest batch has killed its workers
        self._run, self._seed, self._run_number = run, seed, run_number
        for number, lane in enumerate(begin.lanes):
            if not lane.is_over:
                self._begin(number)

    def _begin(self, number: int) -> None:
        epoch, lanes = self.position.epoch, self.position.lanes
        samples = lanes[number].samples
        first = LaneJob(self._seed, epoch, self._run_number, number, len(lanes), samples, self._size)
        self._lanes[number] = self._run(_jobs(first))

    def __next__(self) -> Loaded:
        while not self.position.is_exhausted:
            turn = self.position.turn
            try:
                loaded = next(self._lanes[turn])
            except StopIteration:  # these jobs have no end: a Ctrl-C has cut them off
                _close(self._lanes[turn])
                self._begin(turn)
                continue
            except PoolNotRunning:
                raise
            except Exception as exc:
                self._failed(turn, exc)
                raise
            self._deadly.discard(turn)
            self.position = self.position.after_lane(loaded.samples, loaded.is_last)
            if loaded.is_last:
                _close(self._lanes.pop(turn))
            if loaded.samples or loaded.left_out:
                return loaded
        raise StopIteration

    def _failed(self, turn: int, exc: Exception) -> None:
        """The lane goes on after this batch, unless no worker survives the way there."""
        is_over = isinstance(exc, WorkerDied) and turn in self._deadly
        if isinstance(exc, WorkerDied):
            self._deadly.add(turn)
        self.position = self.position.after_lane(self._size, is_over)
        if is_over:
            _close(self._lanes.pop(turn))

    def close(self) -> None:
        while self._lanes:
            _close(self._lanes.popitem()[1])


def _jobs(first: LaneJob) -> Iterator[LaneJob]:
    """Without an end: where it is, only the worker finds out."""
    for position in count(first.position, first.size):
        yield first._replace(position=position)


def _close(results: Iterator[Loaded]) -> None:
    with suppress(AttributeError):  # those of the caller's own process have nothing ahead
        results.close()  # type: ignore[attr-defined]
