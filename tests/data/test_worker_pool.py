"""The data pool beyond its requirements: options, arrays made in place, views, init, map."""

from __future__ import annotations

import array
import gc
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omniq.data import DataLoader, WorkerPool, empty
from omniq.data.threads import ThreadCall, ThreadHand
from omniq.errors import InvalidOption, PoolNotRunning, StartFailed, TaskFailed
from omniq.pool.calls import Interrupted, Returned
from tests.data import bodies
from tests.data.bodies import MIB, until
from tests.pool.leftovers import Having, family, put_to_sleep
from tests.pool.listening import Heard

ARENA = 8 * MIB
UVLOOP = find_spec("uvloop") is not None


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(2, arena=ARENA, on_error="raise") as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "pool" in request.fixturenames:
        shared: WorkerPool = request.getfixturevalue("pool")
        # A map that was left drops what is ahead of it on the pool's loop, a moment after its reader is gone.
        try:
            until(lambda: (shared.pending, shared.in_flight, shared.ready) == (0, 0, 0), "nothing is left")
        except AssertionError:
            shared.stop(timeout=0)  # or the next test would read the results of this one
            shared.start()
            raise


def one(pool: WorkerPool, fn: Any) -> Any:
    pool.submit_task(fn)
    return pool.get_result(timeout=20)


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "coroutine"),
        ("on_error", "ignore"),
        ("max_pending", 0),
        ("arena", 1000),
        ("arena", "1GB"),
        ("init", 7),
        ("timeout", 0),
        ("timeout", "soon"),
        ("max_losses", -1),
    ],
)
def test_a_bad_option_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=name):
        WorkerPool(1, **{name: value})


@pytest.mark.parametrize("chunksize", [0, -1, 1.5, True])
def test_a_bad_chunksize_is_named(pool: WorkerPool, chunksize: Any) -> None:
    with pytest.raises(InvalidOption, match="chunksize"):
        pool.map(bodies.square, [1], chunksize=chunksize)


def test_a_bad_priority_is_named(pool: WorkerPool) -> None:
    with pytest.raises(InvalidOption, match="priority"):
        pool.submit_task(bodies.me, priority="high")  # type: ignore[arg-type]


# --- memory --------------------------------------------------------------------------------------


def address(array: Any) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


@pytest.mark.parametrize("size_bytes", [64 * 1024, MIB + 8, 3 * MIB])
def test_an_array_made_in_place_arrives_whole(pool: WorkerPool, size_bytes: int) -> None:
    for n in range(5):
        got = one(pool, partial(bodies.made_in_place, n, size_bytes))
        assert bodies.is_numbers(got, n)
        assert not got.flags.writeable
        del got
    assert pool.restarts == 0, "nobody said anything that makes no sense"


def in_the_arena() -> tuple[bool, bool]:
    """Whether `empty` gives memory of the arena, and what is small an ordinary array."""

    def lies_there(array: Any) -> bool:
        at = address(array)
        for line in Path("/proc/self/maps").read_text().splitlines():
            start, end = (int(edge, 16) for edge in line.split()[0].split("-"))
            if start <= at < end:
                return "memfd:omniq" in line
        return False

    return lies_there(empty((256, 1024), np.int32)), lies_there(empty(100, np.int32))


def test_empty_lies_in_the_arena(pool: WorkerPool) -> None:
    assert one(pool, in_the_arena) == (True, False)
    assert in_the_arena() == (False, False), "in this process it is an ordinary array"


def several(n: int) -> dict[str, Any]:
    image, mask = empty((64, 64, 16), np.int64), empty(128 * 1024, np.uint8)
    image[:] = n
    mask[:] = n + 1
    return {"n": n, "parts": [image, mask, np.full(100_000, n + 2, np.uint8)], "half": image[:32]}


def test_several_arrays_made_in_place_and_others_beside_them(pool: WorkerPool) -> None:
    for n in range(5):
        got = one(pool, partial(several, n))
        image, mask, other = got["parts"]
        assert image.shape == (64, 64, 16)
        assert (image == n).all() and (mask == n + 1).all() and (other == n + 2).all()
        assert got["half"].shape == (32, 64, 16) and (got["half"] == n).all()
        assert not any(part.flags.writeable for part in (image, mask, other, got["half"]))
        del got, image, mask, other


