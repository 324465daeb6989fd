"""S003: the pool that loads data. Held for processes and for threads alike, where it makes sense."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loguru import logger

import omniq.data
from omniq.data import BaseWorkerPool, WorkerPool
from omniq.errors import InvalidOption, PoolNotRunning, ResultTimeout, TaskFailed
from tests.data import bodies
from tests.data.bodies import MIB, until
from tests.pool.leftovers import Having, family

ARENA = 8 * MIB
ROOT = Path(__file__).parents[2]

MakePool = Callable[..., WorkerPool]
kinds = pytest.mark.parametrize("kind", ["process", "thread"])


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[MakePool]:
    """Pools that are closed at the end, whatever happens."""
    made: list[WorkerPool] = []

    def pool(num_workers: int = 2, **options: Any) -> WorkerPool:
        made.append(WorkerPool(num_workers, **{"arena": ARENA, **options}))
        return made[-1]

    yield pool
    for one in made:
        one.stop(timeout=0)


@pytest.fixture
def log() -> Iterator[list[str]]:
    told: list[str] = []
    handler = logger.add(lambda message: told.append(str(message)), level="DEBUG", format="{level} {message}")
    yield told
    logger.remove(handler)


def read(pool: WorkerPool, count: int) -> list[Any]:
    return [pool.get_result(timeout=20) for _ in range(count)]


# --- the interface -------------------------------------------------------------------------------


@pytest.mark.requirement("S003-1")
def test_s003_1_the_interface_has_every_member() -> None:
    """S003-1: start, stop, is_running, num_workers, submit_task, get_result, try_get_result, close."""
    wanted = {
        "start",
        "stop",
        "is_running",
        "num_workers",
        "submit_task",
        "get_result",
        "try_get_result",
        "close",
    }
    assert wanted == BaseWorkerPool.__abstractmethods__
    assert hasattr(BaseWorkerPool, "__enter__")


@pytest.mark.requirement("S003-2")
@kinds
def test_s003_2_several_independent_workers_behind_queues(make: MakePool, kind: str, tmp_path: Path) -> None:
    """S003-2: WorkerPool implements it: several workers, queues in and out, a graceful end."""
    pool = make(3, kind=kind).start()
    assert isinstance(pool, BaseWorkerPool)
    for name in "abc":
        pool.submit_task(partial(bodies.meet, str(tmp_path), name, 3))
    assert read(pool, 3) == ["a", "b", "c"]
    pool.stop()
    assert not pool.is_running


@pytest.mark.requirement("S003-3")
@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "4", None])
def test_s003_3_the_number_of_workers_is_checked_by_name(bad: Any) -> None:
    """S003-3: four by default; zero, negative or no number is a ValueError that names the parameter."""
    assert WorkerPool().num_workers == 4
    assert inspect.signature(WorkerPool).parameters["num_workers"].default == 4
    with pytest.raises(ValueError, match="num_workers"):
        WorkerPool(bad)
    with pytest.raises(InvalidOption, match="num_workers"):
        WorkerPool(num_workers=bad)


@pytest.mark.requirement("S003-4")
def test_s003_4_a_new_pool_is_not_running() -> None:
    """S003-4: a new pool is not running, and nothing was started for it."""
    before = Having.now()
    pool = WorkerPool(2)
    assert not pool.is_running
    assert not Having.now().beyond(before)


@pytest.mark.requirement("S003-5")
def test_s003_5_start_starts_exactly_as_many_workers_once(make: MakePool, tmp_path: Path) -> None:
    """S003-5: start has exactly num_workers workers running; a second start does nothing."""
    before = family()
    pool = make(3).start()
    assert pool.is_running
    started = family() - before
    assert len(started) == 1 + 3, "a template, and the workers"
    assert pool.start() is pool
    assert family() - before == started


@pytest.mark.requirement("S003-6")
@kinds
def test_s003_6_an_idle_worker_waits_and_can_be_stopped(make: MakePool, kind: str) -> None:
    """S003-6: workers take tasks until they are stopped, and waiting for one can be interrupted."""
    pool = make(2, kind=kind).start()
    pool.submit_task(partial(bodies.square, 3))
    assert pool.get_result(timeout=20) == 9
    begin = time.monotonic()
    pool.stop()
    assert time.monotonic() - begin < 5


@pytest.mark.requirement("S003-7")
@kinds
def test_s003_7_an_exception_is_logged_and_leaves_no_result(
    make: MakePool, kind: str, log: list[str]
) -> None:
    """S003-7: an exception is logged with its message, leaves no result, and its worker goes on."""
    pool = make(1, kind=kind).start()
    pool.submit_batch([bodies.me, partial(bodies.refuse, 77), bodies.me])
    first, second = read(pool, 2)
    assert first == second
    assert any("ERROR" in line and "ValueError: not 77" in line for line in log)


@pytest.mark.requirement("S003-8")
def test_s003_8_submitting_is_refused_in_this_order(make: MakePool) -> None:
    """S003-8: not running comes first, then None: PoolNotRunning, then TypeError."""
    pool = make(1, kind="thread")
    for fn in (bodies.me, None):
        with pytest.raises(PoolNotRunning, match="Worker pool is not running"):
            pool.submit_task(fn)  # type: ignore[arg-type]
    assert issubclass(PoolNotRunning, RuntimeError)
    pool.start()
    for fn in (None, 7):
        with pytest.raises(TypeError):
            pool.submit_task(fn)  # type: ignore[arg-type]
    assert pool.pending == pool.in_flight == 0
    pool.stop()
    with pytest.raises(PoolNotRunning):
        pool.submit_task(None)  # type: ignore[arg-type]


@pytest.mark.requirement("S003-9")
@kinds
def test_s003_9_none_among_others_is_refused_with_all_of_them(make: MakePool, kind: str) -> None:
    """S003-9: None is a TypeError; of a batch with one, nothing is queued."""
    pool = make(1, kind=kind).start()
    with pytest.raises(TypeError, match="None"):
        pool.submit_batch([bodies.me, None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="None"):
        pool.map(None, [1])  # type: ignore[arg-type]
    assert pool.pending == pool.in_flight == pool.ready == 0


@pytest.mark.requirement("S003-10")
@kinds
def test_s003_10_any_callable_and_any_result(make: MakePool, kind: str) -> None:
    """S003-10: every callable runs, whatever it returns: numbers, None, text, objects."""

    class Adder:
        def __call__(self) -> int:
            return 1 + 1

    pool = make(2, kind=kind).start()
    fns: list[Callable[[], Any]] = [
        lambda: 7, lambda: None, lambda: "text", lambda: False, Adder(), partial(max, 3, 4), dict, os.getcwd,
    ]  # fmt: skip
    pool.submit_batch(fns)
    assert read(pool, len(fns)) == [7, None, "text", False, 2, 4, {}, os.getcwd()]


@pytest.mark.requirement("S003-11")
@kinds
def test_s003_11_get_result_blocks_until_there_is_one(make: MakePool, kind: str, tmp_path: Path) -> None:
    """S003-11: not running is an error; otherwise get_result waits until a result is there."""
    pool = make(1, kind=kind)
    with pytest.raises(PoolNotRunning):
        pool.get_result()
    pool.start()
    gate = tmp_path / "gate"
    pool.submit_task(partial(bodies.hold, str(gate), "at last"))
    with pytest.raises(ResultTimeout):
        pool.get_result(timeout=0.05)
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.append(pool.get_result()))
    reader.start()
    assert not got
    gate.touch()
    reader.join(20)
    assert got == ["at last"]


@pytest.mark.requirement("S003-12")
@kinds
def test_s003_12_try_get_result_never_blocks_and_never_raises(
    make: MakePool, kind: str, tmp_path: Path
) -> None:
    """S003-12: (False, None) when not running or when nothing is ready, at once."""
    pool = make(1, kind=kind)
    assert pool.try_get_result() == (False, None)
    pool.start()
    assert pool.try_get_result() == (False, None)
    gate = tmp_path / "gate"
    pool.submit_task(partial(bodies.hold, str(gate), 5))
    assert pool.try_get_result() == (False, None)
    gate.touch()
    until(lambda: pool.ready, "the result is there")
    assert pool.try_get_result() == (True, 5)
    pool.submit_task(partial(bodies.square, 2))
    until(lambda: pool.ready, "another one is there")
    pool.stop()
    assert pool.try_get_result() == (False, None)


@pytest.mark.requirement("S003-13")
@kinds
def test_s003_13_results_come_in_the_order_of_submission(make: MakePool, kind: str, tmp_path: Path) -> None:
    """S003-13: in order of submission, although the first one ends last."""
    pool = make(2, kind=kind).start()
    gate = tmp_path / "gate"
    pool.submit_task(partial(bodies.hold, str(gate), "slow"))
    for n in range(20):
        pool.submit_task(partial(bodies.square, n))
    until(lambda: pool.ready == 20, "all others have ended")
    assert pool.try_get_result() == (False, None)
    gate.touch()
    assert read(pool, 21) == ["slow", *(n * n for n in range(20))]


@pytest.mark.requirement("C10")
@kinds
def test_c10_completion_order_by_choice(make: MakePool, kind: str, tmp_path: Path) -> None:
    """C10: `ordered=False` gives results as they end."""
    pool = make(2, kind=kind, ordered=False).start()
    gate = tmp_path / "gate"
    pool.submit_task(partial(bodies.hold, str(gate), "slow"))
    for n in range(20):
        pool.submit_task(partial(bodies.square, n))
    assert sorted(read(pool, 20)) == [n * n for n in range(20)]
    gate.touch()
    assert pool.get_result(timeout=20) == "slow"


@pytest.mark.requirement("C11")
@kinds
def test_c11_a_failure_is_skipped_or_raised_in_its_place(make: MakePool, kind: str) -> None:
    """C11: skipped, and who could only wait for ever gets TaskFailed; or raised in its place."""
    skipping = make(2, kind=kind).start()
    skipping.submit_batch([partial(bodies.refuse_odd, n) for n in range(5)])
    assert read(skipping, 3) == [0, 2, 4]
    for _ in range(2):
        with pytest.raises(TaskFailed, match=r"ValueError: not [13]") as missing:
            skipping.get_result()
        assert missing.value.error is not None
        assert missing.value.error.type == "ValueError"
    with pytest.raises(ResultTimeout):  # nothing is owed any more: somebody may yet submit
        skipping.get_result(timeout=0.05)

    raising = make(2, kind=kind, on_error="raise").start()
    raising.submit_batch([partial(bodies.refuse_odd, n) for n in range(3)])
    assert raising.get_result(timeout=20) == 0
    with pytest.raises(ValueError, match="not 1"):
        raising.get_result(timeout=20)
    assert raising.get_result(timeout=20) == 2


@pytest.mark.requirement("C11")
@kinds
def test_c11_a_reader_who_waits_already_is_told(make: MakePool, kind: str, tmp_path: Path) -> None:
    """C11: also when the last call fails while somebody waits for its result."""
    pool = make(1, kind=kind).start()
    gate = tmp_path / "gate"

    def fail_later() -> None:
        bodies.hold(str(gate))
        raise ValueError("in the end")

    pool.submit_task(fail_later)
    told: list[BaseException] = []

    def reads() -> None:
        try:
            pool.get_result()
        except TaskFailed as exc:
            told.append(exc)

    reader = threading.Thread(target=reads)
    reader.start()
    until(lambda: bodies.begun(gate), "it has begun")
    gate.touch()
    reader.join(20)
    assert "in the end" in str(told[0])


@pytest.mark.requirement("C25")
def test_c25_the_names_are_pythons(make: MakePool) -> None:
    """C25: ValueError, TypeError and PoolNotRunning(RuntimeError); try_get_result gives a pair."""
    assert issubclass(InvalidOption, ValueError)
    assert issubclass(PoolNotRunning, RuntimeError)
    pool = make(1, kind="thread").start()
    pool.submit_task(lambda: None)
    until(lambda: pool.ready, "it has ended")
    assert pool.try_get_result() == (True, None)


@pytest.mark.requirement("C26")
def test_c26_processes_by_default_threads_by_choice(make: MakePool) -> None:
    """C26: processes unless threads are asked for, and never a fork of this process."""
    for kind, here in (("process", False), ("thread", True)):
        pool = make(2, kind=kind).start()
        pool.submit_task(bodies.me)
        pid, thread = pool.get_result(timeout=20)
        assert (pid == os.getpid()) is here
        assert thread != threading.get_ident()
        pool.submit_task(os.getppid)
        assert (pool.get_result(timeout=20) == os.getpid()) is False or here
    assert inspect.signature(WorkerPool).parameters["kind"].default == "process"
    with pytest.raises(InvalidOption, match="kind"):
        WorkerPool(1, kind="fork")  # type: ignore[arg-type]


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.requirement("S003-14")
@kinds
def test_s003_14_stop_waits_for_what_runs(make: MakePool, kind: str, tmp_path: Path) -> None:
    """S003-14: nothing when not running; else what waits is dropped, what runs may end, then it is over."""
    pool = make(1, kind=kind)
    pool.stop()
    pool.start()
    gate, after = tmp_path / "gate", tmp_path / "after"
    pool.submit_task(partial(bodies.hold, str(gate)))
    pool.submit_task(partial(bodies.append, str(after), "x"))
    until(lambda: bodies.begun(gate), "the first one runs")
    stopping = threading.Thread(target=pool.stop)
    stopping.start()
    until(lambda: not pool.pending, "what waited was dropped")
    assert pool.is_running
    assert stopping.is_alive()
    gate.touch()
    stopping.join(20)
    assert not pool.is_running
    assert not after.exists()
    assert inspect.signature(pool.stop).parameters["timeout"].default == 30


@pytest.mark.requirement("S003-15")
@kinds
def test_s003_15_stop_returns_when_time_is_up(make: MakePool, kind: str, tmp_path: Path) -> None:
    """S003-15: a body that does not end does not keep stop from returning; the pool is not running then."""
    pool = make(1, kind=kind).start()
    gate = tmp_path / "gate"
    pool.submit_task(partial(bodies.hold, str(gate)))
    until(lambda: bodies.begun(gate), "it runs")
    begin = time.monotonic()
    pool.stop(timeout=0.2)
    assert 0.2 <= time.monotonic() - begin < 5
    assert not pool.is_running
    gate.touch()  # a thread cannot be killed: let it go


@pytest.mark.requirement("S003-16")
@kinds
def test_s003_16_stop_releases_whoever_waits_for_a_result(make: MakePool, kind: str, tmp_path: Path) -> None:
    """S003-16: a blocked get_result ends with an error as soon as another thread stops the pool."""
    pool = make(1, kind=kind).start()
    gate = tmp_path / "gate"
    pool.submit_task(partial(bodies.hold, str(gate)))
    until(lambda: bodies.begun(gate), "it runs")
    told: list[BaseException] = []

    def reads() -> None:
        try:
            pool.get_result()
        except PoolNotRunning as exc:
            told.append(exc)

    readers = [threading.Thread(target=reads) for _ in range(3)]
    for reader in readers:
        reader.start()
    stopping = threading.Thread(target=pool.stop)
    stopping.start()
    until(lambda: len(told) == 3, "they need not wait for what still runs")
    assert stopping.is_alive()
    for reader in readers:
        reader.join(20)
    gate.touch()
    stopping.join(20)
    assert not pool.is_running


@pytest.mark.requirement("S003-17")
def test_s003_17_close_frees_everything_and_is_safe_twice() -> None:
    """S003-17: close stops and lets go of processes, threads, descriptors and memory; `with` does it, too."""
    with WorkerPool(1, arena=ARENA) as warm:  # what the first pool of a process imports
        warm.submit_task(partial(bodies.numbers, 1))
        assert bodies.is_numbers(warm.get_result(timeout=20), 1)
    before = Having.now()
    with WorkerPool(2, arena=ARENA) as pool:
        assert pool.is_running
        pool.submit_batch([partial(bodies.numbers, n) for n in range(10)])
        assert bodies.is_numbers(pool.get_result(timeout=20), 0)
    pool.close()
    pool.close()
    assert not Having.now().beyond(before)


@pytest.mark.requirement("S003-18")
@kinds
def test_s003_18_start_after_stop_works(make: MakePool, kind: str) -> None:
    """S003-18: a stopped pool starts again, with nothing left of before."""
    pool = make(2, kind=kind)
    for n in range(3):
        pool.start()
        pool.submit_batch([partial(bodies.square, n), partial(bodies.square, 100)])
        assert pool.get_result(timeout=20) == n * n
        pool.stop()
        assert not pool.is_running
    pool.start()
    pool.submit_task(partial(bodies.square, 9))
    assert pool.get_result(timeout=20) == 81


@pytest.mark.requirement("S003-19")
@kinds
def test_s003_19_the_errors_that_are_listed(make: MakePool, kind: str) -> None:
    """S003-19: not running, None, a worker's exception and the bound of stop are what they should be."""
    pool = make(1, kind=kind)
    with pytest.raises(PoolNotRunning):
        pool.submit_task(bodies.me)
    pool.start()
    with pytest.raises(TypeError):
        pool.submit_task(None)  # type: ignore[arg-type]
    pool.submit_batch([bodies.refuse, partial(bodies.square, 2)])
    assert pool.get_result(timeout=20) == 4
    with pytest.raises(InvalidOption, match="timeout"):
        pool.stop(timeout=-1)
    pool.stop(timeout=1)


