"""Children at work: calls, arrays, notes, interrupts, ranges, and a goodbye."""

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omniq.errors import CallFailed, StartFailed, UnserializableArgument
from omniq.loopthread import new_event_loop
from omniq.pool import peer
from omniq.pool.arena import Arena
from omniq.pool.calls import Interrupted, Raised, Returned, encode, encode_range
from omniq.pool.lines import INTERRUPT_SIGNAL
from omniq.pool.process import ChildGone, Template
from omniq.pool.reserved import ReservedArena
from tests.pool import transport_bodies as bodies
from tests.pool.leftovers import is_alive, put_to_sleep
from tests.pool.listening import BOUND_S, Heard, a_child, a_template, eventually, spawned

MIB = 1024 * 1024


# --- calls ---------------------------------------------------------------------------------------


async def test_calls_by_name_and_by_value() -> None:
    async with a_child() as heard:
        assert await heard.call(bodies.echo, {"a": [1, 2]}) == {"a": [1, 2]}
        base = 10
        assert await heard.call(lambda x, *, y: base + x + y, 1, y=2) == 13
        assert await heard.call(bodies.pid) == heard.child.pid != os.getpid()
        assert heard.messages_done == [1, 2, 3]


async def test_a_closure_is_rebuilt_for_every_call() -> None:
    async with a_child() as heard:
        box = [1]

        def peek() -> int:
            return box[0]

        assert await heard.call(peek) == 1
        box[0] = 2
        assert await heard.call(peek) == 2


async def test_a_child_looks_like_its_parent() -> None:
    async with a_child() as heard:
        path, argv, cwd, pythonpath = await heard.call(bodies.surroundings)
        assert path == [entry or os.getcwd() for entry in sys.path]
        assert argv == sys.argv
        assert cwd == os.getcwd()
        assert pythonpath == os.environ.get("PYTHONPATH")
        assert await heard.call(bodies.threads) == 1


async def test_what_is_no_path_in_a_path_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As Python itself does: such a list was no reason why a program could not run."""
    monkeypatch.setattr(sys, "path", [tmp_path, b"/nowhere", None, *sys.path])
    monkeypatch.setattr(sys, "argv", [Path("a program"), 7])
    async with a_child() as heard:
        path, argv, _, _ = await heard.call(bodies.surroundings)
    assert (path, argv) == (sys.path[3:], ["a program", "7"])


async def test_a_parent_whose_folder_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", ["", str(Path(__file__).parents[2]), *sys.path])
    here = Path.cwd()
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    try:
        async with a_child() as heard:
            assert await heard.call(bodies.echo, 1) == 1
    finally:
        os.chdir(here)


async def test_signals_that_the_parent_has_blocked_reach_a_child(tmp_path: Path) -> None:
    """What a thread has blocked is inherited by programs that it starts, which would hear no interrupt."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {INTERRUPT_SIGNAL, signal.SIGCHLD})
    try:
        async with a_child() as heard:
            assert heard.child is not None
            begun = tmp_path / "begun"
            call_id = heard.send(bodies.sleep_after_touching, str(begun))
            await eventually(begun.exists, "the call has begun")
            heard.child.interrupt(call_id)
            assert await heard.outcome(call_id) == Interrupted()
            heard.send(bodies.kill_self)
            assert (await heard.end()).signal == signal.SIGKILL, "the template has heard of it"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def test_a_message_with_several_calls_is_done_after_the_last() -> None:
    async with a_child() as heard:
        heard.send_encoded(
            encode(1, bodies.echo, ("one",)),
            encode_range(2, bodies.echo, ["two", "three"]),
            encode(4, bodies.raise_, ("plain",)),
        )
        await heard.until(lambda: heard.messages_done)
        assert [heard.outcome_of[n] for n in (1, 2, 3)] == [
            Returned("one"),
            Returned("two"),
            Returned("three"),
        ]
        assert isinstance(heard.outcome_of[4], Raised)
        assert heard.order[-1] == "done"


async def test_messages_may_be_sent_ahead() -> None:
    async with a_child() as heard:
        ids = [heard.send(bodies.echo, n) for n in range(50)]
        await heard.until(lambda: len(heard.outcome_of) == 50)
        assert [heard.outcome_of[call_id] for call_id in ids] == [Returned(n) for n in range(50)]


