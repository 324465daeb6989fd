"""What goes wrong with data loaders, by the names of the failure classes. Long: test_loader_soak.py."""

from __future__ import annotations

import contextlib
import gc
import itertools
import linecache
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from loguru import logger

from omniq.data import DataLoader
from omniq.errors import CollateFailed, InvalidOption, UnserializableArgument, WorkerDied
from tests.data.bodies import until
from tests.data.datasets import (
    Big,
    Device,
    Fatal,
    Faults,
    Faulty,
    Images,
    Impatient,
    ImpatientLine,
    Lines,
    NotThere,
    OnDevice,
    Plain,
    Speechless,
    Unbegun,
    Unspeakable,
    Who4,
    digest,
)
from tests.data.killing import killing
from tests.pool.leftovers import Having, family, is_alive

ROOT = Path(__file__).parents[2]
WORKERS = [0, 2]


def pool_of(loader: DataLoader) -> Any:
    return loader._pool  # type: ignore[attr-defined]


# --- errors of samples ---------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_comes_in_the_place_of_its_batch_and_names_the_sample(workers: int) -> None:
    with DataLoader(Faulty(12, side=2), 2, num_workers=workers) as loader:
        iterator = iter(loader)
        assert next(iterator)["label"].tolist() == [0, 1]
        with pytest.raises(KeyError, match="no file for 3") as failed:
            next(iterator)
        assert "while sample 3 of the dataset was loaded" in failed.value.__notes__
        assert loader.state_dict()["position"]["samples"] == 4, "a resume goes on behind it"
        assert next(iterator)["label"].tolist() == [4, 5]
        with pytest.raises(CollateFailed, match=r"index 7 is an array of shape \(2, 2\).*index 6.*\(4, 4\)"):
            list(DataLoader(Faulty(10, side=4), 2, sampler=[6, 7], num_workers=workers))
        assert [batch["label"].tolist() for batch in iterator if batch["label"][0] != 6] == [[8, 9], [10, 11]]


@pytest.mark.parametrize("workers", WORKERS)
def test_skip_leaves_out_the_sample_alone(workers: int) -> None:
    sampler = [0, 1, 2, 3, 13, 23, 6, 7, 8]
    with DataLoader(Faulty(30), 3, sampler=sampler, num_workers=workers, on_error="skip") as loader:
        labels = [batch["label"].tolist() for batch in loader]
        assert labels == [[0, 1, 2], [6, 8]], "and a batch without samples does not come"
        assert loader.statistics is not None
        assert loader.statistics.left_out == 4
        assert loader.state_dict()["position"]["epoch"] == 1


@pytest.mark.parametrize("workers", WORKERS)
def test_an_exception_that_cannot_be_shown_costs_its_sample_and_no_more(workers: int) -> None:
    dataset = Speechless()
    with DataLoader(dataset, 2, num_workers=workers, on_error="skip") as loader:
        assert [batch.tolist() for batch in loader] == [[0], [2, 3], [4, 5]]
    with DataLoader(dataset, 2, num_workers=workers, on_error="skip", collate=dataset.together) as loader:
        assert list(loader) == [[0], [4, 5]]
    with DataLoader(dataset, 2, num_workers=workers) as loader, pytest.raises(Unspeakable):
        next(iter(loader))


@pytest.mark.parametrize("workers", WORKERS)
def test_what_cannot_be_begun_is_told_once_and_over(workers: int) -> None:
    """Whoever goes on after an error was told of this one for ever."""
    for dataset, expected in ((NotThere(), ["error", [1, 2], [3]]), (Unbegun(), ["error"])):
        seen: list[Any] = []
        with DataLoader(dataset, 2, num_workers=workers) as loader:
            iterator = iter(loader)
            while len(seen) < 10:
                try:
                    seen.append(next(iterator).tolist())
                except OSError:
                    seen.append("error")
                except StopIteration:
                    break
            assert seen == expected
            assert loader.epoch == 1