# --- the ten acceptance criteria -----------------------------------------------------------------


@pytest.mark.requirement("S003-20")
@pytest.mark.parametrize("count", [1, 3])
def test_s003_20_acceptance_1_starts_the_number_of_workers_it_was_told(make: MakePool, count: int) -> None:
    """S003-20: acceptance 1, the pool starts the specified number of workers."""
    before = set(threading.enumerate())
    make(count, kind="thread").start()
    assert len(set(threading.enumerate()) - before) == count + 1, "and one for the loop"


@pytest.mark.requirement("S003-21")
@kinds
def test_s003_21_acceptance_2_submitting_queues(make: MakePool, kind: str, tmp_path: Path) -> None:
    """S003-21: acceptance 2, submit_task adds to the queue and does not wait."""
    pool = make(1, kind=kind).start()
    gate = tmp_path / "gate"
    for n in range(6):
        pool.submit_task(partial(bodies.hold, str(gate), n))
    assert pool.pending + pool.in_flight == 6
    until(lambda: bodies.begun(gate), "the first one runs")
    assert (pool.pending, pool.in_flight, pool.ready) == (5, 1, 0)
    gate.touch()
    assert read(pool, 6) == list(range(6))


@pytest.mark.requirement("S003-22")
@kinds
def test_s003_22_acceptance_3_results_in_order(make: MakePool, kind: str) -> None:
    """S003-22: acceptance 3, get_result gives completed results in order."""
    pool = make(4, kind=kind).start()
    for n in range(200):
        pool.submit_task(partial(bodies.square, n))
    assert read(pool, 200) == [n * n for n in range(200)]


