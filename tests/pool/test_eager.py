"""Coroutines that are begun at once, and become tasks only where they have to wait."""

from __future__ import annotations

import asyncio

import pytest
from loguru import logger

from omniq.loopthread import new_event_loop
from omniq.pool.eager import Eager
from tests.pool.scripted import turns


async def test_what_does_not_wait_has_ended_when_begin_returns() -> None:
    lock, done = asyncio.Lock(), list[int]()

    async def work() -> None:
        async with lock:
            done.append(1)

    Eager().begin(work())
    assert done == [1] and not lock.locked()
    assert len(asyncio.all_tasks()) == 1


async def test_what_waits_goes_on_as_a_task_in_the_order_of_the_lock() -> None:
    eager, lock, done = Eager(), asyncio.Lock(), list[int]()

    async def work(n: int) -> None:
        async with lock:
            done.append(n)
            await asyncio.sleep(0)
            async with asyncio.timeout(5):
                await asyncio.sleep(0)
        done.append(-n)

    await lock.acquire()
    for n in (1, 2, 3):
        eager.begin(work(n))
    await turns()
    assert done == []
    lock.release()
    await eager.join()
    assert done == [1, -1, 2, -2, 3, -3]


async def test_an_exception_before_the_first_wait_is_the_callers() -> None:
    async def work() -> None:
        raise KeyError("at once")

    with pytest.raises(KeyError):
        Eager().begin(work())


async def test_an_exception_after_a_wait_is_logged_and_one_raised_into_it_is_seen() -> None:
    said: list[str] = []
    sink = logger.add(lambda text: said.append(str(text)), format="{message} {exception}")
    eager, future, seen = Eager(), asyncio.get_running_loop().create_future(), list[str]()

    async def work() -> None:
        try:
            await future
        except LookupError as exc:
            seen.append(repr(exc))
            await asyncio.sleep(0)
            raise RuntimeError("later") from exc

    try:
        eager.begin(work())
        future.set_exception(LookupError("not there"))
        await eager.join()
        await turns(2)
    finally:
        logger.remove(sink)
    assert seen == ["LookupError('not there')"]
    assert "a fault in the pool" in said[0] and "later" in said[0]


def test_it_works_on_the_loop_of_our_own_threads() -> None:
    """uvloop, where it installs, has futures and tasks of its own making."""

    async def main() -> list[int]:
        eager, lock, done = Eager(), asyncio.Lock(), list[int]()

        async def work() -> None:
            async with lock:
                await asyncio.sleep(0.001)
                done.append(1)

        await lock.acquire()
        eager.begin(work())
        lock.release()
        await eager.join()
        return done

    loop = new_event_loop()
    try:
        assert loop.run_until_complete(main()) == [1]
    finally:
        loop.close()
