"""The loader beside torch, which the project itself does not need: skipped where it is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch, and run this again")

from omniq.data import DataLoader  # noqa: E402
from tests.data.datasets import Images, Modules  # noqa: E402
from tests.data.tensor_sets import Stream, Tensors  # noqa: E402

WORKERS = [0, 2]


def as_lists(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: as_lists(value) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return [as_lists(value) for value in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch


@pytest.mark.parametrize("workers", WORKERS)
def test_tensors_over_the_memory_of_the_batch(workers: int) -> None:
    with DataLoader(Images(20), 10, num_workers=workers, to_torch=True) as loader:
        for batch in loader:
            assert isinstance(batch["image"], torch.Tensor) and batch["image"].dtype == torch.float32
            assert isinstance(batch["label"], torch.Tensor) and batch["label"].dtype == torch.int64
            assert isinstance(batch["name"], list)
            batch["image"] += 1  # it is whoever's has it


def test_nothing_is_copied_for_a_tensor() -> None:
    with DataLoader(Images(20), 10, num_workers=1, to_torch=True) as loader:
        iterator = iter(loader)
        tensor = next(iterator)["image"]
        pool = loader._pool  # type: ignore[attr-defined]
        list(iterator)
        assert pool.arena_bytes >= tensor.nbytes, "it pins its slot"
        kept = tensor.clone()
        assert torch.equal(tensor, kept)


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_are_those_of_torch(workers: int) -> None:
    theirs = [as_lists(batch[:2]) for batch in torch.utils.data.DataLoader(Tensors(), batch_size=6)]
    with DataLoader(Tensors(), 6, num_workers=workers, to_torch=True) as loader:
        ours = [as_lists(batch[:2]) for batch in loader]
    assert ours == theirs


def test_torch_draws_the_same_chance_wherever_it_is_loaded() -> None:
    def stream(workers: int) -> Any:
        with DataLoader(Tensors(), 6, shuffle=True, seed=3, num_workers=workers) as loader:
            return [as_lists(batch) for batch in loader]

    torch.manual_seed(1)
    expected = torch.rand(2).tolist()
    torch.manual_seed(1)
    assert stream(0) == stream(2)
    assert torch.rand(2).tolist() == expected, "the caller's chance is as it was"


@pytest.mark.parametrize("workers", WORKERS)
def test_torch_datasets_that_are_iterated(workers: int) -> None:
    with DataLoader(Stream(), 4, seed=1, num_workers=workers) as loader:
        batches = list(loader)
    assert [batch[0].tolist() for batch in batches] == [
        [[0], [1], [2], [3]],
        [[4], [5], [6], [7]],
        [[8], [9]],
    ]
    assert all(isinstance(batch[0], np.ndarray) for batch in batches), "without to_torch arrays stay arrays"


def test_workers_do_not_import_torch_for_to_torch() -> None:
    with DataLoader(Modules(), 1, num_workers=1, to_torch=True) as loader:
        assert [batch.tolist() for batch in loader] == [[0]]


def test_pinned_memory_or_the_reason_why_not() -> None:
    loader = DataLoader(Images(4, side=2), 2, to_torch="pinned")
    if torch.cuda.is_available():
        assert next(iter(loader))["image"].is_pinned()
    else:
        with pytest.raises(RuntimeError, match=r"accelerator|CUDA|NVIDIA"):
            next(iter(loader))
