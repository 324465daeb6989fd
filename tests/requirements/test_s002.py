"""Seed 002, worker-core: one test or more for each of its requirements."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from omniq import AsyncWorkerPool, Task, TaskStatus, Worker
from omniq.clock import Clock
from omniq.serializer import CloudpickleSerializer, JsonSerializer, MsgpackSerializer, Serializer
from omniq.storage import MemoryStorage, SQLiteStorage
from omniq.storage.backend import Reserved
from omniq.testing import VirtualClock
from tests.requirements import bodies as shared
from tests.requirements.backends import ListBackend
from tests.worker.scene import Bodies, Logs, ended, turns, until
from tests.worker.stores import Memory, running_rows, task_of

ROOT = Path(__file__).parents[2]


def worker(backend: Any, serializer: Serializer | None = None, n: int = 10, poll: float = 0.01) -> Worker:
    return Worker(backend, serializer, max_concurrency=n, poll_interval=poll)


def in_virtual_time(backend: ListBackend, clock: Clock, n: int, poll: float) -> AsyncWorkerPool:
    """What a `Worker` is made of, with time that is the test's. `Worker` itself takes no clock."""
    pool = AsyncWorkerPool(backend.as_storage(), n, poll, wake=False, clock=clock)
    return pool.without_retries()


# --- polling -------------------------------------------------------------------------------------


@pytest.mark.requirement("S002-1")
async def test_s002_1_polls_a_backend_and_dispatches() -> None:
    """S002-1: `Worker` polls a backend and dispatches its tasks."""
    backend = ListBackend()
    ids = [backend.put(shared.path(shared.echo), n) for n in range(5)]
    async with worker(backend):
        await until(lambda: set(ids) == backend.ended)
    assert [MsgpackSerializer().loads(backend.successes[i]) for i in ids] == [[[n], {}] for n in range(5)]


@pytest.mark.requirement("S002-2")
@pytest.mark.parametrize("connected", [False, True])
async def test_s002_2_connects_if_needed(connected: bool) -> None:
    """S002-2: starting connects the backend; one that is connected is not connected twice, nor closed."""
    backend = ListBackend(connected=connected)
    async with worker(backend):
        await until(lambda: backend.made("reserve"))
    assert len(backend.made("connect")) == (0 if connected else 1)
    assert backend.connected == connected


@pytest.mark.requirement("S002-3")
@pytest.mark.parametrize("poll", [0.02, 0.06])
async def test_s002_3_reserves_periodically(poll: float) -> None:
    """S002-3: it calls `reserve` again and again; the poll interval is configurable."""
    backend = ListBackend()
    async with worker(backend, poll=poll):
        await until(lambda: len(backend.reserves) == 6)
    gaps = [later - sooner for sooner, later in itertools.pairwise(backend.reserves)]
    assert min(gaps) >= poll
    clock = VirtualClock()
    backend, begun = ListBackend(clock=clock), clock.monotonic()
    async with in_virtual_time(backend, clock, 1, poll):
        await clock.advance(4.5 * poll)
    assert backend.reserves == pytest.approx([begun + n * poll for n in range(5)], abs=1e-6)


@pytest.mark.requirement("S002-4")
async def test_s002_4_at_least_the_interval_after_an_empty_reserve(bodies: Bodies) -> None:
    """S002-4: after an empty `reserve`, at least the interval passes, also when a body ends meanwhile."""
    clock = VirtualClock()
    backend, begun = ListBackend(clock=clock), clock.monotonic()
    gates = [asyncio.Event(), asyncio.Event()]

    async def body(n: int) -> None:
        await gates[n].wait()

    for n in (0, 1):
        backend.put(bodies(body), n)
    async with in_virtual_time(backend, clock, 3, 10):
        await clock.advance(11)  # both found at once; an empty look at 10
        assert backend.reserves == [begun, begun + 10]
        gates[0].set()
        await clock.advance(5)
        gates[1].set()
        await clock.advance(3.9)
        assert len(backend.ended) == 2
        assert backend.reserves == [begun, begun + 10]
        await clock.advance(0.2)
        assert backend.reserves == [begun, begun + 10, begun + 20]


@pytest.mark.requirement("S002-4")
async def test_s002_4_holds_in_real_time_too(bodies: Bodies) -> None:
    """S002-4: a `Worker` never reserves sooner than the interval after an empty `reserve`."""
    backend = ListBackend()

    async def body() -> None:
        for _ in range(5):
            await asyncio.sleep(0.002)

    async with worker(backend, n=4, poll=0.03):
        for _ in range(6):
            backend.put(bodies(body))
            await until(lambda: not backend.waiting)
        await until(lambda: len(backend.ended) == 6)
    looks = list(zip(backend.reserves, backend.found, strict=True))
    for (then, found), (later, _) in itertools.pairwise(looks):
        assert found or later - then >= 0.03


