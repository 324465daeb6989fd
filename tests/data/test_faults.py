"""What goes wrong with pools that load data, by the names of the failure classes. Long: test_soak.py."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omniq.data import WorkerPool
from omniq.errors import (
    CallFailed,
    CallTimeout,
    ResultTimeout,
    StartFailed,
    TaskFailed,
    UnserializableArgument,
    WorkerDied,
)
from tests.data import bodies
from tests.data.bodies import MIB, until
from tests.data.killing import killing
from tests.pool.leftovers import Having, family, is_alive

ROOT = Path(__file__).parents[2]
PLENTY = 10_000  # of losses: an item may meet any number of kills
ARENA = 8 * MIB
PRELOAD = ["tests.data.bodies"]  # so that a new worker is ready within milliseconds
SOON_S = 25.0  # what would hang goes on for a minute


def checksum(array: Any) -> int:
    return zlib.crc32(memoryview(array).cast("B"))


# --- kept results, killed workers: what this pool is for ------------------------------------------


def keep_everything(count: int, size_bytes: int, every_s: float, pause_s: float, arena: int) -> int:
    """A consumer keeps every result while workers are killed; says how many were."""
    wanted = [checksum(bodies.numbers(n, size_bytes)) for n in range(count)]
    with (
        WorkerPool(2, arena=arena, max_losses=PLENTY, preload=PRELOAD) as pool,
        killing(pool, every_s) as killed,
    ):
        made = partial(bodies.made_in_place_slowly, size_bytes=size_bytes, pause_s=pause_s)
        kept = list(pool.map(made, range(count)))
        assert [checksum(array) for array in kept] == wanted, "at the end, in order"
        assert all(not array.flags.writeable for array in kept)
        return len(killed)


def test_a_consumer_keeps_everything_while_workers_are_killed() -> None:
    """The quick version: twice as many results as the arena has memory for."""
    assert keep_everything(2000, 64 * 1024, every_s=0.3, pause_s=0.002, arena=64 * MIB) >= 2


# --- D1 to D5 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_d1_every_item_comes_once_whoever_is_killed(ordered: bool) -> None:
    with WorkerPool(4, arena=ARENA, ordered=ordered, max_losses=PLENTY, preload=PRELOAD) as pool:
        with killing(pool, every_s=0.05, seed=3) as killed:
            got = list(pool.map(partial(bodies.nap, seconds=0.004), range(600), chunksize=3))
        assert len(killed) >= 5
        assert got == list(range(600)) if ordered else sorted(got) == list(range(600))
        assert pool.restarts >= len(killed) - 4, "the last ones may be under way"


def test_d1_a_death_is_noticed_at_once() -> None:
    with WorkerPool(2, arena=ARENA) as pool:
        quickest_s = 60.0
        for _ in range(5):
            until(lambda: len(pool.pids) == 2, "both are ready")
            gone = pool.pids[0]
            os.kill(gone, signal.SIGKILL)
            begin = time.monotonic()
            until(lambda gone=gone: gone not in pool.pids, "the death is noticed")  # type: ignore[misc]
            quickest_s = min(quickest_s, time.monotonic() - begin)
        assert quickest_s < 1, "a machine that is busy may make some of them slow, not all"


def test_d2_only_the_item_that_kills_fails() -> None:
    with WorkerPool(2, arena=ARENA, on_error="raise", max_losses=2) as pool:
        pool.submit_batch([partial(bodies.segfault_at, n, 77) for n in range(100)])
        assert [pool.get_result(timeout=20) for _ in range(77)] == list(range(77))
        with pytest.raises(WorkerDied, match="SIGSEGV") as died:
            pool.get_result(timeout=20)
        assert "3 times" in str(died.value), "the first time, and twice again"
        assert [pool.get_result(timeout=20) for _ in range(22)] == list(range(78, 100))


def test_d2_of_a_chunk_only_the_call_that_kills_is_lost() -> None:
    with WorkerPool(2, arena=ARENA, max_losses=0) as pool:
        got = list(pool.map(partial(bodies.segfault_at, fatal=7), range(20), chunksize=10))
        assert got == [n for n in range(20) if n != 7]


def test_d2_exactly_the_lost_item_is_done_again(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with WorkerPool(1, arena=ARENA) as pool:
        pool.submit_batch([partial(bodies.die_once, n, str(ran)) for n in range(4)])
        assert [pool.get_result(timeout=20) for _ in range(4)] == [0, 1, 2, 3]
    assert ran.read_text().split() == ["0", "0", "1", "2", "3"]


def test_d3_a_death_while_a_large_argument_is_on_its_way() -> None:
    """The bytes do not fit into the arena, so they go through the socket, and the reader dies."""
    block = np.ones(24 * MIB, np.uint8)
    with WorkerPool(1, arena=ARENA, max_losses=PLENTY) as pool:
        for _ in range(3):
            results = pool.map(np.sum, [block])
            pool.submit_task(os.getpid)
            until(lambda: pool.pids, "it is ready")
            os.kill(pool.pids[0], signal.SIGKILL)
            assert list(results) == [24 * MIB]
            assert isinstance(pool.get_result(timeout=20), int)


def test_d4_what_cannot_be_pickled_is_told_and_the_pool_lives() -> None:
    lock = threading.Lock()
    with WorkerPool(1, arena=ARENA, on_error="raise") as pool:
        with pytest.raises(UnserializableArgument, match="cannot be pickled"):
            pool.submit_task(lambda: not lock.locked())
        with pytest.raises(UnserializableArgument, match=r"items\[0\] of square"):
            list(pool.map(bodies.square, [lock]))  # type: ignore[list-item]
        assert pool.pending == pool.in_flight == 0
        pool.submit_batch([bodies.unpicklable, partial(bodies.square, 3)])
        with pytest.raises((UnserializableArgument, CallFailed), match="Unpicklable"):
            pool.get_result(timeout=20)
        assert pool.get_result(timeout=20) == 9
        assert pool.restarts == 0


def cycle(chance: random.Random, kind: str) -> None:
    pool = WorkerPool(2, arena=MIB, kind=kind).start()  # type: ignore[arg-type]
    pool.submit_batch([partial(bodies.square, n) for n in range(chance.randrange(20))])
    if chance.random() < 0.5 and kind == "process" and (found := pool.pids):
        os.kill(chance.choice(found), signal.SIGKILL)
    if chance.random() < 0.5:
        pool.try_get_result()
    pool.stop(timeout=chance.choice([0, 0.01, 5]))
    assert not pool.is_running


@pytest.mark.parametrize(("kind", "rounds"), [("process", 12), ("thread", 100)])
def test_d5_pools_come_and_go_and_leave_nothing(kind: str, rounds: int) -> None:
    chance = random.Random(5)
    cycle(chance, kind)
    gc.collect()
    before = Having.now()
    for _ in range(rounds):
        cycle(chance, kind)
    gc.collect()
    until(lambda: not Having.now().beyond(before), "nothing is left")


# --- D6 to D8: memory, descriptors, threads ------------------------------------------------------

TOO_SMALL = """
import resource
from omniq.data import WorkerPool
from omniq.errors import StartFailed
resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
try:
    WorkerPool(1, arena=64 << 20).start()
