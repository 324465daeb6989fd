"""Batches of arrays as batches of tensors, over the same memory. The only file that needs torch."""

from __future__ import annotations

import dataclasses
from importlib import import_module
from typing import Any, Literal

import numpy as np

from omniq.data.collate import is_a, is_dataclass
from omniq.errors import InvalidOption

TensorOption = bool | Literal["pinned"]


def check_torch() -> None:
    try:
        import_module("torch")
    except ImportError as exc:
        raise InvalidOption("to_torch needs torch, which is not installed; leave to_torch out") from exc


def as_tensors(batch: Any, option: TensorOption) -> Any:
    """Every array in the batch as a tensor; "pinned" copies it into memory that a GPU can read by itself."""
    if is_a(batch, np.ndarray):
        return _tensor(batch, option)
    if is_a(batch, dict):
        return {key: as_tensors(value, option) for key, value in batch.items()}
    if is_a(batch, tuple):
        make: Any = getattr(batch, "_make", tuple)
        return make([as_tensors(value, option) for value in batch])
    if is_a(batch, list):
        return [as_tensors(value, option) for value in batch]
    if is_dataclass(batch):
        return _dataclass(batch, option)
    return batch


def _tensor(array: Any, option: TensorOption) -> Any:
    torch: Any = import_module("torch")
    try:
        tensor: Any = torch.from_numpy(array)
    except TypeError:  # text, records, moments: torch has no such tensors
        return array
    return tensor.pin_memory() if option == "pinned" else tensor


def _dataclass(batch: Any, option: TensorOption) -> Any:
    made: Any = object.__new__(batch.__class__)
    for field in dataclasses.fields(batch):
        object.__setattr__(made, field.name, as_tensors(getattr(batch, field.name), option))
    return made