@pytest.mark.requirement("S003-23")
@kinds
def test_s003_23_acceptance_4_false_when_there_is_nothing(make: MakePool, kind: str) -> None:
    """S003-23: acceptance 4, try_get_result is false if no result is available."""
    assert make(1, kind=kind).start().try_get_result() == (False, None)


@pytest.mark.requirement("S003-24")
def test_s003_24_acceptance_5_stop_ends_all_workers(make: MakePool, tmp_path: Path) -> None:
    """S003-24: acceptance 5, stop ends all workers, gracefully: what runs is finished first."""
    before = family()
    pool = make(3).start()
    done = tmp_path / "done"
    pool.submit_batch([partial(bodies.append, str(done), str(n)) for n in range(3)])
    until(lambda: pool.ready == 3, "they have run")
    pool.stop()
    assert family() <= before
    assert sorted(done.read_text().split()) == ["0", "1", "2"]


@pytest.mark.requirement("S003-25")
@kinds
def test_s003_25_acceptance_6_close_frees_all_resources(make: MakePool, kind: str) -> None:
    """S003-25: acceptance 6, after close there is nothing left of it."""
    make(1, kind=kind).start().close()
    before = Having.now()
    pool = make(2, kind=kind).start()
    pool.submit_batch([partial(bodies.numbers, n) for n in range(4)])
    until(lambda: pool.ready == 4, "results lie there")
    pool.close()
    assert not Having.now().beyond(before)
    assert (pool.pending, pool.in_flight, pool.ready, pool.arena_bytes) == (0, 0, 0, 0)