@pytest.mark.parametrize("dataset", [Impatient(2), Impatient(3), ImpatientLine(2), ImpatientLine(3)])
def test_ctrl_c_in_the_caller_costs_no_batch(dataset: Any) -> None:
    """In the caller it comes in the middle of a batch, which is the next one all the same."""
    with DataLoader(dataset, 2, seed=1) as loader:
        iterator, seen = iter(loader), list[list[int]]()
        while len(seen) < 3:
            try:
                seen.append(next(iterator).tolist())
            except KeyboardInterrupt:
                assert loader.state_dict()["position"]["samples"] == 2 * len(seen)
        assert seen == [[0, 1], [2, 3], [4, 5]]
        assert loader.state_dict()["position"]["samples"] == 6


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", ["map", "shards"])
def test_a_ctrl_c_that_meets_a_generator_does_not_look_like_the_end(kind: str, workers: int) -> None:
    """One that it meets is over: the epoch ended there, and nobody was told."""
    dataset: Any = Images(7, side=2) if kind == "map" else Lines([3, 4])
    with DataLoader(dataset, 2, shuffle=kind == "map", seed=4, num_workers=workers, prefetch=1) as loader:
        whole = [digest(batch) for batch in loader]
        for moment in itertools.count():
            loader.load_state_dict(loader.state_dict() | {"position": START})
            with pressing_at(moment, in_a_generator) as pressed:
                iterator, seen = None, list[str]()
                while len(seen) <= len(whole):
                    try:
                        iterator = iterator or iter(loader)
                        seen.append(digest(next(iterator)))
                    except StopIteration:
                        break
                    except KeyboardInterrupt:
                        assert pressed
            assert seen == whole, pressed
            assert len(pressed) <= 1
            if not pressed:
                assert moment >= 10
                return


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", ["map", "shards", "skip"])
def test_a_ctrl_c_on_the_way_to_the_consumer_costs_no_batch(kind: str, workers: int) -> None:
    """Whatever line it comes before, of all that hand a batch over: the next one is that which it met."""
    dataset: Any = {"map": Images(5, side=2), "shards": Lines([3, 2]), "skip": Faulty(5, side=2)}[kind]
    options: dict[str, Any] = {"shuffle": kind == "map", "seed": 4, "num_workers": workers, "prefetch": 1}
    with DataLoader(dataset, 2, on_error="skip" if kind == "skip" else "raise", **options) as loader:
        whole = [digest(batch) for batch in loader]
        for moment in itertools.count():
            loader.load_state_dict(loader.state_dict() | {"position": START})
            iterator, seen = iter(loader), list[str]()
            with pressing_at(moment, on_the_way) as pressed:
                while len(seen) <= len(whole):
                    try:
                        seen.append(digest(next(iterator)))
                    except StopIteration:
                        break
                    except KeyboardInterrupt:
                        position = loader.state_dict()["position"]
                        assert (position["epoch"], position["batches"]) in {(0, len(seen)), (1, 0)}
            assert seen == whole, pressed
            assert loader.state_dict()["position"] == START | {"epoch": 1}, pressed
            assert loader.statistics is not None
            assert loader.statistics.left_out == (kind == "skip"), pressed
            if not pressed:
                assert moment >= 10
                return


def test_a_second_ctrl_c_in_a_lane_costs_no_batch_either() -> None:
    """The first one ends the jobs of a lane that gave one batch: the new ones are counted from nothing."""
    with DataLoader(Lines([7]), 2, seed=4, num_workers=1, prefetch=1) as loader:
        whole = [digest(batch) for batch in loader]
        for moment in itertools.count():
            loader.load_state_dict(loader.state_dict() | {"position": START})
            iterator = iter(loader)
            seen = [digest(next(iterator))]
            with pressing_at(0, in_a_generator), pytest.raises(KeyboardInterrupt):
                next(iterator)
            with pressing_at(moment, on_the_way) as pressed:
                while len(seen) <= len(whole):
                    try:
                        seen.append(digest(next(iterator)))
                    except StopIteration:
                        break
                    except KeyboardInterrupt:
                        assert pressed
            assert seen == whole, pressed
            if not pressed:
                return


class Restless:
    """A sampler that never gives the same order twice."""

    def __init__(self) -> None:
        self.asked = 0

    def __iter__(self) -> Iterator[int]:
        self.asked += 1
        return iter([(n + self.asked) % 6 for n in range(6)])