async def test_whoever_listens_badly_does_not_stop_the_channel() -> None:
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))

    class Bad(Heard):
        def note(self, child: Any, call_id: int, note: Any) -> None:
            raise RuntimeError("a bug of the listener")

    async with a_template() as template:
        heard = Bad()
        heard.child = await template.spawn(heard)
        assert await heard.call(bodies.note_often, 2) == 1
        assert len(problems) == 2


def test_the_faster_loop_works_as_well() -> None:
    async def all_of_it() -> None:
        async with a_child() as heard:
            assert heard.child is not None
            assert (await heard.call(bodies.echo, np.ones(50_000))).sum() == 50_000
            assert await heard.call(bodies.echo, bytes(MIB)) == bytes(MIB)
            heard.child.kill()
            assert str(await heard.end()) == "killed by SIGKILL"

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(all_of_it())


# --- arrays --------------------------------------------------------------------------------------


async def test_arrays_travel_both_ways_and_results_can_be_written() -> None:
    async with a_child() as heard:
        sent = np.arange(200_000.0).reshape(400, 500)
        for _ in range(5):
            back = await heard.call(bodies.echo, sent)
            assert (back == sent).all()
            assert back.shape == sent.shape
            back += 1
            assert back.flags.aligned


async def test_slots_are_recycled() -> None:
    arena = Arena(64 * MIB)
    async with a_child(arena=arena) as heard:
        for _ in range(30):
            assert await heard.call(bodies.total, await heard.call(bodies.ones, MIB // 8)) == MIB // 8
        assert arena.reserved_bytes < 8 * MIB
    arena.close()


async def test_results_that_are_kept_keep_their_bytes() -> None:
    """D18: a view pins its slot, on the parent's side."""
    async with a_child() as heard:
        held = [await heard.call(bodies.echo, np.full(20_000, float(n))) for n in range(20)]
        assert [float(array[0]) for array in held] == [float(n) for n in range(20)]
        assert all((array == array[0]).all() for array in held)
    assert [float(array[-1]) for array in held] == [float(n) for n in range(20)]


async def test_an_argument_that_a_function_keeps_is_not_overwritten() -> None:
    """D18: a view pins its slot, on the child's side, until it is let go."""
    arena = Arena(64 * MIB)
    async with a_child(arena=arena) as heard:
        for n in range(10):
            assert await heard.call(bodies.keep, np.full(20_000, float(n))) == n + 1
        for n in range(10):
            assert await heard.call(bodies.kept_sum, n) == 20_000.0 * n
        in_use = arena.reserved_bytes - arena.free_bytes
        assert in_use > 10 * 160_000
        await heard.call(bodies.forget_all)
        await heard.call(bodies.echo, None)
        assert arena.reserved_bytes - arena.free_bytes < in_use - 10 * 160_000
    arena.close()


@pytest.mark.parametrize("limit_bytes", [0, 3 * MIB])
async def test_a_full_arena_sends_bytes_inline(limit_bytes: int) -> None:
    arena = Arena(limit_bytes)
    async with a_child(arena=arena) as heard:
        sent = np.arange(MIB / 4)
        held = [await heard.call(bodies.echo, sent) for _ in range(4)]
        assert all((array == sent).all() and array.flags.writeable for array in held)
        assert arena.reserved_bytes <= limit_bytes + 64 * 1024
    arena.close()


async def test_results_grow_and_shrink() -> None:
    """A grant that is too small is asked for anew, one that is too large is used."""
    async with a_child() as heard:
        for count in (20_000, 500_000, 10, 20_000, 2_000_000, 30_000, 10) * 3:
            assert len(await heard.call(bodies.ones, count)) == count


async def test_big_bytes_go_through_the_arena_as_well() -> None:
    async with a_child() as heard:
        sent = os.urandom(3 * MIB)
        assert await heard.call(bodies.echo, sent) == sent
        assert await heard.call(bodies.echo, bytearray(sent)) == sent


async def test_a_readonly_array_stays_readonly() -> None:
    async with a_child() as heard:
        sent = np.ones(50_000)
        sent.flags.writeable = False
        assert not (await heard.call(bodies.echo, sent)).flags.writeable


async def test_arrays_in_a_range() -> None:
    async with a_child() as heard:
        ids = heard.send_range(bodies.echo, [np.full(20_000, float(n)) for n in range(20)])
        await heard.until(lambda: heard.messages_done)
        for n, call_id in enumerate(ids):
            outcome = heard.outcome_of[call_id]
            assert isinstance(outcome, Returned)
            assert (outcome.value == float(n)).all()


# --- ranges --------------------------------------------------------------------------------------


async def test_a_range_gives_one_outcome_per_item_in_order() -> None:
    async with a_child() as heard:
        values = [
            None,
            True,
            3,
            2.5,
            float("nan"),
            1 << 80,
            -(1 << 62),
            "text",
            b"x" * 9000,
            (1,),
            [2],
            {"a": 1},
        ]
        values += [*range(5000), *[None] * 20_000, *[10**1000] * 200]
        ids = heard.send_range(bodies.echo, values)
        await heard.until(lambda: heard.messages_done)
        back = [heard.outcome_of[call_id] for call_id in ids]
        assert repr([outcome.value for outcome in back if isinstance(outcome, Returned)]) == repr(values)
        assert heard.order.count("outcomes") < 100, "outcomes of quick calls go together"


async def test_a_result_is_taken_as_it_is_when_it_is_returned() -> None:
    async with a_child() as heard:
        grown: list[int] = []

        def grow(value: int) -> list[int]:
            grown.append(value)
            return grown

        ids = heard.send_range(grow, [1, 2, 3])
        await heard.until(lambda: heard.messages_done)
        assert [heard.outcome_of[n] for n in ids] == [Returned([1]), Returned([1, 2]), Returned([1, 2, 3])]


async def test_a_failure_in_a_range_is_one_outcome() -> None:
    async with a_child() as heard:
        ids = heard.send_range(lambda n: 10 // n, [5, 0, 2])
        await heard.until(lambda: heard.messages_done)
        first, second, third = (heard.outcome_of[call_id] for call_id in ids)
        assert (first, third) == (Returned(2), Returned(5))
        assert isinstance(second, Raised)
        assert isinstance(second.exception, ZeroDivisionError)


async def test_a_range_that_cannot_be_loaded_fails_call_by_call() -> None:
    async with a_child() as heard:
        ids = heard.send_range(bodies.echo, [1, bodies.DoesNotUnpickle(), 3])
        await heard.until(lambda: heard.messages_done)
        assert all(isinstance(heard.outcome_of[call_id], Raised) for call_id in ids)
        assert await heard.call(bodies.echo, 1) == 1


async def test_the_rest_of_a_range_can_be_sent_again() -> None:
    async with a_child() as heard:
        heard.send_encoded(encode_range(1, bodies.echo, range(10)).after(7))
        await heard.until(lambda: heard.messages_done)
        assert heard.outcome_of == {8: Returned(7), 9: Returned(8), 10: Returned(9)}


# --- notes and interrupts ------------------------------------------------------------------------


async def test_notes_arrive_before_the_outcome() -> None:
    async with a_child() as heard:
        assert await heard.call(bodies.note_often, 100) == 1
        assert heard.notes == [(1, n) for n in range(100)]


async def test_notes_of_threads_and_the_way_of_a_result_do_not_mix() -> None:
    """A result that needs a larger slot asks for one, through the socket that the notes go through."""
    async with a_child(["numpy"]) as heard:
        for n in range(1, 9):
            told = await heard.call(bodies.ones_while_threads_note, n * 100_000, notes=10)
            assert len(told) == n * 100_000
        assert len(heard.notes) >= 8 * 2, "what is said after the end of a call is dropped"
        assert {note for _, note in heard.notes} == {"x" * 300_000}


async def test_an_interrupt_ends_a_call_and_the_child_goes_on(tmp_path: Path) -> None:
    async with a_child() as heard:
        assert heard.child is not None
        begun = tmp_path / "begun"
        call_id = heard.send(bodies.tidy_when_interrupted, str(begun))
        await eventually(begun.exists, "the call has begun")
        assert heard.child.running == call_id
        heard.child.interrupt(call_id)
        assert await heard.outcome(call_id) == Interrupted()
        assert (tmp_path / "begun.tidied").exists()
        assert await heard.call(bodies.echo, 1) == 1
        assert heard.child.running == 0


async def test_a_late_interrupt_never_hits_the_next_call() -> None:
    async with a_child() as heard:
        assert heard.child is not None
        for n in range(300):
            call_id = heard.send(bodies.echo, n)
            heard.child.interrupt(call_id - 1)
            assert await heard.outcome(call_id) == Returned(n)


async def test_an_interrupt_of_a_call_that_has_not_begun(tmp_path: Path) -> None:
    async with a_child() as heard:
        assert heard.child is not None
        begun = tmp_path / "begun"
        first = heard.send(bodies.sleep_after_touching, str(begun))
        ids = heard.send_range(bodies.echo, [1, 2, 3])
        await eventually(begun.exists, "the call has begun")
        heard.child.interrupt(ids[1])
        heard.child.interrupt(first)
        await heard.until(lambda: len(heard.messages_done) == 2)
        assert heard.outcome_of == {
            first: Interrupted(),
            ids[0]: Returned(1),
            ids[1]: Interrupted(),
            ids[2]: Returned(3),
        }


async def test_a_call_that_has_begun_is_not_taken_back(tmp_path: Path) -> None:
    """It was ended when it next asked for memory, and had to be done anew."""
    async with a_child() as heard:
        assert heard.child is not None
        gate = tmp_path / "gate"
        begun = heard.send(bodies.room_when_told, str(gate))
        behind = heard.send(bodies.echo, 1)
        await eventually(lambda: heard.child and heard.child.running == begun, "it has begun")
        assert heard.child.withdraw(range(behind, behind + 1)), "in time"
        assert not heard.child.withdraw(range(begun, begun + 1)), "too late"
        gate.touch()
        await heard.until(lambda: len(heard.messages_done) == 2)
        assert heard.outcome_of == {begun: Returned("had room"), behind: Interrupted()}


async def test_a_call_behind_one_that_has_not_begun_is_taken_back() -> None:
    """The child was slow to wake up, and what was behind a long call stayed there as long as that ran."""
    async with a_child() as heard:
        assert heard.child is not None
        assert await heard.call(bodies.echo, 1) == 1
        put_to_sleep(heard.child.pid)
        first, behind = heard.send(bodies.echo, 2), heard.send(bodies.echo, 3)
        assert heard.child.withdraw(range(behind, behind + 1)), "in time"
        os.kill(heard.child.pid, signal.SIGCONT)
        await heard.until(lambda: len(heard.messages_done) == 3)
        assert (heard.outcome_of[first], heard.outcome_of[behind]) == (Returned(2), Interrupted())


async def test_a_call_that_has_ended_and_is_not_reported_is_not_taken_back(tmp_path: Path) -> None:
    async with a_child() as heard:
        assert heard.child is not None
        begun = tmp_path / "begun"
        call_id = heard.send(bodies.sleep_after_touching, str(begun), 0.0)
        ends_at = time.monotonic() + BOUND_S
        while not begun.exists() or heard.child.running:  # the loop is held up, so nothing is read meanwhile
            assert time.monotonic() < ends_at
        assert heard.outcome_of == {}
        assert not heard.child.withdraw(range(call_id, call_id + 1)), "too late"
        assert await heard.outcome(call_id) == Returned("slept")


async def test_an_interrupt_that_was_lost_is_sent_again(tmp_path: Path) -> None:
    """A signal that comes just before a body begins to wait is heard when it has waited."""
    async with a_child() as heard:
        assert heard.child is not None
        begun = tmp_path / "begun"
        call_id = heard.send(bodies.sleep_deaf_to_the_first, str(begun))
        await eventually(begun.exists, "the call has begun")
        heard.child.interrupt(call_id)
        assert await heard.outcome(call_id) == Interrupted()


async def test_a_body_that_takes_long_to_clean_up_is_signalled_less_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each signal may cut short what a C library waits for."""
    monkeypatch.setattr(peer, "SIGNAL_AGAIN_S", (0.01,))
    async with a_child() as heard:
        assert heard.child is not None
        begun = tmp_path / "begun"
        call_id = heard.send(bodies.count_signals_while_cleaning_up, str(begun), 0.6)
        await eventually(begun.exists, "the call has begun")
        heard.child.interrupt(call_id)
        assert await heard.outcome(call_id) == Interrupted()
        assert int(begun.read_text()) <= 7


async def test_an_interrupt_waits_for_an_import(tmp_path: Path) -> None:
    """Half of one stayed behind: the process lived on, and every later call that needed the module failed."""
    async with a_child() as heard:
        assert heard.child is not None
        begun = tmp_path / "begun"
        call_id = heard.send(bodies.wait_after_importing, str(begun))
        await eventually(begun.exists, "the import has begun")
        heard.child.interrupt(call_id)
        assert await heard.outcome(call_id) == Interrupted()
        assert await heard.call(bodies.value_of_imported) == 7


@pytest.mark.parametrize(("body", "value"), [(bodies.wait_for, None), (bodies.room_when_told, "had room")])
async def test_of_a_range_that_has_begun_the_rest_is_taken_back(
    tmp_path: Path, body: Any, value: Any
) -> None:
    async with a_child() as heard:
        assert heard.child is not None
        gate = tmp_path / "gate"
        ids = heard.send_range(body, [str(tmp_path)] * 100 + [str(gate)] * 1000)
        await eventually(lambda: heard.child and heard.child.running == ids[100], "it has begun")
        assert not heard.child.withdraw(ids), "a part has begun"
        gate.touch()
        await heard.until(lambda: heard.messages_done)
        assert [heard.outcome_of[one] for one in ids] == [Returned(value)] * 101 + [Interrupted()] * 999


async def test_no_python_runs_in_a_child_when_memory_is_let_go() -> None:
    """What is raised there is ignored: an interrupt that met a function of ours was lost."""
    async with a_child(["numpy"]) as heard:
        assert await heard.call(bodies.what_runs_when_it_goes, np.ones(100_000)) == []


async def test_a_room_that_is_let_go_late_is_not_taken_for_the_next_one() -> None:
    """Its slot was sent, read, freed and lent again before the body had let go of it."""
    async with a_child(["numpy"], ReservedArena(2 * MIB).reserve()) as heard:
        for n in range(20):
            found = await heard.call(bodies.room_kept_until_the_next, n)
            assert (found == n).all()
            del found


async def test_a_body_may_swallow_an_interrupt(tmp_path: Path) -> None:
    async with a_child() as heard:
        assert heard.child is not None
        begun = tmp_path / "begun"
        call_id = heard.send(bodies.ignore_interrupts, str(begun))
        await eventually(begun.exists, "the call has begun")
        heard.child.interrupt(call_id)
        assert await heard.outcome(call_id) == Returned("went on")


async def test_a_body_may_look_whether_it_is_cancelled(tmp_path: Path) -> None:
    async with a_child() as heard:
        assert heard.child is not None
        begun = tmp_path / "begun"
        call_id = heard.send(bodies.poll_until_cancelled, str(begun))
        await eventually(begun.exists, "the call has begun")
        heard.child.interrupt(call_id)
        assert await heard.outcome(call_id) == Returned("ended by itself")


async def test_an_interrupt_never_cuts_a_frame() -> None:
    async with a_child() as heard:
        assert heard.child is not None
        for _ in range(20):
            seen = len(heard.notes)
            call_id = heard.send(bodies.note_for_ever)
            await heard.until(lambda seen=seen: len(heard.notes) > seen + 5)
            heard.child.interrupt(call_id)
            assert await heard.outcome(call_id) == Interrupted()
        assert all(note == b"x" * 5000 for _, note in heard.notes)


# --- the start and the end -----------------------------------------------------------------------


async def test_a_child_that_is_asked_to_stop_finishes_and_says_goodbye() -> None:
    async with a_child() as heard:
        assert heard.child is not None
        call_id = heard.send(bodies.echo, 1)
        heard.child.ask_to_stop()
        assert str(await heard.end()) == "exited with code 0"
        assert heard.outcome_of == {call_id: Returned(1)}
        assert heard.order == ["ready", "outcomes", "done", "shutdown", "exited"]
        with pytest.raises(ChildGone):
            heard.send(bodies.echo, 2)
        heard.child.kill()
        heard.child.interrupt(1)
        heard.child.ask_to_stop()


async def test_what_a_body_registered_for_the_exit_runs(tmp_path: Path) -> None:
    async with a_child() as heard:
        assert heard.child is not None
        goodbye = tmp_path / "goodbye"

        def register() -> None:
            import atexit

            atexit.register(goodbye.touch)

        await heard.call(register)
        heard.child.ask_to_stop()
        await heard.end()
        assert goodbye.exists()


async def test_a_template_imports_once_for_all_children() -> None:
    async with a_template(["tests.pool.transport_bodies", "numpy"]) as template:
        one, two = await spawned(template), await spawned(template)
        assert await one.call(lambda: "numpy" in sys.modules) is True
        assert await one.call(bodies.parent_pid) == await two.call(bodies.parent_pid) != os.getpid()
        assert await one.call(bodies.random_numbers) != await two.call(bodies.random_numbers)


async def test_a_module_that_starts_threads_is_not_forked() -> None:
    async with a_template(["tests.pool.starts_a_thread"]) as template:
        heard = await spawned(template)
        assert await heard.call(bodies.threads) == 1
        assert await heard.call(bodies.echo, [1]) == [1]
        path, argv, *_ = await heard.call(bodies.surroundings)
        assert (path, argv) == ([entry or os.getcwd() for entry in sys.path], sys.argv)
        assert (await heard.call(bodies.echo, np.ones(50_000))).sum() == 50_000
        heard.child.ask_to_stop()
        assert str(await heard.end()) == "exited with code 0"


async def test_a_preload_that_fails_says_why() -> None:
    async with a_template(["tests.pool.cannot_be_imported"]) as template:
        with pytest.raises(
            StartFailed, match=r"tests\.pool\.cannot_be_imported: RuntimeError: broken on purpose"
        ):
            await template.start()


async def test_children_start_while_the_parent_has_threads() -> None:
    """D8: only the template forks, and it has one thread."""
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        async with a_template() as template:
            listeners = await asyncio.gather(*(spawned(template) for _ in range(6)))
            assert [await heard.call(bodies.threads) for heard in listeners] == [1] * 6
    finally:
        stop.set()
        for thread in threads:
            thread.join()


async def test_a_closed_template_starts_nothing() -> None:
    template = Template()
    await template.close()
    with pytest.raises(StartFailed, match="closed"):
        await template.spawn(Heard())


async def test_whoever_stops_waiting_for_a_child_leaves_none() -> None:
    async with a_template() as template:
        await template.start()
        first = await spawned(template)
        maker = await first.call(bodies.parent_pid)
        waiting = asyncio.create_task(template.spawn(Heard()))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await eventually(lambda: children_of(maker) == {first.child.pid}, "the other child is gone")


def children_of(pid: int) -> set[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return {int(child) for child in found if is_alive(int(child))}


async def test_memory_is_told() -> None:
    async with a_child() as heard:
        assert heard.child is not None
        before = heard.child.rss_bytes
        assert before > MIB
        await heard.call(bodies.keep, "x" * (50 * MIB))
        assert heard.child.rss_bytes > before + 40 * MIB
        async with asyncio.timeout(30):  # it looks at its memory a hundred times a second at most
            while heard.child.reported_rss_bytes < before + 40 * MIB:
                await heard.call(bodies.echo, 1)


# --- what cannot travel --------------------------------------------------------------------------


async def test_what_cannot_be_pickled_is_an_error_and_the_child_lives() -> None:
    """D4: each within a second, and the next call runs."""
    async with a_child() as heard:
        for kind, message in (("lock", "the result is a _thread.lock"), ("bad", "Unpicklable")):
            with pytest.raises(UnserializableArgument, match=message):
                await heard.call(bodies.make, kind)
        for body, args, message in (
            (bodies.make, ("elsewhere",), "the result of make cannot be unpickled here"),
            (bodies.echo, (bodies.DoesNotUnpickle(),), "cannot be unpickled in the worker"),
            (bodies.raise_, ("two",), "NeedsTwo: one and other"),
            (bodies.raise_, ("exit",), "SystemExit: 3"),
            (bodies.raise_, ("stop",), "StopIteration"),
        ):
            with pytest.raises(Exception, match=message) as caught:
                await heard.call(body, *args)
            assert type(caught.value).__name__ == "CallFailed"
        with pytest.raises(KeyError) as raised:
            await heard.call(bodies.raise_, "plain")
        assert "transport_bodies.py" in str(raised.value.__cause__)
        assert "serving.py" not in str(raised.value.__cause__), "only frames of the body"
        assert await heard.call(bodies.echo, "alive") == "alive"


# --- what would end the program that reads it ----------------------------------------------------


@pytest.mark.parametrize("kind", bodies.ENDS)
async def test_whatever_unpickling_raises_ends_that_call_and_not_the_program(kind: str) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    async with a_template() as template:
        heard = await spawned(template)
        with pytest.raises(CallFailed, match=r"return_ending cannot be unpickled here .*from a pickle"):
            await heard.call(bodies.return_ending, kind)
        with pytest.raises(CallFailed, match="Ending"):
            await heard.call(bodies.raise_ending, kind)
        ids = heard.send_range(bodies.return_ending, [kind, kind])
        for call_id in ids:
            assert isinstance(await heard.outcome(call_id), Raised)
        assert await heard.call(bodies.note_ending, kind) == kind
        assert [context["message"] for context in told] == ["a note cannot be unpickled"]

        recorded, _, fatal = heard.send_range(bodies.return_ending_or_die, [kind, kind, bodies.FATAL])
        await heard.end()
        assert isinstance(heard.outcome_of[recorded], Raised)
        assert fatal not in heard.outcome_of


@pytest.mark.parametrize("name", ["__traceback__", "with_traceback", "__class__", "__cause__"])
async def test_an_exception_that_refuses_to_be_looked_at(name: str) -> None:
    async with a_child() as heard:
        with pytest.raises(CallFailed, match=r"Secretive|cannot be told"):
            await heard.call(bodies.raise_secretive, name)
        assert await heard.call(bodies.echo, 1) == 1


async def test_an_exception_that_ends_programs_when_it_is_shown() -> None:
    async with a_child() as heard:
        with pytest.raises((CallFailed, bodies.SaysGoodbye)):
            await heard.call(bodies.raise_, "goodbye")
        assert await heard.call(bodies.echo, 1) == 1


# --- a body that forks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "shown"), [(bodies.fork_and_return, int), (bodies.fork_and_return_text, str)]
)
async def test_a_copy_of_the_process_answers_nothing_and_runs_nothing(
    body: Any, shown: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the body was called once or in a range: both processes return from it, one goes on."""
    runs = tmp_path / "runs"
    monkeypatch.setenv("RUNS", str(runs))
    async with a_child() as heard:
        assert heard.child is not None
        for _ in range(3):
            runs.write_text("")
            ids = heard.send_range(body, range(8))
            await heard.until(lambda ids=ids: ids[-1] in heard.outcome_of)  # type: ignore[misc]
            expected = [Returned(n if shown is int else [str(n)]) for n in range(8)]
            assert [heard.outcome_of[call_id] for call_id in ids] == expected
            assert runs.read_text().split() == [str(n) for n in range(8)], "each of them once"
            assert await heard.call(body, 3) == (3 if shown is int else ["3"])
        assert heard.exit is None
        assert children_of(heard.child.pid) == set()


async def test_what_a_copy_returns_is_nothing_that_the_worker_returned() -> None:
    async with a_child() as heard:
        assert heard.child is not None
        ids = heard.send_range(bodies.fork_and_die, range(8))
        await heard.end()
        assert [heard.outcome_of.get(call_id) for call_id in ids] == [*map(Returned, range(3)), *[None] * 5]
        assert heard.child.running == ids[3]


@pytest.mark.parametrize("code", [0, 3])
async def test_a_copy_that_exits_does_so_for_itself(code: int) -> None:
    async with a_child() as heard:
        assert await heard.call(bodies.fork_and_exit, code) == code
        assert await heard.call(bodies.echo, 1) == 1


async def test_a_copy_says_nothing_and_is_given_nothing() -> None:
    async with a_child() as heard:
        assert await heard.call(bodies.fork_and_speak) is True
        assert heard.notes == []
        assert await heard.call(bodies.echo, 1) == 1
