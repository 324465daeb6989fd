"""Seed 004, the locking model of the process pool: one test per requirement.

Children are scripted (tests/pool/scripted.py); every pool there has locks that notice a broken rule, and
`ended()` looks at them. tests/pool has the same pool with real processes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from loguru import logger

from omniq.errors import WorkerDied
from omniq.pool import PoolWorker, WorkerData
from omniq.testing.clock import VirtualClock
from tests.pool.scripted import ScriptedPool, Somebody, scripted, turns

pytestmark = pytest.mark.bound(15)  # nothing here waits for a clock


async def registry(count: int) -> WorkerData:
    """Workers 0, 1, ... that became ready in this order."""
    workers = WorkerData()
    for worker_id in range(count):
        worker = PoolWorker(worker_id)
        await workers.add(worker)
        async with worker.lock:
            worker.enter("ready")
            workers.line_up(worker)
    return workers


def submitted(pool: ScriptedPool, *values: int) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(pool.submit(abs, value)) for value in values]


# --- registry ------------------------------------------------------------------------------------


@pytest.mark.requirement("S004-1")
async def test_s004_1_the_registry_is_a_plain_dict_from_id_to_worker() -> None:
    """S004-1: WorkerData is a plain dict from worker id to worker."""
    pool = await scripted(3)
    assert isinstance(pool.workers, WorkerData)
    assert type(pool.workers.workers) is dict
    assert list(pool.workers.workers) == [0, 1, 2]
    assert all(worker.id == worker_id for worker_id, worker in pool.workers.workers.items())
    await pool.ended()


@pytest.mark.requirement("S004-2")
async def test_s004_2_adding_removing_and_snapshots_wait_for_the_registry_lock() -> None:
    """S004-2: management_lock guards structural changes and snapshots."""
    workers = await registry(2)
    assert isinstance(workers.management_lock, asyncio.Lock)
    async with workers.management_lock:
        work = [
            asyncio.ensure_future(workers.add(PoolWorker(7))),
            asyncio.ensure_future(workers.remove(0)),
            asyncio.ensure_future(workers.snapshot()),
        ]
        await turns()
        assert list(workers.workers) == [0, 1]
        assert not any(task.done() for task in work)
    *_, snapshot = await asyncio.gather(*work)
    assert list(snapshot) == [1, 7]


@pytest.mark.requirement("S004-3")
async def test_s004_3_the_registry_lock_is_not_needed_for_what_workers_do() -> None:
    """S004-3: it is held only for the structure: calls are dispatched and end while somebody holds it."""
    pool = await scripted(1)
    async with Somebody(pool.workers.management_lock):
        [call, next_call] = submitted(pool, -1, -2)
        await turns()
        pool.children[0].finish(1)
        await turns()
        pool.children[0].finish(2)
        assert [await call, await next_call] == [1, 2]
    await pool.ended()


@pytest.mark.requirement("S004-3")
async def test_s004_3_it_is_not_held_while_a_process_is_started() -> None:
    """S004-3: never across a fork or a wait."""
    pool = ScriptedPool(1)
    seen: list[bool] = []
    spawn = pool.template.spawn

    async def spawn_and_look(events: Any) -> Any:
        seen.append(pool.workers.management_lock.locked())
        return await spawn(events)

    pool.template.spawn = spawn_and_look  # type: ignore[method-assign]
    await pool.start()
    assert seen == [False]
    await pool.ended()


@pytest.mark.requirement("S004-4")
async def test_s004_4_helpers_take_the_lock_themselves() -> None:
    """S004-4: snapshot, busy_count and the all_* queries take the lock; a snapshot is a copy."""
    workers = await registry(2)
    queries = ("snapshot", "busy_count", "all_idle", "all_ready", "all_inactive")
    async with workers.management_lock:
        waiting = {name: asyncio.ensure_future(getattr(workers, name)()) for name in queries}
        await turns()
        assert not any(task.done() for task in waiting.values())
    answers = {name: await task for name, task in waiting.items()}
    snapshot = answers.pop("snapshot")
    assert answers == {"busy_count": 0, "all_idle": True, "all_ready": True, "all_inactive": False}
    snapshot.clear()
    assert len(await workers.snapshot()) == 2
    await workers.reserve_ready_worker("task")
    assert not await workers.all_idle()
    assert await workers.all_ready()


# --- per worker ----------------------------------------------------------------------------------


@pytest.mark.requirement("S004-5")
async def test_s004_5_every_worker_owns_a_lock() -> None:
    """S004-5: every PoolWorker owns an asyncio.Lock named lock."""
    workers = await registry(2)
    locks = [worker.lock for worker in (await workers.snapshot()).values()]
    assert all(isinstance(lock, asyncio.Lock) for lock in locks)
    assert locks[0] is not locks[1]


@pytest.mark.requirement("S004-6")
async def test_s004_6_state_waits_for_the_lock() -> None:
    """S004-6: while somebody holds a worker's lock, nothing of it changes and no query reads it."""
    pool = await scripted(1)
    [call] = submitted(pool, -1)
    await turns()
    worker = (await pool.workers.snapshot())[0]
    async with Somebody(worker.lock):
        before = worker.view
        pool.children[0].finish(1)
        count = asyncio.ensure_future(pool.workers.busy_count())
        await turns()
        assert worker.view is before
        assert not count.done() and not call.done()
    assert await call == 1
    assert await count == 0
    await pool.ended()


