"""Which samples a batch is made of: the keys of an epoch, from any position on. Loads nothing.

Sampling(length=10, batch_size=4).jobs(seed, at)  ->  Job(position=0, keys=[0, 1, 2, 3]), ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from msgspec import Struct

from omniq.data.position import Position
from omniq.data.seeding import permutation
from omniq.data.source import Job
from omniq.errors import InvalidOption


class Sampling(Struct, frozen=True, eq=False):
    """What the options of a loader say about order and batches. `batch_size` None: one sample, no batch."""

    length: int | None
    batch_size: int | None
    is_shuffled: bool = False
    drop_last: bool = False
    sampler: Iterable[Any] | None = None
    batch_sampler: Iterable[Any] | None = None

    def jobs(self, seed: int, at: Position) -> Iterator[Job]:
        """The batches of an epoch that are left at this position."""
        if self.batch_sampler is not None:
            return self._given_batches(self.batch_sampler, seed, at)
        if self.sampler is not None:
            _tell_epoch(self.sampler, at.epoch)
            return self._cut(islice(iter(self.sampler), at.samples, None), seed, at)
        assert self.length is not None
        if not self.is_shuffled:
            return self._cut(iter(range(at.samples, self.length)), seed, at)
        order = permutation(seed, at.epoch, self.length)[at.samples :]
        return self._cut((int(key) for key in order), seed, at)

    def _cut(self, keys: Iterator[Any], seed: int, at: Position) -> Iterator[Job]:
        position, size = at.samples, self.batch_size or 1
        while batch := list(islice(keys, size)):
            if len(batch) < size and self.drop_last:
                return
            yield Job(seed, at.epoch, position, batch)
            position += len(batch)

    def _given_batches(self, batches: Iterable[Any], seed: int, at: Position) -> Iterator[Job]:
        _tell_epoch(batches, at.epoch)
        position = at.samples
        for batch in islice(iter(batches), at.batches, None):
            try:
                single_keys = iter(batch)
            except TypeError as exc:
                raise InvalidOption(
                    f"batch_sampler gave {batch!r:.100}, which is no list of keys; sampler= takes single ones"
                ) from exc
            keys = list(single_keys)  # which may be read once only
            yield Job(seed, at.epoch, position, keys)
            position += len(keys)

    def count(self) -> int:
        """How many batches an epoch has. Raises TypeError where a sampler has no length."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        samples = self.length if self.sampler is None else len(self.sampler)  # type: ignore[arg-type]
        assert samples is not None
        return batches_of(samples, self.batch_size, self.drop_last)


def batches_of(samples: int, batch_size: int | None, drop_last: bool) -> int:
    size = batch_size or 1
    return samples // size if drop_last else -(-samples // size)


def _tell_epoch(sampler: Any, epoch: int) -> None:
    """Samplers that share a dataset between machines want to know it, or every epoch has the same order."""
    if callable(tell := getattr(sampler, "set_epoch", None)):
        tell(epoch)