@pytest.mark.requirement("S003-26")
@kinds
def test_s003_26_acceptance_7_tasks_run_in_parallel(make: MakePool, kind: str, tmp_path: Path) -> None:
    """S003-26: acceptance 7, as many tasks as workers are under way at one moment."""
    pool = make(4, kind=kind).start()
    for n in range(4):
        pool.submit_task(partial(bodies.meet, str(tmp_path), str(n), 4))
    assert read(pool, 4) == ["0", "1", "2", "3"]


@pytest.mark.requirement("S003-27")
@kinds
def test_s003_27_acceptance_8_exceptions_do_not_crash_the_pool(make: MakePool, kind: str) -> None:
    """S003-27: acceptance 8, after any number of exceptions every worker still works."""
    pool = make(2, kind=kind).start()
    pool.submit_batch([partial(bodies.refuse, n) for n in range(50)] + [lambda: sys.exit(3)])
    pool.submit_batch([partial(bodies.square, n) for n in range(50)])
    assert read(pool, 50) == [n * n for n in range(50)]
    assert pool.restarts == 0


@pytest.mark.requirement("S003-28")
def test_s003_28_acceptance_9_the_number_of_processes(make: MakePool) -> None:
    """S003-28: acceptance 9, the number of worker processes is the one that was asked for."""
    before = family()
    pool = make(2).start()
    children = family() - before
    parents = {
        pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in children
    }
    [template] = [pid for pid, parent in parents.items() if parent == os.getpid()]
    assert [parent for pid, parent in parents.items() if pid != template] == [template] * pool.num_workers