@pytest.mark.requirement("S004-6")
async def test_s004_6_what_a_worker_says_waits_for_its_lock() -> None:
    """S004-6: whose note it is stands in `current_task`, which is read under the lock."""
    pool = await scripted(1)
    heard: list[str] = []
    call = asyncio.ensure_future(pool.options(on_note=heard.append).submit(abs, -1))
    await turns()
    [worker], [child] = (await pool.workers.snapshot()).values(), pool.children
    assert child.message is not None
    async with Somebody(worker.lock):
        child.events.note(child, child.message.id, "half of it")
        await turns()
        assert heard == []
    await turns()
    assert heard == ["half of it"]
    child.finish(1)
    assert await call == 1
    await pool.ended()


@pytest.mark.requirement("S004-7")
async def test_s004_7_a_held_worker_does_not_keep_others_from_their_turn() -> None:
    """S004-7: nobody holds two worker locks: who waits for one holds none of the others."""
    pool = await scripted(3)
    first = (await pool.workers.snapshot())[0]
    somebody = Somebody(first.lock)
    await turns()
    queries = [
        asyncio.ensure_future(pool.workers.busy_count()),
        asyncio.ensure_future(pool.workers.all_idle()),
    ]
    [call] = submitted(pool, -1)
    await turns()
    others = [worker for worker in (await pool.workers.snapshot()).values() if worker is not first]
    assert not any(worker.lock.locked() for worker in others)
    somebody.let_go()
    await turns()
    pool.children[0].finish(1)
    assert await call == 1
    await asyncio.gather(*queries)
    await pool.ended()


@pytest.mark.requirement("S004-8")
async def test_s004_8_whoever_waits_for_the_registry_holds_no_worker() -> None:
    """S004-8: while holding a worker lock nobody acquires the registry lock."""
    pool = await scripted(2, scaledown_wait=0.1)
    async with Somebody(pool.workers.management_lock):
        pool.set_limits(min_workers=1, max_workers=1)
        submitted(pool, -1)
        pool.children[1].die()
        await turns()
        workers = list(pool.workers.workers.values())
        assert not any(worker.lock.locked() for worker in workers)
    await turns()
    await pool.ended()


# --- ready queue ---------------------------------------------------------------------------------


@pytest.mark.requirement("S004-9")
async def test_s004_9_the_ready_queue_is_a_deque_of_ids() -> None:
    """S004-9: WorkerData.ready_queue is a collections.deque of worker ids."""
    workers = await registry(3)
    assert type(workers.ready_queue) is deque
    assert list(workers.ready_queue) == [0, 1, 2]


