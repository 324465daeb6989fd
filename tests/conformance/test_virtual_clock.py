"""The clock that the other tests trust."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from omniq.clock import wait_for_event
from omniq.errors import InvalidOption
from omniq.testing import VirtualClock

START = datetime(2031, 3, 4, 5, 6, 7, 890, tzinfo=UTC)


async def test_time_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock(START)
    before = clock.monotonic()
    await asyncio.sleep(0.01)
    assert (clock.now(), clock.monotonic()) == (START, before)


async def test_advance_moves_both_clocks_alike() -> None:
    clock = VirtualClock(START)
    before = clock.monotonic()
    await clock.advance(1.5, minutes=2, hours=3, days=4)
    passed = timedelta(days=4, hours=3, minutes=2, seconds=1.5)
    assert clock.now() == START + passed
    assert clock.monotonic() - before == pytest.approx(passed.total_seconds())


async def test_time_does_not_go_back() -> None:
    with pytest.raises(InvalidOption, match="set_wall"):
        await VirtualClock().advance(-1)


async def test_bells_ring_in_order_each_at_its_own_moment() -> None:
    clock = VirtualClock(START)
    rung: list[tuple[str, float]] = []

    def bell(name: str, delay_s: float) -> None:
        clock.call_later(delay_s, lambda: rung.append((name, (clock.now() - START).total_seconds())))

    for name, delay_s in (("c", 3), ("a", 1), ("b", 2), ("b again", 2), ("far", 99)):
        bell(name, delay_s)
    await clock.advance(0.999)
    assert rung == []
    await clock.advance(4)
    assert rung == [("a", 1), ("b", 2), ("b again", 2), ("c", 3)]
    assert clock.now() == START + timedelta(seconds=4.999)


async def test_what_a_bell_sets_off_runs_before_the_next_bell() -> None:
    clock = VirtualClock(START)
    seen: list[float] = []

    async def tick() -> None:
        for _ in range(3):
            await wait_for_event(clock, asyncio.Event(), 10)
            seen.append((clock.now() - START).total_seconds())

    ticking = asyncio.create_task(tick())
    await clock.advance(25)
    assert seen == [10, 20]
    await clock.advance(5)
    assert seen == [10, 20, 30]
    await ticking


async def test_a_cancelled_bell_does_not_ring() -> None:
    clock = VirtualClock()
    rung: list[int] = []
    bells = [clock.call_later(1, lambda: rung.append(1)), clock.call_later(1, lambda: rung.append(2))]
    bells[0].cancel()
    await clock.advance(2)
    assert rung == [2]
    bells[1].cancel()


@pytest.mark.parametrize("delay_s", [0, -1])
async def test_a_bell_without_a_delay_rings_without_an_advance(delay_s: float) -> None:
    clock = VirtualClock()
    rung = asyncio.Event()
    clock.call_later(delay_s, rung.set)
    assert not rung.is_set()
    await asyncio.wait_for(rung.wait(), 5)


async def test_a_change_of_the_wall_leaves_the_rest_alone() -> None:
    clock = VirtualClock(START)
    rung: list[datetime] = []
    clock.call_later(10, lambda: rung.append(clock.now()))
    await clock.advance(4)
    steady = clock.monotonic()
    back = START - timedelta(hours=5)
    clock.set_wall(back)
    assert (clock.now(), clock.monotonic(), rung) == (back, steady, [])
    await clock.advance(5)
    assert rung == []
    await clock.advance(1)
    assert rung == [back + timedelta(seconds=6)]


@pytest.mark.parametrize("wall", [datetime(2031, 1, 1), "tomorrow"])  # noqa: DTZ001
def test_a_wall_without_a_time_zone_is_refused(wall: object) -> None:
    with pytest.raises(InvalidOption):
        VirtualClock().set_wall(wall)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption):
        VirtualClock(wall)  # type: ignore[arg-type]


async def test_a_bell_rings_on_the_loop_that_asked_for_it() -> None:
    clock = VirtualClock()
    asked, heard = threading.Event(), threading.Event()
    threads: list[str] = []

    async def listen() -> None:
        rung = asyncio.Event()
        clock.call_later(5, rung.set)
        asked.set()
        await rung.wait()
        threads.append(threading.current_thread().name)

    def other_loop() -> None:
        asyncio.run(listen())
        heard.set()

    thread = threading.Thread(target=other_loop, name="the other loop")
    thread.start()
    assert await asyncio.to_thread(asked.wait, 10)
    await clock.advance(5)
    assert await asyncio.to_thread(heard.wait, 10)
    thread.join()
    assert threads == ["the other loop"]


async def test_a_bell_of_a_loop_that_has_closed_harms_nobody() -> None:
    clock = VirtualClock()

    async def leave() -> None:
        clock.call_later(5, lambda: None)

    await asyncio.to_thread(lambda: asyncio.run(leave()))
    await clock.advance(10)
