"""Datasets of tensors. Imports torch, so only the tests with torch import this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset


class Tensors(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        if index >= 20:
            raise IndexError(index)
        return torch.full((64, 64), float(index)), index, {"chance": torch.rand(3)}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for number in range(10):
            yield torch.tensor([number]), torch.rand(())