@pytest.mark.requirement("S004-10")
async def test_s004_10_an_id_is_enqueued_only_on_becoming_ready_and_idle_under_the_lock() -> None:
    """S004-10: not before ready, not when busy, not while somebody else holds the lock."""
    pool = ScriptedPool(1)
    await pool.start()
    assert list(pool.workers.ready_queue) == []
    worker = (await pool.workers.snapshot())[0]
    async with Somebody(worker.lock):
        pool.children[0].become_ready()
        await turns()
        assert list(pool.workers.ready_queue) == []
    await turns()
    assert list(pool.workers.ready_queue) == [0]
    [call] = submitted(pool, -1)
    await turns()
    assert list(pool.workers.ready_queue) == []
    pool.children[0].finish(1)
    await call
    assert list(pool.workers.ready_queue) == [0]
    await pool.ended()


@pytest.mark.requirement("S004-11")
async def test_s004_11_an_id_is_in_the_queue_at_most_once() -> None:
    """S004-11: a repeated `ready` or a late `done` gives no second turn."""
    pool = await scripted(2)
    [call] = submitted(pool, -1)
    await turns()
    child = pool.children[0]
    child.finish(1)
    child.events.ready(child)
    child.events.done(child, 1)
    child.events.done(child, 999)
    await turns()
    assert list(pool.workers.ready_queue) == [1, 0]
    await call
    await pool.ended()


@pytest.mark.requirement("S004-11")
async def test_s004_11_a_cancelled_reservation_returns_the_turn_once() -> None:
    """S004-11: who is cancelled while waiting for the lock neither keeps the turn nor doubles it."""
    workers = await registry(2)
    first = (await workers.snapshot())[0]
    async with first.lock:
        reserving = asyncio.ensure_future(workers.reserve_ready_worker("task"))
        await turns()
        reserving.cancel()
        await turns()
    await turns()
    assert sorted(workers.ready_queue) == [0, 1]


@pytest.mark.requirement("S004-12")
async def test_s004_12_reserve_pops_rechecks_starts_the_task_and_returns_a_busy_worker() -> None:
    """S004-12: the best by rotation, rechecked under its lock, already busy when returned."""
    workers = await registry(2)
    worker = await workers.reserve_ready_worker("task")
    assert worker is not None and worker.id == 0
    async with worker.lock:
        assert worker.current_task == "task"
        assert worker.status == "ready"
    assert list(workers.ready_queue) == [1]
    assert await workers.busy_count() == 1


@pytest.mark.requirement("S004-12")
async def test_s004_12_readiness_is_rechecked_after_the_lock_was_waited_for() -> None:
    """S004-12: what changes while a reservation waits for the lock is seen."""
    workers = await registry(2)
    first = (await workers.snapshot())[0]
    async with first.lock:
        reserving = asyncio.ensure_future(workers.reserve_ready_worker("task"))
        await turns()
        first.enter("stopping")
    worker = await reserving
    assert worker is not None and worker.id == 1


@pytest.mark.requirement("S004-13")
async def test_s004_13_stale_entries_are_dropped_and_none_is_returned_in_the_end() -> None:
    """S004-13: removed, stopping, exited and busy entries are passed over; none left is None."""
    workers = await registry(6)
    snapshot = await workers.snapshot()
    await workers.remove(0)
    for worker_id, status in ((1, "stopping"), (2, "exited"), (3, "error")):
        async with snapshot[worker_id].lock:
            snapshot[worker_id].enter(status)  # type: ignore[arg-type]
    async with snapshot[4].lock:
        snapshot[4].start_task("something else")
    assert await workers.reserve_ready_worker("task") is snapshot[5], "the one behind all of them"
    assert await workers.reserve_ready_worker("task") is None
    assert not workers.ready_queue


@pytest.mark.requirement("S004-14")
@pytest.mark.parametrize(("callers", "ready"), [(1, 3), (3, 3), (5, 3), (4, 0)])
async def test_s004_14_concurrent_callers_get_distinct_workers(callers: int, ready: int) -> None:
    """S004-14: k callers and m ready workers give min(k, m) distinct workers."""
    workers = await registry(ready)
    got = await asyncio.gather(*(workers.reserve_ready_worker(n) for n in range(callers)))
    ids = [worker.id for worker in got if worker is not None]
    assert len(ids) == len(set(ids)) == min(callers, ready)


