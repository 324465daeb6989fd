"""`omniq.testing`: what users test their own applications with, as they would write it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from omniq import InvalidOption, OmniQ, StillDue, TaskFailed, TaskStatus
from omniq.storage import MemoryStorage, SQLiteStorage
from omniq.testing import Kit, VirtualClock, adrain, drain, inline
from tests.kit import shop
from tests.worker.scene import omniq_threads


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    shop.sent.clear()
    shop.tries.clear()
    before = omniq_threads()
    yield
    give_up_at = time.monotonic() + 10
    while not omniq_threads() <= before:  # a thread that was told to end needs a moment
        assert time.monotonic() < give_up_at, "nothing is left running"
        time.sleep(0.01)


# --- drain ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite", "virtual"])
def test_drain_runs_everything_that_is_due_in_order(kind: str, tmp_path: Path) -> None:
    store = {
        "memory": MemoryStorage,
        "sqlite": lambda: SQLiteStorage(tmp_path / "jobs.db"),
        "virtual": lambda: MemoryStorage(clock=VirtualClock()),
    }[kind]()
    q = OmniQ(store)
    ran: list[int] = []

    @q.task(name="t.note")
    def note(n: int) -> None:
        ran.append(n)

    handles = q.enqueue_many([note.call(n) for n in range(5)])
    urgent = note.options(priority=9).enqueue(99)
    later = note.options(delay=3600).enqueue(1000)
    assert drain(q) == 6
    assert ran == [99, 0, 1, 2, 3, 4]
    assert {one.status() for one in (*handles, urgent)} == {TaskStatus.SUCCESS}
    assert later.status() is TaskStatus.PENDING
    assert drain(q) == 0
    q.close()


@pytest.mark.parametrize("task", [shop.order, shop.order_in_thread])
def test_drain_runs_what_tasks_enqueue(task: object) -> None:
    with Kit(shop.q) as kit:
        handle = task.enqueue("ann", "bob")  # type: ignore[attr-defined]
        assert kit.drain() == 3
        assert shop.sent == ["ann", "bob"]
        assert handle.status() is TaskStatus.SUCCESS


async def test_drain_inside_a_loop() -> None:
    with Kit(shop.q) as kit:
        handle = await shop.order.aenqueue("ann")
        assert await kit.adrain() == 2
        assert await handle.aresult() == 1
        assert await adrain(shop.q) == 0


@pytest.mark.parametrize("concurrency", [1, 7])
@pytest.mark.parametrize("task", [shop.poll, shop.poll_in_thread, shop.insist])
def test_what_never_ends_is_told(task: object, concurrency: int) -> None:
    with Kit(shop.q) as kit:
        task.enqueue()  # type: ignore[attr-defined]
        with pytest.raises(StillDue, match=r"more than 20 runs.*without a delay.*kit\.advance"):
            kit.drain(at_most=20, concurrency=concurrency)
        assert len(shop.tries) == 21, "the one that is too many says that there was more"
        with pytest.raises(InvalidOption, match="at least 1"):
            kit.drain(at_most=0)


async def test_what_never_ends_is_told_without_a_word_about_it_and_as_time_passes() -> None:
    with Kit(shop.q) as kit:
        await shop.poll.aenqueue()
        with pytest.raises(StillDue, match="more than 10,000 runs"):
            await kit.advance(seconds=1)
        assert len(shop.tries) == 10_001


def test_as_many_as_may_run_and_no_more_are_not_too_many() -> None:
    with Kit(shop.q) as kit:
        shop.q.enqueue_many([shop.send.call("ann") for _ in range(20)])
        assert kit.drain(at_most=20) == 20


# --- virtual time --------------------------------------------------------------------------------


def test_retries_run_as_time_passes() -> None:
    with Kit(shop.q) as kit:
        handle = shop.flaky.enqueue()
        kit.drain()
        assert (shop.tries, handle.status()) == ([1], TaskStatus.PENDING)
        kit.advance(hours=3)
        assert shop.tries == [1, 2, 3]
        assert handle.result() == 3
        finished_at = kit.clock.now() - timedelta(hours=3)
        task = kit.q.run(lambda storage: storage.get_task(handle.id), "")
        assert task is not None
        assert task.finished_at is not None
        assert timedelta(seconds=3) <= task.finished_at - finished_at < timedelta(seconds=4), "1 s, then 2 s"


async def test_the_same_inside_a_loop() -> None:
    with Kit(shop.q) as kit:
        handle = await shop.flaky.aenqueue()
        await kit.advance(minutes=1)
        assert shop.tries == [1, 2, 3]
        assert await handle.aresult() == 3


def test_delayed_tasks_run_in_order_each_at_its_moment() -> None:
    with Kit(shop.q) as kit:
        began = kit.clock.now()
        for hours in (3, 1, 2):
            shop.send.options(delay=timedelta(hours=hours)).enqueue(f"after {hours}")
        kit.advance(hours=2)
        assert shop.sent == ["after 1", "after 2"]
        kit.advance(hours=2)
        assert shop.sent == ["after 1", "after 2", "after 3"]
        assert kit.clock.now() - began == timedelta(hours=4)


def test_a_lost_worker_is_noticed_as_time_passes() -> None:
    """A lapse: somebody claimed the task and died; when the lease is over it runs here."""
    with Kit(shop.q) as kit:
        handle = shop.send.enqueue("ann")
        kit.q.run(lambda storage: storage.claim("a worker that died", lease=60), "")
        kit.advance(seconds=59)
        assert (shop.sent, handle.status()) == ([], TaskStatus.RUNNING)
        kit.advance(hours=3)
        assert shop.sent == ["ann"]
        history = kit.q.run(lambda storage: storage.history(handle.id), "")
        assert [run.outcome for run in history] == ["lost"]


def test_what_expires_is_not_run() -> None:
    with Kit(shop.q) as kit:
        handle = shop.send.options(delay=7200, expires=3600).enqueue("ann")
        kit.advance(hours=3)
        assert shop.sent == []
        with pytest.raises(TaskFailed, match="not started before"):
            handle.result()


def test_schedules_fire_as_time_passes() -> None:
    """Every tick on the way makes its own task, at its own moment, and in its time zone."""
    with Kit(shop.q) as kit:  # it is 2030-01-01 12:00 UTC
        shop.q.schedule("nightly", shop.send.call("report"), cron="0 2 * * *", tz="Europe/Berlin")
        shop.q.schedule("often", shop.send.call("beat"), every=3600)
        kit.advance(hours=3)
        assert shop.sent == ["beat"] * 3
        shop.sent.clear()
        kit.advance(days=2)
        assert shop.sent.count("report") == 2
        assert shop.sent.count("beat") == 48
        ids = [task.id for task in kit.q.run(lambda storage: storage.list_tasks(limit=1000), "")]
        assert "nightly@2030-01-03T01:00:00Z" in ids


def test_a_tick_is_due_after_a_plain_advance() -> None:
    clock = VirtualClock()
    q = OmniQ(MemoryStorage(clock=clock))
    ran: list[int] = []

    @q.task(name="t.tick")
    def tick() -> None:
        ran.append(1)

    q.schedule("tick", tick.call(), every=60)
    clock.advance(seconds=61)
    assert drain(q) == 1
    q.close()


def test_time_and_drain_by_hand() -> None:
    """Without a kit: a clock in a store of one's own, plain `advance`, then `drain`."""
    clock = VirtualClock()
    q = OmniQ(MemoryStorage(clock=clock))
    ran: list[int] = []

    @q.task(name="t.note")
    async def note(n: int) -> None:
        ran.append(n)

    note.options(delay=3600).enqueue(1)
    assert drain(q) == 0
    clock.advance(hours=1)
    assert ran == []
    assert drain(q) == 1
    assert ran == [1]
    q.close()


