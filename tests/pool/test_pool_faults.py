"""Deaths, races and ends of a pool with real processes. The long versions are in test_pool_soak.py."""

from __future__ import annotations

import asyncio
import colorsys
import gc
import importlib
import logging
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from omniq.errors import CallCancelled, CallFailed, PoolClosed, PoolNotRunning, StartFailed, WorkerDied
from omniq.pool import WorkerPool, wire
from omniq.pool.template import LOST_FD, FdInbox
from tests.pool import bodies
from tests.pool.leftovers import Having, family, is_alive
from tests.pool.listening import within_a_second
from tests.pool.scripted import until

ROOT = Path(__file__).parents[2]
PAUSE_S = 0.005  # of a thread that is busy otherwise: the loop needs its turns, too
PLENTY = 10_000  # of retries: a call may meet any number of kills
HUNG_S = 30.0  # longer than the pauses between workers that keep dying add up to


def pids(pool: WorkerPool) -> list[int]:
    return [worker.pid for worker in pool.status().workers if worker.pid and worker.status == "ready"]


@asynccontextmanager
async def killing(pool: WorkerPool, every_s: float, chance: random.Random) -> AsyncIterator[list[int]]:
    """Meanwhile a worker is killed now and then; gives those that were."""
    killed: list[int] = []

    async def kill() -> None:
        while True:
            await asyncio.sleep(every_s)
            # One that is dead and not missed yet does not count twice.
            if found := [pid for pid in pids(pool) if pid not in killed]:
                victim = chance.choice(found)
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)

    task = asyncio.ensure_future(kill())
    try:
        yield killed
    finally:
        task.cancel()
        await asyncio.wait([task])


async def survive_kills(items: int, kills: int, every_s: float, seed: int) -> int:
    """Every item comes to the consumer once, in order, until there were enough kills; says how many items."""
    given = 0
    # With what it needs imported beforehand, a worker does something before the next kill.
    new = WorkerPool(2, 2, preload=[bodies.__name__])
    async with new as pool, killing(pool, every_s, random.Random(seed)) as killed:
        while len(killed) < kills or given < items:
            results = pool.options(retries=PLENTY).map(bodies.double, range(items), chunksize=1 + given % 5)
            last = time.monotonic()
            for n in range(items):
                assert await anext(results) == n * 2
                assert time.monotonic() - last < HUNG_S, "it hung"
                last = time.monotonic()
            assert [value async for value in results] == []
            given += items
    return given


async def test_d1_killed_workers_cost_no_item_and_no_order() -> None:
    await survive_kills(items=200, kills=20, every_s=0.02, seed=1)


async def test_d1_a_death_is_noticed_at_once(tmp_path: Path) -> None:
    async with WorkerPool(1, 1) as pool:

        async def death() -> float:
            victim = await pool.submit(bodies.pid)
            call = asyncio.ensure_future(pool.submit(bodies.hold, str(tmp_path / "gate")))
            # Not only sent: a call that has not begun is not lost with its process.
            await until((tmp_path / f"gate.{victim}").exists, "it runs")
            begin = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            with pytest.raises(WorkerDied):
                await call
            return time.monotonic() - begin

        await within_a_second(death)