@pytest.mark.requirement("S004-15")
async def test_s004_15_a_free_worker_is_found_without_looking_at_the_others() -> None:
    """S004-15: no global scan: reserving touches no worker but the one it returns."""
    workers = await registry(100)
    for worker in (await workers.snapshot()).values():
        if worker.id != 0:
            await worker.lock.acquire()  # whoever looked at it would wait
    async with asyncio.timeout(5):
        first = await workers.reserve_ready_worker("task")
    assert first is not None and first.id == 0
    assert len(workers.ready_queue) == 99


@pytest.mark.requirement("S004-16")
async def test_s004_16_who_became_ready_first_goes_first() -> None:
    """S004-16: t1 on worker 0, t2 on worker 1; 1 finishes first, so t3 goes to 1 and t4 to 0."""
    pool = await scripted(2)
    calls = submitted(pool, -1, -2)
    await turns()
    t1, t2 = pool.children[0].message, pool.children[1].message
    assert t1 is not None and t2 is not None and t1.id < t2.id
    pool.children[1].finish()
    await turns()
    pool.children[0].finish()
    await turns()
    assert list(pool.workers.ready_queue) == [1, 0]
    calls += submitted(pool, -3, -4)
    await turns()
    t3, t4 = pool.children[1].message, pool.children[0].message
    assert t3 is not None and t4 is not None and t3.id < t4.id
    for child in pool.children:
        child.finish()
    await asyncio.gather(*calls)
    await pool.ended()


# --- workflow ------------------------------------------------------------------------------------


@pytest.mark.requirement("S004-17")
async def test_s004_17_dispatch_reserves_and_logs_or_queues_and_nudges() -> None:
    """S004-17: a worker: log it and go on. None: queue the task and nudge the autoscaler."""
    said: list[str] = []
    sink = logger.add(lambda text: said.append(str(text)), level="TRACE", format="{message}")
    try:
        pool = await scripted(1, 2, target_wait=0)
        await turns()
        messages = [pool.message(abs, -1), pool.message(abs, -2)]
        for message in messages:
            await pool.dispatch_task(message)
        assert any("dispatched abs to worker 0" in text for text in said)
        assert pool.status().waiting == 1
        await turns()
        assert len(pool.children) == 2, "the autoscaler was nudged"
        pool.children[1].become_ready()
        assert pool.status().waiting == 0
        for child in pool.children:
            child.finish(child.pid)
        assert [await message.result() for message in messages] == [1000, 1001]
        await pool.ended()
    finally:
        logger.remove(sink)


@pytest.mark.requirement("S004-18")
async def test_s004_18_ready_and_done_clear_the_task_and_make_eligible() -> None:
    """S004-18: current_task is empty, timers new, the worker in line, before the result is there."""
    clock = VirtualClock()
    pool = await scripted(1, clock=clock)
    worker = (await pool.workers.snapshot())[0]
    seen: list[Any] = []

    async def call() -> None:
        await pool.submit(abs, -1)
        async with worker.lock:
            seen.extend(
                (worker.current_task, worker.calls_done, worker.since, list(pool.workers.ready_queue))
            )

    calling = asyncio.ensure_future(call())
    await clock.advance(5)
    pool.children[0].finish(1)
    await calling
    assert seen == [None, 1, clock.monotonic(), [0]]
    await pool.ended()


@pytest.mark.requirement("S004-19")
async def test_s004_19_waiting_calls_run_in_the_order_in_which_they_came() -> None:
    """S004-19: done and ready drain what waits, first come first served."""
    pool = await scripted(1)
    order: list[int] = []
    calls = [asyncio.ensure_future(pool.submit(abs, n)) for n in range(6)]
    for n, call in enumerate(calls):
        call.add_done_callback(lambda _, n=n: order.append(n))
    await turns()
    for left in range(5, -1, -1):
        assert pool.status().waiting == left
        pool.children[0].finish()
        await turns()
    assert order == [0, 1, 2, 3, 4, 5]
    await pool.ended()