def test_after_a_ctrl_c_the_sampler_is_not_asked_again() -> None:
    """It would give another order, in which samples are missing and others come twice."""
    for moment in itertools.count():
        loader, seen = DataLoader(range(6), 2, sampler=Restless()), list[int]()
        iterator = iter(loader)
        with pressing_at(moment, on_the_way) as pressed:
            while True:
                try:
                    seen += next(iterator).tolist()
                except StopIteration:
                    break
                except KeyboardInterrupt:
                    continue
        assert sorted(seen) == list(range(6)), pressed
        if not pressed:
            return


GENERATORS = ("_noted", "_cut", "_jobs")
ON_THE_WAY = ("epoch.py", "producers.py", "mapping.py", "stream.py", "loader_pool.py", "source.py")


def in_a_generator(frame: FrameType) -> bool:
    return frame.f_code.co_name in GENERATORS


def on_the_way(frame: FrameType) -> bool:
    folder, file = os.path.split(frame.f_code.co_filename)
    return file in ON_THE_WAY and os.path.basename(folder) == "data" and not in_a_generator(frame)


@contextlib.contextmanager
def pressing_at(moment: int, is_meant: Callable[[FrameType], bool]) -> Iterator[list[str]]:
    """Ctrl-C before the line of that number of those that are meant, once."""
    left, pressed = moment, list[str]()

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal left
        if not is_meant(frame):
            return None
        # As a block is left, Python looks for signals only when its lock has been given back.
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not line.lstrip().startswith("with "):
            left -= 1
            if left == -1:
                pressed.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    gc.disable()  # it would close generators that earlier epochs have left, and the Ctrl-C would meet those
    sys.settrace(trace)
    try:
        yield pressed
    finally:
        sys.settrace(before)
        gc.enable()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_batch_sampler_that_gives_single_keys_is_told(workers: int) -> None:
    with DataLoader(range(9), batch_sampler=[[1, 2], 3], num_workers=workers) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [1, 2]
        with pytest.raises(InvalidOption, match="gave 3, which is no list of keys; sampler= takes"):
            next(iterator)


def test_a_batch_that_fails_as_it_is_read_tells_its_own_failure() -> None:
    def keys() -> Iterator[int]:
        yield 1
        raise TypeError("of the sampler")

    with (
        DataLoader(range(9), batch_sampler=[keys()]) as loader,
        pytest.raises(TypeError, match="of the sampler"),
    ):
        next(iter(loader))


class Unsendable:
    """A key that no worker can get."""

    def __repr__(self) -> str:
        return "unsendable"

    def __reduce__(self) -> Any:
        raise TypeError("not to be sent")


@pytest.mark.parametrize("bad", range(5))
def test_keys_that_cannot_be_sent_fail_in_the_place_of_their_batch(bad: int) -> None:
    """It came while another batch was asked for, which was blamed, and all that followed were mistaken."""
    batches: list[list[Any]] = [[number] for number in range(5)]
    batches[bad] = [Unsendable(), Unsendable()]
    expected: list[Any] = [[number] for number in range(5)]
    expected[bad] = "while samples [unsendable, unsendable] of the dataset were loaded"
    with DataLoader(range(5), batch_sampler=batches, num_workers=1) as loader:
        iterator, seen = iter(loader), list[Any]()
        while len(seen) <= 5:
            try:
                seen.append(next(iterator).tolist())
            except UnserializableArgument as exc:
                seen += exc.__notes__
            except StopIteration:
                break
        assert seen == expected


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_a_ctrl_c_beside_keys_that_cannot_be_sent_costs_no_batch(bad: int) -> None:
    """It ended in a loop: what could not be sent was sent again for ever."""
    batches: list[list[Any]] = [[number] for number in range(4)]
    batches[bad] = [Unsendable()]
    with DataLoader(range(4), batch_sampler=batches, num_workers=1, prefetch=2, on_error="skip") as loader:
        for moment in itertools.count():
            loader.load_state_dict(loader.state_dict() | {"position": START})
            iterator, seen = iter(loader), list[int]()
            with pressing_at(moment, on_the_way) as pressed:
                while len(seen) <= 4:
                    try:
                        seen += next(iterator).tolist()
                    except StopIteration:
                        break
                    except KeyboardInterrupt:
                        assert pressed
            assert seen == [number for number in range(4) if number != bad], pressed
            assert loader.statistics is not None
            assert loader.statistics.left_out == 1, pressed
            if not pressed:
                return