except StartFailed as exc:
    print(exc)
"""


def run(program: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *args],
        capture_output=True, text=True, timeout=50, cwd=ROOT, check=False, **options,
    )  # fmt: skip


def test_d6_memory_that_is_not_there_is_refused_at_start_with_the_sizes() -> None:
    ended = run(TOO_SMALL)
    assert ended.returncode == 0, ended.stderr
    assert "64.0 MiB" in ended.stdout
    assert "arena=" in ended.stdout
    with pytest.raises(StartFailed, match=r"an arena of .* cannot be had: .* MiB are available"):
        WorkerPool(1, arena=1 << 50).start()


def test_d6_the_arena_is_there_before_anything_is_loaded() -> None:
    """All of it is reserved at start, so nothing that fills the memory afterwards can take it away."""
    before = arenas()
    with WorkerPool(1, arena=16 * MIB):
        [(_, mode, size)] = arenas() - before
        assert mode == 0o600
        assert size >= 16 * MIB


def arenas() -> set[tuple[int, int, int]]:
    """Number, mode and size of each that this process has."""
    folder = Path("/proc/self/fd")
    found = [fd for fd in folder.iterdir() if fd.is_symlink() and "memfd:omniq" in os.readlink(fd)]
    return {(fd.stat().st_ino, fd.stat().st_mode & 0o777, fd.stat().st_blocks * 512) for fd in found}


MANY = """
import resource, sys
from functools import partial
from tests.data import bodies
from omniq.data import WorkerPool
import os
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
count = int(sys.argv[1])
with WorkerPool(2, arena=16 << 20) as pool:
    kept, descriptors = [], set()
    for n, array in enumerate(pool.map(bodies.numbers, range(count))):
        kept.append(array[:1] if n % 2 else array)
        if n > 100:
            descriptors.add(len(os.listdir("/proc/self/fd")))
        if len(kept) > 2000:
            del kept[:1000]
    assert max(descriptors) - min(descriptors) <= 2, descriptors