@pytest.mark.requirement("S004-20")
async def test_s004_20_done_of_a_stopping_worker_does_not_bring_it_back() -> None:
    """S004-20: a worker that is stopping finishes and gets nothing more."""
    pool = await scripted(1)
    [call, waiting] = submitted(pool, -1, -2)
    await turns()
    worker = (await pool.workers.snapshot())[0]
    async with worker.lock:
        worker.ask_to_stop("the test says so")
    pool.children[0].finish(1)
    assert await call == 1
    await turns()
    assert list(pool.workers.ready_queue) == []
    assert not waiting.done()
    waiting.cancel()
    await pool.ended()


@pytest.mark.requirement("S004-21")
async def test_s004_21_scaling_down_stops_idle_workers_whose_entries_are_ignored() -> None:
    """S004-21: an idle worker becomes stopping under its lock; its entry in the queue is passed over."""
    pool = await scripted(3)
    snapshot = await pool.workers.snapshot()
    async with Somebody(snapshot[0].lock):
        pool.set_limits(min_workers=1, max_workers=1)
        await turns()
        assert snapshot[0].view.status == "ready"
    await turns()
    assert [worker.status for worker in pool.status().workers].count("stopping") == 2
    assert list(pool.workers.ready_queue) == [0, 1, 2]
    [call] = submitted(pool, -1)
    await turns()
    pool.children[2].finish(7)
    assert await call == 7
    await pool.ended()


@pytest.mark.requirement("S004-19")
async def test_s004_19_what_waits_is_given_out_once_whoever_comes_meanwhile() -> None:
    """S004-19: a call that comes while another's reservation waits for a lock sends none of them twice."""
    pool = await scripted(2)
    first = (await pool.workers.snapshot())[0]
    somebody = Somebody(first.lock)
    await turns()
    calls = submitted(pool, -1)
    await turns()
    calls += submitted(pool, -2)
    await turns()
    somebody.let_go()
    await turns()
    assert [len(child.ran) for child in pool.children] == [1, 1]
    sent = [child.message for child in pool.children]
    assert sent[0] is not None and sent[1] is not None and sent[0].id < sent[1].id
    for number, child in enumerate(pool.children):
        child.finish(number)
    assert await asyncio.gather(*calls) == [0, 1]
    await pool.ended()


# --- lifecycle -----------------------------------------------------------------------------------


@pytest.mark.requirement("S004-22")
async def test_s004_22_after_shutdown_it_is_exited_and_removed_later() -> None:
    """S004-22: `shutdown` marks it exited under its lock; leaving the registry is a later, separate step."""
    pool = await scripted(1)
    worker = (await pool.workers.snapshot())[0]
    child = pool.children[0]
    async with Somebody(worker.lock):
        child.events.shutdown(child)
        await turns()
        assert worker.view.status == "ready"
    await turns()
    assert worker.view.status == "exited"
    assert 0 in pool.workers.workers
    [call] = submitted(pool, -1)
    await turns()
    assert child.message is None and not call.done()
    async with Somebody(pool.workers.management_lock):
        child.die()
        await turns()
        assert 0 in pool.workers.workers
    await turns()
    assert 0 not in pool.workers.workers
    call.cancel()
    await pool.ended()


@pytest.mark.requirement("S004-23")
async def test_s004_23_only_an_idle_and_ready_worker_is_asked_to_stop() -> None:
    """S004-23: not a busy one, not one that is starting."""
    clock = VirtualClock()
    pool = ScriptedPool(3, 3, clock=clock, scaledown_wait=1.0)
    await pool.start()
    busy, idle, starting = pool.children
    busy.become_ready()
    [call] = submitted(pool, -1)
    await turns()
    idle.become_ready()
    pool.set_limits(min_workers=0)
    await clock.advance(10)
    assert (busy.asked_to_stop, idle.asked_to_stop, starting.asked_to_stop) == (False, True, False)
    busy.finish(1)
    assert await call == 1
    await pool.ended()


