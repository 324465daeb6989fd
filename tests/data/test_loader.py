"""What a DataLoader promises: its stream, its batches, its arguments. Faults: test_loader_faults.py."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omniq.data import DataLoader
from omniq.data.source import LaneJob, Source
from omniq.errors import InvalidOption, PoolNotRunning
from tests.data.datasets import Counted, Images, Lines, Plain, Watched, Who, digest

WORKERS = [0, 2]


def digests(loader: DataLoader, epochs: int = 1) -> list[list[str]]:
    return [[digest(batch) for batch in loader] for _ in range(epochs)]


# --- the stream ----------------------------------------------------------------------------------


def test_the_stream_depends_on_seed_and_epoch_and_on_nothing_else() -> None:
    """Number of workers, their life and what is ahead change nothing: not the order, not the chance in it."""

    def stream(**options: Any) -> list[list[str]]:
        with DataLoader(Images(), 10, shuffle=True, **options) as loader:
            return digests(loader, epochs=2)

    whole = stream(seed=5)
    assert len(whole[0]) == 11
    assert whole[0] != whole[1], "another order in each epoch"
    assert stream(seed=5, num_workers=1) == whole
    assert stream(seed=5, num_workers=3, prefetch=7, persistent=False) == whole
    assert stream(seed=6)[0] != whole[0]


def test_every_sample_comes_once_in_each_epoch() -> None:
    loader = DataLoader(Images(50, side=2), 8, shuffle=True, seed=1)
    orders = [[int(label) for batch in loader for label in batch["label"]] for _ in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert orders[0] != list(range(50))


def test_chance_belongs_to_the_sample_and_not_to_its_batch() -> None:
    """Other batches, the same samples."""

    def chances(size: int) -> dict[int, float]:
        loader = DataLoader(Images(30, side=2), size, shuffle=True, seed=3)
        return {int(k): float(c) for b in loader for k, c in zip(b["label"], b["chance"], strict=True)}

    assert chances(4) == chances(7)
    assert len(set(chances(4).values())) == 30


def test_a_sample_that_comes_twice_is_not_the_same_twice() -> None:
    [batch] = DataLoader(Images(side=2), 3, sampler=[4, 4, 4], seed=1)
    assert len(set(batch["chance"].tolist())) == 3


def test_two_machines_do_not_draw_alike() -> None:
    """Each has its own part of the keys, at the same positions."""
    [one] = DataLoader(Images(side=2), 3, sampler=[0, 2, 4], seed=1)
    [other] = DataLoader(Images(side=2), 3, sampler=[1, 3, 5], seed=1)
    assert set(one["chance"].tolist()).isdisjoint(other["chance"].tolist())


def test_without_a_seed_each_loader_draws_one_and_says_it() -> None:
    first, second = DataLoader(Images(40), 8, shuffle=True), DataLoader(Images(40), 8, shuffle=True)
    assert first.seed != second.seed
    assert digests(DataLoader(Images(40), 8, shuffle=True, seed=first.seed)) == digests(first)


def test_loading_in_the_caller_leaves_its_chance_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    for _ in DataLoader(Images(20, side=2), 4):
        pass
    assert (random.random(), np.random.rand()) == expected


@pytest.mark.parametrize("workers", [1, 3])
def test_an_iterable_dataset_is_the_same_stream_for_any_number_of_workers(workers: int) -> None:
    """In shards, which are read in turns; 20 of them are more than are read at a time."""
    lengths = [3 + n % 7 for n in range(20)]
    whole = digests(DataLoader(Lines(lengths), 4, seed=2), epochs=2)
    assert whole[0] != whole[1], "chance is another"
    with DataLoader(Lines(lengths), 4, seed=2, num_workers=workers) as loader:
        assert digests(loader, epochs=2) == whole


def test_every_sample_of_every_shard_comes_once() -> None:
    lengths = [3 + n % 7 for n in range(20)]
    batches = list(DataLoader(Lines(lengths), 4, seed=2))
    found = [(int(s), int(n)) for shards, numbers, _ in batches for s, n in zip(shards, numbers, strict=True)]
    assert sorted(found) == [(s, n) for s, length in enumerate(lengths) for n in range(length)]
    full = DataLoader(Lines(lengths), 4, seed=2, drop_last=True)
    assert {len(batch[0]) for batch in full} == {4}


def test_shards_are_read_by_all_workers_and_each_by_one(tmp_path: Path) -> None:
    with DataLoader(Watched(tmp_path, 4), 5, num_workers=2) as loader:
        assert len(list(loader)) == 4 * 4
    readers = [path.read_text().split() for path in sorted(tmp_path.iterdir())]
    assert all(len(set(pids)) == 1 for pids in readers), "nothing is read twice"
    pids = [pids[0] for pids in readers]
    assert sorted(pids.count(pid) for pid in set(pids)) == [2, 2]


def test_any_reader_gives_the_same_samples() -> None:
    """Whether it stands at the place, before it, behind it, or is new."""

    def job(position: int) -> LaneJob:
        return LaneJob(seed=1, epoch=0, run=1, lane=1, lanes=2, position=position, size=3)

    def new() -> Source:
        return Source(Lines([9, 11]), None, is_batched=True, skips_errors=False, drop_last=False)

    one = new()
    in_order = {position: digest(one.read(job(position)).batch) for position in (0, 3, 6, 9)}
    one = new()
    for position in (6, 0, 9, 3, 6, 6):
        assert digest(one.read(job(position)).batch) == in_order[position]


@pytest.mark.parametrize("workers", WORKERS)
def test_an_iterable_without_shards_is_read_once(workers: int) -> None:
    with DataLoader(Plain(25), 10, seed=1, num_workers=workers) as loader:
        batches = list(loader)
        assert np.concatenate([batch["number"] for batch in batches]).tolist() == list(range(25))
        assert [batch["block"].shape for batch in batches] == [(10, 20_000), (10, 20_000), (5, 20_000)]
        assert {int(epoch) for batch in loader for epoch in batch["epoch"]} == {1}, "set_epoch was called"


# --- stop and go on ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "read"), [(0, 2, 0), (2, 0, 1), (2, 0, 4), (0, 2, 11), (0, 0, 7)]
)
def test_a_saved_state_goes_on_at_the_exact_sample(before: int, after: int, read: int) -> None:
    whole = [one for epoch in digests(DataLoader(Images(), 10, shuffle=True, seed=5), 3) for one in epoch]
    with DataLoader(Images(), 10, shuffle=True, seed=5, num_workers=before) as loader:
        list(loader)
        iterator = iter(loader)
        for _ in range(read):
            next(iterator)
        saved = json.loads(json.dumps(loader.state_dict()))
    with DataLoader(Images(), 10, shuffle=True, num_workers=after) as resumed:
        resumed.load_state_dict(saved)
        assert resumed.epoch == 1
        rest = [one for epoch in digests(resumed, 2) for one in epoch]
    assert rest == whole[11 + read :]


@pytest.mark.parametrize(("before", "after", "read"), [(0, 2, 0), (2, 0, 3), (0, 1, 17), (0, 0, 9)])
def test_so_does_one_of_an_iterable_dataset(before: int, after: int, read: int) -> None:
    """Some shards are over by then, and others are not."""
    lengths = [3 + n % 7 * 2 for n in range(6)]
    [whole] = digests(DataLoader(Lines(lengths), 3, seed=2))
    with DataLoader(Lines(lengths), 3, seed=2, num_workers=before) as loader:
        iterator = iter(loader)
        for _ in range(read):
            next(iterator)
        state = loader.state_dict()
        saved = json.loads(json.dumps(state))
        assert saved == state, "plain values, the same in every format"
    with DataLoader(Lines(lengths), 3, num_workers=after) as resumed:
        resumed.load_state_dict(saved)
        assert digests(resumed) == [whole[read:]]


def test_what_was_ahead_is_not_counted_as_read(tmp_path: Path) -> None:
    """Workers have loaded more than the consumer got."""
    path = tmp_path / "loaded"
    with DataLoader(Counted(40, path), 4, num_workers=1, prefetch=5) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        assert loader.state_dict()["position"]["samples"] == 8
        list(iterator)
    assert len(path.read_text().split()) == 40


def test_a_resume_loads_nothing_that_was_read(tmp_path: Path) -> None:
    path = tmp_path / "loaded"
    loader = DataLoader(Counted(40, path), 4, shuffle=True, seed=1)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(6)]
    path.unlink()
    resumed = DataLoader(Counted(40, path), 8, shuffle=True, seed=1)
    resumed.load_state_dict(loader.state_dict())
    rest = list(resumed)
    assert [len(batch["label"]) for batch in rest] == [8, 8], "also with batches of another size"
    seen = [int(label) for batch in first + rest for label in batch["label"]]
    assert sorted(seen) == list(range(40))
    assert len(path.read_text().split()) == 16


def test_samplers_go_on_too() -> None:
    keys = [5, 3, 9, 1, 7, 2, 8]
    loader = DataLoader(Images(side=2), 2, sampler=keys, seed=1)
    next(iter(loader))
    resumed = DataLoader(Images(side=2), 2, sampler=keys, seed=1)
    resumed.load_state_dict(loader.state_dict())
    assert [batch["label"].tolist() for batch in resumed] == [[9, 1], [7, 2], [8]]
    loader = DataLoader(Images(side=2), batch_sampler=[[1, 2], [3], [4, 5, 6]], seed=1)
    next(iter(loader))
    resumed = DataLoader(Images(side=2), batch_sampler=[[1, 2], [3], [4, 5, 6]], seed=1)
    resumed.load_state_dict(loader.state_dict())
    assert [batch["label"].tolist() for batch in resumed] == [[3], [4, 5, 6]]


def test_leaving_an_epoch_begins_the_next_one() -> None:
    loader = DataLoader(Images(30, side=2), 10, shuffle=True, seed=5)
    whole = digests(DataLoader(Images(30, side=2), 10, shuffle=True, seed=5), 2)
    for _ in loader:
        break
    assert loader.state_dict()["position"] | {"lanes": 0} == {
        "epoch": 0,
        "samples": 10,
        "batches": 1,
        "lanes": 0,
        "turn": 0,
    }
    assert digests(loader) == [whole[1]]
    assert loader.state_dict()["position"]["epoch"] == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 9}, "version 9"),
        ({"seed": "x"}, "no state of a DataLoader"),
        ({"seed": 6}, "seed=6"),
        ({"identity": {"length": 31, "shuffle": False, "lanes": 0}}, "length=31"),
        ({"identity": {"length": 30, "shuffle": True, "lanes": 0}}, "shuffle=True"),
        ({"more": 1}, "more"),
    ],
)
def test_a_state_of_something_else_is_refused(change: dict[str, Any], why: str) -> None:
    loader = DataLoader(Images(30, side=2), 10, seed=5)
    with pytest.raises(InvalidOption, match=why):
        loader.load_state_dict(loader.state_dict() | change)
    with pytest.raises(InvalidOption, match="no state"):
        loader.load_state_dict(None)  # type: ignore[arg-type]


# --- arguments, as torch has them ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"batch_size": 10}, [10, 10, 3]),
        ({"batch_size": 10, "drop_last": True}, [10, 10]),
        ({"batch_sampler": [[1], [2, 3]]}, [1, 2]),
        ({"sampler": range(0, 23, 2), "batch_size": 5}, [5, 5, 2]),
        ({}, [1] * 23),
    ],
)
def test_sizes_of_batches(options: dict[str, Any], sizes: list[int]) -> None:
    loader = DataLoader(Images(23, side=2), **options)
    assert [len(batch["label"]) for batch in loader] == sizes
    assert len(loader) == len(sizes)


def test_without_a_batch_size_samples_come_as_they_are() -> None:
    with DataLoader(Images(3, side=2), None, num_workers=1) as loader:
        assert [sample["label"] for sample in loader] == [0, 1, 2]
        assert len(loader) == 3
    assert list(DataLoader([None, 5], None)) == [None, 5]
    assert list(DataLoader([1, 2], None, collate=str)) == ["1", "2"]


@pytest.mark.parametrize("workers", WORKERS)
def test_collate_makes_the_batch(workers: int) -> None:
    with DataLoader([3, 4, 5], 2, collate=sum, num_workers=workers) as loader:
        assert list(loader) == [7, 5]


def test_samplers_are_told_the_epoch() -> None:
    class Sampler:
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            return iter([self.epoch, self.epoch + 1])

    loader = DataLoader(Images(side=2), 2, sampler=Sampler())
    assert [[b["label"].tolist() for b in loader] for _ in range(2)] == [[[0, 1]], [[1, 2]]]


def test_lengths() -> None:
    class Sized(Plain):
        def __len__(self) -> int:
            return self.length

    assert len(DataLoader(Sized(25), 10)) == 3
    with pytest.raises(TypeError):
        len(DataLoader(Plain(25), 10))


@pytest.mark.parametrize(
    ("dataset", "options", "why"),
    [
        ([1], {"batch_size": 0}, "batch_size"),
        ([1], {"batch_size": True}, "batch_size"),
        ([1], {"num_workers": -1}, "num_workers"),
        ([1], {"prefetch": 0}, "prefetch"),
        ([1], {"seed": -1}, "seed"),
        ([1], {"seed": 1.5}, "seed"),
        ([1], {"on_error": "ignore"}, "on_error"),
        ([1], {"to_torch": "cuda"}, "to_torch"),
        ([1], {"collate": 5}, "collate"),
        ([1], {"sampler": [0], "shuffle": True}, "leave shuffle= out"),
        ([1], {"batch_sampler": [[0]], "batch_size": 2}, "leave those out"),
        ([1], {"batch_sampler": [[0]], "drop_last": True}, "leave those out"),
        ([1], {"batch_size": None, "drop_last": True}, "leave drop_last= out"),
        (Plain(3), {"shuffle": True}, "its own order"),
        (Plain(3), {"sampler": [1]}, "its own order"),
        (iter([1]), {}, "once only"),
        (5, {}, "no dataset"),
    ],
)
def test_bad_arguments_say_what_to_write(dataset: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        DataLoader(dataset, **options)


@pytest.mark.skipif("torch" in sys.modules, reason="torch is installed")
def test_to_torch_without_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        with pytest.raises(InvalidOption, match="not installed"):
            DataLoader([1], to_torch=True)


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
def test_large_arrays_are_read_only_unless_asked_otherwise(workers: int) -> None:
    with DataLoader(Images(20), 10, num_workers=workers) as loader:
        assert not any(batch["image"].flags.writeable for batch in loader)
    with DataLoader(Images(20), 10, num_workers=workers, writable=True) as loader:
        for batch in loader:
            batch["image"] += 1
        assert batch["image"][9, 5, 5] == 20


def test_a_batch_is_a_view_of_the_arena_and_was_collated_there() -> None:
    with DataLoader(Images(40), 20, num_workers=1) as loader:
        iterator = iter(loader)
        batch = next(iterator)
        assert not batch["image"].flags.owndata
        pool = loader._pool  # type: ignore[attr-defined]
        held = pool.arena_bytes
        assert held >= batch["image"].nbytes
        list(iterator)
        kept = batch["image"].copy()
        assert (batch["image"] == kept).all()
        del batch, iterator
        assert pool.arena_bytes < held + 1


# --- life ----------------------------------------------------------------------------------------


def test_workers_stay_between_epochs_or_do_not() -> None:
    with DataLoader(Who(), 1, num_workers=1) as loader:
        assert len({pid for _ in range(3) for [pid] in loader}) == 1
    with DataLoader(Who(), 1, num_workers=1, persistent=False) as loader:
        assert len({int(pid) for _ in range(3) for [pid] in loader}) == 3


def test_two_readers_of_one_loader() -> None:
    with DataLoader(Images(30, side=2), 10, num_workers=2) as loader:
        pairs = list(zip(loader, loader, strict=True))
        assert [(a["label"].tolist(), b["label"].tolist()) for a, b in pairs] == [
            (list(range(n, n + 10)), list(range(n, n + 10))) for n in (0, 10, 20)
        ]


def test_a_closed_loader_tells_its_reader_and_starts_again() -> None:
    loader = DataLoader(Images(100, side=2, pause_s=0.01), 1, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(PoolNotRunning):
        for _ in range(100):
            next(iterator)
    with loader:
        assert next(iter(loader))["label"] == 0


def test_statistics_and_progress(capsys: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(Images(20, side=2, pause_s=0.002), 5, progress=True)
    assert loader.statistics is None
    list(loader)
    found = loader.statistics
    assert found is not None
    assert (found.epoch, found.batches, found.samples, found.bottleneck) == (0, 4, 20, "loader")
    assert capsys.readouterr().err == f"{found}\n", "one line, at the end"
    assert "the loader is the bottleneck" in str(found)