@pytest.mark.requirement("S003-29")
def test_s003_29_acceptance_10_parallel_in_different_processes(make: MakePool, tmp_path: Path) -> None:
    """S003-29: acceptance 10, tasks that meet each other do so in different processes."""
    pool = make(3).start()

    def meet(n: int) -> int:
        bodies.meet(str(tmp_path), str(n), 3)
        return os.getpid()

    for n in range(3):
        pool.submit_task(partial(meet, n))
    assert len({*read(pool, 3), os.getpid()}) == 4


# --- files, the example, the notes ---------------------------------------------------------------


@pytest.mark.requirement("S003-30")
def test_s003_30_interface_and_implementation_are_separate_files() -> None:
    """S003-30: the interface and the pool are files of their own, with tests in the mirrored place."""
    assert BaseWorkerPool.__module__ == "omniq.data.base"
    assert WorkerPool.__module__ == "omniq.data.worker_pool"
    assert (ROOT / "tests" / "data" / "test_worker_pool.py").is_file()


@pytest.mark.requirement("S003-31")
@kinds
def test_s003_31_the_usage_example_works_as_it_stands(kind: str) -> None:
    """S003-31: ten tasks whose lambdas capture the loop's index, four workers, ten results, `with`."""
    results = []
    with WorkerPool(num_workers=4, kind=kind, arena=ARENA) as pool:  # type: ignore[arg-type]
        pool.start()
        for i in range(10):
            index = i
            pool.submit_task(lambda: bodies.square(index))  # noqa: B023 - that is the point
        for _ in range(10):
            results.append(pool.get_result())
    assert results == [n * n for n in range(10)]