# --- concurrency ---------------------------------------------------------------------------------


@pytest.mark.requirement("S002-5")
async def test_s002_5_max_concurrency(bodies: Bodies) -> None:
    """S002-5: when `max_concurrency` are scheduled, nothing more is dispatched until one completes."""
    backend, gates, started = ListBackend(), [asyncio.Event() for _ in range(4)], []

    async def body(n: int) -> None:
        started.append(n)
        await gates[n].wait()

    for n in range(4):
        backend.put(bodies(body), n)
    async with worker(backend, n=2):
        for done in range(4):
            await until(lambda n: len(started) == n, min(done + 2, 4))
            await turns()
            assert started == list(range(min(done + 2, 4)))
            gates[done].set()


class Generous(ListBackend):
    """Gives all that it has, however little was asked for."""

    async def reserve(self, limit: int) -> list[Reserved]:
        return await super().reserve(limit + len(self.waiting))


@pytest.mark.requirement("S002-5")
async def test_s002_5_holds_for_a_backend_that_does_not_count(bodies: Bodies) -> None:
    """S002-5: what `reserve` gives beyond the limit waits for a slot, and no stop leaves it behind."""
    backend, running, most = Generous(), set[int](), list[int]()

    async def body(n: int) -> None:
        running.add(n)
        most.append(len(running))
        await asyncio.sleep(0.001)
        running.discard(n)

    for n in range(9):
        backend.put(bodies(body), n)
    async with worker(backend, n=2):
        await until(lambda: most)
    assert len(backend.successes) == 9, "the stop left some behind"
    assert max(most) == 2


@pytest.mark.requirement("S002-5")
async def test_s002_5_what_was_not_begun_is_given_back(bodies: Bodies) -> None:
    """S002-5: a stop with a limit tells the backend of what it has reserved and not begun."""
    backend, begun = Generous(), list[int]()

    async def body(n: int) -> None:
        begun.append(n)
        await asyncio.Event().wait()

    for n in range(5):
        backend.put(bodies(body), n)
    pool = AsyncWorkerPool(backend.as_storage(), 2, poll_interval=0.02)
    await pool.start()
    await until(lambda: len(begun) == 2)
    await pool.stop(timeout=0)
    assert begun == [0, 1]
    assert len(backend.failures) == 5
    assert backend.successes == {}


@pytest.mark.requirement("S002-6")
async def test_s002_6_reserves_no_more_than_it_can_start(bodies: Bodies) -> None:
    """S002-6: `reserve` is asked for no more than the free capacity."""
    backend, gate = ListBackend(), asyncio.Event()

    async def body() -> None:
        await gate.wait()

    for _ in range(2):
        backend.put(bodies(body))
    async with worker(backend, n=5):
        await until(lambda: len(backend.made("reserve")) >= 3)
        asked = backend.made("reserve")
        assert (asked[0], set(asked[1:])) == (5, {3})
        for _ in range(3):
            backend.put(bodies(body))
        await until(lambda: not backend.waiting)
        looks = len(backend.made("reserve"))
        await turns()
        assert len(backend.made("reserve")) == looks, "full, and yet it reserves"
        gate.set()
    assert len(backend.successes) == 5


# --- execution -----------------------------------------------------------------------------------


@pytest.mark.requirement("S002-7")
@pytest.mark.parametrize("serializer", [MsgpackSerializer(), JsonSerializer(), CloudpickleSerializer()])
async def test_s002_7_the_payload_is_a_call(serializer: Serializer) -> None:
    """S002-7: the payload is decoded with the configured serializer into a callable and arguments."""
    backend = ListBackend()
    offset = 40
    func = (lambda x: x + offset) if isinstance(serializer, CloudpickleSerializer) else shared.echo
    task_id = backend.put(func, 2, serializer=serializer)
    async with worker(backend, serializer):
        await until(lambda: backend.ended)
    expected = 42 if isinstance(serializer, CloudpickleSerializer) else [[2], {}]
    assert serializer.loads(backend.successes[task_id]) == expected


@pytest.mark.requirement("S002-8")
@pytest.mark.parametrize("serializer", [MsgpackSerializer(), JsonSerializer()])
async def test_s002_8_async_callables_are_awaited(serializer: Serializer) -> None:
    """S002-8: an async callable is awaited; `mark_success` gets the serialized return value."""
    backend = ListBackend()
    task_id = backend.put(shared.path(shared.aecho), "x", serializer=serializer)
    async with worker(backend, serializer):
        await until(lambda: backend.ended)
    assert backend.successes == {task_id: serializer.dumps([["x"], {}])}