def test_a_sampler_that_fails_is_told_after_what_it_gave() -> None:
    def keys() -> Any:
        yield from (1, 2, 3)
        raise RuntimeError("no more keys")

    class Sampler:
        def __iter__(self) -> Any:
            return keys()

    for workers in WORKERS:
        with DataLoader(Images(side=2), 1, sampler=Sampler(), num_workers=workers) as loader:
            seen = []
            with pytest.raises(RuntimeError, match="no more keys"):
                for batch in loader:
                    seen.append(int(batch["label"][0]))
            assert seen == [1, 2, 3]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_iterable_that_fails(workers: int, on_error: Any) -> None:
    """A generator is over then; with "raise" what came before it in its batch is lost, too."""
    with DataLoader(Broken(), 3, num_workers=workers, on_error=on_error) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2]
        if on_error == "raise":
            with pytest.raises(ValueError, match="at 4"):
                next(iterator)
        else:
            assert next(iterator).tolist() == [3]
        assert list(iterator) == []


class Broken:
    def __iter__(self) -> Any:
        for number in range(9):
            if number == 4:
                raise ValueError("at 4")
            yield number


def test_d2_a_sample_that_kills_its_worker_fails_alone() -> None:
    """Of six batches one is lost: raised, or left out."""
    with DataLoader(Fatal(12, side=2), 2, num_workers=2) as loader:
        iterator = iter(loader)
        assert [next(iterator)["label"][0] for _ in range(2)] == [0, 2]
        with pytest.raises(WorkerDied, match="SIGKILL"):
            next(iterator)
        assert [batch["label"][0] for batch in iterator] == [6, 8, 10]
    with DataLoader(Fatal(12, side=2), 2, num_workers=2, on_error="skip") as loader:
        assert [batch["label"][0] for batch in loader] == [0, 2, 6, 8, 10]
        assert loader.statistics is not None and loader.statistics.restarts >= 4