@pytest.mark.requirement("S004-23")
async def test_s004_23_one_that_stops_already_is_neither_asked_again_nor_counted() -> None:
    """S004-23: idle is not enough: an entry in the ready queue may be of a worker that is on its way out."""
    pool = await scripted(3, 3)
    leaving, idle, last = (await pool.workers.snapshot()).values()
    somebody = Somebody(leaving.lock)
    await turns()
    somebody.let_go(lambda: leaving.ask_to_stop("the test says so"))
    await turns()
    assert list(pool.workers.ready_queue) == [0, 1, 2]
    pool.set_limits(min_workers=1, max_workers=1)
    await turns()
    assert leaving.view.reason == "the test says so"
    assert [worker.view.status for worker in (idle, last)] == ["stopping", "ready"]
    await pool.ended()


@pytest.mark.requirement("S004-24")
async def test_s004_24_stopping_workers_may_linger_in_the_queue_and_are_skipped() -> None:
    """S004-24: a stopping worker's entry stays until it is popped, and gets no task."""
    workers = await registry(3)
    snapshot = await workers.snapshot()
    for worker_id in (0, 2):
        async with snapshot[worker_id].lock:
            snapshot[worker_id].ask_to_stop("superfluous")
    assert list(workers.ready_queue) == [0, 1, 2]
    worker = await workers.reserve_ready_worker("task")
    assert worker is not None and worker.id == 1
    assert list(workers.ready_queue) == [2]
    assert await workers.reserve_ready_worker("task") is None


@pytest.mark.requirement("S004-25")
async def test_s004_25_running_counts_are_derived_when_asked() -> None:
    """S004-25: busy_count looks at the workers; whatever happened to them, it is right."""
    workers = await registry(3)
    snapshot = await workers.snapshot()
    for worker_id in (0, 1):
        async with snapshot[worker_id].lock:
            snapshot[worker_id].current_task = "written without telling anybody"
    assert await workers.busy_count() == 2
    await workers.remove(0)
    assert await workers.busy_count() == 1


@pytest.mark.requirement("S004-26")
@pytest.mark.parametrize("ready_first", [True, False])
async def test_s004_26_no_wake_up_is_lost(ready_first: bool) -> None:
    """S004-26: "no worker, so queue" and "worker became ready" end with the task running in either order."""
    pool = ScriptedPool(2)
    await pool.start()
    first, second = (await pool.workers.snapshot()).values()
    pool.children[0].become_ready()
    # The dispatch waits for the lock of a worker that then turns out to be stopping.
    somebody = Somebody(first.lock)
    await turns()
    [call] = submitted(pool, -1)
    await turns()
    if ready_first:
        pool.children[1].become_ready()
        await turns()
    somebody.let_go(lambda: first.ask_to_stop("the test says so"))
    if not ready_first:
        await turns()
        pool.children[1].become_ready()
    await turns()
    assert pool.children[1].message is not None and second.view.current_task is not None
    pool.children[1].finish(1)
    assert await call == 1
    await pool.ended()


@pytest.mark.requirement("S004-27")
async def test_s004_27_a_task_on_a_worker_that_dies_is_reported() -> None:
    """S004-27: failed, or queued again where its owner wants that; never silently gone."""
    pool = await scripted(2, 3)
    lost = asyncio.ensure_future(pool.submit(abs, -1))
    again = asyncio.ensure_future(pool.options(retries=1).submit(abs, -2))
    await turns()
    first, second = pool.children
    dead = (await pool.workers.snapshot())[0]
    first.die()
    with pytest.raises(WorkerDied, match="SIGKILL") as died:
        await lost
    assert "SIGKILL" in died.value.cause
    async with dead.lock:
        assert (dead.status, dead.current_task) == ("error", None)
    second.die()
    await turns()
    assert not again.done()
    for child in pool.children[2:]:
        child.become_ready()
    await turns()
    [runs] = [child for child in pool.children if child.message is not None and not child.gone]
    runs.finish(2)
    assert await again == 2
    await pool.ended()