def part_of_it() -> Any:
    whole = empty((4, 64 * 1024), np.uint8)
    for row in range(4):
        whole[row] = row
    return whole[2]


def test_a_part_of_an_array_made_in_place(pool: WorkerPool) -> None:
    assert (one(pool, part_of_it) == 2).all()


def test_an_array_that_is_not_returned_gives_its_slot_back(pool: WorkerPool) -> None:
    def waste() -> int:
        return sum(empty(MIB, np.uint8).nbytes for _ in range(50))

    assert one(pool, waste) == 50 * MIB
    gc.collect()
    until(lambda: one(pool, os.getpid) and pool.arena_bytes <= 4 * MIB, "slots came back")


def test_an_array_returned_twice_is_refused() -> None:
    """Its memory belongs to whoever reads the first result, and may be anything by now."""
    with WorkerPool(1, arena=ARENA, on_error="raise") as pool:
        assert one(pool, bodies.return_again).nbytes == MIB
        with pytest.raises(ValueError, match="returned a second time"):
            one(pool, bodies.return_again)
        assert one(pool, partial(bodies.square, 2)) == 4


def test_other_buffers_arrive_as_views() -> None:
    def views() -> tuple[Any, ...]:
        numbers = array.array("d", range(20_000))
        return memoryview(bytes(100_000)), numbers, memoryview(b"small"), b"x" * 100_000

    with WorkerPool(1, arena=ARENA) as pool:
        plain, numbers, small, whole = one(pool, views)
        assert isinstance(plain, memoryview) and plain.readonly and plain.nbytes == 100_000
        assert isinstance(numbers, memoryview) and numbers.readonly
        assert numbers.format == "d" and numbers.tolist() == list(map(float, range(20_000)))
        assert small == b"small"
        assert type(whole) is bytes
        assert pool.arena_bytes >= 250_000
        del plain, numbers
        gc.collect()


def test_a_view_outlives_the_pool() -> None:
    with WorkerPool(1, arena=ARENA) as pool:
        kept = one(pool, partial(bodies.made_in_place, 7, MIB))
    assert bodies.is_numbers(kept, 7)


def test_what_is_read_and_let_go_frees_the_arena(pool: WorkerPool) -> None:
    held = [one(pool, partial(bodies.numbers, n, 512 * 1024)) for n in range(4)]
    assert pool.arena_bytes >= 4 * 512 * 1024
    held.clear()
    gc.collect()
    assert pool.arena_bytes < 4 * 512 * 1024


@pytest.mark.parametrize("body", [bodies.numbers, partial(bodies.made_in_place, size_bytes=64 * 1024)])
def test_when_all_is_read_and_let_go_nothing_of_the_arena_is_in_use(pool: WorkerPool, body: Any) -> None:
    """Slots that lay ready in the workers for results to come stayed lent."""
    for found in pool.map(body, range(200)):
        del found
    until(lambda: pool.arena_bytes == 0, "it is all free")
    assert bodies.is_numbers(one(pool, partial(body, 7)), 7)


@pytest.mark.parametrize("sizes", [[64, 200, 64, 1500, 64, 90, 3000, 64]])
def test_sizes_may_change_all_the_time(pool: WorkerPool, sizes: list[int]) -> None:
    for n, kib in enumerate(sizes * 5):
        assert bodies.is_numbers(one(pool, partial(bodies.numbers, n, kib * 1024)), n)


def test_results_of_threads_are_sealed_and_not_copied() -> None:
    mine = bodies.numbers(3)
    with WorkerPool(1, kind="thread") as pool:
        got = one(pool, lambda: {"a": [mine], "b": bodies.Sample(mine, 1, {}), "c": (mine, "small")})
        for view in (got["a"][0], got["b"].image, got["c"][0]):
            assert address(view) == address(mine)
            assert not view.flags.writeable
        assert mine.flags.writeable, "the worker's own array is as it was"
        small = [1, 2]
        assert one(pool, lambda: small) is small


