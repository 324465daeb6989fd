"""`q.schedule` and `q.limit_queue`: what an application writes, and what comes of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from omniq import BlockingCallInLoop, InvalidOption, OmniQ, QueueFull, TaskStatus, UnknownTask
from omniq.storage import MemoryStorage
from omniq.testing import VirtualClock
from tests.app.tasks import Made


async def test_a_worker_of_the_application_runs_what_its_schedules_make() -> None:
    clock = VirtualClock()
    store = MemoryStorage(clock=clock)
    app = Made(store)
    async with store:
        saved = await app.q.aschedule("sum", app.add.call(1, b=2), every=60)
        assert saved.next_at == clock.now() + timedelta(seconds=60)
        async with app.q.async_worker(clock=clock, concurrency=2):
            await clock.advance(minutes=3, seconds=30)
            tasks = await store.list_tasks()
        assert [task.status for task in tasks] == [TaskStatus.SUCCESS] * 3
        assert [task.eta for task in reversed(tasks)] == [
            saved.next_at + timedelta(minutes=n) for n in range(3)
        ]
        results = [await store.get_result(task.id) for task in tasks]
        assert [result and result.result for result in results] == [3, 3, 3]
    await app.q.aclose()


async def test_a_tick_is_in_the_queue_at_its_moment() -> None:
    """Not at the next look: the worker sleeps until then."""
    clock = VirtualClock()
    store = MemoryStorage(clock=clock)
    app = Made(store)
    async with store, app.q.async_worker(clock=clock):
        await clock.advance(seconds=0.3)
        saved = await app.q.aschedule("sum", app.add.call(1), every=7.77)
        await clock.advance(seconds=20)
        tasks = await store.list_tasks()
        assert [task.enqueued_at for task in tasks] == [task.eta for task in tasks]
        assert tasks[-1].eta == saved.next_at
        assert len(tasks) == 2
    await app.q.aclose()


def test_the_blocking_face_keeps_it_in_the_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Made(url).q as q:
        task: Any = q.task(name="app.late")(lambda: None)
        first = q.schedule("late", task.call(), cron="0 2 * * *", tz="Europe/Berlin", overlap="skip")
        again = q.schedule("late", task.call(), cron="0 2 * * *", tz="Europe/Berlin", overlap="skip")
        assert first == again
    with Made(url).q as other:
        [kept] = other.run(lambda storage: storage.schedules(), "")
        assert kept == first


async def test_inside_a_loop_the_twin_is_named() -> None:
    app = Made("memory://")
    with pytest.raises(BlockingCallInLoop, match=r"await q\.aschedule"):
        app.q.schedule("sum", app.add.call(1), every=5)
    with pytest.raises(BlockingCallInLoop, match=r"await q\.alimit_queue"):
        app.q.limit_queue("mail", 5)
    await asyncio.to_thread(app.q.close)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "either every=60 or cron"),
        ({"every": 60, "cron": "* * * * *"}, "not both"),
        ({"every": 0}, "more than 0"),
        ({"every": timedelta(0)}, "more than 0"),
        ({"every": "daily"}, "seconds"),
        ({"cron": "0 0 31 2 *"}, "never fires"),
        ({"cron": "often"}, "five fields"),
        ({"cron": "* * * * *", "tz": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"every": 5, "catch_up": "some"}, "catch_up"),
        ({"every": 5, "overlap": "no"}, "overlap"),
    ],
)
async def test_what_can_never_fire_is_refused(options: dict[str, Any], words: str) -> None:
    app = Made("memory://")
    with pytest.raises(InvalidOption, match=words):
        await app.q.aschedule("sum", app.add.call(1), **options)
    assert await (await app.q.astorage()).schedules() == []
    await app.q.aclose()


async def test_only_calls_of_its_own_tasks_are_scheduled() -> None:
    app, q = Made("memory://"), OmniQ("memory://")
    q.task(name="app.ad")(lambda: None)
    with pytest.raises(UnknownTask, match=r"no task named 'app\.add'.*did you mean app\.ad\?"):
        await q.aschedule("sum", app.add.call(1), every=5)
    for wrong in (app.add, "app.add", None):
        with pytest.raises(InvalidOption, match=r"task\.call\("):
            await q.aschedule("sum", wrong, every=5)  # type: ignore[arg-type]
    for changes, words in (({"delay": 5}, "says when"), ({"interval": 5}, "repeats by itself")):
        with pytest.raises(InvalidOption, match=words):
            await app.q.aschedule("sum", app.add.options(**changes).call(1), every=5)  # type: ignore[arg-type]
    await app.q.aclose()


async def test_tasks_of_ticks_may_expire() -> None:
    clock = VirtualClock()
    store = MemoryStorage(clock=clock)
    app = Made(store)
    async with store:
        await app.q.aschedule("sum", app.add.options(expires=10).call(1), every=60)
        await clock.advance(minutes=1)
        [task_id] = (await store.fire_due()).ids
        task = await store.get_task(task_id)
        assert task is not None
        assert task.expires_at == clock.now() + timedelta(seconds=10)
    await app.q.aclose()


def test_a_full_queue_refuses(tmp_path: Path) -> None:
    app = Made(f"sqlite:///{tmp_path / 'jobs.db'}")
    mail = app.add.options(queue="mail")
    with app.q:
        app.q.limit_queue("mail", max_depth=2)
        for number in range(2):
            mail.enqueue(number)
        with pytest.raises(QueueFull, match="'mail'"):
            mail.enqueue(3)
        app.add.enqueue(4)
        app.q.limit_queue("mail", max_depth=None)
        mail.enqueue(5)
