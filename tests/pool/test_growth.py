"""Growing, shrinking and replacing, in virtual time, with children that do what the test says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omniq.errors import CallCancelled, InvalidOption, StartFailed, WorkerDied
from omniq.pool.calls import Returned
from omniq.testing.clock import VirtualClock
from tests.pool.scripted import (
    Rules,
    ScriptedChild,
    ScriptedPool,
    ScriptedTemplate,
    Somebody,
    scripted,
    turns,
    until,
)

pytestmark = pytest.mark.bound(15)  # nothing here waits for a real clock


def submitted(pool: ScriptedPool, count: int) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(pool.submit(abs, n)) for n in range(count)]


async def served(pool: ScriptedPool, calls: list[asyncio.Task[Any]]) -> None:
    """Every child does what it can until these calls have ended."""
    for _ in range(1000):
        if all(call.done() for call in calls):
            break
        for child in pool.children:
            child.become_ready()
            child.finish()
            child.say_goodbye()
        await turns()
    await asyncio.gather(*calls)


def working(pool: ScriptedPool) -> list[int]:
    return [n for n, child in enumerate(pool.children) if child.message is not None and not child.gone]


async def test_starting_workers_count_as_capacity() -> None:
    clock = VirtualClock()
    pool = ScriptedPool(0, 8, clock=clock, target_wait=0)
    await pool.start()
    calls = submitted(pool, 3)
    await clock.advance(1)
    assert len(pool.children) == 3, "one for each call, and no more while they start"
    calls += submitted(pool, 1)
    await turns()
    assert len(pool.children) == 4
    await clock.advance(60)
    assert len(pool.children) == 4
    await served(pool, calls)
    await pool.ended()


async def test_a_call_may_wait_for_its_target_before_somebody_is_started_for_it() -> None:
    clock = VirtualClock()
    pool = await scripted(1, 4, clock=clock, target_wait=0.5)
    calls = submitted(pool, 3)
    await clock.advance(0.4)
    assert len(pool.children) == 1
    assert pool.status().reason == "2 waiting, 1 busy, the oldest may wait 0.5 s"
    await clock.advance(0.2)
    assert len(pool.children) == 3
    await served(pool, calls)
    await pool.ended()


async def test_workers_go_when_they_were_not_needed_for_a_while_though_all_had_turns() -> None:
    """Rotation gives everybody work; what counts is how many were needed at the same moment."""
    clock = VirtualClock()
    pool = await scripted(4, 4, clock=clock, scaledown_wait=10)
    pool.set_limits(min_workers=1)
    for _ in range(12):  # one call at a time, each on the next worker
        [call] = submitted(pool, 1)
        await turns()
        pool.children[working(pool)[0]].finish()
        await call
        await clock.advance(1)
    stopping = [child for child in pool.children if child.asked_to_stop]
    assert len(stopping) == 3, "the fourth is needed now and then"
    assert {worker.status for worker in pool.status().workers} == {"ready", "stopping"}
    await pool.ended()


async def test_a_peak_within_the_wait_keeps_workers() -> None:
    clock = VirtualClock()
    pool = await scripted(3, 3, clock=clock, scaledown_wait=10)
    pool.set_limits(min_workers=1)
    for _ in range(6):
        calls = submitted(pool, 3)
        await turns()
        for child in pool.children:
            child.finish()
        await asyncio.gather(*calls)
        await clock.advance(8)
        assert not any(child.asked_to_stop for child in pool.children)
    await clock.advance(10)
    assert sum(child.asked_to_stop for child in pool.children) == 2
    await pool.ended()


async def test_no_pass_both_grows_and_shrinks() -> None:
    clock = VirtualClock()
    pool = await scripted(1, 6, clock=clock, scaledown_wait=1, target_wait=0)
    for count in (0, 5, 2, 6, 0, 1):
        calls = submitted(pool, count)
        await clock.advance(0.5)
        await served(pool, calls)
        await clock.advance(2)
        for child in pool.children:
            child.say_goodbye()
    trace = pool.scaling_trace()
    assert {decision.wanted.workers > decision.load.workers for decision in trace} == {True, False}
    for decision in trace:
        if decision.wanted.workers < decision.load.workers:
            assert decision.load.waiting == 0
    await pool.ended()


async def test_no_more_than_max_processes_even_while_some_leave() -> None:
    clock = VirtualClock()
    pool = await scripted(2, 2, clock=clock, target_wait=0, max_tasks_per_worker=1)
    calls = submitted(pool, 4)
    await turns()
    for child in list(pool.children):
        child.finish()
    await clock.advance(1)
    assert len(pool.children) == 2, "those who leave are still there"
    pool.children[0].say_goodbye()
    await clock.advance(1)
    assert len(pool.children) == 3
    pool.children[1].say_goodbye()
    await clock.advance(1)
    pool.children[2].become_ready()
    pool.children[3].become_ready()
    await served(pool, calls)
    await pool.ended()


@pytest.mark.parametrize("says_goodbye", [False, True])
async def test_a_worker_that_hangs_as_it_leaves_does_not_hold_its_place_for_ever(says_goodbye: bool) -> None:
    """Stopped by somebody, or stuck in what a body left to be done at the exit."""
    clock = VirtualClock()
    pool = await scripted(1, 1, clock=clock, max_tasks_per_worker=1)
    calls = submitted(pool, 2)
    await turns()
    [leaving] = pool.children
    leaving.finish()
    await turns()
    if says_goodbye:
        leaving.events.shutdown(leaving)
    await clock.advance(4.9)
    assert not leaving.killed
    await clock.advance(5)
    assert leaving.killed
    leaving.die()
    await turns()
    await served(pool, calls)
    if not says_goodbye:
        assert "did not end when it was asked to" in pool.status().ended[0].reason
    await pool.ended()


async def test_a_start_that_takes_too_long_leaves_the_autoscaler_alone() -> None:
    """A time limit cancels the task that set it, so that task must be the start's own."""
    clock = VirtualClock()
    pool = await scripted(0, 1, clock=clock)
    spawn = pool.template.spawn

    async def too_slow(events: Any) -> ScriptedChild:
        pool.template.spawn = spawn  # type: ignore[method-assign]
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            raise StartFailed("no process was started in time") from None
        raise AssertionError

    pool.template.spawn = too_slow  # type: ignore[method-assign]
    [call] = submitted(pool, 1)
    await until(lambda: pool.children, "another one is started")
    await served(pool, [call])
    await pool.ended()


