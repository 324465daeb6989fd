"""What is logged, at which level, and what never is (S001-34..36, S002-16..17, S12, S19)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omniq import AsyncWorkerPool, CorruptRecord, InvalidOption, Task, TaskError
from omniq.storage.backend import Reserved
from omniq.testing import VirtualClock
from tests.requirements.backends import ListBackend
from tests.worker.scene import Bodies, Logs, ended, running, turns, until
from tests.worker.stores import AnyStore, Five, Memory, RemoteMemory

FORGED = "harmless\n2030-01-01 | INFO | succeeded everything\r\x1b[2J\u2028next\x85last\x00"
LINE_BREAKS = set("\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x1b\x00")


def on_one_line(logs: Logs) -> bool:
    return not any(LINE_BREAKS & set(line) for line in logs.lines())


async def test_an_error_that_forges_lines_stays_on_one(store: AnyStore, bodies: Bodies, logs: Logs) -> None:
    """S19: message and type of an exception cannot begin a new line."""

    def body() -> None:
        raise type(FORGED.replace("\x00", ""), (ValueError,), {})(FORGED)

    async with store, running(store, poll_interval=0.02, base_retry_delay=0.001):
        task_id = await store.enqueue(Task(bodies(body), max_retries=1))
        result = await ended(store, task_id)
    assert isinstance(result.error, TaskError)
    assert on_one_line(logs)


async def test_names_that_forge_lines_are_refused_or_escaped(logs: Logs) -> None:
    """S19: a task's id, path, queue and a worker's name."""
    for wrong in ({"id": FORGED}, {"queue": FORGED}, {"func_path": FORGED}, {"unique_key": FORGED}):
        with pytest.raises(InvalidOption) as refusal:
            Task(**{"func_path": "a.b", **wrong})  # type: ignore[arg-type]
        assert not LINE_BREAKS & set(str(refusal.value))
    backend = ListBackend()
    backend.waiting.append(Reserved(FORGED, b"not a payload"))
    async with running(backend.as_storage(), poll_interval=0.02):
        await until(lambda: backend.failures)
    async with Memory() as store:
        try:
            pool = AsyncWorkerPool(store, name=FORGED)
        except InvalidOption as refusal:
            assert not LINE_BREAKS & set(str(refusal))
        else:
            await pool.start()
            await pool.stop()
    assert on_one_line(logs)


async def test_a_storage_that_forges_lines(logs: Logs) -> None:
    """S19: what a foreign storage raises is shown on one line too."""
    store = Five()
    store.fails["mark_done"] = RuntimeError(FORGED)
    async with running(store, poll_interval=0.02):
        await store.enqueue(Task("json.dumps", (1,)))
        await until(lambda: store.log.ids("mark_done"))
        await turns()
        store.fails = {"dequeue": CorruptRecord(FORGED)}
        await until(lambda: len(logs.lines("WARNING", "ERROR")) >= 2)
        store.fails = {}
    assert on_one_line(logs)


async def test_nothing_unusual_is_above_info(builtin: AnyStore, bodies: Bodies, logs: Logs) -> None:
    """A worker that starts, polls, runs, retries, fails a task and stops says so at INFO and DEBUG."""

    def fails() -> None:
        raise ValueError

    async with builtin as store, running(store, poll_interval=0.02, base_retry_delay=0.001):
        await ended(store, await store.enqueue(Task("json.dumps", (1,))))
        await ended(store, await store.enqueue(Task(bodies(fails), max_retries=1)))
    assert {message.record["level"].name for message in logs.messages} == {"INFO", "DEBUG"}


async def test_an_outage_is_not_a_flood(logs: Logs) -> None:
    """Growing pauses: an hour of outage is a few hundred lines, not a line per millisecond."""
    clock = VirtualClock()
    store = RemoteMemory(clock=clock)
    async with store, running(store, poll_interval=1, clock=clock):
        await clock.advance(1)
        store.line.away = True
        await clock.advance(minutes=2)
        store.line.away = False
        await clock.advance(10)
    assert 10 <= len(logs.lines("WARNING", "ERROR")) <= 60


async def test_secrets_in_results_and_errors_are_not_logged(
    store: AnyStore, bodies: Bodies, logs: Logs
) -> None:
    """S12: neither what a body returns nor what its exception says is in the log."""
    secret = "hunter2-hunter2"

    async def returns() -> dict[str, str]:
        return {"password": secret}

    async def raises() -> None:
        raise RuntimeError(f"cannot log in with {secret}")

    async def unserializable() -> Any:
        return {secret: object()}

    async with store, running(store, 3, poll_interval=0.02, base_retry_delay=0.001):
        for func in (returns, raises, unserializable):
            await ended(store, await store.enqueue(Task(bodies(func), max_retries=1)))
    assert secret not in logs.everything()


async def test_a_spoilt_payload_is_not_quoted(bodies: Bodies, logs: Logs) -> None:
    from omniq.task import StoredTask

    secret = b"correct-horse-battery"
    async with Memory() as store, running(store):
        stored = StoredTask("json.dumps", b"\x01m\x00" + secret)
        await store.enqueue(stored)
        result = await ended(store, stored.id)
    assert result.error is not None
    assert secret.decode() not in result.error.message
    assert secret.decode() not in logs.everything()


class Breaks(Memory):
    """An engine with a bug that shows when it is told what became of a task."""

    async def exchange(self, settlements: Any, claim: Any = None) -> Any:
        if settlements:
            raise ZeroDivisionError("a bug in the engine")
        return await super().exchange(settlements, claim)


async def test_a_bug_in_the_engine_shows_no_arguments(logs: Logs) -> None:
    """S12: loguru can show the values of variables beside a traceback; tasks are among them."""
    secret = "swordfish-swordfish"
    async with Breaks() as store:
        await store.enqueue(Task("json.dumps", (secret,), {"sort_keys": secret}))
        pool = AsyncWorkerPool(store)
        await pool.start()
        with pytest.raises(ZeroDivisionError):
            await pool.wait()
        with pytest.raises(ZeroDivisionError):
            await pool.stop()
    assert secret not in logs.everything()


class UpkeepBreaks(Memory):
    async def renew(self, worker: str, lease: float, holding: Any = ()) -> Any:
        tasks = await self.list_tasks()
        raise ZeroDivisionError(len(tasks), "tasks, and a bug")


async def test_a_bug_in_the_upkeep_shows_no_arguments(bodies: Bodies, logs: Logs) -> None:
    secret = "swordfish-swordfish"

    async def body(password: str) -> None:
        await asyncio.Event().wait()

    clock = VirtualClock()
    async with UpkeepBreaks(clock=clock) as store:
        await store.enqueue(Task(bodies(body), (secret,)))
        pool = AsyncWorkerPool(store, clock=clock, lease=3)
        await pool.start()
        await clock.advance(2)
        await pool.stop(cancel_in_flight=True)
    assert logs.lines("ERROR")
    assert secret not in logs.everything()


async def test_a_task_is_named_by_its_id(builtin: AnyStore, logs: Logs) -> None:
    """Whoever looks for one task finds all that happened to it."""
    async with builtin as store, running(store, poll_interval=0.02):
        task_id = await store.enqueue(Task("json.dumps", (1,)))
        await ended(store, task_id)
        await asyncio.sleep(0)
    about = [line for line in logs.lines() if task_id in line]
    assert [line.split()[0] for line in about] == ["started", "succeeded"]
