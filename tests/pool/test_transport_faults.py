"""What goes wrong with processes, on purpose: each fault is noticed and told, and leaves nothing behind."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from omniq.errors import CallFailed, StartFailed
from omniq.pool import wire
from omniq.pool.arena import Arena
from omniq.pool.calls import Outcome, Raised, Returned
from tests.pool import transport_bodies as bodies
from tests.pool.leftovers import Having, is_alive
from tests.pool.listening import a_child, a_template, eventually, spawned, within_a_second

MIB = 1024 * 1024


# --- a child dies --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "args", "told"),
    [
        (bodies.kill_self, (), "killed by SIGKILL"),
        (bodies.segfault, (), "killed by SIGSEGV"),
        (bodies.kill_self, (signal.SIGABRT,), "killed by SIGABRT"),
        (bodies.leave, (3,), "exited with code 3"),
        (bodies.leave, (0,), "exited with code 0"),
    ],
)
async def test_a_death_is_noticed_and_its_cause_told(body: object, args: tuple[int], told: str) -> None:
    """D1, D2: the others never notice."""
    assert callable(body)
    async with a_template() as template:
        other = await spawned(template)

        async def death() -> float:
            dying = await spawned(template)
            assert dying.child is not None
            call_id, began_at = dying.send(body, *args), time.monotonic()
            ended = await dying.end()
            took_s = time.monotonic() - began_at
            assert str(ended) == told
            assert dying.outcome_of == {}
            assert dying.child.running == call_id
            assert not dying.said_goodbye
            assert await other.call(bodies.echo, 1) == 1
            return took_s

        await within_a_second(death)
        assert await (await spawned(template)).call(bodies.echo, 2) == 2


@pytest.mark.parametrize(("body", "shown"), [(bodies.die_at_three, int), (bodies.text_until_three, str)])
async def test_what_was_finished_is_reported_after_a_death_in_a_range(body: object, shown: type) -> None:
    """Exactly one call of the range is lost: the one that ran."""
    assert callable(body)
    async with a_template() as template:
        for _ in range(5):
            heard = await spawned(template)
            assert heard.child is not None
            ids = heard.send_range(body, [0, 1, 2, 3, 4, 5])
            await heard.end()
            expected = [Returned(n if shown is int else [str(n)]) for n in range(3)]
            assert [heard.outcome_of.get(call_id) for call_id in ids] == [*expected, None, None, None]
            assert heard.child.running == ids[3]
            assert heard.messages_done == []


async def test_a_kill_from_outside_at_any_moment_of_a_range() -> None:
    """Whenever it comes: the outcomes are those of the first calls, and at most one more had begun."""
    async with a_template() as template:
        for pause_s in np.linspace(0, 0.004, 25):
            heard = await spawned(template)
            assert heard.child is not None
            ids = heard.send_range(bodies.echo, list(range(3000)))
            ends_at = time.monotonic() + pause_s
            while time.monotonic() < ends_at:
                pass
            heard.child.kill()
            await heard.end()
            count = len(heard.outcome_of)
            assert [heard.outcome_of[call_id] for call_id in ids[:count]] == [
                Returned(n) for n in range(count)
            ]
            assert heard.child.running in (0, ids.start + count)


async def test_out_of_memory_is_an_error_of_that_call() -> None:
    """D16."""
    async with a_child() as heard:
        with pytest.raises(MemoryError):
            await heard.call(bodies.need_memory, 1024 * MIB, 2048 * MIB)
        assert await heard.call(bodies.echo, 1) == 1


async def test_no_addresses_left_for_arguments_is_an_error_of_that_call() -> None:
    async with a_child(["numpy"]) as heard:
        await heard.call(bodies.forbid_growth, 8 * MIB)
        with pytest.raises(MemoryError):
            await heard.call(bodies.total, np.ones(16 * MIB // 8))
        assert await heard.call(bodies.total, np.ones(10_000)) == 10_000


async def test_a_child_that_closes_its_socket_is_ended() -> None:
    async with a_child() as heard:
        heard.send(bodies.close_socket)
        assert str(await heard.end()) == "killed by SIGKILL (closed its channel)"


@pytest.mark.parametrize(
    "nonsense",
    [
        wire.frame(99, 1),
        wire.frame(wire.RETURNED, 77, b"\x80\x05N."),
        wire.frame(wire.RETURNED, 1, b"garbage", flags=wire.RANGE),
        wire.frame(wire.RETURNED, 1, b"garbage", flags=wire.PARCEL),
        wire.frame(wire.RAISED, 1, b"garbage"),
        wire.frame(wire.FREED, 0, b"odd"),
        wire.frame(wire.FREED, 0, wire.FREED_SLOT.pack(0, 1)),
        wire.HEADER.pack(1 << 50, 1, 0, wire.NOTE, 0) + b"x" * 10,
    ],
)
async def test_a_child_that_talks_nonsense_is_ended(nonsense: bytes) -> None:
    """Also one that frees a slot which it does not have: late frames must not free what is in use."""
    async with a_child() as heard:
        heard.send(bodies.write_to_sockets, nonsense)
        assert str(await heard.end()).startswith("killed by SIGKILL (sent what makes no sense")


async def test_a_slot_of_an_earlier_use_is_refused() -> None:
    arena = Arena(64 * MIB)
    async with a_child(arena=arena) as heard:
        await heard.call(bodies.keep, np.ones(50_000))
        slot = arena.take(1)
        assert slot is not None
        stale = [
            wire.frame(wire.FREED, 0, wire.FREED_SLOT.pack(number, 99)) for number in range(slot.number + 1)
        ]
        heard.send(bodies.write_to_sockets, stale[1])
        assert "which it does not have" in str(await heard.end())
    arena.close()


async def test_a_50_mb_message_of_an_exception_is_cut() -> None:
    """D20."""
    async with a_child() as heard:
        outcome = await heard.outcome(heard.send(bodies.raise_, "huge"))
        assert isinstance(outcome, Raised)
        assert isinstance(outcome.exception, CallFailed)
        assert len(str(outcome.exception)) < 70_000
        with pytest.raises(ValueError, match="red"):
            await heard.call(bodies.raise_, "bytes")
        assert await heard.call(bodies.echo, 1) == 1


async def test_50_mb_results_and_arguments_travel_inline_as_well() -> None:
    arena = Arena(0)
    async with a_child(arena=arena) as heard:
        sent = os.urandom(MIB) * 50
        assert await heard.call(bodies.echo, sent) == sent
    arena.close()


@pytest.mark.parametrize("limit_bytes", [0, 256 * MIB])
async def test_death_in_the_middle_of_a_64_mb_argument(limit_bytes: int) -> None:
    """D3: the loop never waits for the writing."""
    arena = Arena(limit_bytes)
    async with a_template(arena=arena) as template:
        sent = np.ones(8 * MIB)
        for _ in range(5):
            heard = await spawned(template)
            assert heard.child is not None
            heard.send(bodies.total, sent)
            heard.child.kill()
            await heard.end()
        heard = await spawned(template)
        assert await heard.call(bodies.total, sent) == 8 * MIB
    assert arena.reserved_bytes <= limit_bytes + 2 * 64 * 1024
    arena.close()


async def test_the_loop_goes_on_while_a_child_does_not_read(tmp_path: Path) -> None:
    arena = Arena(0)
    async with a_child(arena=arena) as heard:
        assert heard.child is not None
        begun = tmp_path / "begun"
        first = heard.send(bodies.sleep_after_touching, str(begun))
        await eventually(begun.exists, "the call has begun")
        call_id = heard.send(bodies.total, np.ones(8 * MIB))
        assert call_id not in heard.outcome_of, "it was sent, and nobody waited until it was read"
        heard.child.interrupt(first)
        assert await heard.outcome(call_id) == Returned(8.0 * MIB)
    arena.close()


async def test_slots_of_a_dead_child_come_back() -> None:
    arena = Arena(64 * MIB)
    async with a_template(arena=arena) as template:
        for _ in range(10):
            heard = await spawned(template)
            await heard.call(bodies.keep, np.ones(MIB // 8))
            await heard.call(bodies.ones, MIB // 8)
            assert heard.child is not None
            heard.child.kill()
            await heard.end()
        gc.collect()
        assert arena.free_bytes == arena.reserved_bytes
        assert arena.reserved_bytes < 6 * MIB
    arena.close()


# --- a child dies at birth -----------------------------------------------------------------------


async def test_a_child_that_dies_before_it_is_spoken_to_is_its_own_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has exited, like any other; its siblings and the template go on."""
    flag = tmp_path / "die"
    monkeypatch.setenv("DIES_AT_BIRTH", str(flag))
    async with a_template(["tests.pool.dies_at_birth"]) as template:
        sibling = await spawned(template)
        maker = await sibling.call(bodies.parent_pid)
        flag.touch()
        stillborn = await spawned(template)
        assert str(await stillborn.end()) == "exited with code 7"
        assert await sibling.call(bodies.parent_pid) == maker
        assert await (await spawned(template)).call(bodies.parent_pid) == maker


