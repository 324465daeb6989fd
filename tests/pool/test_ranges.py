"""Many calls of one function: whatever they return and whenever a process dies, each is told by itself."""

import math
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from omniq.pool import packed
from omniq.pool.calls import Interrupted, Outcomes, Raised, Returned
from omniq.pool.control import STATE, ControlPage
from omniq.pool.packed import KINDS, SLOTS, Run
from tests.pool import transport_bodies as bodies
from tests.pool.listening import a_child, a_template, eventually, spawned

HOLES = [kind.hole for kind in KINDS]
MIXTURES: dict[str, list[Any]] = {
    "nothing": [None] * 8,
    "ints": [0, -1, 2**63 - 1, -(2**63), 7, 7, 7, 7],
    "floats": [0.0, -0.0, math.inf, math.nan, 1e-308, 2.5, 2.5, 2.5],
    "bools": [True, False, True, True, False, False, True, True],
    "holes": [1, HOLES[2], 2, 0.5, HOLES[3], 1.5, None, 3],
    "too large": [1, 2, 2**63, -(2**63) - 1, 3, 10**400, 4, 5],
    "one change": [None, None, None, 5, 6, 7, 8, 9],
    "many changes": [None, 1, True, 1.0, None, 1, True, 1.0],
    "text in between": [1, 2, "three", 4, ("five",), 6, [7], 8],
    "text only": ["a", "b", "c", "d", "e", "f", "g", "h"],
}


def returned(outcome: object) -> str:
    """Exactly: 1, 1.0 and True are three results, and a NaN is one."""
    assert isinstance(outcome, Returned), outcome
    return repr(outcome.value)


# --- the page ------------------------------------------------------------------------------------


def a_page() -> tuple[ControlPage, Run]:
    page = ControlPage(memoryview(bytearray(64 * 1024)))
    return page, Run(page)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type.__name__)