async def test_workers_that_keep_dying_are_replaced_with_growing_pauses() -> None:
    clock = VirtualClock()
    pool = await scripted(1, 1, clock=clock)
    for _ in range(5):
        pool.children[-1].become_ready()
        pool.children[-1].die()
        await clock.advance(60)
    assert len(pool.children) == 6
    pool.children[-1].die()
    await clock.advance(0.5)
    assert len(pool.children) == 6
    assert "6 deaths in a row: no start for" in pool.status().reason
    await clock.advance(2)
    assert len(pool.children) == 7
    # A call that ends shows that they can live.
    pool.children[-1].become_ready()
    [call] = submitted(pool, 1)
    await turns()
    pool.children[-1].finish()
    await call
    pool.children[-1].die()
    await turns()
    assert len(pool.children) == 8
    await pool.ended()


async def test_processes_that_cannot_be_started_leave_no_call_waiting_for_ever() -> None:
    clock = VirtualClock()
    pool = ScriptedPool(0, 2, clock=clock, target_wait=0)
    await pool.start()
    pool.template.refuses = StartFailed("no more processes")
    calls = submitted(pool, 2)
    await clock.advance(60)
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends] == [WorkerDied, WorkerDied]
    assert "no more processes" in str(ends[0])
    pool.template.refuses = None
    [call] = submitted(pool, 1)
    await clock.advance(60)
    pool.children[-1].become_ready()
    pool.children[-1].finish(5)
    assert await call == 5
    await pool.ended()