async def test_a_folder_that_is_gone_keeps_nobody_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_template() as template:
        await template.start()
        monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        heard = await spawned(template)
        assert await heard.call(bodies.echo, 1) == 1


# --- the template dies ---------------------------------------------------------------------------


async def test_a_template_that_was_killed_is_started_again() -> None:
    async with a_template() as template:
        heard, idle = await spawned(template), await spawned(template)
        maker = await heard.call(bodies.parent_pid)
        heard.send(bodies.sleep_after_touching, os.devnull)
        os.kill(maker, signal.SIGKILL)
        assert str(await heard.end()) == "killed by SIGKILL (its template process ended)"
        await idle.end()
        assert not is_alive(heard.child.pid)
        fresh = await spawned(template)
        assert await fresh.call(bodies.echo, 1) == 1
        assert await fresh.call(bodies.parent_pid) != maker


async def test_a_template_that_dies_while_children_are_asked_for() -> None:
    async with a_template() as template:
        heard = await spawned(template)
        maker = await heard.call(bodies.parent_pid)
        os.kill(maker, signal.SIGSTOP)
        waiting = [asyncio.create_task(spawned(template)) for _ in range(3)]
        await asyncio.sleep(0)
        os.kill(maker, signal.SIGKILL)
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, StartFailed) for result in results)
        assert await (await spawned(template)).call(bodies.echo, 1) == 1


