"""What a DataLoader may be told, checked: torch's arguments exclude each other as they do there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from omniq.data.options import check_count, check_one_of
from omniq.data.tensors import TensorOption, check_torch
from omniq.errors import InvalidOption


class LoaderOptions(Struct, frozen=True, eq=False):
    is_iterable: bool
    batch_size: int | None
    shuffle: bool
    seed: int | None
    num_workers: int
    prefetch: int
    collate: Callable[[Any], Any] | None
    drop_last: bool
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    persistent: bool
    to_torch: TensorOption
    writable: bool
    on_error: str
    progress: bool

    @property
    def has_sampler(self) -> bool:
        return self.sampler is not None or self.batch_sampler is not None

    @property
    def is_writable(self) -> bool:
        """Tensors always are: torch knows no others."""
        return self.writable or bool(self.to_torch)


def checked(dataset: Any, **options: Any) -> LoaderOptions:
    made = LoaderOptions(is_iterable=is_iterable(dataset), **options)
    _check_values(made)
    _check_samplers(made)
    if made.is_iterable:
        _check_iterable(made, dataset)
    elif not made.has_sampler and not hasattr(dataset, "__len__"):
        raise InvalidOption("the dataset has no __len__; give it one, or pass sampler=")
    return made


def is_iterable(dataset: Any) -> bool:
    """With `__getitem__` it is map-style, except for torch's own class, which has one that raises."""
    torch_data: Any = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(dataset, torch_data.IterableDataset):
        return True
    if hasattr(dataset, "__getitem__"):
        return False
    if hasattr(dataset, "__next__"):
        raise InvalidOption(
            f"a {type(dataset).__name__} can be read once only; pass an object whose __iter__ makes a new one"
        )
    if hasattr(dataset, "__iter__"):
        return True
    raise InvalidOption(f"a {type(dataset).__name__} has neither __getitem__ nor __iter__: it is no dataset")


def _check_values(options: LoaderOptions) -> None:
    if options.batch_size is not None:
        check_count(options.batch_size, "batch_size", 1)
    if options.seed is not None:
        check_count(options.seed, "seed", 0)
    check_count(options.num_workers, "num_workers", 0)
    check_count(options.prefetch, "prefetch", 1)
    check_one_of(options.on_error, "on_error", ("raise", "skip"))
    check_one_of(options.to_torch, "to_torch", (True, False, "pinned"))
    if options.collate is not None and not callable(options.collate):
        raise InvalidOption(f"collate must be a function of a list of samples, not {options.collate!r}")
    if options.to_torch:
        check_torch()


def _check_samplers(options: LoaderOptions) -> None:
    if options.batch_sampler is not None and (
        options.batch_size != 1 or options.shuffle or options.sampler is not None or options.drop_last
    ):
        raise InvalidOption(
            "batch_sampler= says all of batch_size=, shuffle=, sampler= and drop_last=; leave those out"
        )
    if options.sampler is not None and options.shuffle:
        raise InvalidOption("sampler= says the order, so leave shuffle= out")
    if options.batch_size is None and options.drop_last:
        raise InvalidOption("without batches (batch_size=None) there is no last one; leave drop_last= out")


def _check_iterable(options: LoaderOptions, dataset: Any) -> None:
    if options.shuffle or options.has_sampler:
        raise InvalidOption(
            f"a {type(dataset).__name__} is read in its own order: leave shuffle=, sampler= and "
            "batch_sampler= out, or give it __getitem__ and __len__"
        )