class Stops:
    """What a loop would take for its end, and a pool tells in words."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 4:
            raise StopIteration
        return index


def refused(samples: list[int]) -> list[int]:
    if 4 in samples:
        raise KeyError("no batch")
    return samples


def refused_line(samples: list[tuple[int, int, float]]) -> list[int]:
    return refused([number for _, number, _ in samples])


def locked(samples: list[int]) -> object:
    return threading.Lock() if 4 in samples else samples


@pytest.mark.parametrize(
    ("dataset", "collate", "workers"),
    [
        (Fatal(6, side=2), None, 1),
        (Stops(), None, 0),
        (Stops(), None, 1),
        (range(6), refused, 0),
        (range(6), refused, 1),
        (range(6), locked, 1),
    ],
)
def test_a_batch_that_fails_without_a_word_is_named(dataset: Any, collate: Any, workers: int) -> None:
    """A worker that dies, or a collate function, says nothing of the samples; somebody must look at them."""
    with DataLoader(dataset, 3, num_workers=workers, collate=collate) as loader:
        with pytest.raises(Exception, match=r".") as caught:
            list(loader)
        assert caught.value.__notes__ == ["while samples [3, 4, 5] of the dataset were loaded"]


def test_so_is_one_of_a_lane() -> None:
    with DataLoader(Lines([7]), 3, num_workers=1, collate=refused_line) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(KeyError) as caught:
            next(iterator)
        assert caught.value.__notes__ == ["while samples 3 to 5 of lane 0 were loaded"]


class Nameless(int):
    def __repr__(self) -> str:
        raise ValueError("not to be shown")


def test_keys_that_cannot_be_shown_do_not_replace_the_failure() -> None:
    loader = DataLoader(range(6), sampler=[Nameless(4)], collate=refused)
    with pytest.raises(KeyError, match="no batch"):
        next(iter(loader))


def test_what_is_left_out_is_named_as_well() -> None:
    with errors_said() as said, DataLoader(range(6), 3, collate=refused, on_error="skip") as loader:
        assert list(loader) == [[0, 1, 2]]
    [told] = said
    assert "while samples [3, 4, 5] of the dataset were loaded" in told


def test_where_nothing_is_noted_nothing_stands_in_brackets() -> None:
    with errors_said() as said, DataLoader(range(6), batch_sampler=[[1], 3], on_error="skip") as loader:
        assert [batch.tolist() for batch in loader] == [[1]]
    [told] = said
    assert told.rstrip().endswith("takes single ones")


@contextlib.contextmanager
def errors_said() -> Iterator[list[str]]:
    said: list[str] = []
    sink = logger.add(lambda text: said.append(str(text)), format="{message}", level="ERROR")
    try:
        yield said
    finally:
        logger.remove(sink)


def test_d4_what_cannot_travel_is_named() -> None:
    images = Images()
    images.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(UnserializableArgument, match="dataset"):
        iter(DataLoader(images, num_workers=1))
    assert next(iter(DataLoader(images)))["label"] == 0, "in the caller nothing travels"


def test_d6_d18_batches_larger_than_the_arena_come_in_order() -> None:
    """It is made larger after the first one. Kept batches stay what they are."""
    with DataLoader(Blocks(), 6, num_workers=2, prefetch=3) as loader:
        kept = [batch for _ in range(2) for batch in loader]
        assert [[int(block[0]) for block in batch] for batch in kept] == [
            list(range(n, n + 6)) for _ in range(2) for n in (0, 6, 12, 18)
        ]
        assert all((block == block[0]).all() for batch in kept for block in batch)


class Blocks:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return np.full(3 * 2**20, index, np.uint8)


# --- D9, D13, D14, D19 ---------------------------------------------------------------------------


def test_d9_a_device_that_does_not_survive_a_fork() -> None:
    """What the parent has initialised is no business of its workers: they are programs of their own."""
    Device.initialise()
    try:
        with DataLoader(OnDevice(8, side=2), 2, num_workers=2) as loader:
            owners = {int(owner) for batch in loader for owner in batch["owner"]}
        assert os.getpid() not in owners
    finally:
        Device.owner = None


def own_bytes(pid: int) -> int:
    """Memory of no file, of this process alone: also its copies of what it was given."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024


def one_copy(count: int, workers: int) -> None:
    """An epoch over a dataset in arrays: workers have none of it for themselves."""
    dataset = Big(count)
    size = dataset.data.nbytes + dataset.ends.nbytes
    expected = sum(dataset[index][0] for index in range(0, count, 97))
    with DataLoader(dataset, 64, sampler=range(0, count, 97), num_workers=workers) as loader:
        total, pids = 0, set[int]()
        most = 0
        for sums, owners in loader:
            total += int(sums.sum())
            pids.update(map(int, owners))
            most = max(most, *(own_bytes(int(owner)) for owner in set(owners.tolist())))
    assert total == expected
    assert len(pids) == workers
    assert most < 20 * 2**20 + size // 10, f"{most / 2**20:.0f} MiB of a dataset of {size / 2**20:.0f}"


def test_d13_workers_share_the_arrays_of_a_dataset() -> None:
    one_copy(2_000_000, workers=2)


@pytest.mark.parametrize("persistent", [True, False])
def test_d14_nothing_grows_from_epoch_to_epoch(persistent: bool) -> None:
    flat(12 if persistent else 4, 5, persistent=persistent)


def flat(epochs: int, batches: int, *, persistent: bool) -> None:
    """Processes, threads, descriptors and mappings are the same after each epoch; memory does not rise."""

    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    before = family()
    with DataLoader(Images(batches * 8), 8, shuffle=True, num_workers=2, persistent=persistent) as loader:
        found: list[Having] = []
        memory: list[int] = []
        for _ in range(epochs):
            assert len(list(loader)) == batches
            gc.collect()
            if not persistent:
                until(lambda: family() <= before, "the workers have ended")
            found.append(Having.now())
            memory.append(resident())
        assert not any(one.beyond(found[1]) for one in found[2:]), found
        half = len(memory) // 2
        grown = np.mean(memory[half:]) - np.mean(memory[1 : half + 1])
        assert grown < 4 * 2**20, f"{grown / 2**20:.1f} MiB more in the second half"