# --- functions, as they are when they are submitted ----------------------------------------------


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_closures_are_taken_as_they_are(kind: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with WorkerPool(1, kind=kind, arena=ARENA) as pool:  # type: ignore[arg-type]
        pool.submit_task(partial(bodies.hold, str(gate)))
        for name in "abc":

            def named() -> str:
                return name  # noqa: B023 - that is the point

            pool.submit_task(named)
            pool.submit_task(partial(lambda extra: name + extra, "!"))  # noqa: B023 - here as well
        gate.touch()
        assert list(pool.results()) == [None, "a", "a!", "b", "b!", "c", "c!"]


def test_a_closure_of_a_thread_may_count() -> None:
    count = 0

    def counts() -> int:
        nonlocal count
        count += 1
        return count

    with WorkerPool(1, kind="thread") as pool:
        pool.submit_batch([counts, counts])
        assert list(pool.results()) == [1, 2]
    assert count == 2


# --- init ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_init_runs_once_in_each_worker_before_anything_else(kind: str, tmp_path: Path) -> None:
    told = tmp_path / "told"

    def init() -> None:
        bodies.append(str(told), "init")

    with WorkerPool(3, kind=kind, arena=ARENA, init=init) as pool:  # type: ignore[arg-type]
        assert told.read_text().split() == ["init"] * 3
        assert one(pool, partial(bodies.append, str(told), "call")) == "call"
    assert told.read_text().split()[-1] == "call"


def test_init_runs_in_a_replacement_as_well(tmp_path: Path) -> None:
    told = tmp_path / "told"
    with WorkerPool(1, arena=ARENA, init=lambda: bodies.append(str(told), "init"), max_losses=0) as pool:
        pool.submit_task(bodies.die)
        with pytest.raises(TaskFailed, match="SIGKILL"):
            pool.get_result(timeout=20)
        assert one(pool, partial(bodies.square, 2)) == 4
    assert told.read_text().split() == ["init"] * 2


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_an_init_that_fails_is_an_error_at_start(kind: str) -> None:
    before = family()
    pool = WorkerPool(2, kind=kind, arena=ARENA, init=bodies.refuse)  # type: ignore[arg-type]
    with pytest.raises(StartFailed, match="init failed in a worker: ValueError: not 0"):
        pool.start()
    assert not pool.is_running
    assert family() <= before


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_an_init_that_fails_without_words_is_an_error_at_start(kind: str) -> None:
    pool = WorkerPool(2, kind=kind, arena=ARENA, init=bodies.refuse_without_words)  # type: ignore[arg-type]
    with pytest.raises(StartFailed, match="init failed in a worker: Unspeakable"):
        pool.start()


def test_an_init_that_kills_is_an_error_at_start() -> None:
    with pytest.raises(StartFailed, match="SIGKILL"):
        WorkerPool(1, arena=ARENA, init=bodies.die).start()


def test_an_init_that_fails_later_fails_what_waits(tmp_path: Path) -> None:
    def only_once() -> None:
        (tmp_path / "done").touch(exist_ok=False)

    with WorkerPool(1, arena=ARENA, init=only_once, max_losses=0) as pool:
        pool.submit_batch([bodies.die, bodies.me])
        for cause in ("SIGKILL", "could not start"):
            with pytest.raises(TaskFailed, match=cause):
                pool.get_result(timeout=30)


# --- map and results -----------------------------------------------------------------------------


def test_map_is_apart_from_get_result(pool: WorkerPool) -> None:
    pool.submit_task(partial(bodies.square, 100))
    assert list(pool.map(bodies.square, range(10))) == [n * n for n in range(10)]
    assert pool.get_result(timeout=20) == 10_000


def test_two_maps_at_once(pool: WorkerPool) -> None:
    pairs = zip(pool.map(bodies.square, range(200)), pool.map(str, range(200), chunksize=7), strict=True)
    assert list(pairs) == [(n * n, str(n)) for n in range(200)]


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_map_runs_ahead_by_a_bounded_number(kind: str) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for n in range(1000):
            taken += 1
            yield n

    with WorkerPool(2, kind=kind, arena=ARENA) as pool:  # type: ignore[arg-type]
        results = pool.map(bodies.square, items(), chunksize=2)
        assert next(results) == 0
        assert taken <= 2 * 4 * 2 + 2


def test_map_skips_or_raises_what_fails(pool: WorkerPool) -> None:
    raising = pool.map(bodies.refuse_odd, range(10))
    assert next(raising) == 0
    with pytest.raises(ValueError, match="not 1"):
        next(raising)
    with WorkerPool(2, arena=ARENA) as skipping:
        assert list(skipping.map(bodies.refuse_odd, range(100), chunksize=3)) == list(range(0, 100, 2))
        assert list(skipping.map(bodies.refuse, range(50))) == []


def test_items_that_raise_end_the_map(pool: WorkerPool) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        list(pool.map(bodies.square, items()))
    until(lambda: (pool.pending, pool.in_flight, pool.ready) == (0, 0, 0), "what was ahead is dropped")


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_stop_ends_a_map_in_another_thread(kind: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    pool = WorkerPool(1, kind=kind, arena=ARENA).start()  # type: ignore[arg-type]
    told: list[Exception] = []

    def reads() -> None:
        try:
            list(pool.map(partial(bodies.hold, str(gate)), range(5)))
        except PoolNotRunning as exc:
            told.append(exc)

    reader = threading.Thread(target=reads)
    reader.start()
    until(lambda: bodies.begun(gate), "it has begun")
    pool.stop(timeout=0)
    reader.join(20)
    assert len(told) == 1
    gate.touch()


def test_a_batch_larger_than_what_may_wait_goes_in_piece_by_piece() -> None:
    with WorkerPool(2, arena=ARENA, max_pending=4) as pool:
        pool.submit_batch([partial(bodies.square, n) for n in range(100)])
        assert list(pool.results()) == [n * n for n in range(100)]


def test_stop_releases_whoever_waits_to_submit(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    pool = WorkerPool(1, kind="thread", max_pending=1).start()
    told: list[Exception] = []

    def submits() -> None:
        try:
            pool.submit_batch([partial(bodies.hold, str(gate))] * 5)
        except PoolNotRunning as exc:
            told.append(exc)

    submitter = threading.Thread(target=submits)
    submitter.start()
    until(lambda: bodies.begun(gate) and pool.pending == 1, "it waits")
    pool.stop(timeout=0)
    submitter.join(20)
    assert len(told) == 1
    gate.touch()


def test_a_pool_that_is_forgotten_ends_its_processes() -> None:
    before = family()
    pool = WorkerPool(2, arena=ARENA).start()
    assert one(pool, os.getpid) != os.getpid()
    assert len(family() - before) == 3
    del pool
    gc.collect()
    until(lambda: family() <= before, "nobody is left")


def test_the_loop_that_reads_keeps_its_pool() -> None:
    results = WorkerPool(1, arena=ARENA).start().map(bodies.square, range(50))
    gc.collect()
    assert list(results) == [n * n for n in range(50)]


async def test_it_works_inside_a_running_loop() -> None:
    """As in a notebook: there is no async twin, so it blocks, and says nothing against it."""
    with WorkerPool(1, arena=ARENA) as pool:
        assert one(pool, partial(bodies.square, 3)) == 9


@pytest.mark.skipif(not UVLOOP, reason="the standard loop is written in Python")
def test_no_python_runs_when_a_reader_goes(pool: WorkerPool) -> None:
    """Python ignores what is raised there: a Ctrl-C that met a function of ours would be lost."""
    held, ran = [pool.map(bodies.square, range(1000))], list[str]()
    next(held[0])
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_name) if event == "call" else None)
    try:
        held.clear()
    finally:
        sys.setprofile(None)
    assert ran == []
    until(lambda: (pool.pending, pool.in_flight, pool.ready) == (0, 0, 0), "it was dropped")


@pytest.mark.skipif(not UVLOOP, reason="the standard loop is written in Python")
@pytest.mark.parametrize("kind", ["pool", "loader"])
def test_no_python_runs_when_a_pool_is_forgotten(kind: str) -> None:
    """The same: its end waited, in the thread that had let go of it, for processes."""
    before = Having.now()
    held: list[Any]
    if kind == "pool":
        held = [WorkerPool(1, arena=ARENA).start()]
    else:
        held = [DataLoader([np.ones(10)] * 8, num_workers=1)]
        next(iter(held[0]))
        gc.collect()
    ran = list[str]()
    sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_name) if event == "call" else None)
    try:
        held.clear()
    finally:
        sys.setprofile(None)
    assert ran == []
    until(lambda: not Having.now().beyond(before), "nothing is left")