async def test_workers_over_a_lowered_limit_leave_when_they_have_finished() -> None:
    pool = await scripted(3, 3)
    calls = submitted(pool, 6)
    await turns()
    pool.set_limits(min_workers=1, max_workers=1)
    await turns()
    assert not any(child.asked_to_stop for child in pool.children), "all of them are busy"
    for child in pool.children:
        child.finish()
    await turns()
    assert sum(child.asked_to_stop for child in pool.children) == 2
    [left] = working(pool)
    for _ in range(3):
        pool.children[left].finish()
        await turns()
    await asyncio.gather(*calls)
    await pool.ended()


async def test_workers_that_start_while_the_limit_is_lowered_leave_as_soon_as_they_are_there() -> None:
    """They stayed, and worked, until the autoscaler happened to look again."""
    clock = VirtualClock()
    pool = await scripted(1, 4, clock=clock, scaledown_wait=600)
    pool.set_limits(min_workers=4)
    await turns()
    assert len(pool.children) == 4
    pool.set_limits(min_workers=1, max_workers=1)
    await turns()
    pool.children[0].say_goodbye()
    await turns()
    for child in pool.children[1:]:
        child.become_ready()
    await turns()
    assert sum(child.asked_to_stop for child in pool.children) == 3
    await served(pool, submitted(pool, 2))
    await pool.ended()


async def test_a_worker_that_got_a_task_meanwhile_is_not_asked_to_stop() -> None:
    pool = await scripted(3, 3)
    await turns()
    workers = await pool.workers.snapshot()
    somebody = Somebody(workers[2].lock)
    await turns()
    pool.set_limits(min_workers=1, max_workers=1)
    await turns()  # the autoscaler has counted two idle workers, and waits for the third
    another = Somebody(workers[0].lock)
    await turns()
    somebody.let_go()
    await turns()  # now it waits for the first one, to stop it
    reserving = [asyncio.ensure_future(pool.workers.reserve_ready_worker("task")) for _ in range(2)]
    await turns()
    another.let_go()
    await asyncio.gather(*reserving)
    await turns()
    assert [child.asked_to_stop for child in pool.children] == [True, False, True]
    await pool.ended()


async def test_a_call_that_is_cancelled_while_its_worker_is_awaited_is_not_sent() -> None:
    pool = await scripted(1)
    somebody = Somebody((await pool.workers.snapshot())[0].lock)
    await turns()
    [call] = submitted(pool, 1)
    await turns()
    call.cancel()
    await turns()
    somebody.let_go()
    await turns()
    assert pool.children[0].ran == []
    [call] = submitted(pool, 1)
    await turns()
    pool.children[0].finish(1)
    assert await call == 1
    await pool.ended()


@pytest.mark.parametrize("reported", [0, 2, 5])
async def test_the_unreported_calls_of_a_batch_are_known_one_by_one(reported: int) -> None:
    """The one that ran is lost, those after it run elsewhere, those before it are not run again."""
    pool = await scripted(1)
    results = pool.map(abs, range(6), chunksize=6)
    first = asyncio.ensure_future(anext(results))
    await turns()
    child = pool.children[0]
    child.report(*[Returned(f"first {n}") for n in range(reported)])
    child.die()
    await turns()
    again = pool.children[-1]
    again.become_ready()
    await turns()
    if reported < 5:
        assert again.message is not None
        assert again.message.calls[0].count == 5 - reported
        again.finish("again")
    ends = []
    with pytest.raises(WorkerDied):
        ends.append(await first)
        while True:
            ends.append(await anext(results))
    assert ends == [f"first {n}" for n in range(reported)]
    await pool.ended()