async def test_closing_does_not_wait_for_a_template_that_hangs() -> None:
    async with a_template() as template:
        heard = await spawned(template)
        maker = await heard.call(bodies.parent_pid)
        os.kill(maker, signal.SIGSTOP)
        await template.close()
        assert not is_alive(maker)
        assert not is_alive(heard.child.pid)


# --- the parent dies -----------------------------------------------------------------------------


@contextmanager
def an_owner(how: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    command = [sys.executable, "-m", "tests.pool.owner", how]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as owner:
        assert owner.stdout is not None
        try:
            yield owner, [int(pid) for pid in owner.stdout.readline().split()]
        finally:
            if owner.poll() is None:
                os.killpg(owner.pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["live", "fork"])
async def test_nothing_outlives_a_parent_that_was_killed(how: str) -> None:
    """D10: template and children go within a second, also when somebody has inherited the sockets."""

    async def death() -> float:
        with an_owner(how) as (owner, pids):
            assert len(pids) == 4
            group, began_at = owner.pid, time.monotonic()
            owner.kill()
            try:
                await eventually(lambda: not any(map(is_alive, pids)), "they are gone")
                return time.monotonic() - began_at
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)  # the process that inherited

    await within_a_second(death)


@pytest.mark.parametrize("how", ["exit", "leave"])
async def test_a_parent_that_exits_leaves_nothing_and_says_nothing(how: str) -> None:
    """D11."""
    with an_owner(how) as (owner, pids):
        assert owner.stderr is not None
        await eventually(lambda: owner.poll() is not None, "the parent has ended")
        await eventually(lambda: not any(map(is_alive, pids)), "they are gone")
        assert owner.returncode == 0
        assert owner.stderr.read() == ""


