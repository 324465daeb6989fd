"""The pool with real processes: calls, their limits, and looking after it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from omniq.errors import (
    CallCancelled,
    CallTimeout,
    InvalidOption,
    PoolClosed,
    PoolNotRunning,
    StartFailed,
    UnserializableArgument,
    WorkerDied,
)
from omniq.pool import PoolStatus, WorkerPool
from omniq.pool.calls import Returned
from tests.pool import bodies
from tests.pool.scripted import scripted, turns, until

SOON_S = 30.0  # for what should take a moment, on a machine that is busy
LONGER_S = (0.2, 1.0, 5.0)


def begun(path: Path) -> list[int]:
    """The processes that run `hold(path)`."""
    return [int(found.suffix[1:]) for found in path.parent.glob(f"{path.name}.*")]


# --- calls ---------------------------------------------------------------------------------------


async def test_a_call_returns_its_value_or_raises_its_exception() -> None:
    async with WorkerPool(1, 1) as pool:
        assert await pool.submit(bodies.double, 21) == 42
        assert await pool.submit(bodies.double, n=4) == 8
        factor = 3
        assert await pool.submit(lambda n: n * factor, 5) == 15
        text = "x" * 200_000  # more than goes into a message
        assert await pool.submit(lambda: len(text)) == len(text)
        assert await pool.submit(lambda a, *, b: text[a:b], 3, b=5) == "xx"
        lengths = pool.map(lambda n: len(text) + n, range(5), chunksize=2)
        assert [length async for length in lengths] == [len(text) + n for n in range(5)]
        with pytest.raises(ValueError, match="not 7"):
            await pool.submit(bodies.refuse, 7)
        assert await pool.submit(bodies.pid) != os.getpid()


async def test_what_cannot_be_pickled_is_refused_at_once_and_the_pool_lives() -> None:
    async with WorkerPool(1, 1) as pool:
        with pytest.raises(UnserializableArgument, match=r"args\[0\] of double is a _thread\.lock"):
            await pool.submit(bodies.double, threading.Lock())  # type: ignore[arg-type]
        assert await pool.submit(bodies.double, 1) == 2


async def test_map_gives_results_in_order_whatever_the_chunks() -> None:
    async with WorkerPool(2, 2) as pool:
        for chunksize in (1, 7, 1000):
            results = pool.map(bodies.double, range(100), chunksize=chunksize)
            assert [value async for value in results] == [n * 2 for n in range(100)]
        assert [value async for value in pool.map(bodies.double, [])] == []
        as_they_end = pool.map(bodies.double, range(50), chunksize=3, ordered=False)
        assert sorted([value async for value in as_they_end]) == [n * 2 for n in range(50)]


async def test_unordered_results_do_not_wait_for_a_slow_one(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def first_waits(n: int) -> int:
        if n == 0:
            bodies.hold(str(gate))
        return n

    async with WorkerPool(2, 2) as pool:
        results = pool.map(first_waits, range(6), ordered=False)
        seen = [await anext(results) for _ in range(5)]
        assert sorted(seen) == [1, 2, 3, 4, 5]
        gate.touch()
        assert await anext(results) == 0
        await results.aclose()  # type: ignore[attr-defined]


class Counted:
    """A function that counts how often it is pickled."""

    pickled = 0

    def __call__(self, n: int) -> int:
        return n + 1

    def __reduce__(self) -> tuple[Any, ...]:
        Counted.pickled += 1
        return Counted, ()


async def test_map_pickles_its_function_once_however_many_chunks_there_are() -> None:
    async with WorkerPool(1, 1) as pool:
        before = Counted.pickled
        assert [n async for n in pool.map(Counted(), range(30), chunksize=3)] == list(range(1, 31))
        assert Counted.pickled == before + 1


async def test_map_runs_ahead_by_a_bounded_number() -> None:
    taken = 0

    def items() -> Any:
        nonlocal taken
        for n in range(10_000):
            taken = n
            yield n

    async with WorkerPool(2, 2) as pool:
        results = pool.map(bodies.double, items())
        await anext(results)
        await until(lambda: pool.status().running == pool.status().waiting == 0, "all that is ahead has run")
        assert taken < 10
        await results.aclose()  # type: ignore[attr-defined]
        assert pool.calls() == []


async def test_an_exception_in_map_is_raised_in_its_place_and_ends_it() -> None:
    async with WorkerPool(2, 2) as pool:
        seen: list[int] = []
        with pytest.raises(ValueError, match="not 5"):
            async for value in pool.map(bodies.refuse_at, range(100), chunksize=2):
                seen.append(value)
        assert seen == [0, 1, 2, 3, 4]
        await pool.drain()
        assert await pool.submit(bodies.double, 1) == 2


async def test_leaving_a_map_cancels_what_is_ahead(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with WorkerPool(1, 1) as pool:
        results = pool.map(bodies.hold, [str(gate)] * 4)
        waiting = asyncio.ensure_future(anext(results))
        await until(lambda: begun(gate), "the first has begun")
        waiting.cancel()
        await asyncio.wait([waiting])
        await pool.drain()
        assert await pool.submit(bodies.double, 1) == 2


async def test_notes_reach_their_listener() -> None:
    notes: list[Any] = []
    async with WorkerPool(1, 1) as pool:
        assert await pool.options(on_note=notes.append).submit(bodies.tell_progress, 3) == "told"
        assert notes == [{"step": 0}, {"step": 1}, {"step": 2}]

        def broken(note: Any) -> None:
            raise RuntimeError("no")

        assert await pool.options(on_note=broken).submit(bodies.tell_progress, 1) == "told"


async def test_what_a_thread_of_an_earlier_call_says_reaches_nobody(tmp_path: Path) -> None:
    notes: list[Any] = []
    async with WorkerPool(1, 1) as pool:
        hears = pool.options(on_note=notes.append)
        await hears.submit(bodies.leave_a_thread_that_tells, str(tmp_path / "speak"))
        assert await hears.submit(bodies.listen_for_a_thread, str(tmp_path / "speak")) == "heard"
        assert notes == ["in time"]


async def test_a_note_that_comes_after_its_call_has_ended_is_not_about_the_next() -> None:
    notes: list[Any] = []
    pool = await scripted(1, 1)
    hears, child = pool.options(on_note=notes.append), pool.children[0]
    for word in ("first", "second"):
        call = asyncio.ensure_future(hears.submit(abs, -1))
        await turns()
        assert child.message is not None
        child.events.note(child, child.message.id - 1, f"before the {word}")
        child.events.note(child, child.message.id, word)
        child.finish(1)
        await call
    results = hears.map(abs, range(3), chunksize=3)
    first = asyncio.ensure_future(anext(results))
    await turns()
    child.report(Returned(0))
    for nth, word in enumerate(("has ended", "third", "fourth", "is another one")):
        child.events.note(child, child.message.id + nth, word)
    child.finish(0)
    assert await first == 0
    assert notes == ["first", "second", "third", "fourth"]
    await results.aclose()  # type: ignore[attr-defined]
    await pool.ended()


async def test_message_and_dispatch_are_submit_in_two_steps() -> None:
    async with WorkerPool(1, 1) as pool:
        message = pool.message(bodies.double, 4)
        await pool.dispatch_task(message)
        assert await message.result() == 8


# --- limits of a call ----------------------------------------------------------------------------


async def test_a_timeout_interrupts_and_the_process_lives_on(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with WorkerPool(1, 1) as pool:
        before = await pool.submit(bodies.pid)
        for limit_s in LONGER_S:  # until it was long enough for the call to begin
            with pytest.raises(CallTimeout, match=rf"longer than its timeout of {limit_s:g} s") as caught:
                await pool.options(timeout=limit_s).submit(bodies.clean_up_when_interrupted, str(trace))
            if (tmp_path / "trace.begun").exists():
                break
        assert isinstance(caught.value, TimeoutError)
        assert trace.read_text() == "cleaned up"
        assert await pool.submit(bodies.pid) == before


async def test_a_timeout_kills_what_ignores_its_interrupt() -> None:
    async with WorkerPool(1, 1, grace=0.1) as pool:
        before = await pool.submit(bodies.pid)
        for limit_s in LONGER_S:
            with pytest.raises(CallTimeout):
                await pool.options(timeout=limit_s, retries=3).submit(bodies.ignore_interrupts)
            if pool.status().ended:
                break
        assert await pool.submit(bodies.pid) != before
        assert "did not end within 0.1 s of its interrupt" in pool.status().ended[-1].reason


async def test_the_timeout_of_a_map_is_each_calls_own() -> None:
    """Together they take longer than the limit, which is four times what each of them takes."""
    naps = [0.0, *[0.4] * 4]
    async with WorkerPool(1, 1) as pool:
        timed = pool.options(timeout=1.6)
        assert [value async for value in timed.map(bodies.nap, naps, chunksize=5)] == naps
        with pytest.raises(CallTimeout):
            async for _ in timed.map(bodies.nap, [0.0, 60.0, 0.0], chunksize=3):
                pass
        assert pool.status().ended == [], "it was the call that was interrupted, and it ended"


async def test_cancelling_the_waiter_cancels_the_call(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with WorkerPool(1, 1) as pool:
        before = await pool.submit(bodies.pid)
        call = asyncio.ensure_future(pool.submit(bodies.clean_up_when_interrupted, str(trace)))
        waits = asyncio.ensure_future(pool.submit(bodies.nap_and_tell, str(tmp_path / "never"), 0))
        await until((tmp_path / "trace.begun").exists, "one runs, one waits")
        assert pool.status().waiting == 1
        waits.cancel()
        call.cancel()
        await asyncio.wait([call, waits])
        assert call.cancelled() and waits.cancelled()
        assert await pool.submit(bodies.pid) == before, "the process was interrupted, not killed"
        assert trace.read_text() == "cleaned up"
        assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("count", [300, 100_000])
async def test_leaving_a_map_ends_the_call_that_runs_and_no_other_begins(tmp_path: Path, count: int) -> None:
    """However many there are in a chunk: the process is interrupted once, and takes the next call."""
    trace = tmp_path / "trace"
    async with WorkerPool(1, 1) as pool:
        before = await pool.submit(bodies.pid)
        results = pool.map(bodies.hold_and_count, [str(trace)] * count, chunksize=count)
        waits = asyncio.ensure_future(anext(results))
        await until(lambda: list(tmp_path.glob("trace.gate.*")), "the first one runs")
        waits.cancel()
        await asyncio.wait([waits])
        assert await pool.submit(bodies.pid) == before
        assert trace.read_text() == "begun\n"
        assert pool.status().ended == []


async def test_cancel_by_filter_and_listing(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with WorkerPool(1, 1) as pool:
        holding = asyncio.ensure_future(pool.submit(bodies.hold, str(gate)))
        doubles = [asyncio.ensure_future(pool.submit(bodies.double, n)) for n in range(3)]
        await until(lambda: begun(gate), "it runs")
        assert [(call.name, call.state) for call in pool.calls()] == [
            ("hold", "running"),
            *[("double", "waiting")] * 3,
        ]
        [running] = pool.calls(state="running")
        assert running.worker == 0 and running.for_s >= 0
        assert await pool.cancel(name="dou*") == 3
        for call in doubles:
            with pytest.raises(CallCancelled, match="before it began"):
                await call
        assert await pool.cancel(id=running.id) == 1
        with pytest.raises(CallCancelled, match="while it ran"):
            await holding
        assert await pool.cancel() == 0
        assert pool.calls() == []


async def test_max_tasks_per_worker() -> None:
    async with WorkerPool(1, 1, max_tasks_per_worker=3) as pool:
        pids = [await pool.submit(bodies.pid) for _ in range(9)]
        assert [len(set(pids[at : at + 3])) for at in (0, 3, 6)] == [1, 1, 1]
        assert len(set(pids)) == 3
        await until(lambda: len(pool.status().ended) == 3, "three have gone")
        assert pool.status().ended[0].reason == "it has done 3 calls"


async def test_worker_lifetime() -> None:
    async with WorkerPool(1, 1, worker_lifetime=0.2) as pool:
        first = await pool.submit(bodies.pid)
        await until(lambda: pool.status().ended, "it has gone of old age")
        assert await pool.submit(bodies.pid) != first
        assert pool.status().ended[0].reason == "it has lived for 0.2 s"


async def test_a_worker_that_keeps_too_much_memory_is_replaced_and_no_call_is_hurt() -> None:
    async with WorkerPool(1, 1, worker_memory=100 * bodies.MIB) as pool:
        before = await pool.submit(bodies.pid)
        assert await pool.submit(bodies.keep_memory, 70) == 70
        # Over the limit only at the end of a short call, so that nobody looks while it runs.
        for _ in range(30):
            assert await pool.submit(bodies.keep_memory, 2) == 2
            if await pool.submit(bodies.pid) != before:
                break
        assert "more than 100 MiB" in pool.status().ended[0].reason


async def test_a_call_that_takes_too_much_memory_is_killed_and_says_so() -> None:
    async with WorkerPool(1, 1, worker_memory=100 * bodies.MIB) as pool:
        with pytest.raises(WorkerDied, match="more than 100 MiB") as caught:
            await pool.submit(bodies.grow, 150)
        assert "of memory" in caught.value.cause
        assert await pool.submit(bodies.double, 1) == 2


# --- deaths --------------------------------------------------------------------------------------


async def test_a_death_fails_that_call_and_nobody_else_notices(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with WorkerPool(2, 2) as pool:
        other = asyncio.ensure_future(pool.submit(bodies.hold, str(gate)))
        await until(lambda: begun(gate), "the other one runs")
        with pytest.raises(WorkerDied, match="SIGKILL") as caught:
            await pool.submit(bodies.die)
        assert caught.value.cause == "killed by SIGKILL"
        gate.touch()
        assert await other == str(gate)
        assert await pool.submit(bodies.double, 1) == 2


async def test_retries_run_a_call_again_whose_process_died(tmp_path: Path) -> None:
    async with WorkerPool(1, 1) as pool:
        assert (
            await pool.options(retries=1).submit(bodies.die_once, str(tmp_path / "died")) == "the second time"
        )
        with pytest.raises(WorkerDied, match="3 times"):
            await pool.options(retries=2).submit(bodies.die)


async def test_of_a_batch_only_the_call_that_ran_is_lost(tmp_path: Path) -> None:
    def one_dies(n: int) -> int:
        return bodies.die_on(n, 3)

    async with WorkerPool(1, 1) as pool:
        message = pool.options().map(one_dies, range(6), chunksize=6)
        seen = []
        with pytest.raises(WorkerDied, match="SIGSEGV"):
            async for value in message:
                seen.append(value)
        assert seen == [0, 1, 2]

        def dies_once(n: int) -> int:
            if n == 3:
                bodies.die_once(str(tmp_path / "died"))
            with (tmp_path / "ran").open("a") as ran:
                ran.write(f"{n} ")
            return n

        results = pool.options(retries=1).map(dies_once, range(6), chunksize=6)
        assert [value async for value in results] == list(range(6))
        assert (tmp_path / "ran").read_text() == "0 1 2 3 4 5 "


# --- life ----------------------------------------------------------------------------------------


async def test_before_the_start_and_after_the_end() -> None:
    pool = WorkerPool(1, 1)
    assert pool.status().state == "new"
    with pytest.raises(PoolNotRunning, match="async with pool"):
        await pool.submit(abs, -1)
    await pool.start()
    await pool.start()
    assert len(pool.status().workers) == 1
    await pool.shutdown()
    await pool.shutdown()
    with pytest.raises(PoolClosed):
        await pool.submit(abs, -1)
    with pytest.raises(PoolClosed):
        pool.map(abs, [1])
    with pytest.raises(PoolClosed):
        await pool.start()
    assert pool.status().state == "closed" and pool.status().workers == []


async def test_a_pool_belongs_to_the_loop_that_started_it() -> None:
    async with WorkerPool(1, 1) as pool:
        for call in (lambda: pool.submit(abs, -1), pool.drain, pool.cancel, pool.shutdown, pool.start):

            async def elsewhere(call: Callable[[], Awaitable[object]] = call) -> None:
                await call()

            with pytest.raises(PoolNotRunning, match="another event loop"):
                await asyncio.to_thread(asyncio.run, elsewhere())
        loop = asyncio.get_running_loop()
        future = asyncio.run_coroutine_threadsafe(pool.submit(abs, -1), loop)
        assert await asyncio.wrap_future(future) == 1


async def test_a_module_that_cannot_be_preloaded_fails_the_start() -> None:
    with pytest.raises(StartFailed, match="no_such_module_anywhere"):
        await WorkerPool(1, 1, preload=["no_such_module_anywhere"]).start()


async def test_shutdown_lets_calls_end() -> None:
    pool = await WorkerPool(1, 2).start()
    calls = [asyncio.ensure_future(pool.submit(bodies.nap, 0.05)) for _ in range(6)]
    await asyncio.sleep(0)
    await asyncio.gather(pool.shutdown(), pool.shutdown())
    assert await asyncio.gather(*calls) == [0.05] * 6


async def test_shutdown_with_a_timeout_cancels_what_is_left() -> None:
    pool = await WorkerPool(1, 1, grace=0.2).start()
    calls = [
        asyncio.ensure_future(pool.submit(body)) for body in (bodies.ignore_interrupts, bodies.run_for_ever)
    ]
    await until(lambda: pool.calls(state="running"), "it runs")
    begin = time.monotonic()
    await pool.shutdown(timeout=0.1)
    assert time.monotonic() - begin < SOON_S
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends] == [CallCancelled, CallCancelled]


async def test_an_exception_in_the_block_does_not_wait_for_calls() -> None:
    begin = time.monotonic()
    call = None
    with pytest.raises(KeyError):
        async with WorkerPool(1, 1) as pool:
            call = asyncio.ensure_future(pool.submit(bodies.nap, 60))
            await until(lambda: pool.calls(state="running"), "it runs")
            raise KeyError("the block's own")
    assert time.monotonic() - begin < SOON_S
    assert call is not None
    with pytest.raises(CallCancelled):
        await call


async def test_drain_waits_for_what_is_there() -> None:
    async with WorkerPool(2, 2) as pool:
        calls = [asyncio.ensure_future(pool.submit(bodies.nap, 0.02)) for _ in range(5)]
        await asyncio.sleep(0)
        assert await pool.drain() == 5
        await asyncio.sleep(0)
        assert all(call.done() for call in calls)
        assert await pool.drain() == 0


async def test_status_says_what_every_worker_does_and_since_when(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with WorkerPool(2, 2) as pool:
        call = asyncio.ensure_future(pool.submit(bodies.hold, str(gate)))
        await until(lambda: begun(gate), "it runs")
        await until(lambda: [w.status for w in pool.status().workers] == ["ready"] * 2, "both are ready")
        status = pool.status()
        assert isinstance(status, PoolStatus)
        busy, idle = sorted(status.workers, key=lambda worker: worker.doing is None)
        assert (busy.doing, idle.doing) == ("hold", None)
        assert busy.pid == begun(gate)[0]
        assert busy.for_s > 0
        assert (status.state, status.waiting, status.running, status.wanted) == ("running", 0, 1, 2)
        assert status.reason
        gate.touch()
        await call


# --- scaling -------------------------------------------------------------------------------------


async def test_a_pool_grows_with_the_work_and_shrinks_when_it_is_done(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with WorkerPool(0, 3, scaledown_wait=0.3) as pool:
        assert pool.status().workers == []
        calls = [asyncio.ensure_future(pool.submit(bodies.hold, str(gate))) for _ in range(5)]
        await until(lambda: len(begun(gate)) == 3, "three run at once")
        assert pool.status().waiting == 2
        assert pool.status().reason.endswith("at most 3")
        gate.touch()
        await asyncio.gather(*calls)
        await until(lambda: pool.status().workers == [], "nobody is left")
        assert len(pool.status().ended) == 3
        assert all("not needed for 0.3 s" in end.reason for end in pool.status().ended)
        assert await pool.submit(bodies.double, 1) == 2


async def test_limits_can_be_changed_while_it_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with WorkerPool(1, 1) as pool:
        calls = [asyncio.ensure_future(pool.submit(bodies.hold, str(gate))) for _ in range(3)]
        pool.set_limits(min_workers=3, max_workers=3)
        await until(lambda: len(begun(gate)) == 3, "three run at once")
        pool.set_limits(min_workers=1, max_workers=1)
        gate.touch()
        await asyncio.gather(*calls)
        await until(lambda: len(pool.status().workers) == 1, "one is left")
        with pytest.raises(InvalidOption, match="less than min_workers"):
            pool.set_limits(min_workers=2)
        assert await pool.submit(bodies.double, 1) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_workers": -1}, "min_workers must be a whole number of at least 0"),
        ({"max_workers": 0}, "max_workers must be a whole number of at least 1"),
        ({"min_workers": 3, "max_workers": 2}, "write the larger one as max_workers"),
        ({"scaledown_wait": 0}, "scaledown_wait must be more than 0"),
        ({"target_wait": -1}, "target_wait must be 0 seconds or more"),
        ({"max_tasks_per_worker": 0}, "max_tasks_per_worker must be"),
        ({"worker_memory": 1.5}, "worker_memory must be"),
        ({"worker_lifetime": -1}, "worker_lifetime must be more"),
        ({"grace": 0}, "grace must be more"),
    ],
)
async def test_bad_options_say_what_to_write(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        WorkerPool(**options)


async def test_bad_call_options_say_what_to_write() -> None:
    async with WorkerPool(0, 1) as pool:
        for options in ({"retries": -1}, {"retries": True}, {"timeout": 0}, {"on_note": 5}):
            with pytest.raises(InvalidOption):
                pool.options(**options)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="chunksize"):
            pool.map(abs, [1], chunksize=0)