# --- the application is itself again -------------------------------------------------------------


def test_a_kit_leaves_no_trace() -> None:
    with Kit(shop.q) as kit:
        shop.send.enqueue("ann")
        with Kit(shop.q) as inner:
            assert inner.drain() == 0, "each kit has a store of its own"
        assert kit.drain() == 1
    with pytest.raises(InvalidOption, match="no folder"):
        shop.send.enqueue("bob")
    shop.q.close()


# --- inline --------------------------------------------------------------------------------------


def test_inline_runs_at_once() -> None:
    with inline(shop.q):
        assert shop.send.enqueue("ann").result() == 3
        assert shop.order.enqueue("bob", "cid").result() == 2
        assert shop.sent == ["ann", "bob", "cid"]
        shop.q.enqueue_many([shop.send.call("dan")])
        assert shop.sent[-1] == "dan"


def test_inline_failures_are_final() -> None:
    with inline(shop.q):
        handle = shop.broken.enqueue()
        with pytest.raises(TaskFailed, match="it is broken"):
            handle.result()
        later = shop.send.options(delay=60).enqueue("ann")
        assert later.status() is TaskStatus.PENDING


@pytest.mark.parametrize("task", [shop.poll, shop.poll_in_thread])
def test_inline_what_never_ends_is_told(task: object) -> None:
    with inline(shop.q):
        with pytest.raises(StillDue, match="100 inside of each other"):
            task.enqueue()  # type: ignore[attr-defined]
        assert len(shop.tries) == 101
        with pytest.raises(StillDue):
            shop.send.enqueue("ann")
        assert shop.sent == ["ann"], "each enqueue has an allowance of its own; what was left over runs first"


async def test_inline_inside_a_loop() -> None:
    with inline(shop.q):
        assert await (await shop.order.aenqueue("ann")).aresult() == 1
        await shop.q.aenqueue_many([shop.send.call("bob")])
        assert shop.sent == ["ann", "bob"]
        await asyncio.sleep(0)


# --- the fixture, in a project of its own --------------------------------------------------------


def test_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["omniq.testing.fixtures"]\n')
    (tmp_path / "test_shop.py").write_text(
        "from omniq import OmniQ\n"
        "q = OmniQ('sqlite:////nonexistent/folder/jobs.db')\n"
        "sent = []\n"
        "@q.task\n"
        "def send(to): sent.append(to)\n"
        "def test_reminder(omniq_kit):\n"
        "    kit = omniq_kit(q)\n"
        "    send.options(delay=3600).enqueue('ann')\n"
        "    kit.advance(minutes=59)\n"
        "    assert sent == []\n"
        "    kit.advance(minutes=1)\n"
        "    assert sent == ['ann']\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout


# --- what is refused -----------------------------------------------------------------------------


def test_time_does_not_go_back() -> None:
    with pytest.raises(InvalidOption, match=r"set_wall"):
        VirtualClock().advance(hours=-1)


def test_the_suite_for_stores_says_that_it_needs_pytest() -> None:
    script = "import sys; sys.modules['pytest'] = None\nfrom omniq.testing import VirtualClock, conformance"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1].endswith("write pip install pytest")
