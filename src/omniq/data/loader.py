"""DataLoader: batches of a dataset, in an order that depends on nothing but the seed and the epoch.

dataset ── Sampling ──> jobs ── workers, or the caller ──> batches ── Epoch ──> consumer
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from msgspec.structs import replace

from omniq.data.epoch import Cursor, Epoch
from omniq.data.loader_options import LoaderOptions, checked
from omniq.data.loader_pool import Here, LoaderPool, Runner
from omniq.data.position import Identity, Lane, Position, from_dict, to_dict
from omniq.data.producers import InLanes, Keyed, Producer
from omniq.data.sampling import Sampling, batches_of
from omniq.data.source import Source, lanes_in
from omniq.data.statistics import Statistics
from omniq.data.tensors import TensorOption, as_tensors


class DataLoader:
    """Iterate over it: each time is one epoch."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        *,
        seed: int | None = None,
        num_workers: int = 0,
        prefetch: int = 2,
        collate: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        persistent: bool = True,
        to_torch: TensorOption = False,
        writable: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
        progress: bool = False,
    ) -> None:
        """Batches of `dataset`, which has `__getitem__` and `__len__`, or `__iter__`.

        `batch_size`: samples in a batch; None gives samples as they are.
        `shuffle`: another order in each epoch, by `seed`. `sampler` gives keys, `batch_sampler` lists.
        `seed`: the same seed is the same stream, chance inside the dataset included. Default: drawn anew.
        `num_workers`: processes; 0 loads in the caller. `prefetch`: batches ahead, for each of them.
        `collate`: makes a batch of a list of samples, instead of ours.
        `drop_last`: leave out a last batch that is not full.
        `persistent`: keep the workers between epochs.
        `to_torch`: tensors over the same memory; "pinned" copies them into memory that a GPU can read itself.
        `writable`: arrays that may be written to. Otherwise those of 64 KiB and more are read-only.
        `on_error`: "raise" raises what a sample raised; "skip" logs it and leaves the sample out.
        `progress`: one line on the standard error output.
        """
        self._options: LoaderOptions = checked(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            num_workers=num_workers,
            prefetch=prefetch,
            collate=collate,
            drop_last=drop_last,
            sampler=sampler,
            batch_sampler=batch_sampler,
            persistent=persistent,
            to_torch=to_torch,
            writable=writable,
            on_error=on_error,
            progress=progress,
        )
        self.dataset = dataset
        self._seed = secrets.randbits(63) if seed is None else seed
        self._next = Position()
        self._cursor: Cursor | None = None
        self._pool: LoaderPool | None = None
        self._runs = 0

    def __repr__(self) -> str:
        return f"<omniq.data.DataLoader of {type(self.dataset).__name__}, epoch {self.epoch}>"

    @property
    def seed(self) -> int:
        """What the stream follows from; drawn when the loader was made, unless it was given."""
        return self._seed

    @property
    def epoch(self) -> int:
        """The number of the epoch that is read, or comes next."""
        return self._position.epoch

    @property
    def num_workers(self) -> int:
        return self._options.num_workers

    @property
    def statistics(self) -> Statistics | None:
        """Of the latest epoch; as text it is one line. None before the first."""
        return None if self._cursor is None else self._cursor.statistics

    def __len__(self) -> int:
        """How many batches an epoch has."""
        if self._options.is_iterable:
            return batches_of(len(self.dataset), self._options.batch_size, self._options.drop_last)
        return self._sampling().count()

    # --- one epoch -------------------------------------------------------------------------------

    def __iter__(self) -> Epoch:
        options, begin = self._options, self._next
        runner = self._runner()
        cursor = Cursor(begin, options.num_workers)
        epoch = Epoch(
            self._producer(runner, begin),
            cursor,
            convert=partial(as_tensors, option=options.to_torch) if options.to_torch else None,
            skips_errors=options.on_error == "skip",
            shows_progress=options.progress,
            pool=runner if isinstance(runner, LoaderPool) else None,
            closes_pool=not options.persistent,
            ahead=self._ahead,
        )
        self._next, self._cursor = begin.next_epoch(), cursor
        return epoch

    def _producer(self, runner: Runner, begin: Position) -> Producer:
        options = self._options
        self._runs += 1
        if not options.is_iterable:
            results = partial(runner.run, "fetch", ahead=self._ahead)
            return Keyed(results, partial(self._sampling().jobs, self._seed), begin)
        lanes = lanes_in(self.dataset)
        if not begin.lanes:
            begin = replace(begin, lanes=(Lane(),) * lanes)
        ahead = max(1, -(-options.prefetch * min(lanes, max(1, options.num_workers)) // lanes))
        results = partial(runner.run, "read", ahead=ahead, sticky=True)
        return InLanes(results, self._seed, self._runs, options.batch_size or 1, begin)

    @property
    def _ahead(self) -> int:
        return self._options.prefetch * max(1, self._options.num_workers)

    def _sampling(self) -> Sampling:
        options = self._options
        return Sampling(
            None if options.has_sampler else len(self.dataset),
            options.batch_size,
            options.shuffle,
            options.drop_last,
            options.sampler,
            options.batch_sampler,
        )

    def _runner(self) -> Runner:
        options = self._options
        if options.num_workers == 0:
            return Here(self._source(), writable=options.is_writable)
        if self._pool is not None and self._pool.is_running:
            return self._pool
        pool = LoaderPool(self._source(), options.num_workers, writable=options.is_writable)
        pool.start()
        if options.persistent:
            self._pool = pool
        return pool

    def _source(self) -> Source:
        options = self._options
        return Source(
            self.dataset,
            options.collate,
            is_batched=options.batch_size is not None or options.batch_sampler is not None,
            skips_errors=options.on_error == "skip",
            drop_last=options.drop_last,
        )

    # --- stop and go on --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer is, in plain values. The next epoch of a loader that loads it goes on there."""
        return to_dict(self._seed, self._position, self._identity())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where that state was taken, at the next `iter`. The number of workers may be another."""
        self._seed, self._next = from_dict(state, self._identity(), self._options.seed)
        self._cursor = None

    @property
    def _position(self) -> Position:
        return self._next if self._cursor is None else self._cursor.position

    def _identity(self) -> Identity:
        options = self._options
        if options.is_iterable:
            return Identity(None, False, lanes_in(self.dataset))
        return Identity(None if options.has_sampler else len(self.dataset), options.shuffle, 0)

    # --- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End the workers. The next epoch starts others."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
