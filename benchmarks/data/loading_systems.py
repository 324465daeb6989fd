"""Pools that give arrays in order, behind one face: `mapped(function, numbers)`. Two workers each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

WORKERS: Final = 2
ARENA: Final = 256 * 2**20
Mapped = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]
LENGTHS: Final = {"64 KiB": 16_384, "1 MiB": 262_144, "16 MiB": 4_194_304}  # of float32


class Copied:
    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, n: int) -> Any:
        return np.full(self.length, n, np.float32)


class InPlace(Copied):
    def __call__(self, n: int) -> Any:
        from omniq.data import empty

        array = empty(self.length, np.float32)
        array.fill(n)
        return array


class AsTensor(Copied):
    def __call__(self, n: int) -> Any:
        import torch

        return torch.full((self.length,), n, dtype=torch.float32)


class Numbered:
    """A dataset of the results of a function, for torch."""

    def __init__(self, function: Callable[[int], Any], numbers: Iterable[int]) -> None:
        self.function = function
        self.numbers = list(numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return self.function(self.numbers[index])


@contextmanager
def data_pool() -> Iterator[Mapped]:
    from loguru import logger

    from omniq.data import WorkerPool

    logger.remove()
    with WorkerPool(WORKERS, arena=ARENA, preload=["numpy"]) as pool:
        yield pool.map


@contextmanager
def standard_pool() -> Iterator[Mapped]:
    from multiprocessing import get_context

    with get_context("forkserver").Pool(WORKERS) as pool:
        yield pool.imap


@contextmanager
def executor() -> Iterator[Mapped]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(WORKERS, get_context("forkserver")) as pool:
        yield pool.map


@contextmanager
def loky() -> Iterator[Mapped]:
    from loky import ProcessPoolExecutor

    with ProcessPoolExecutor(WORKERS) as pool:
        yield pool.map


@contextmanager
def mpire() -> Iterator[Mapped]:
    from mpire import WorkerPool

    with WorkerPool(WORKERS, keep_alive=True) as pool:
        yield pool.imap


def _same(batch: Any) -> Any:
    return batch


@contextmanager
def torch() -> Iterator[Mapped]:
    from torch.utils.data import DataLoader

    def mapped(function: Callable[[int], Any], numbers: Iterable[int]) -> Iterator[Any]:
        dataset: Any = Numbered(function, numbers)
        for found in DataLoader(dataset, batch_size=None, num_workers=WORKERS, collate_fn=_same):
            yield found.numpy() if hasattr(found, "numpy") else found

    yield mapped


# How it is started, what its workers return, what must be installed.
SYSTEMS: Final[dict[str, tuple[Any, type[Copied], tuple[str, ...]]]] = {
    "data pool, in place": (data_pool, InPlace, ("msgspec", "loguru", "cloudpickle", "uvloop")),
    "data pool": (data_pool, Copied, ("msgspec", "loguru", "cloudpickle", "uvloop")),
    "torch DataLoader, tensors": (torch, AsTensor, ("torch",)),
    "torch DataLoader, NumPy": (torch, Copied, ("torch",)),
    "multiprocessing.Pool.imap": (standard_pool, Copied, ()),
    "ProcessPoolExecutor.map": (executor, Copied, ()),
    "loky": (loky, Copied, ("loky",)),
    "mpire": (mpire, Copied, ("mpire",)),
}
# Whose workers are started anew for each call; how long that takes is not measured here.
START_FOR_EACH_CALL: Final = ("torch DataLoader, tensors", "torch DataLoader, NumPy")
