"""The long versions of test_faults.py. Only `make soak` runs them."""

from __future__ import annotations

import gc
import random
import threading
import time
import zlib
from functools import partial
from typing import Any

import pytest

from omniq.data import WorkerPool
from tests.data import bodies
from tests.data.bodies import MIB, until
from tests.data.killing import killing
from tests.data.test_faults import MANY, PLENTY, PRELOAD, THREADS, cycle, keep_everything, owned, recycle, run
from tests.pool.leftovers import Having

pytestmark = pytest.mark.soak


@pytest.mark.bound(300)
def test_a_consumer_keeps_10_000_results_while_a_worker_is_killed_every_second() -> None:
    """What this pool is for: under 64 MiB of arena, every checksum holds at the end, in order."""
    assert keep_everything(10_000, 64 * 1024, every_s=1.0, pause_s=0.006, arena=64 * MIB) >= 20


@pytest.mark.bound(400)
def test_d1_a_thousand_kills_and_the_stream_is_the_same_to_the_byte() -> None:
    def stream(kills: int) -> tuple[int, int]:
        """Checksum over everything that came, in order, and how many workers were killed."""
        seen, count = 0, 0
        options: dict[str, Any] = {"arena": 64 * MIB, "max_losses": PLENTY, "preload": PRELOAD}
        with WorkerPool(4, **options) as pool, killing(pool, 0.02 if kills else 1e6) as killed:
            made = partial(bodies.made_in_place_slowly, size_bytes=64 * 1024, pause_s=0.002)
            while len(killed) < kills or not count:
                for array in pool.map(made, range(2000)):
                    count += 1
                    if count <= 2000 or kills:
                        seen = zlib.crc32(memoryview(array).cast("B"), seen if count % 2000 != 1 else 0)
                    del array
                assert count % 2000 == 0
            return seen, len(killed)

    whole, _ = stream(0)
    again, killed = stream(1000)
    assert killed >= 1000
    assert again == whole


@pytest.mark.bound(2400)
@pytest.mark.parametrize(("kind", "rounds"), [("process", 2000), ("thread", 2000)])
def test_d5_many_cycles(kind: str, rounds: int) -> None:
    chance = random.Random(55)
    cycle(chance, kind)
    gc.collect()
    before = Having.now()
    for _ in range(rounds):
        begin = time.monotonic()
        cycle(chance, kind)
        assert time.monotonic() - begin < 10, "about 0.4 s"
    gc.collect()
    until(lambda: not Having.now().beyond(before), "nothing is left")


@pytest.mark.bound(200)
def test_d7_twenty_thousand_results_with_64_descriptors() -> None:
    ended = run(MANY, "20000")
    assert ended.stdout.startswith("done"), ended.stderr


@pytest.mark.bound(400)
def test_d8_five_hundred_starts_under_threads() -> None:
    for _ in range(25):
        ended = run(THREADS, "20")
        assert (ended.stdout, ended.stderr) == ("forks: []\n", "")


@pytest.mark.bound(300)
def test_d10_a_hundred_killed_parents() -> None:
    for _ in range(100):
        owned("sleep", lambda program: program.kill())


@pytest.mark.bound(900)
def test_d18_a_million_slots() -> None:
    recycle(1_000_000, 64 * 1024)


@pytest.mark.bound(100)
def test_d22_a_consumer_that_sleeps() -> None:
    with WorkerPool(2, arena=16 * MIB, preload=PRELOAD) as pool:
        pool.submit_batch([partial(bodies.made_in_place, n, MIB) for n in range(500)])
        most, asleep = 0, threading.Event()
        ends_at = time.monotonic() + 10
        while time.monotonic() < ends_at:
            most = max(most, pool.arena_bytes)
            asleep.wait(0.05)
        assert most <= 16 * MIB
        assert pool.ready < 20
        assert all(bodies.is_numbers(array, n) for n, array in enumerate(pool.results()))