def test_a_reader_that_goes_after_its_pool_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with WorkerPool(1, kind="thread") as pool:
        results = pool.map(bodies.square, range(1000))
        next(results)
    del results
    gc.collect()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("chunksize", [16, 20, 64])
def test_what_is_taken_back_from_a_busy_worker_runs_once(tmp_path: Path, chunksize: int) -> None:
    """Quick chunks lie sixteen deep with a worker; one that takes its time has to give them all back."""
    file = tmp_path / "runs"
    file.touch()
    count = 300 * chunksize
    body = partial(bodies.note, str(file), 150 * chunksize)
    with WorkerPool(2) as pool:
        assert list(pool.map(body, range(count), chunksize=chunksize)) == list(range(count))
    runs = Counter(file.read_text().split())
    assert len(runs) == count
    assert runs.most_common(1)[0][1] == 1, "one ran twice although nobody died"


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_stop_drops_what_was_given_beforehand_and_has_not_begun(kind: Any, tmp_path: Path) -> None:
    """Also large chunks, and the rest of the one that runs."""
    file, gate = tmp_path / "runs", tmp_path / "gate"
    with WorkerPool(1, kind=kind) as pool:
        engine = pool._engine
        assert engine is not None
        engine.usual_s = 0.0  # as after many quick ones
        body = partial(bodies.append_and_hold, str(file), str(gate))
        results = pool.map(body, range(10_000), chunksize=1000, ahead=8)
        results.begin()  # type: ignore[attr-defined]
        [worker] = engine.workers
        until(lambda: len(worker.sent) > 2 and bodies.begun(gate), "chunks lie with the worker")
        stopping = threading.Thread(target=pool.stop)
        stopping.start()
        until(lambda: all(sent.was_asked_back for sent in tuple(worker.sent)), "it is told")
        gate.touch()
        stopping.join(20)
        assert not stopping.is_alive()
    assert file.read_text().split() == ["0"]