print("done", max(descriptors))
"""


def test_d7_descriptors_do_not_grow_with_what_is_kept() -> None:
    ended = run(MANY, "3000")
    assert ended.stdout.startswith("done"), ended.stderr


THREADS = """
import os, sys, threading
from functools import partial
from omniq.data import WorkerPool
from tests.data import bodies
forks = []
sys.addaudithook(lambda event, _: forks.append(event) if event in ("os.fork", "os.forkpty") else None)
is_over = threading.Event()
def be_busy():
    while not is_over.wait(0.001):
        bytearray(1 << 16)
        __import__("json")
threads = [threading.Thread(target=be_busy) for _ in range(8)]
for thread in threads:
    thread.start()
for n in range(int(sys.argv[1])):
    with WorkerPool(2, arena=1 << 20) as pool:
        pool.submit_task(partial(bodies.square, n))
        assert pool.get_result(timeout=20) == n * n
is_over.set()
print("forks:", forks)
"""


def test_d8_a_parent_with_threads_starts_pools_and_never_forks() -> None:
    ended = run(THREADS, "4")
    assert (ended.stdout, ended.stderr) == ("forks: []\n", "")


# --- D10 to D12: ends of programs ----------------------------------------------------------------


def owned(how: str, end: Callable[[subprocess.Popen[str]], None] = lambda _: None) -> tuple[int, str, float]:
    """Run a program that owns a pool and end it; says its exit code, what it wrote, and how long it took."""
    program = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.data.owner", how],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert program.stdout is not None
    pids = [int(pid) for pid in program.stdout.readline().split()]
    assert len(pids) == 3, "a template and two workers"
    begin = time.monotonic()
    try:
        end(program)
        _, said = program.communicate(timeout=30)
    except BaseException:
        program.kill()
        program.communicate()
        raise
    took_s = time.monotonic() - begin
    until(lambda: not any(map(is_alive, pids)), "no process is left")
    return program.returncode, said, took_s


@pytest.mark.parametrize("how", ["sleep", "read"])
def test_d10_ctrl_c_ends_everything(how: str) -> None:
    code, said, took_s = owned(how, lambda program: os.killpg(program.pid, signal.SIGINT))
    assert code in (1, -signal.SIGINT, 130)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "omniq-data" not in said
    assert took_s < SOON_S


def test_d10_a_killed_parent_takes_everything_along() -> None:
    code, _, took_s = owned("sleep", lambda program: program.kill())
    assert code == -signal.SIGKILL
    assert took_s < SOON_S


@pytest.mark.parametrize(
    ("how", "code", "noise"), [("exit", 0, ""), ("forget", 0, ""), ("leave", 0, ""), ("raise", 1, "3 0\n")]
)
def test_d11_a_program_ends_that_has_left_its_pool_behind(how: str, code: int, noise: str) -> None:
    ended, said, took_s = owned(how)
    assert (ended, said) == (code, noise)
    assert took_s < SOON_S, "2 s on a machine that has nothing else to do"


def test_d11_an_abandoned_iterator_lets_go_of_what_is_ahead() -> None:
    with WorkerPool(2, arena=ARENA) as pool:
        for _ in range(3):
            for array in pool.map(bodies.numbers, range(1000)):
                assert bodies.is_numbers(array, 0)
                break
            del array
            until(lambda: (pool.pending, pool.in_flight, pool.ready) == (0, 0, 0), "it was dropped")
        assert list(pool.map(bodies.square, range(10))) == [n * n for n in range(10)]


def test_d12_no_warning_and_no_name_is_left_of_the_memory() -> None:
    """There is no name that could be left behind, and nobody who would have to clean up."""
    before = set(os.listdir("/dev/shm"))
    ended = run(MANY, "300")
    assert ended.stderr == ""
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "omniq" in name]


# --- D15 to D18 ----------------------------------------------------------------------------------


def test_d15_memory_that_cannot_be_had_now_is_a_copy_and_no_hang() -> None:
    """The consumer pins all of the arena, one result after the other; the rest comes as copies."""
    with WorkerPool(2, arena=MIB) as pool:
        kept = list(pool.map(partial(bodies.made_in_place, size_bytes=128 * 1024), range(100)))
        assert all(bodies.is_numbers(array, n) for n, array in enumerate(kept))
        assert pool.arena_bytes <= MIB
        large = list(pool.map(partial(bodies.numbers, size_bytes=4 * MIB), range(3)))  # more than there is
        assert all(bodies.is_numbers(array, n) for n, array in enumerate(large))
        assert not any(array.flags.writeable for array in (*kept, *large))


def test_d16_an_item_without_memory_fails_alone() -> None:
    def need() -> int:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 512 * MIB, resource.RLIM_INFINITY))
        return len(bytearray(2048 * MIB))

    with WorkerPool(2, arena=ARENA, on_error="raise", max_losses=1) as pool:
        pool.submit_batch([partial(bodies.square, 1), need, bodies.die, partial(bodies.square, 2)])
        assert pool.get_result(timeout=20) == 1
        with pytest.raises(MemoryError):
            pool.get_result(timeout=20)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            pool.get_result(timeout=20)
        assert pool.get_result(timeout=20) == 4


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_d17_a_stuck_item_holds_the_order_up_until_its_timeout(kind: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with WorkerPool(2, arena=ARENA, kind=kind, timeout=1.2, preload=PRELOAD) as pool:  # type: ignore[arg-type]
        pool.submit_task(partial(bodies.hold, str(gate), "stuck"))
        pool.submit_batch([partial(bodies.square, n) for n in range(100)])
        assert [pool.get_result(timeout=20) for _ in range(100)] == [n * n for n in range(100)]
        with pytest.raises(TaskFailed, match=r"timeout of 1\.2 s") as late:
            pool.get_result(timeout=20)
        assert isinstance(late.value.__cause__, CallTimeout)
        gate.touch()


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_d17_without_order_the_others_flow(kind: str, tmp_path: Path) -> None:
    """Also what was given to the stuck worker beforehand."""
    gate = tmp_path / "gate"
    with WorkerPool(2, arena=ARENA, kind=kind, ordered=False) as pool:  # type: ignore[arg-type]
        assert len(list(pool.map(bodies.square, range(100)))) == 100  # quick ones, so it gives beforehand
        pool.submit_batch([partial(bodies.square, n) for n in range(20)])
        pool.submit_task(partial(bodies.hold, str(gate), "stuck"))
        pool.submit_batch([partial(bodies.square, n) for n in range(20, 100)])
        got = [pool.get_result(timeout=20) for _ in range(100)]
        assert sorted(got) == [n * n for n in range(100)]
        gate.touch()
        assert pool.get_result(timeout=20) == "stuck"


def recycle(count: int, size_bytes: int) -> None:
    """Hold views past the next ones, and look at all of them again when they go."""
    chance = random.Random(18)
    held: list[tuple[int, Any]] = []
    with WorkerPool(2, arena=4 * MIB) as pool:
        made = partial(bodies.made_in_place, size_bytes=size_bytes)
        for n, array in enumerate(pool.map(made, range(count))):
            held.append((n, array))
            while len(held) > 24 or (held and chance.random() < 0.5):
                number, old = held.pop(chance.randrange(len(held)))
                assert bodies.is_numbers(old, number), f"result {number} was written over"
                del old
            del array


def test_d18_a_view_pins_its_slot() -> None:
    recycle(1500, 128 * 1024)


# --- D20 to D22 ----------------------------------------------------------------------------------


def test_d20_a_huge_message_is_cut_and_delivered() -> None:
    def shout() -> None:
        raise RuntimeError("x" * 50_000_000 + "\udcff\x00")

    with WorkerPool(1, arena=ARENA) as pool:
        pool.submit_task(shout)
        with pytest.raises(TaskFailed) as failed:
            pool.get_result(timeout=20)
        assert len(str(failed.value)) < 70_000
        assert failed.value.error is not None
        assert len(failed.value.error.message) <= 64 * 1024 + 100


def test_d21_stopping_while_workers_are_replaced() -> None:
    """This pool does not resize; what it has of these races is a stop in the middle of deaths and starts."""
    before = family()
    for n in range(6):
        pool = WorkerPool(3, arena=ARENA, max_losses=PLENTY).start()
        pool.submit_batch([partial(bodies.nap, n, 0.01) for n in range(30)])
        for pid in pool.pids[: 1 + n % 3]:
            os.kill(pid, signal.SIGKILL)
        pool.stop(timeout=5)
        assert family() <= before


def rss_bytes(pid: int) -> int:
    """Memory of its own: without libraries and the arena."""
    resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * resource.getpagesize()


@pytest.mark.parametrize("ordered", [True, False])
def test_d22_workers_do_not_outrun_the_consumer(ordered: bool) -> None:
    """Nobody reads: then they stop, when the arena is full, and this process does not grow."""
    with WorkerPool(2, arena=ARENA, ordered=ordered) as pool:
        fns = [partial(bodies.made_in_place, n, 512 * 1024) for n in range(200)]
        grown = rss_bytes(os.getpid())
        pool.submit_batch(fns)
        until(lambda: pool.ready >= 8 and not pool.in_flight, "they have stopped")
        assert pool.ready <= 16
        assert pool.pending >= 200 - 16
        assert pool.arena_bytes <= ARENA
        assert rss_bytes(os.getpid()) - grown < 8 * MIB
        got = []
        for array in pool.results():
            got.append(int(array[0]) // 1_000_003)
            del array
        assert sorted(got) == list(range(200))
        assert got == list(range(200)) or not ordered


def test_d22_the_next_in_order_may_always_run(tmp_path: Path) -> None:
    """The arena is full of later results; the first one, which everybody waits for, still gets through."""
    gate = tmp_path / "gate"
    with WorkerPool(2, arena=2 * MIB) as pool:
        pool.submit_task(partial(bodies.hold, str(gate), "first"))
        pool.submit_batch([partial(bodies.numbers, n, 512 * 1024) for n in range(40)])
        until(lambda: pool.ready >= 1 and pool.in_flight == 1 and pool.pending > 30, "the others had to stop")
        with pytest.raises(ResultTimeout):
            pool.get_result(timeout=0.01)
        gate.touch()
        assert pool.get_result(timeout=20) == "first"
        assert all(bodies.is_numbers(array, n) for n, array in enumerate(pool.results()))


def test_d22_what_was_lost_may_run_again_though_the_arena_is_full(tmp_path: Path) -> None:
    """The one that everybody waits for is back in the line, with no room for another result."""
    gate = tmp_path / "gate"
    with WorkerPool(2, arena=2 * MIB, max_losses=PLENTY, preload=PRELOAD) as pool:
        pool.submit_task(partial(bodies.hold, str(gate), "first"))
        pool.submit_batch([partial(bodies.numbers, n, 512 * 1024) for n in range(40)])
        until(lambda: bodies.begun(gate), "it has begun")
        until(lambda: pool.ready >= 1 and pool.in_flight == 1 and pool.pending > 30, "the others had to stop")
        [begun] = tmp_path.glob("gate.*")
        os.kill(int(begun.name.split(".")[1]), signal.SIGKILL)
        until(lambda: bodies.begun(gate) == 2, "it has begun again")
        gate.touch()
        assert pool.get_result(timeout=20) == "first"
        assert all(bodies.is_numbers(array, n) for n, array in enumerate(pool.results()))
