"""Chance that is a function of (seed, epoch, index): whatever number of workers draws it, and however often.

Before each sample the generators that datasets draw from are set: `random`, `numpy.random` and torch's.
"""

from __future__ import annotations

import _random
import hashlib
import random
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, SupportsIndex

import numpy as np

MASK: Final = (1 << 64) - 1


def base_of(seed: int, epoch: int, lane: int = 0) -> int:
    """One number for an epoch, from which those of its samples are made."""
    text = f"{seed}/{epoch}/{lane}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


def seed_of(base: int, key: object, position: int) -> int:
    """For one sample. By its key, so that no two parts of a distributed run draw alike; by its position, so
    that a sample that comes twice is not the same twice."""
    # To ask for a protocol costs more than all the rest, and keys are nearly always plain.
    number = key if type(key) is int else key.__index__() if isinstance(key, SupportsIndex) else 0
    mixed = (base ^ (number * 0x9E3779B97F4A7C15) ^ ((position + 1) * 0xD1B54A32D192ED03)) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    return mixed ^ (mixed >> 31)


_plain: Any = getattr(random.seed, "__self__")  # noqa: B009 - what the functions of the module draw from


def set_chance(number: int) -> None:
    """For every sample, so it must be quick: `random.seed` does the same through a wrapper."""
    _random.Random.seed(_plain, number)
    _plain.gauss_next = None
    np.random.seed(number & 0xFFFFFFFF)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(number)


@contextmanager
def own_chance_kept() -> Generator[None, None, None]:
    """For loading in the caller: its generators go on afterwards as if nothing had been drawn."""
    torch: Any = sys.modules.get("torch")
    plain, arrays = random.getstate(), np.random.get_state()
    generator = None if torch is None else torch.default_generator
    tensors = None if generator is None else generator.get_state()
    try:
        yield
    finally:
        random.setstate(plain)
        np.random.set_state(arrays)
        if generator is not None:
            generator.set_state(tensors)


def permutation(seed: int, epoch: int, length: int) -> np.ndarray[Any, Any]:
    """The order of a shuffled epoch. By the generator that NumPy has promised never to change."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/order".encode(), digest_size=32).digest()
    generator = np.random.RandomState(np.frombuffer(digest, "<u4"))
    return generator.permutation(length)
