"""How samples become a batch, and what is said when they do not. Also who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from omniq.data.collate import Collation
from omniq.data.position import Lane, Position
from omniq.data.sealed import sealed
from omniq.data.statistics import Statistics
from omniq.errors import CollateFailed
from tests.data.datasets import Point, Record


def batch_of(*samples: Any, size: int | None = None) -> Any:
    collation = Collation(size or len(samples))
    for key, sample in enumerate(samples, 10):
        collation.add(sample, key)
    return collation.finish()


@pytest.mark.parametrize(
    ("samples", "dtype", "values"),
    [
        ((1, 2, 3), "int64", [1, 2, 3]),
        ((1.5, 2.5), "float64", [1.5, 2.5]),
        ((1, 2.5), "float64", [1.0, 2.5]),
        ((True, False), "bool", [True, False]),
        ((np.float32(1), np.float32(2)), "float32", [1, 2]),
        ((np.array(1, np.int16), np.array(2, np.int16)), "int16", [1, 2]),
        ((np.array([1, 2]), np.array([3, 4])), "int64", [[1, 2], [3, 4]]),
        ((np.array([1, 2], np.float64), np.array([3, 4], np.float32)), "float64", [[1, 2], [3, 4]]),
        ((np.zeros((0, 3)), np.zeros((0, 3))), "float64", [[], []]),
    ],
)
def test_numbers_and_arrays(samples: tuple[Any, ...], dtype: str, values: list[Any]) -> None:
    batch = batch_of(*samples)
    assert isinstance(batch, np.ndarray)
    assert batch.dtype == dtype
    assert batch.tolist() == values


@pytest.mark.parametrize("first", [np.array([1, 2]), np.ma.array([1, 2], mask=[0, 1])])
def test_a_mask_is_not_lost_in_silence(first: Any) -> None:
    with pytest.raises(CollateFailed, match=r"index 1[01] is a masked array.*\.filled\(\)"):
        batch_of(first, np.ma.array([3, 4], mask=[1, 0]))


def test_text_stays_text() -> None:
    assert batch_of("a", "b") == ["a", "b"]
    assert batch_of(b"a", b"b") == [b"a", b"b"]


def test_what_holds_others_keeps_its_type() -> None:
    batch = batch_of(
        {"p": Point(1, np.ones(2)), "r": Record(np.zeros(3), 7), "l": [1, "a"], "t": (1,)},
        {"p": Point(2, np.ones(2)), "r": Record(np.ones(3), 8), "l": [2, "b"], "t": (2,)},
    )
    assert type(batch) is dict and list(batch) == ["p", "r", "l", "t"]
    assert type(batch["p"]) is Point and batch["p"].x.tolist() == [1, 2] and batch["p"].y.shape == (2, 2)
    assert type(batch["r"]) is Record and batch["r"].image.shape == (2, 3)
    assert batch["r"].label.tolist() == [7, 8]
    assert type(batch["l"]) is list and batch["l"][1] == ["a", "b"]
    assert type(batch["t"]) is tuple and batch["t"][0].tolist() == [1, 2]


def test_a_dataclass_with_slots_that_checks_its_samples() -> None:
    @dataclass(frozen=True, slots=True)
    class Checked:
        label: Any

        def __post_init__(self) -> None:
            assert isinstance(self.label, int)

    assert batch_of(Checked(1), Checked(2)).label.tolist() == [1, 2]


def test_rows_that_were_not_filled_are_cut_off() -> None:
    batch = batch_of({"x": np.ones(3), "y": 1}, size=5)
    assert batch["x"].shape == (1, 3) and batch["y"].tolist() == [1]


def test_a_sample_that_does_not_fit_leaves_the_batch_as_it_was() -> None:
    collation = Collation(3)
    collation.add({"n": 1, "x": np.zeros(2)}, 0)
    with pytest.raises(CollateFailed):
        collation.add({"n": 2, "x": np.zeros(3)}, 1)
    collation.add({"n": 3, "x": np.ones(2)}, 2)
    batch = collation.finish()
    assert batch["n"].tolist() == [1, 3] and batch["x"].tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (np.zeros((3, 4)), np.zeros((3, 5)), ["index 11", "(3, 5)", "index 10", "(3, 4)"]),
        (np.zeros(2, np.int8), np.zeros(2), ["int8", "float64"]),
        ({"a": np.zeros(2)}, {"a": np.zeros(3)}, ["sample['a'] of index 11", "(3,)", "(2,)"]),
        ({"a": 1}, {"b": 1}, ["keys ['b']", "keys ['a']"]),
        ((1, 2), (1, 2, 3), ["tuple of 3", "tuple of 2"]),
        ((1, "a"), (1, 5), ["sample[1] of index 11 is a int", "it is a str"]),
        (Point(1, 2), Point(1, "b"), ["sample.y of index 11 is a str", "a number"]),
        (Record(np.zeros(2), 1), Record(None, 1), ["sample.image of index 11 is a NoneType"]),
        (1, None, ["NoneType", "a number"]),
        ([1], (1,), ["a tuple of 1", "a list of 1"]),
    ],
)
def test_samples_that_differ_are_told_with_index_and_shapes(
    first: Any, second: Any, words: list[str]
) -> None:
    with pytest.raises(CollateFailed) as failed:
        batch_of(first, second)
    assert all(word in str(failed.value) for word in words), str(failed.value)
    assert "collate=" in str(failed.value)


@pytest.mark.parametrize("sample", [None, object(), {"a": {1, 2}}, np.array([None]), 2**70])
def test_what_makes_no_batch_is_told(sample: Any) -> None:
    with pytest.raises(CollateFailed, match="collate="):
        batch_of(sample)


# --- positions and statistics --------------------------------------------------------------------


def test_lanes_have_turns_until_they_are_over() -> None:
    at, order = Position(lanes=(Lane(),) * 3), []
    for samples, is_over in ((2, False), (1, True), (2, False), (2, False), (2, True), (0, True)):
        order.append(at.turn)
        at = at.after_lane(samples, is_over)
    assert order == [0, 1, 2, 0, 2, 0]
    assert at.is_exhausted
    assert (at.samples, at.batches) == (9, 5), "an end without samples is no batch"
    assert [lane.samples for lane in at.lanes] == [4, 1, 4]
    assert at.next_epoch() == Position(1)


@pytest.mark.parametrize(
    ("waited_s", "workers", "text"),
    [
        (1.05, 2, "the consumer is the bottleneck"),
        (1.5, 2, "50% of the time waiting for data: the loader is the bottleneck with 2 workers"),
        (2.0, 1, "the loader is the bottleneck with 1 worker"),
        (2.0, 0, "num_workers=2 would load meanwhile"),
    ],
)
def test_one_line_says_who_is_the_bottleneck(waited_s: float, workers: int, text: str) -> None:
    """The first batch takes one second of the two, which is the start and nobody's fault."""
    found = Statistics(3, 10, 1000, 2.0, waited_s, 1.0, workers, left_out=2, restarts=1)
    assert str(found).startswith(
        "epoch 3: 1,000 samples in 10 batches, 500/s, the first after 1.00 s, 2 left out"
    )
    assert "1 workers replaced" in str(found)
    assert str(found).endswith(text)
    assert "\n" not in str(found)
    assert found.bottleneck in str(found)


def test_a_batch_says_how_large_it_is() -> None:
    """By which the loader sizes its arena."""
    assert sealed({"a": np.zeros(100_000, np.uint8), "b": (np.zeros(100_000, np.uint8), 5)})[1] == 200_000