@pytest.mark.parametrize(("retries", "deaths"), [(0, 5), (3, 5), (7, 8)])
async def test_what_kills_every_process_that_reads_it_does_not_go_on_for_ever(
    retries: int, deaths: int
) -> None:
    clock = VirtualClock()
    pool = await scripted(2, clock=clock)
    gate = asyncio.ensure_future(pool.submit(len, "abc"))  # what runs beside it shows that workers can live
    await turns()
    beside = pool.children[0]
    results = pool.options(retries=retries).map(abs, range(3), chunksize=3)
    first = asyncio.ensure_future(anext(results))
    await turns()
    for _ in range(deaths):
        [child] = [child for child in pool.children if child.ran == ["abs"] and not child.gone]
        assert not first.done()
        child.running = 0  # it never got so far
        child.die()
        await clock.advance(30)
        pool.children[-1].become_ready()
        await turns()
    with pytest.raises(WorkerDied, match=f"{deaths} processes in a row died before abs began"):
        await first
    beside.finish(3)
    assert await gate == 3
    await pool.ended()


@pytest.mark.parametrize("is_ready", [True, False], ids=["some are ready first", "none is ever ready"])
async def test_workers_that_do_nothing_before_they_die_are_no_hope(is_ready: bool) -> None:
    """To have been ready for a moment shows nothing, except to a call that may be retried more often."""
    clock = VirtualClock()
    pool = ScriptedPool(1, 1, clock=clock)
    await pool.start()
    once = asyncio.ensure_future(pool.submit(abs, -1))
    often = asyncio.ensure_future(pool.options(retries=50).submit(abs, -2))
    for nth in range(5):
        await clock.advance(30)
        child = pool.children[-1]
        assert not once.done()
        if is_ready and nth % 2:
            child.become_ready()
            await turns()
            child.running = 0
        child.die()
    await turns()
    with pytest.raises(WorkerDied, match="5 workers in a row died before they began a call"):
        await once
    assert often.done() != is_ready
    if is_ready:
        await clock.advance(30)
        pool.children[-1].become_ready()
        await turns()
        pool.children[-1].finish(2)
        assert await often == 2
    else:
        with pytest.raises(WorkerDied):
            await often
    await pool.ended()


async def test_what_waits_goes_on_waiting_while_somebody_lives() -> None:
    """The system gives no more processes; the one that is there will come to it."""
    clock = VirtualClock()
    pool = await scripted(1, 4, clock=clock, target_wait=0)
    pool.template.refuses = StartFailed("no more processes")
    calls = submitted(pool, 4)
    await clock.advance(120)
    assert not any(call.done() for call in calls)
    await served(pool, calls)
    await pool.ended()


