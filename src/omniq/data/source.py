"""Loads batches: what runs in a worker, or in the caller's own process. Knows no pool.

    Source(dataset, collate, ...).fetch(Job)      samples of a map-style dataset by their keys
                                 .read(LaneJob)   the next samples of an iterable one

What a batch looks like depends on its job alone, so that any worker can load any batch, again if need be.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NamedTuple

from omniq.data import seeding
from omniq.data.collate import Collation
from omniq.pool import pickles

# So many sequences of an iterable dataset are read in turns, whatever the number of workers.
MAX_LANES: Final = 16
MAX_OPEN_READERS: Final = 2 * MAX_LANES
MAX_TOLD_CHARS: Final = 500  # of a failure, or of keys, in a log or a note
NOWHERE: Final = -1


class Job(NamedTuple):
    """One batch to load: `keys` are those of the samples `position` and following of this epoch."""

    seed: int
    epoch: int
    position: int
    keys: list[Any]


class LaneJob(NamedTuple):
    """At most `size` samples of a lane, from `position` on. `run` tells two iterations apart."""

    seed: int
    epoch: int
    run: int
    lane: int
    lanes: int
    position: int
    size: int


class Loaded(NamedTuple):
    """A batch, unless every sample was left out, and for how many samples of the epoch it stands."""

    batch: Any
    samples: int
    is_empty: bool = False
    is_last: bool = False  # of its lane
    left_out: tuple[str, ...] = ()


class Source:
    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any] | None,
        *,
        is_batched: bool,
        skips_errors: bool,
        drop_last: bool,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._is_batched = is_batched
        self._skips_errors = skips_errors
        self._drop_last = drop_last
        self._readers: OrderedDict[tuple[int, int], Reader] = OrderedDict()
        self._unbegun: set[tuple[int, int]] = set()

    def modules(self) -> list[str]:
        """Where its parts were defined: what a worker would import first."""
        names = (getattr(part, "__module__", None) for part in (self._dataset, self._collate))
        return [name for name in names if isinstance(name, str)]

    # --- map-style -------------------------------------------------------------------------------

    def fetch(self, job: Job) -> Loaded:
        base = seeding.base_of(job.seed, job.epoch)
        batch = self._batch(len(job.keys))
        for nth, key in enumerate(job.keys):
            seeding.set_chance(seeding.seed_of(base, key, job.position + nth))
            try:
                batch.add(self._dataset[key], key)
            except Exception as exc:
                self._failed(exc, batch, f"sample {key!r}")
        return batch.loaded(len(job.keys))

    def _batch(self, size: int) -> Batch:
        return Batch(size, self._collate, self._is_batched)

    def _failed(self, exc: Exception, batch: Batch, what: str) -> None:
        if not self._skips_errors:
            with suppress(Exception):  # its own add_note
                exc.add_note(f"while {what} of the dataset was loaded")
            raise exc
        batch.left_out.append(f"{what}: {pickles.told(exc):.{MAX_TOLD_CHARS}}")

    # --- iterable --------------------------------------------------------------------------------

    def read(self, job: LaneJob) -> Loaded:
        batch = self._batch(job.size)
        try:
            reader = self._reader(job)
        except Exception as exc:
            # The next reader would not come further: a lane that cannot be begun is over. It is told once.
            if (job.run, job.lane) not in self._unbegun:
                self._unbegun.add((job.run, job.lane))
                self._failed(exc, batch, f"lane {job.lane}")
            return Loaded(None, 0, is_empty=True, is_last=True, left_out=tuple(batch.left_out))
        is_last = False
        while not is_last and reader.position < job.position + job.size:
            position = reader.position
            try:
                sample = reader.next()
            except StopIteration:
                is_last = True
            except Exception as exc:
                # A generator that has raised is at its end; something else may go on.
                self._failed(exc, batch, f"sample {position} of lane {job.lane}")
            else:
                try:
                    batch.add(sample, position)
                except Exception as exc:
                    self._failed(exc, batch, f"sample {position} of lane {job.lane}")
        read = max(0, reader.position - job.position)
        if is_last and self._drop_last and read < job.size:
            return Loaded(None, 0, is_empty=True, is_last=True)
        return batch.loaded(read, is_last)

    def _reader(self, job: LaneJob) -> Reader:
        """The one that stands at this place; otherwise a new one, which reads until there."""
        found = self._readers.pop((job.run, job.lane), None)
        if found is None or found.position != job.position:
            found = Reader(self._dataset, job)
        self._readers[job.run, job.lane] = found
        if len(self._readers) > MAX_OPEN_READERS:
            self._readers.popitem(last=False)
        return found


class Batch:
    """Samples on their way into one batch: collated by us, by the caller's function, or not at all."""

    def __init__(self, size: int, collate: Callable[[list[Any]], Any] | None, is_batched: bool) -> None:
        self.left_out: list[str] = []
        self._samples: list[Any] = []
        self._make = collate
        self._is_batched = is_batched
        self._collation = Collation(size) if is_batched and collate is None else None

    def add(self, sample: Any, key: object) -> None:
        if self._collation is not None:
            self._collation.add(sample, key)
        else:
            self._samples.append(sample)

    def loaded(self, samples: int, is_last: bool = False) -> Loaded:
        is_empty = not (self._samples if self._collation is None else self._collation.count)
        return Loaded(None if is_empty else self._made(), samples, is_empty, is_last, tuple(self.left_out))

    def _made(self) -> Any:
        if self._collation is not None:
            return self._collation.finish()
        found = self._samples if self._is_batched else self._samples[0]
        return found if self._make is None else self._make(found)


class Reader:
    """Reads one lane from its beginning, in such a way that every reader of it draws the same chance."""

    def __init__(self, dataset: Any, job: LaneJob) -> None:
        self.position = 0
        self._base = seeding.base_of(job.seed, job.epoch, job.lane + 1)
        seeding.set_chance(self._base)
        if callable(tell := getattr(dataset, "set_epoch", None)):
            tell(job.epoch)
        self._samples = lane_of(dataset, job.lane, job.lanes)
        while self.position < job.position:
            try:
                self.next()
            except StopIteration:
                return
            except Exception:
                continue

    def next(self) -> Any:
        position, self.position = self.position, NOWHERE  # where an interrupt leaves it
        seeding.set_chance(seeding.seed_of(self._base, 0, position))
        try:
            sample = next(self._samples)
        except StopIteration:
            self.position = position
            raise
        except Exception:
            self.position = position + 1
            raise
        self.position = position + 1
        return sample


def lanes_in(dataset: Any) -> int:
    """How many sequences of this dataset can be read side by side."""
    return max(1, min(MAX_LANES, _shards(dataset)))


def _shards(dataset: Any) -> int:
    shards = getattr(dataset, "num_shards", 0)
    return shards if isinstance(shards, int) and callable(getattr(dataset, "shard", None)) else 0


def lane_of(dataset: Any, lane: int, lanes: int) -> Iterator[Any]:
    shards = _shards(dataset)
    if shards == 0:
        return iter(dataset)
    mine = (dataset.shard(num_shards=shards, index=index) for index in range(lane, shards, lanes))
    return chain.from_iterable(mine)


# --- in a worker ---------------------------------------------------------------------------------

_source: Source | None = None


def install(load: Callable[[], Source]) -> None:
    global _source  # noqa: PLW0603 - a worker belongs to one loader
    _source = load()


def fetch(job: Job) -> Loaded:
    assert _source is not None
    return _source.fetch(job)


def read(job: LaneJob) -> Loaded:
    assert _source is not None
    return _source.read(job)
