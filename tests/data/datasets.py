"""Datasets that tests load, and what tests look at batches with."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Record:
    image: Any
    label: int


class Images:
    """Samples of every kind, with chance of both generators in them."""

    def __init__(self, length: int = 103, side: int = 64, pause_s: float = 0.0) -> None:
        self.length = length
        self.side = side
        self.pause_s = pause_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        if self.pause_s:
            time.sleep(self.pause_s)
        image = np.full((self.side, self.side), index, np.float32)
        image[0, 0] += np.random.rand()
        return {"image": image, "label": index, "name": f"sample {index}", "chance": random.random()}


class Unspeakable(Exception):
    """Raises where it is shown, or where something is noted."""

    def __str__(self) -> str:
        raise ValueError("not to be shown")

    __repr__ = __str__

    def add_note(self, note: str) -> None:
        raise ValueError("not to be noted")


class Speechless:
    """Samples of which one cannot be had, and nobody can say why."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 1:
            raise Unspeakable
        return index

    def together(self, samples: list[int]) -> list[int]:
        if 2 in samples:
            raise Unspeakable
        return samples


class Lines:
    """An iterable of (shard, number, chance), in shards of different lengths."""

    def __init__(self, lengths: Iterable[int], shards: Iterable[int] | None = None) -> None:
        self.lengths = list(lengths)
        self.mine = list(range(len(self.lengths)) if shards is None else shards)

    @property
    def num_shards(self) -> int:
        return len(self.lengths)

    def shard(self, num_shards: int, index: int) -> Lines:
        assert num_shards == len(self.lengths)
        return Lines(self.lengths, [index])

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        for shard in self.mine:
            for number in range(self.lengths[shard]):
                yield shard, number, random.random()


class NotThere:
    """Lanes of which one cannot be begun."""

    num_shards = 2

    def shard(self, num_shards: int, index: int) -> Iterable[int]:
        return [1, 2, 3] if index else NotThere()

    def __iter__(self) -> Iterator[int]:
        raise OSError("no such file")


class Unbegun:
    def __iter__(self) -> Iterator[int]:
        raise OSError("no such file")


class Impatient:
    """Somebody presses Ctrl-C while this sample is loaded for the first time."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.was_pressed = False

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == self.at and not self.was_pressed:
            self.was_pressed = True
            raise KeyboardInterrupt
        return index


class ImpatientLine:
    """The same, read one after the other."""

    def __init__(self, at: int) -> None:
        self.samples = Impatient(at)

    def __iter__(self) -> Iterator[int]:
        return (self.samples[number] for number in range(len(self.samples)))


class Watched(Lines):
    """Shards that write down who reads them."""

    def __init__(self, folder: Path, shards: int, mine: int | None = None) -> None:
        super().__init__([20] * shards, None if mine is None else [mine])
        self.folder = str(folder)

    def shard(self, num_shards: int, index: int) -> Lines:
        return Watched(Path(self.folder), num_shards, index)

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        with open(f"{self.folder}/{self.mine[0]}", "a") as file:
            file.write(f"{os.getpid()}\n")
        return super().__iter__()


class Who:
    """Says which process loads it."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        if index > 2:
            raise IndexError(index)
        return os.getpid()


class Who4:
    """Four shards without an end. Each sample says who reads it."""

    num_shards = 4

    def shard(self, num_shards: int, index: int) -> Who4:
        return self

    def __iter__(self) -> Iterator[int]:
        while True:
            time.sleep(0.002)
            yield os.getpid()


class Faults:
    """Makes a few arrays and says how many page faults that took."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        arrays = [np.ones(200 * 1024, np.uint8) for _ in range(3)]
        assert sum(int(array[0]) for array in arrays) == 3
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


class Modules:
    """Says whether torch is imported where it is loaded."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return int("torch" in sys.modules)


class Plain:
    """An iterable that nobody can divide. Says who read it."""

    def __init__(self, length: int, pause_s: float = 0.0) -> None:
        self.length = length
        self.pause_s = pause_s
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.length):
            time.sleep(self.pause_s)
            yield {
                "number": number,
                "epoch": self.epoch,
                "block": np.full(20_000, number, np.float32),
                "chance": np.random.rand(),
            }


class Faulty(Images):
    """Refuses some samples, and others have another shape."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        if index % 10 == 3:
            raise KeyError(f"no file for {index}")
        if index % 10 == 7:
            sample["image"] = np.zeros((2, 2), np.float32)
        return sample


class Fatal(Images):
    """One sample takes its process along."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        return super().__getitem__(index)


class Counted(Images):
    """Writes down which samples were loaded."""

    def __init__(self, length: int, path: Path) -> None:
        super().__init__(length, side=4)
        self.path = str(path)

    def __getitem__(self, index: int) -> dict[str, Any]:
        with open(self.path, "a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)


class Device:
    """A driver like CUDA's: what was initialised before a fork cannot be used after it."""

    owner: int | None = None

    @classmethod
    def initialise(cls) -> None:
        if cls.owner not in (None, os.getpid()):
            raise RuntimeError("cannot re-initialise the device in a forked subprocess")
        cls.owner = os.getpid()


class OnDevice(Images):
    def __getitem__(self, index: int) -> dict[str, Any]:
        Device.initialise()
        return {**super().__getitem__(index), "owner": Device.owner}


class Big:
    """Half a million records in two arrays, as a dataset of many should keep them."""

    def __init__(self, count: int) -> None:
        texts = [f"record number {n}, and something more to say".encode() for n in range(1000)]
        self.data = np.frombuffer(b"".join(texts) * (count // 1000), np.uint8)
        lengths = np.array([len(text) for text in texts] * (count // 1000))
        self.ends = np.cumsum(lengths)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> tuple[int, int]:
        begin = 0 if index == 0 else self.ends[index - 1]
        return int(self.data[begin : self.ends[index]].sum()), os.getpid()


def digest(batch: Any) -> str:
    """The same for the same content, whatever memory it lies in."""
    seen = hashlib.blake2b()
    _digest(batch, seen)
    return seen.hexdigest()


def _digest(value: Any, seen: Any) -> None:
    if isinstance(value, np.ndarray):
        seen.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, dict):
        for key, each in value.items():
            seen.update(repr(key).encode())
            _digest(each, seen)
    elif isinstance(value, tuple | list):
        for each in value:
            _digest(each, seen)
    else:
        seen.update(repr(value).encode())
