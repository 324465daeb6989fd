"""Loaders behind one face: an endless iterator of batches, two workers each, in each one's own best way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

WORKERS = 2
PREFETCH = 2


def omniq(dataset: Any) -> Iterator[Any]:
    from omniq.data import DataLoader

    with DataLoader(dataset, dataset.batch_size, num_workers=WORKERS, prefetch=PREFETCH) as loader:
        while True:
            yield from loader


def torch(dataset: Any) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    loader = DataLoader(
        dataset,
        batch_size=dataset.batch_size,
        num_workers=WORKERS,
        prefetch_factor=PREFETCH,
        persistent_workers=True,
    )
    while True:
        for batch in loader:
            yield batch.numpy()


def torchdata(dataset: Any) -> Iterator[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader: Any = StatefulDataLoader(
        dataset,
        batch_size=dataset.batch_size,
        num_workers=WORKERS,
        prefetch_factor=PREFETCH,
        persistent_workers=True,
    )
    while True:
        for batch in loader:
            yield batch.numpy()


def grain(dataset: Any) -> Iterator[Any]:
    """With one reading thread: its default of 16, 500 batches ahead, takes gigabytes and is slower."""
    import grain

    reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=PREFETCH)
    samples = grain.MapDataset.source(dataset).repeat()
    pipeline = samples.batch(dataset.batch_size).to_iter_dataset(reading)
    options = grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=PREFETCH)
    yield from pipeline.mp_prefetch(options)


def spdl(dataset: Any) -> Iterator[Any]:
    """In threads, as it is meant to be used."""
    import numpy as np
    from spdl.pipeline import PipelineBuilder

    size, length = dataset.batch_size, len(dataset)

    def load(first: int) -> Any:
        return np.stack([dataset[index % length] for index in range(first, first + size)])

    builder = PipelineBuilder().add_source(count(0, size))
    pipeline = (
        builder.pipe(load, concurrency=WORKERS, output_order="input")
        .add_sink(PREFETCH * WORKERS)
        .build(num_threads=WORKERS)
    )
    with pipeline.auto_stop():
        yield from pipeline.get_iterator(timeout=60)


# How it loads, what must be installed, what a program has imported before it makes one.
SYSTEMS: dict[str, tuple[Callable[[Any], Iterator[Any]], tuple[str, ...], tuple[str, ...]]] = {
    "omniq": (omniq, ("msgspec", "loguru", "cloudpickle", "uvloop"), ("omniq.data.loader",)),
    "torch": (torch, ("torch",), ("torch.utils.data",)),
    "torchdata": (torchdata, ("torch", "torchdata"), ("torchdata.stateful_dataloader",)),
    "grain": (grain, ("grain",), ("grain",)),
    "spdl": (spdl, ("spdl",), ("spdl.pipeline",)),
}