@pytest.mark.requirement("S002-9")
async def test_s002_9_sync_callables_run_in_threads() -> None:
    """S002-9: a sync callable runs off the loop; `mark_success` gets its serialized value."""
    backend = ListBackend()
    task_id = backend.put(shared.path(shared.thread_name))
    async with worker(backend):
        await until(lambda: backend.ended)
    name = MsgpackSerializer().loads(backend.successes[task_id])
    assert name != threading.current_thread().name


@pytest.mark.requirement("S002-10")
@pytest.mark.parametrize("body", [shared.boom, shared.aboom])
async def test_s002_10_failures_are_marked(body: Any) -> None:
    """S002-10: an exception's text and traceback go to `mark_failure`."""
    backend = ListBackend()
    task_id = backend.put(shared.path(body), "no luck")
    async with worker(backend):
        await until(lambda: backend.ended)
    error, traceback = backend.failures[task_id]
    assert "ValueError" in error
    assert "no luck" in error
    assert f"in {body.__name__}" in traceback
    assert not backend.successes


class Picky(Serializer):
    """Somebody's own serializer, which raises its own exceptions."""

    def dumps(self, value: Any) -> bytes:
        return repr(value).encode()

    def loads(self, data: bytes) -> Any:
        return data.decode()

    def dump_call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        return b"call"

    def load_call(self, data: bytes) -> Any:
        match data:
            case b"call":
                return shared.echo, [], {}
            case b"no callable":
                return 7, [], {}
            case _:
                raise ZeroDivisionError("not mine")


UNDECODABLE = {
    "garbage": (None, b"\xff\x00garbage"),
    "empty": (None, b""),
    "names nothing": (None, MsgpackSerializer().dump_call(None, (), {})),
    "no such function": (None, MsgpackSerializer().dump_call("tests.requirements.bodies.absent", (), {})),
    "no such module": (None, MsgpackSerializer().dump_call("no_such_module.at_all", (), {})),
    "not callable": (None, MsgpackSerializer().dump_call("tests.requirements.bodies.NOT_CALLABLE", (), {})),
    "code, not asked for": (None, CloudpickleSerializer().dump_call(lambda: 1, (), {})),
    "own serializer raises": (Picky(), b"?"),
    "own serializer gives no callable": (Picky(), b"no callable"),
}


@pytest.mark.requirement("S002-11")
@pytest.mark.parametrize("case", UNDECODABLE)
async def test_s002_11_what_does_not_decode_is_a_failure(case: str) -> None:
    """S002-11: a payload that does not decode, or not to a callable, is a task failure too."""
    serializer, payload = UNDECODABLE[case]
    backend = ListBackend()
    bad = backend.put_bytes(payload)
    good = backend.put(shared.path(shared.echo), serializer=serializer)
    async with worker(backend, serializer) as running_worker:
        await until(lambda: len(backend.ended) == 2)
        assert running_worker.running
    assert list(backend.failures) == [bad]
    assert backend.failures[bad][0]
    assert list(backend.successes) == [good]


@pytest.mark.requirement("S002-12")
@pytest.mark.parametrize("verb", ["mark_failure", "mark_success", "reserve"])
async def test_s002_12_one_failure_does_not_stop_the_worker(verb: str, logs: Logs) -> None:
    """S002-12: neither a failing task nor a failing `mark_failure` stops the worker; the latter is logged."""
    backend = ListBackend()
    backend.fails[verb] = RuntimeError("the backend is unwell")
    backend.put(shared.path(shared.boom))
    backend.put(shared.path(shared.echo))
    async with worker(backend, n=1) as running_worker:
        await until(lambda: len(backend.made("mark_failure")) and len(backend.made("mark_success")))
        last = backend.put(shared.path(shared.echo))
        await until(lambda: last in backend.successes)
        assert running_worker.running
    assert not backend.fails
    assert "the backend is unwell" in "".join(logs.lines("WARNING", "ERROR"))


# --- delivery ------------------------------------------------------------------------------------