STREAMS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "map": lambda: (Images(400, pause_s=0.001), {"shuffle": True}),
    "shards": lambda: (Lines([40, 70, 10, 90, 55]), {}),
    "plain": lambda: (Plain(150, pause_s=0.002), {}),
}


def same_with_kills(kind: str, kills: int, every_s: float) -> None:
    dataset, options = STREAMS[kind]()
    options |= {"batch_size": 5, "seed": 7}
    whole = [digest(batch) for batch in DataLoader(dataset, **options)]
    with DataLoader(dataset, num_workers=2, **options) as loader:
        iterator = iter(loader)
        got = [digest(next(iterator))]
        with killing(pool_of(loader), every_s, got=got) as killed:
            got.extend(map(digest, iterator))
            rounds = 1
            while len(killed) < kills:
                loader.load_state_dict(loader.state_dict() | {"position": START})
                got.extend(digest(batch) for batch in loader)
                rounds += 1
        assert len(killed) >= kills
    assert got == whole * rounds


START = {"epoch": 0, "samples": 0, "batches": 0, "lanes": [], "turn": 0}


@pytest.mark.parametrize("kind", list(STREAMS))
def test_d19_the_stream_is_the_same_with_kills(kind: str) -> None:
    same_with_kills(kind, kills=3, every_s=0.15)


def test_a_worker_that_replaces_another_gets_its_part_of_the_shards() -> None:
    with DataLoader(Who4(), 1, num_workers=2, prefetch=1) as loader:
        iterator = iter(loader)
        before = {int(next(iterator)[0]) for _ in range(8)}
        assert len(before) == 2
        os.kill(victim := min(before), signal.SIGKILL)
        ends_at = time.monotonic() + 20
        # The new one alone cannot have more than its half for long, nor can the old one.
        while sorted(Counter(int(next(iterator)[0]) for _ in range(8)).values()) != [4, 4]:
            assert time.monotonic() < ends_at, "two shards each"
        assert victim not in pool_of(loader).pids


def test_workers_keep_memory_for_the_next_sample() -> None:
    """Arrays of the same size again and again: no page is given back to the system and asked for again."""
    with DataLoader(Faults(), 50, num_workers=1) as loader:
        *_, last = loader
        assert last.mean() < 10, "of about 150 pages that each sample uses"


# --- ends ----------------------------------------------------------------------------------------


def test_d11_an_iterator_that_is_left_holds_nothing() -> None:
    with DataLoader(Images(1000), 4, num_workers=2) as loader:
        for _ in range(5):
            for _ in loader:
                break
        gc.collect()
        pool = pool_of(loader)
        until(lambda: pool.in_flight == pool.pending == pool.ready == 0, "what was ahead is dropped")
        assert next(iter(loader))["label"][0] == 0


PROGRAM = """
import sys, time
from omniq.data import DataLoader
from tests.data.datasets import Images
from tests.pool.leftovers import family
loader = DataLoader(Images(10_000_000), 4, num_workers=2)
iterator = iter(loader)
next(iterator)
print(*family(), flush=True)
how = sys.argv[1]
if how == "raise": raise SystemExit(3)
if how == "loop":
    for n, batch in enumerate(iterator):
        if n == 20: print("in the middle of it", flush=True)
"""


@pytest.mark.parametrize(("how", "code"), [("raise", 3), ("exit", 0), ("loop", -signal.SIGINT)])
def test_d10_d11_a_program_that_ends_takes_its_workers_along(how: str, code: int) -> None:
    program = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        assert program.stdout is not None
        workers = [int(pid) for pid in program.stdout.readline().split()]
        assert len(workers) >= 2
        if how == "loop":
            assert program.stdout.readline() == "in the middle of it\n"
            program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=30)
    finally:
        program.kill()  # one that did not end would load batches for ever
    assert program.returncode == code, err
    if how != "loop":
        assert err == ""
    until(lambda: not any(map(is_alive, workers)), "every worker has ended")