class StuckTemplate(ScriptedTemplate):
    """Its first process is not made before `go_on` is set."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.go_on = asyncio.Event()
        self.asked = 0

    async def spawn(self, events: Any) -> ScriptedChild:
        self.asked += 1
        if self.asked == 1:
            await self.go_on.wait()
        return await super().spawn(events)


async def test_a_process_that_is_slow_to_come_keeps_nobody_from_another() -> None:
    clock = VirtualClock()
    pool = ScriptedPool(0, 2, clock=clock, target_wait=0)
    pool.template = template = StuckTemplate(pool.rules)
    await pool.start()
    calls = submitted(pool, 1)
    await turns()
    assert (template.asked, len(pool.children)) == (1, 0)
    calls += submitted(pool, 1)
    await turns()
    assert (template.asked, len(pool.children)) == (2, 1), "the second one is there"
    pool.children[0].become_ready()
    await served(pool, calls[:1])
    template.go_on.set()
    await served(pool, calls)
    await pool.ended()


async def test_asking_again_gives_an_interrupted_call_no_more_time() -> None:
    clock = VirtualClock()
    pool = await scripted(1, 1, clock=clock, grace=1)
    [call] = submitted(pool, 1)
    await turns()
    again = [asyncio.ensure_future(pool.cancel(name="abs"))]
    for _ in range(3):
        await clock.advance(0.3)
        assert not pool.children[0].killed
        again.append(asyncio.ensure_future(pool.cancel(name="abs")))
    await clock.advance(0.2)
    assert pool.children[0].killed, "its second is over"
    pool.children[0].die()
    with pytest.raises(CallCancelled):
        await call
    assert await asyncio.gather(*again) == [1, 1, 1, 1]
    await pool.ended()


async def test_a_limit_that_was_raised_again_lets_nobody_go() -> None:
    clock = VirtualClock()
    pool = await scripted(3, 3, clock=clock)
    calls = submitted(pool, 3)
    await turns()
    pool.set_limits(min_workers=1, max_workers=1)
    await turns()
    pool.set_limits(min_workers=3, max_workers=3)
    await turns()
    for child in pool.children:
        child.finish()
    await asyncio.gather(*calls)
    assert [child.asked_to_stop for child in pool.children] == [False] * 3
    await pool.ended()


async def test_a_call_that_keeps_dying_lets_the_others_pass() -> None:
    clock = VirtualClock()
    pool = await scripted(1, 1, clock=clock)
    dying = asyncio.ensure_future(pool.options(retries=100).submit(abs, -1))
    await turns()
    other = asyncio.ensure_future(pool.submit(len, "abc"))
    for _ in range(2):
        pool.children[-1].die()
        await clock.advance(10)
        pool.children[-1].become_ready()
        await turns()
    assert [child.ran for child in pool.children] == [["abs"], ["abs"], ["len"]]
    pool.children[-1].finish(3)
    assert await other == 3
    await turns()
    pool.children[-1].finish(1)
    assert await dying == 1
    await pool.ended()


async def test_a_message_is_dispatched_once() -> None:
    pool = await scripted(1, 1)
    message = pool.message(abs, -3)
    await pool.dispatch_task(message)
    with pytest.raises(InvalidOption, match="was dispatched before"):
        await pool.dispatch_task(message)
    pool.children[0].finish(3)
    assert await message.result() == 3
    with pytest.raises(InvalidOption, match=r"make another one with pool\.message"):
        await pool.dispatch_task(message)
    assert pool.calls() == []
    await pool.ended()


async def test_free_workers_are_those_that_no_call_has_or_waits_for() -> None:
    pool = ScriptedPool(1, 3, clock=VirtualClock(), target_wait=60)
    assert pool.free_workers == 3
    await pool.start()
    pool.children[0].become_ready()
    calls, free = list[asyncio.Task[Any]](), list[int]()
    for _ in range(4):
        calls += submitted(pool, 1)
        await turns()
        free.append(pool.free_workers)
    assert free == [2, 1, 0, 0], "one runs, the others wait"
    pool.set_limits(max_workers=6)
    assert pool.free_workers == 2
    await served(pool, calls)
    assert pool.free_workers == 6
    await pool.ended()
    assert pool.free_workers == 0


# --- starts ---


async def started_and_cancelled(moment: int, *, another: bool) -> str:
    """Cancel a start after so many turns of the loop; says how it ended."""
    tasks = asyncio.all_tasks()
    pool = ScriptedPool(1, 1, clock=VirtualClock())
    starting = asyncio.ensure_future(pool.start())
    await turns(moment)
    if starting.done():
        await pool.ended()
        return "started"
    starting.cancel()
    if another:
        assert await pool.start() is pool
        state = pool.status().state
    await asyncio.wait([starting])
    assert starting.cancelled()
    if not another:
        state = pool.status().state
        assert (pool.status().workers, pool.template.closed) == ([], True)
        assert asyncio.all_tasks() == tasks
        pool.template = ScriptedTemplate(pool.rules)
        await pool.start()
    await pool.ended()
    return state


@pytest.mark.parametrize("another", [True, False], ids=["another one starts it", "nobody else"])
async def test_a_start_can_be_cancelled_at_every_moment(another: bool) -> None:
    """Also when it is done and its caller not yet told. It is undone, unless somebody else has it."""
    ends = [await started_and_cancelled(moment, another=another) for moment in range(1, 20)]
    moments = ends.index("started")
    assert moments > 2
    assert ends == ["running" if another else "new"] * moments + ["started"] * (len(ends) - moments)