EXAMPLE = """
from omniq.data import WorkerPool

def compute_something(n):
    return n + offset

offset = 100
for kind in ("process", "thread"):
    with WorkerPool(num_workers=2, kind=kind, arena=1 << 20) as pool:
        for i in range(5):
            pool.submit_task(lambda: compute_something(i))
        print([pool.get_result() for _ in range(5)])
"""


@pytest.mark.requirement("S003-31")
def test_s003_31_the_example_works_in_a_script_without_a_guard(tmp_path: Path) -> None:
    """S003-31: also in a script, where the index is a global, and without a `__main__` guard."""
    script = tmp_path / "example.py"
    script.write_text(EXAMPLE)
    ended = subprocess.run(
        [sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == ["[100, 101, 102, 103, 104]"] * 2


@pytest.mark.requirement("S003-32")
def test_s003_32_real_processes(make: MakePool) -> None:
    """S003-32: what a worker does to its process, it does to its own."""
    pool = make(1).start()
    pool.submit_task(lambda: os.environ.__setitem__("OMNIQ_TEST_S003", "1"))
    pool.submit_task(lambda: os.environ.get("OMNIQ_TEST_S003"))
    assert read(pool, 2) == [None, "1"]
    assert "OMNIQ_TEST_S003" not in os.environ


@pytest.mark.requirement("S003-33")
def test_s003_33_work_for_the_cpu_does_not_hold_the_reader_up(make: MakePool) -> None:
    """S003-33: while workers keep a CPU busy, this process has its interpreter to itself."""
    pool = make(1).start()
    burnt = partial(sum, range(20_000_000))
    pool.submit_task(burnt)
    until(lambda: pool.in_flight, "it runs")
    turns = 0
    while not pool.try_get_result()[0]:
        turns += 1
    assert turns > 100, "with one interpreter for both it would be a few dozen"


@pytest.mark.requirement("S003-34")
def test_s003_34_arrays_arrive_as_read_only_views_of_shared_memory(make: MakePool) -> None:
    """S003-34: arrays of 64 KiB and more come without a copy, also nested; nobody can write to them."""
    pool = make(2).start()
    pool.submit_task(partial(bodies.numbers, 5, MIB))
    array = pool.get_result(timeout=20)
    assert bodies.is_numbers(array, 5)
    assert not array.flags.writeable
    assert not array.flags.owndata
    assert pool.arena_bytes >= MIB
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    pool.submit_task(partial(bodies.sample, 3))
    sample = pool.get_result(timeout=20)
    for n, part in ((3, sample.image), (4, sample.more["masks"][0]), (5, sample.more["masks"][1])):
        assert bodies.is_numbers(part, n)
        assert not part.flags.writeable


def was_asked_back(pool: WorkerPool) -> bool:
    assert pool._engine is not None
    return any(sent.is_void for worker in pool._engine.workers for sent in worker.sent)


@pytest.mark.requirement("S003-35")
@kinds
def test_s003_35_priority_changes_when_it_runs_and_not_the_order(
    make: MakePool, kind: str, tmp_path: Path
) -> None:
    """S003-35: higher priorities run first; ordered results stay in the order of submission."""
    pool = make(1, kind=kind).start()
    gate, ran = tmp_path / "gate", tmp_path / "ran"
    for n in range(50):  # so quick that the worker gets items beforehand
        pool.submit_task(partial(bodies.square, n))
    assert read(pool, 50) == [n * n for n in range(50)]
    pool.submit_task(partial(bodies.hold, str(gate), "first"))
    until(lambda: bodies.begun(gate), "it runs")
    pool.submit_task(partial(bodies.append, str(ran), "low"), priority=-1)
    until(lambda: not pool.pending, "the worker has it, and has not begun")
    for name, priority in (("normal", 0), ("high", 5), ("highest", 9), ("high too", 5)):
        pool.submit_task(partial(bodies.append, str(ran), name), priority=priority)
    until(lambda: was_asked_back(pool), "the low one made way")
    gate.touch()
    assert read(pool, 6) == ["first", "low", "normal", "high", "highest", "high too"]
    assert ran.read_text().splitlines() == ["highest", "high", "high too", "normal", "low"]


@pytest.mark.requirement("S003-36")
@kinds
def test_s003_36_a_batch_is_submitted_at_once(make: MakePool, kind: str) -> None:
    """S003-36: submit_batch queues many functions; map runs one function over many items, in chunks."""
    pool = make(2, kind=kind).start()
    pool.submit_batch([partial(bodies.square, n) for n in range(100)])
    assert list(pool.results()) == [n * n for n in range(100)]
    assert list(pool.results()) == []
    assert list(pool.map(bodies.square, range(1000), chunksize=64)) == [n * n for n in range(1000)]


@pytest.mark.requirement("S003-37")
@kinds
def test_s003_37_figures_and_back_pressure(make: MakePool, kind: str, tmp_path: Path) -> None:
    """S003-37: pending, in_flight and ready can be watched; with max_pending, submit_task waits for room."""
    pool = make(1, kind=kind, max_pending=3).start()
    gate = tmp_path / "gate"
    pool.submit_task(partial(bodies.hold, str(gate), 0))
    until(lambda: pool.in_flight == 1, "it runs")
    for n in range(1, 4):
        pool.submit_task(partial(bodies.square, n))
    assert (pool.pending, pool.in_flight, pool.ready) == (3, 1, 0)
    one_more = threading.Thread(target=pool.submit_task, args=(partial(bodies.square, 4),))
    one_more.start()
    one_more.join(0.1)
    assert one_more.is_alive(), "it waits"
    assert pool.pending == 3
    gate.touch()
    one_more.join(20)
    until(lambda: pool.ready == 5, "all have ended")
    assert (pool.pending, pool.in_flight) == (0, 0)
    assert read(pool, 5) == [0, 1, 4, 9, 16]
    assert pool.ready == 0


@pytest.mark.requirement("C21")
@kinds
def test_c21_many_threads_may_submit_and_read(make: MakePool, kind: str) -> None:
    """C21: callers in threads cross over to one loop: every result is read once, by somebody."""
    pool = make(2, kind=kind).start()
    got: list[int] = []

    def submits(first: int) -> None:
        for n in range(first, first + 50):
            pool.submit_task(partial(bodies.square, n))

    def reads() -> None:
        for _ in range(50):
            got.append(pool.get_result(timeout=20))

    threads = [threading.Thread(target=submits, args=(50 * n,)) for n in range(4)]
    threads += [threading.Thread(target=reads) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(got) == [n * n for n in range(200)]


def test_importing_it_does_not_import_numpy() -> None:
    program = "import sys, omniq.data; omniq.data.WorkerPool; omniq.data.empty; print('numpy' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.stdout.strip() == "False"
    assert omniq.data.empty((3, 4), np.int32).shape == (3, 4)