@pytest.mark.requirement("S002-13")
def test_s002_13_the_docs_say_at_least_once() -> None:
    """S002-13: at-least-once is promised, exactly-once is not, and the docs say so."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = " ".join(page.read_text(encoding="utf-8").lower() for page in pages).replace("-", " ")
    assert "at least once" in text
    assert "exactly once" in text
    assert "idempotent" in text


@pytest.mark.requirement("S002-14")
async def test_s002_14_a_dead_workers_task_runs_again(tmp_path: Path) -> None:
    """S002-14: a task reserved by a worker that died before `mark_*` becomes eligible again."""
    clock = VirtualClock()
    for storage in (MemoryStorage(clock=clock), SQLiteStorage(tmp_path / "jobs.db", clock=clock)):
        async with storage:
            task_id = await storage.enqueue(Task(shared.path(shared.echo)))
            dead = storage.clone().as_backend()
            [reserved] = await dead.reserve(1)
            assert reserved.id == task_id  # and that is the last that is heard of it
            assert await storage.as_backend().reserve(1) == []
            await clock.advance(31)
            await storage.lapse()
            async with Worker(storage, poll_interval=0.01):
                assert (await ended(storage, task_id)).status is TaskStatus.SUCCESS
            await dead.close()
            late = await dead.mark_success(task_id, MsgpackSerializer().dumps("too late"))
            assert str(late) == "stale"
            await dead.close()


@pytest.mark.requirement("S002-15")
async def test_s002_15_stop_waits_for_all(bodies: Bodies) -> None:
    """S002-15: `stop()` reserves nothing more and returns only after all in flight have finished."""
    backend, gates = ListBackend(), [asyncio.Event(), asyncio.Event()]

    async def body(n: int) -> None:
        await gates[n].wait()

    for n in (0, 1, 0):
        backend.put(bodies(body), n)
    running_worker = worker(backend, n=2)
    await running_worker.start()
    await until(lambda: len(backend.waiting) == 1)
    stopping = asyncio.create_task(running_worker.stop())
    await turns()
    reserves = len(backend.reserves)
    for gate in gates:
        assert not stopping.done()
        gate.set()
        await turns()
    await stopping
    assert len(backend.successes) == 2
    assert len(backend.reserves) == reserves
    assert len(backend.waiting) == 1


# --- logging, retries, purpose -------------------------------------------------------------------


@pytest.mark.requirement("S002-16")
async def test_s002_16_logs_through_loguru() -> None:
    """S002-16: records go through loguru, to the handlers that the application has."""
    seen: list[Any] = []
    handler = logger.add(lambda message: seen.append(message.record["name"]), level="DEBUG")
    backend = ListBackend()
    backend.put(shared.path(shared.echo))
    try:
        async with worker(backend):
            await until(lambda: backend.ended)
    finally:
        logger.remove(handler)
    assert seen
    assert {name.partition(".")[0] for name in seen} == {"omniq"}


@pytest.mark.requirement("S002-17")
async def test_s002_17_reserved_started_completed_failed(logs: Logs) -> None:
    """S002-17: reserved, started, completed and failed are each logged at info or debug."""
    backend = ListBackend()
    good, bad = backend.put(shared.path(shared.echo)), backend.put(shared.path(shared.boom))
    async with worker(backend):
        await until(lambda: len(backend.ended) == 2)
    quiet = {"INFO", "DEBUG"}
    for words in ("reserved 2", f"started {good}", f"succeeded {good}", f"failed {bad}"):
        assert logs.levels_of(words)
        assert logs.levels_of(words) <= quiet
    assert logs.levels_of("") <= quiet


@pytest.mark.requirement("S002-18")
async def test_s002_18_a_failure_is_final(bodies: Bodies) -> None:
    """S002-18: no retries here: `mark_failure` is final from the worker's view, on any backend."""
    runs: list[int] = []

    async def body() -> None:
        runs.append(1)
        raise ValueError

    backend = ListBackend()
    backend.put(bodies(body))
    async with worker(backend):
        await until(lambda: backend.failures)
    assert len(runs) == 1
    async with Memory() as store, worker(store):
        task_id = await store.enqueue(Task(bodies(body), max_retries=5))
        assert (await ended(store, task_id)).status is TaskStatus.FAILED
        assert (await task_of(store, task_id)).attempts == 1
    assert len(runs) == 2


@pytest.mark.requirement("S002-19")
def test_s002_19_says_what_it_is_for() -> None:
    """S002-19: the purpose of `Worker` is written down, not left open."""
    text = inspect.getdoc(Worker)
    assert text
    assert "TBD" not in text
    assert "reserve" in text


@pytest.mark.requirement("S002-1")
async def test_s002_1_takes_a_storage_as_well() -> None:
    """S002-1: `Worker` takes a `BaseStorage`, or a storage that speaks as a backend."""
    async with Memory() as store:
        for backend in (store, store.as_backend()):
            task_id = await store.enqueue(Task(shared.path(shared.echo), (1,)))
            async with worker(backend):
                assert (await ended(store, task_id)).result == [[1], {}]
        assert await running_rows(store) == []
        assert store.is_open, "it was open before, so it is not the worker's to close"