async def test_d2_one_item_that_segfaults_fails_alone() -> None:
    async with WorkerPool(2, 2) as pool:
        calls = [pool.submit(bodies.die_on, n, 77) for n in range(150)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [n for n, end in enumerate(ends) if end != n] == [77]
        assert isinstance(ends[77], WorkerDied)
        assert ends[77].cause == "killed by SIGSEGV"
        assert await pool.submit(bodies.double, 1) == 2


async def test_the_template_dies_and_the_pool_goes_on(tmp_path: Path) -> None:
    gates = [tmp_path / "lost", tmp_path / "again"]
    async with WorkerPool(2, 2) as pool:
        call = asyncio.ensure_future(pool.submit(bodies.hold, str(gates[0])))
        again = asyncio.ensure_future(pool.options(retries=1).submit(bodies.hold, str(gates[1])))
        await until(lambda: len(list(tmp_path.iterdir())) == 2, "both run")
        workers = set(pids(pool))
        [template] = [pid for pid in family() if family(pid) >= workers]
        os.kill(template, signal.SIGKILL)
        with pytest.raises(WorkerDied):
            await call
        gates[1].touch()
        assert await again == str(gates[1])
        assert await pool.submit(bodies.double, 1) == 2


async def test_a_worker_that_dies_at_birth_costs_nobody_else_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead between fork and readiness: what runs goes on, and what waits gets the next worker."""
    flag, gate = tmp_path / "die", tmp_path / "gate"
    monkeypatch.setenv("DIES_AT_BIRTH", str(flag))
    async with WorkerPool(1, 2, preload=["tests.pool.dies_at_birth"]) as pool:
        innocent = asyncio.ensure_future(pool.submit(bodies.hold, str(gate)))
        await until(lambda: list(tmp_path.glob("gate.*")), "it runs")
        flag.touch()
        assert await pool.submit(bodies.double, 1) == 2
        assert [end.reason for end in pool.status().ended] == ["exited with code 7"]
        gate.touch()
        assert await innocent == str(gate)


async def cycle(chance: random.Random) -> None:
    """A pool that starts, gets calls, may lose a worker, and ends, each at some moment."""
    pool = WorkerPool(chance.randint(0, 2), 2)
    await pool.start()
    calls = [asyncio.ensure_future(pool.submit(bodies.double, n)) for n in range(chance.randint(0, 4))]
    await asyncio.sleep(chance.choice([0, 0, 0.001, 0.02]))
    if chance.random() < 0.3 and pids(pool):
        with suppress(ProcessLookupError):
            os.kill(chance.choice(pids(pool)), signal.SIGKILL)
    async with asyncio.timeout(HUNG_S):
        await pool.shutdown(cancel=chance.random() < 0.5)
    for end in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(end, int | WorkerDied | CallCancelled | PoolClosed), end


async def cycles(count: int) -> None:
    chance = random.Random(5)
    await cycle(chance)  # whatever is made once per process is there now
    gc.collect()
    before = Having.now()
    for _ in range(count):
        await cycle(chance)
    gc.collect()
    assert not Having.now().beyond(before)


async def test_d5_start_and_stop_leave_nothing_behind() -> None:
    await cycles(12)


ENDINGS = {
    "an abandoned iterator": "results = pool.map(abs, range(100)); print(await anext(results)); return",
    "sys.exit": "await pool.submit(abs, -1); sys.exit(0)",
    "an abandoned call": "c = asyncio.ensure_future(pool.submit(time.sleep, 9)); await pool.submit(abs, 1)",
    "os._exit": "await pool.submit(abs, -1); os._exit(0)",
    "an exception": "await pool.submit(abs, -1); raise SystemExit('the program says so')",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_d11_a_program_ends_whatever_it_leaves_open(ending: str) -> None:
    program = f"""
import asyncio, os, sys, time
from loguru import logger
from omniq.pool import WorkerPool

async def main():
    pool = await WorkerPool(2, 2).start()
    print(*[worker.pid for worker in pool.status().workers], flush=True)
    {ENDINGS[ending]}

logger.remove()
asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    said = ended.stderr.replace("the program says so\n", "")
    assert said == ""
    workers = [int(word) for word in ended.stdout.splitlines()[0].split()]
    end = time.monotonic() + HUNG_S
    while any(is_alive(pid) for pid in workers):
        assert time.monotonic() < end, "a worker outlived its program"
        time.sleep(0.01)


async def test_d20_a_huge_unprintable_exception_is_told_in_bounded_words() -> None:
    async with WorkerPool(1, 1) as pool:
        with pytest.raises(CallFailed) as caught:
            await pool.submit(bodies.raise_much)
        assert caught.value.type_name == "builtins.RuntimeError"
        assert len(str(caught.value)) < 70_000
        assert len(caught.value.traceback) <= 64 * 1024
        caught.value.traceback.encode()
        assert await pool.submit(bodies.double, 1) == 2


async def resized(seconds: float, items: int) -> None:
    """Limits that change all the time lose nothing, and are kept."""
    chance, least, most = random.Random(21), 1, 4
    async with WorkerPool(least, most, scaledown_wait=0.05, target_wait=0) as pool:
        template = await pool.submit(os.getppid)
        end = time.monotonic() + seconds
        seen: list[int] = []

        async def resize() -> None:
            while time.monotonic() < end:
                low = chance.randint(least, most)
                pool.set_limits(min_workers=low, max_workers=chance.randint(low, most))
                await asyncio.sleep(0.02)
                seen.append(sum(is_alive(pid) for pid in family(template)))

        async def work() -> None:
            while time.monotonic() < end:
                results = pool.options(retries=3).map(bodies.double, range(items))
                assert [value async for value in results] == [n * 2 for n in range(items)]

        await asyncio.gather(resize(), work(), work())
        assert max(seen) <= most + 1
        assert max(seen) > least, "it never grew"


async def test_d21_resizing_all_the_time_loses_nothing() -> None:
    await resized(seconds=2.0, items=40)


async def test_f13_a_poison_pill_costs_its_retries_and_no_more() -> None:
    async with WorkerPool(2, 2) as pool:
        pill = asyncio.ensure_future(pool.options(retries=2).submit(bodies.die))
        healthy = await asyncio.gather(*(pool.submit(bodies.double, n) for n in range(100)))
        assert healthy == [n * 2 for n in range(100)]
        with pytest.raises(WorkerDied, match="3 times"):
            await pill
        assert len(pool.status().ended) == 3


async def test_f14_memory_that_is_not_there_is_an_error_and_never_a_success() -> None:
    async with WorkerPool(1, 1) as pool:
        with pytest.raises((MemoryError, WorkerDied)):
            await pool.submit(bodies.allocate_past_a_limit)
        assert await pool.submit(bodies.double, 1) == 2


async def test_workers_that_cannot_live_leave_no_call_waiting_for_ever(tmp_path: Path) -> None:
    """Every child is killed as soon as it is seen; how often one is tried is in test_growth.py."""
    async with WorkerPool(1, 1) as pool:
        killed: set[int] = set()

        async def kill_newcomers() -> None:
            while True:
                for worker in pool.status().workers:
                    if worker.pid and worker.pid not in killed:
                        killed.add(worker.pid)
                        with suppress(ProcessLookupError):
                            os.kill(worker.pid, signal.SIGKILL)
                await asyncio.sleep(0)

        killing_them = asyncio.ensure_future(kill_newcomers())
        call: Any = asyncio.ensure_future(pool.submit(bodies.hold, str(tmp_path / "gate")))
        begin = time.monotonic()
        with pytest.raises(WorkerDied):
            await call
        assert time.monotonic() - begin < 20
        killing_them.cancel()
        await asyncio.wait([killing_them])


# --- starts and ends that meet -------------------------------------------------------------------


async def not_started(pool: WorkerPool, before: set[int], tasks: set[asyncio.Task[Any]]) -> None:
    """Nothing is left of a start that was cancelled, and it can be tried again."""
    assert (pool.status().state, pool.status().workers) == ("new", [])
    assert family() <= before
    assert asyncio.all_tasks() == tasks
    with pytest.raises(PoolNotRunning):
        await pool.submit(bodies.double, 1)
    async with pool, asyncio.timeout(HUNG_S):
        assert await pool.submit(bodies.double, 1) == 2


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the lowest number that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_descriptors_a_call_is_told_and_later_ones_run() -> None:
    async with WorkerPool(0, 1) as pool:
        with no_more_descriptors(), pytest.raises(WorkerDied, match="Too many open files") as died:
            await pool.submit(bodies.double, 1)
        assert not died.value.has_begun
        async with asyncio.timeout(HUNG_S):
            assert await pool.submit(bodies.double, 1) == 2


def test_a_descriptor_that_cannot_be_received_leaves_its_place_empty() -> None:
    """Or the next one that comes would be taken for it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inbox = FdInbox(ours)
        socket.send_fds(theirs, [wire.frame(wire.FORKED, 1)], [theirs.fileno()])
        with no_more_descriptors():
            inbox.fill()
        socket.send_fds(theirs, [wire.frame(wire.FORKED, 2)], [theirs.fileno()])
        inbox.fill()
        first, second = inbox.fds
        os.close(second)
        assert first == LOST_FD != second


async def test_a_cancelled_start_leaves_nothing_and_can_be_tried_again() -> None:
    """Cancelled while its first process is made, and a few moments later."""
    for moments in range(4):
        pool = WorkerPool(1, 1)
        before, tasks = family(), asyncio.all_tasks()
        starting = asyncio.ensure_future(pool.start())
        await until(lambda pool=pool: pool.status().workers, "a process is asked for")
        for _ in range(moments):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        if starting.cancelled():
            await not_started(pool, before, tasks)
        else:
            await pool.shutdown()


async def test_a_shutdown_during_the_start_ends_it() -> None:
    pool = WorkerPool(1, 2)
    before, tasks = family(), asyncio.all_tasks()
    starting = asyncio.ensure_future(pool.start())
    await until(lambda: family() - before, "the template is started")
    call = asyncio.ensure_future(pool.submit(bodies.double, 1))
    await asyncio.sleep(0)
    async with asyncio.timeout(HUNG_S):
        await pool.shutdown()
    for ended in (starting, call):
        with pytest.raises((PoolClosed, StartFailed)):
            await ended
    assert isinstance(starting.exception(), PoolClosed)
    assert pool.status().state == "closed"
    assert family() <= before
    assert asyncio.all_tasks() == tasks


async def test_all_who_start_a_pool_that_cannot_start_are_told() -> None:
    pool = WorkerPool(1, 2, preload=["tests.pool.cannot_be_imported"])
    starts = [asyncio.ensure_future(pool.start()) for _ in range(3)]
    await asyncio.sleep(0)
    call = asyncio.ensure_future(pool.submit(bodies.double, 1))
    async with asyncio.timeout(HUNG_S):
        ends = await asyncio.gather(*starts, call, return_exceptions=True)
    assert [type(end) for end in ends] == [StartFailed] * 4
    assert (pool.status().state, pool.calls()) == ("new", [])
    await pool.shutdown()


async def test_one_who_gives_up_does_not_stop_a_start_for_the_others() -> None:
    pool = WorkerPool(1, 1)
    first, second = (asyncio.ensure_future(pool.start()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is pool
    assert first.cancelled()
    assert await pool.submit(bodies.double, 1) == 2
    await pool.shutdown()


async def test_the_limit_of_a_second_shutdown_holds(tmp_path: Path) -> None:
    pool = await WorkerPool(1, 1).start()
    call = asyncio.ensure_future(pool.submit(bodies.hold, str(tmp_path / "gate")))
    await until(lambda: list(tmp_path.iterdir()), "it runs")
    patient = asyncio.ensure_future(pool.shutdown())
    await asyncio.sleep(0)
    async with asyncio.timeout(HUNG_S):
        await pool.shutdown(timeout=0.05)
    await patient
    with pytest.raises(CallCancelled):
        await call


async def test_a_module_that_cannot_be_preloaded_may_be_logged_once() -> None:
    said: list[str] = []
    handler = logger.add(said.append, format="{message}", level="WARNING")
    try:
        modules = ["tests.pool.cannot_be_imported", "tests.pool.bodies"]
        async with WorkerPool(1, 1, preload=modules, preload_required=False) as pool:
            assert await pool.submit(bodies.double, 1) == 2
            template = await pool.submit(os.getppid)
            os.kill(template, signal.SIGKILL)
            await until(lambda: not is_alive(template), "it is gone")
            assert await pool.options(retries=1).submit(bodies.double, 1) == 2
    finally:
        logger.remove(handler)
    told = [line for line in said if "cannot_be_imported" in line]
    assert told == [
        "not preloaded, so processes that need it import it themselves: "
        "tests.pool.cannot_be_imported: RuntimeError: broken on purpose\n"
    ]


@pytest.mark.parametrize(("said", "seen"), [(None, "1"), ("3", "3")])
async def test_libraries_use_one_thread_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, said: str | None, seen: str
) -> None:
    """Two workers with as many threads each as there are CPUs would be slower than one."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
        if said is not None:
            monkeypatch.setenv(name, said)
    async with WorkerPool(1, 1) as pool:
        assert await pool.submit(os.getenv, "OPENBLAS_NUM_THREADS") == seen
        assert await pool.submit(os.getenv, "OMP_NUM_THREADS") == seen


async def test_what_a_call_has_printed_is_out_when_it_has_ended(tmp_path: Path) -> None:
    """Or a kill would take it along."""
    path = tmp_path / "output"

    def print_to_a_file() -> None:
        sys.stdout = path.open("w")  # with a buffer, as a pipe has
        print("said")

    async with WorkerPool(1, 1) as pool:
        await pool.submit(print_to_a_file)
        assert await pool.submit(path.read_text) == "said\n"


async def test_workers_have_the_environment_of_the_pools_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a template that was started again."""
    monkeypatch.setenv("WHEN", "at the start")
    async with WorkerPool(1, 1) as pool:
        monkeypatch.setenv("WHEN", "later")
        assert await pool.submit(os.getenv, "WHEN") == "at the start"
        template = await pool.submit(os.getppid)
        os.kill(template, signal.SIGKILL)
        await until(lambda: not is_alive(template), "it is gone")
        assert await pool.options(retries=1).submit(os.getenv, "WHEN") == "at the start"


def test_d12_many_segments_leave_no_word_on_stderr() -> None:
    """No resource tracker, no warning, however many arrays went through shared memory."""
    program = """
import asyncio
import numpy as np
from loguru import logger
from omniq.pool import WorkerPool

async def main():
    asyncio.get_running_loop().slow_callback_duration = 60.0  # that the machine is busy is no news
    async with WorkerPool(2, 2) as pool:
        arrays = (np.full(10_000 * (1 + n % 20), float(n)) for n in range(200))
        async for array in pool.map(np.negative, arrays, chunksize=2):
            assert array[-1] <= 0
        kept = [await pool.submit(np.ones, 50_000) for _ in range(20)]

logger.remove()
asyncio.run(main())
"""
    command = [sys.executable, "-X", "dev", "-W", "always", "-c", program]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


async def test_d8_threads_of_the_program_do_not_hinder_starts() -> None:
    """They log, allocate and import: whatever lock one of them holds, no child inherits it."""
    enough = threading.Event()

    def log() -> None:
        while not enough.wait(PAUSE_S):
            logger.debug("a thread of the program")
            logging.getLogger("a thread").info("of the program")

    def allocate() -> None:
        while not enough.wait(PAUSE_S):
            bytearray(1 << 20)

    def import_again() -> None:
        while not enough.wait(PAUSE_S):
            importlib.reload(colorsys)

    threads = [threading.Thread(target=body) for body in (log, allocate, import_again)]
    for thread in threads:
        thread.start()
    try:
        async with WorkerPool(1, 1, max_tasks_per_worker=1, preload=[bodies.__name__]) as pool:
            seen = {await pool.submit(bodies.log_import_and_allocate) for _ in range(50)}
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    assert len(seen) == 50


def test_a_loop_that_is_closed_without_a_shutdown_leaves_no_descriptor() -> None:
    program = """
import asyncio, gc, os, warnings
from loguru import logger
from omniq.pool import WorkerPool

async def main():
    pool = await WorkerPool(1, 1).start()
    await pool.submit(abs, -1)

logger.remove()
warnings.simplefilter("ignore", ResourceWarning)
counts = []
for _ in range(3):
    asyncio.run(main())
    gc.collect()
    counts.append(len(os.listdir("/proc/self/fd")))
print(*counts)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    first, *later = ended.stdout.split()
    assert later == [first, first], ended.stderr