async def test_ctrl_c_reaches_only_the_parent() -> None:
    """D10: the parent decides what becomes of its calls; here it dies of it, and they with it."""
    with an_owner("live") as (owner, pids):
        os.killpg(owner.pid, signal.SIGINT)
        await eventually(lambda: owner.poll() is not None, "the parent has ended")
        await eventually(lambda: not any(map(is_alive, pids)), "they are gone")
        assert owner.stderr is not None
        told = owner.stderr.read()
        assert told.count("Traceback") == told.count("KeyboardInterrupt\n") == 1 or "CancelledError" in told


async def test_signals_that_a_terminal_or_a_supervisor_sends_do_not_end_a_call(tmp_path: Path) -> None:
    async with a_child() as heard:
        assert heard.child is not None
        begun = tmp_path / "begun"
        maker = await heard.call(bodies.parent_pid)
        call_id = heard.send(bodies.sleep_after_touching, str(begun), 0.3)
        await eventually(begun.exists, "the call has begun")
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(heard.child.pid, number)
            os.kill(maker, number)
        assert await heard.outcome(call_id) == Returned("slept")


# --- nothing is left -----------------------------------------------------------------------------


async def start_and_stop(cycles: int) -> None:
    for _ in range(cycles):
        async with a_template() as template:
            heard = await spawned(template)
            assert await heard.call(bodies.echo, np.ones(10_000)) is not None


async def test_starts_and_stops_leave_nothing() -> None:
    """D5: no process, thread or descriptor."""
    await start_and_stop(1)
    gc.collect()
    before = Having.now()
    await start_and_stop(8)
    gc.collect()
    assert not Having.now().beyond(before)


@pytest.mark.soak
@pytest.mark.bound(300)
async def test_two_hundred_starts_and_stops_leave_nothing() -> None:
    """D5: no process, thread, descriptor or memory."""
    await start_and_stop(10)
    gc.collect()
    before = Having.now()
    resident_kib = own_memory_kib()
    await start_and_stop(200)
    gc.collect()
    assert not Having.now().beyond(before)
    assert own_memory_kib() - resident_kib < 10 * 1024


def own_memory_kib() -> int:
    resident, shared = Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3]
    return (int(resident) - int(shared)) * 4


def check_echo(outcome: Outcome, value: float, what: str) -> None:
    assert isinstance(outcome, Returned)
    assert (outcome.value == value).all(), what


@pytest.mark.soak
@pytest.mark.bound(300)
async def test_a_thousand_kills_lose_only_what_ran() -> None:
    """D1 and D3 with the transport alone: kills at random moments, arguments and results of all sizes."""
    rng = np.random.default_rng(7)
    arena = Arena(64 * MIB)
    cut_short = 0
    async with a_template(["numpy"], arena=arena) as template:
        for round_ in range(1000):
            heard = await spawned(template)
            assert heard.child is not None
            # Its first call imports the bodies. Without it, a busy machine has every child dead before it
            # has run anything, and then nothing is tested.
            await heard.call(bodies.echo, 0)
            size = int(rng.choice([10, 10_000, 500_000]))
            ids = heard.send_range(bodies.echo, [np.full(size, float(n)) for n in range(10)])
            await asyncio.sleep(float(rng.uniform(0, 0.01)))
            heard.child.kill()
            await heard.end(5)
            count = len(heard.outcome_of)
            cut_short += 0 < count < len(ids)
            for n, call_id in enumerate(ids[:count]):
                check_echo(heard.outcome_of.pop(call_id), float(n), f"round {round_}")
            assert heard.child.running in (0, ids.start + count)
        assert cut_short > 0, "no kill came in the middle"
        del heard
        gc.collect()
        assert arena.free_bytes == arena.reserved_bytes
    arena.close()


@pytest.mark.soak
@pytest.mark.bound(300)
async def test_a_hundred_deaths_in_the_middle_of_64_mb() -> None:
    """D3."""
    for limit_bytes in (0, 256 * MIB):
        arena = Arena(limit_bytes)
        async with a_template(["numpy"], arena=arena) as template:
            sent = np.ones(8 * MIB)
            for n in range(100):
                heard = await spawned(template)
                assert heard.child is not None
                heard.send(bodies.total, sent)
                await asyncio.sleep(0.0005 * (n % 20))
                heard.child.kill()
                await heard.end()
        arena.close()