def test_an_idle_worker_takes_what_lies_with_one_that_has_not_begun() -> None:
    """One that was slow to wake up kept what it was given beforehand for as long as its first call ran."""
    with WorkerPool(2, ordered=False) as pool:
        engine = pool._engine
        assert engine is not None
        engine.usual_s = 0.0  # as after many quick ones
        asleep, awake = [worker.hand.pid for worker in engine.workers if worker.hand is not None]
        for pid in (asleep, awake):
            put_to_sleep(pid)
        try:
            pool.submit_batch([partial(bodies.square, n) for n in range(20)])
            until(lambda: all(len(worker.sent) > 1 for worker in engine.workers), "each has some")
            os.kill(awake, signal.SIGCONT)
            got = [pool.get_result(timeout=20) for _ in range(19)]
        finally:
            os.kill(asleep, signal.SIGCONT)
        got.append(pool.get_result(timeout=20))
    assert sorted(got) == [n * n for n in range(20)]


async def test_a_thread_that_has_not_begun_gives_back_what_is_behind_its_first_call() -> None:
    heard = Heard()
    hand = ThreadHand(1, heard)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(60)  # it does not get to run before we wait
    try:
        for call_id in (1, 2):
            hand.send(ThreadCall(call_id, list, None))
        assert hand.withdraw(range(2, 3)), "in time"
    finally:
        sys.setswitchinterval(interval_s)
        hand.ask_to_stop()
    await heard.until(lambda: heard.exit)
    assert heard.outcome_of == {1: Returned([]), 2: Interrupted()}


def test_a_map_that_raised_and_is_gone_leaves_nothing_ahead(pool: WorkerPool) -> None:
    """Without the collector: an exception that leads to its own reader would keep both."""
    gc.disable()
    try:
        with pytest.raises(ValueError, match="not 1"):
            list(pool.map(bodies.refuse_odd, range(10)))
        until(lambda: (pool.pending, pool.in_flight, pool.ready) == (0, 0, 0), "is given up")
    finally:
        gc.enable()