@pytest.mark.parametrize("count", [1, 2, 3, 1000, SLOTS])
def test_the_first_hole_is_the_call_that_runs(kind: packed.Kind, count: int) -> None:
    page, run = a_page()
    page.words[STATE] = 2 * 50 + 1
    run.begin(kind, 50, count)
    value = {type(None): None, bool: True, int: 3, float: math.nan}[kind.type]
    for done in {0, 1, count // 2, count - 1, count}:
        for at in range(done):
            run.views[kind.format][at] = 1 if value is None else value
        assert run.filled == done
        assert packed.running(page, run) == 50 + done
        assert repr(run.values()) == repr([value] * done)
        if done:
            assert repr(packed.unpack(memoryview(run.frame_body(done)))) == repr([value] * done)
        run.end()
        run.begin(kind, 50, count)
    run.end()
    assert (run.kind, run.next_id, run.values()) == (None, 0, [])
    assert packed.running(page, run) == 50


def test_nothing_in_a_frame_is_a_number_only() -> None:
    assert packed.unpack(memoryview(packed.HEAD.pack(1, 10_000))) == [None] * 10_000
    with pytest.raises(KeyError):
        packed.unpack(memoryview(packed.HEAD.pack(9, 1) + bytes(8)))


@pytest.mark.parametrize("garbage", [0xFF, 0x01])
def test_a_page_that_was_scribbled_over_says_nothing_impossible(garbage: int) -> None:
    page = ControlPage(memoryview(bytearray([garbage] * 64 * 1024)))
    run = Run(page)
    assert run.filled <= SLOTS
    assert len(run.values()) <= SLOTS


def test_outcomes_are_a_sequence_of_outcomes() -> None:
    error = Raised(ValueError("no"))
    outcomes = Outcomes([1, None])
    outcomes.append(error)
    outcomes.extend([Returned(2), Interrupted()])
    outcomes.extend(Outcomes([3]))
    everything = [Returned(1), Returned(None), error, Returned(2), Interrupted(), Returned(3)]
    assert list(outcomes) == everything
    assert list(outcomes[1:5]) == everything[1:5]
    assert outcomes[-1] == Returned(3)
    assert outcomes[-4] is error
    longer = Outcomes([0])
    longer.extend(outcomes)
    assert list(longer) == [Returned(0), *everything]


# --- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", MIXTURES.values(), ids=MIXTURES)
async def test_every_result_comes_back_as_it_was(values: list[Any]) -> None:
    async with a_child() as heard:
        for times in (1, 3, 40):
            ids = heard.send_range(bodies.echo, values * times)
            await heard.until(lambda: heard.messages_done)
            assert [returned(heard.outcome_of[n]) for n in ids] == [repr(v) for v in values * times]
            heard.messages_done.clear()


@pytest.mark.parametrize("values", MIXTURES.values(), ids=MIXTURES)
async def test_wherever_a_process_dies_in_a_range_only_that_call_is_lost(values: list[Any]) -> None:
    """D1: what has ended is told, what ran is known, what comes later has not begun."""
    async with a_template() as template:
        for place in range(len(values)):
            heard = await spawned(template)
            assert heard.child is not None
            heard.send_range(bodies.echo, [values[0]] * 70)  # so that the calls are known to be quick
            ids = heard.send_range(bodies.echo_unless_fatal, [*values[:place], bodies.FATAL, *values[place:]])
            assert (await heard.end()).code == 9
            told = {call_id: heard.outcome_of[call_id] for call_id in ids if call_id in heard.outcome_of}
            assert list(map(returned, told.values())) == [repr(value) for value in values[:place]]
            assert list(told) == list(ids[:place])
            assert heard.child.running == ids[place]


async def test_a_range_with_more_results_than_the_page_holds() -> None:
    async with a_template() as template:
        heard = await spawned(template)
        count = 3 * SLOTS + 5
        ids = heard.send_range(bodies.echo, range(count))
        await heard.until(lambda: heard.messages_done)
        assert [heard.outcome_of[n] for n in ids] == [Returned(n) for n in range(count)]
        ids = heard.send_range(bodies.echo_unless_fatal, [*range(count), bodies.FATAL, 1])
        await heard.end()
        assert [heard.outcome_of[n] for n in ids[:count]] == [Returned(n) for n in range(count)]
        assert heard.child is not None
        assert heard.child.running == ids[count]


async def test_failures_among_numbers_keep_their_places() -> None:
    async with a_child() as heard:
        ids = heard.send_range(lambda n: 60 // n, [1, 2, 0, 0, 3, 4, 0])
        await heard.until(lambda: heard.messages_done)
        got = [heard.outcome_of[n] for n in ids]
        assert [getattr(o, "value", "failed") for o in got] == [60, 30, "failed", "failed", 20, 15, "failed"]


# --- interrupts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("end_first", [False, True])
async def test_a_later_call_of_a_block_is_ended_before_it_begins(tmp_path: Path, end_first: bool) -> None:
    """The others run, whether the call that ran when the interrupt came is meant as well or not."""
    async with a_child() as heard:
        assert heard.child is not None
        heard.send_range(bodies.echo_after_touching, [1] * 200)
        begun = tmp_path / "begun"
        os.mkfifo(pipe := tmp_path / "pipe")
        items: list[Any] = [1, str(begun) if end_first else _reader(pipe, begun), *range(2, 60)]
        ids = heard.send_range(bodies.echo_after_touching if end_first else bodies.read_or_echo, items)
        await eventually(begun.exists, "the second call has begun")
        assert heard.child.running == ids[1]
        for place in (5, 6, 59):
            heard.child.interrupt(ids[place])
        if end_first:
            heard.child.interrupt(ids[1])
        else:
            pipe.write_bytes(b"go on")
        await heard.until(lambda: len(heard.messages_done) == 2)
        unwanted = {5, 6, 59} | ({1} if end_first else set())
        for place, call_id in enumerate(ids):
            expected = Interrupted if place in unwanted else Returned
            assert type(heard.outcome_of[call_id]) is expected, place


def _reader(pipe: Path, begun: Path) -> str:
    return f"{pipe}\n{begun}"


async def test_interrupts_at_any_moment_hit_only_what_they_name() -> None:
    chance = random.Random(11)
    async with a_child() as heard:
        assert heard.child is not None
        for _ in range(100):
            ids = heard.send_range(bodies.echo, [None] * 2000)
            named = {chance.choice(ids) for _ in range(3)}
            ends_at = time.monotonic() + chance.uniform(0, 0.0006)
            while time.monotonic() < ends_at:
                pass
            for call_id in named:
                heard.child.interrupt(call_id)
            await heard.until(lambda: heard.messages_done)
            heard.messages_done.clear()
            ended_early = {n for n in ids if heard.outcome_of[n] == Interrupted()}
            assert ended_early <= named
            assert all(heard.outcome_of[n] == Returned(None) for n in ids if n not in named)
