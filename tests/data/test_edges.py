"""Rare things that data pools and loaders must survive: each of these once waited for ever, or lost data."""

from __future__ import annotations

import array
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from omniq.data import DataLoader, WorkerPool, empty
from omniq.data.stream import MAX_REMEMBERED_FAILURES
from omniq.errors import CallFailed, TaskFailed
from tests.data import bodies
from tests.data.bodies import BOUND_S
from tests.data.datasets import Images


def test_c11_every_call_that_was_left_out_is_told_however_many_there_are() -> None:
    count = MAX_REMEMBERED_FAILURES + 50
    with WorkerPool(1, kind="thread") as pool:
        pool.submit_batch([bodies.refuse] * count)
        for _ in range(count):
            with pytest.raises(TaskFailed, match="there is no further result"):
                pool.get_result(timeout=BOUND_S)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_map_never_waits_for_room_that_only_its_own_reader_makes(kind: Any) -> None:
    with WorkerPool(2, kind=kind, max_pending=2, arena=bodies.MIB) as pool:
        results = pool.map(partial(bodies.numbers, size_bytes=bodies.MIB), range(30), ahead=16)
        found = within_bound(lambda: [bodies.is_numbers(array, n) for n, array in enumerate(results)])
        assert found == [True] * 30


# --- iterable datasets that cannot be read -------------------------------------------------------


class Absent:
    def __iter__(self) -> Iterator[int]:
        raise FileNotFoundError("no such recording")


class Deadly:
    """Nobody survives its fifth sample, and whoever reads on has to pass it."""

    def __iter__(self) -> Iterator[int]:
        yield from range(4)
        os.kill(os.getpid(), signal.SIGKILL)


def within_bound(read: Callable[[], Any]) -> Any:
    """What `read` gives, or None: a loop without an end would keep every other test from its turn."""
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(read()), daemon=True)
    reader.start()
    reader.join(3 * BOUND_S)
    return found[0] if found else None


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_lane_that_cannot_be_begun_is_left_out_once(num_workers: int) -> None:
    with DataLoader(Absent(), 2, num_workers=num_workers, on_error="skip") as loader:
        assert within_bound(lambda: list(loader)) == []
        assert loader.statistics is not None
        assert loader.statistics.left_out == 1


def test_a_lane_that_nobody_survives_comes_to_its_end() -> None:
    with DataLoader(Deadly(), 2, num_workers=1, on_error="skip") as loader:
        found = within_bound(lambda: [batch.tolist() for batch in loader])
        assert found == [[0, 1], [2, 3]]


# --- what a loop takes for its end ---------------------------------------------------------------


def stop_at_two(n: int) -> int:
    if n == 2:
        raise StopIteration("not the end")
    return n


class Ending(Images):
    def __getitem__(self, index: int) -> Any:
        return stop_at_two(index)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_stop_iteration_in_a_call_does_not_end_the_map(kind: Any) -> None:
    with WorkerPool(1, kind=kind, on_error="raise") as pool:
        results = pool.map(stop_at_two, range(4))
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(CallFailed, match="StopIteration: not the end"):
            next(results)
        assert list(results) == [3]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stop_iteration_in_a_dataset_does_not_end_the_epoch(num_workers: int) -> None:
    with DataLoader(Ending(4), num_workers=num_workers) as loader:
        batches = iter(loader)
        assert [next(batches).tolist(), next(batches).tolist()] == [[0], [1]]
        with pytest.raises(CallFailed, match="StopIteration: not the end"):
            next(batches)
        assert [batch.tolist() for batch in batches] == [[3]]


# --- values --------------------------------------------------------------------------------------


def nothing_seen() -> list[memoryview]:
    rows: Any = np.zeros((0, 3), np.float32)
    return [memoryview(b""), memoryview(array.array("d")), memoryview(rows)]


def counted_by_numpy() -> Any:
    count: Any = np.int64(100_000)
    made = empty(count, np.uint8)
    made.fill(7)
    return made


def test_views_of_nothing_arrive() -> None:
    with WorkerPool(1, on_error="raise") as pool:
        pool.submit_task(nothing_seen)
        found = pool.get_result(timeout=BOUND_S)
        assert [(view.format, view.nbytes, view.readonly) for view in found] == [
            ("B", 0, True),
            ("d", 0, True),
            ("f", 0, True),
        ]


def test_empty_takes_a_number_of_numpy() -> None:
    with WorkerPool(1, on_error="raise") as pool:
        pool.submit_task(counted_by_numpy)
        assert pool.get_result(timeout=BOUND_S).sum() == 700_000


def test_a_batch_of_keys_may_be_read_once_only() -> None:
    keys: list[Any] = [(n for n in (0, 1)), map(int, (2,))]
    found = [batch["index"].tolist() for batch in DataLoader(Indexed(4), batch_sampler=keys)]
    assert found == [[0, 1], [2]]


class Indexed(Images):
    def __getitem__(self, index: int) -> Any:
        return {"index": index}


# --- a fork of the consumer ----------------------------------------------------------------------

FORKED = """
import os, sys, signal
from omniq.data import WorkerPool
from omniq.errors import PoolNotRunning
from tests.data import bodies

def told(do):
    try:
        return do()
    except PoolNotRunning as exc:
        return "forked" in str(exc)

pool = WorkerPool(1).start()
pool.submit_task(bodies.me)
mine = pool.get_result()
pool.submit_task(bodies.me)
while not pool.ready: pass
child = os.fork()
if child == 0:
    signal.alarm(60)
    print(pool.is_running, pool.try_get_result(), flush=True)
    print(told(pool.get_result), told(lambda: pool.submit_task(bodies.me)), flush=True)
    if sys.argv[1] == "stop":
        pool.stop()
    else:
        with pool:
            pool.submit_task(bodies.me)
            print(pool.get_result() != mine, flush=True)
    os._exit(0)
_, ended = os.waitpid(child, 0)
pool.submit_task(bodies.me)
print("parent", ended, [pool.get_result(), pool.get_result()] == [mine, mine], flush=True)
pool.stop()
"""


@pytest.mark.parametrize("then", ["stop", "start"])
def test_a_forked_consumer_is_told_and_the_parent_goes_on(then: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORKED, then], capture_output=True, text=True, timeout=120, check=False
    )
    own = ["True"] if then == "start" else []
    expected = ["False (False, None)", "True True", *own, "parent 0 True"]
    assert ended.stdout.splitlines() == expected, ended.stderr
