"""Stored bytes that are wrong or too many: the task fails at once, worker and bytes stay (F25, S5)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omniq import PayloadTooLarge, Task, TaskStatus
from omniq.serializer import CloudpickleSerializer, MsgpackSerializer
from omniq.task import StoredTask
from tests.worker.scene import Bodies, ended, running
from tests.worker.stores import AnyStore, Five, Memory, SQLite, task_of

GOOD = MsgpackSerializer().dump_call(None, ("some", "arguments"), {})
SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "first byte flipped": lambda p: bytes([p[0] ^ 0xFF]) + p[1:],
    "version of the future": lambda p: bytes([p[0] + 1]) + p[1:],
    "unknown codec": lambda p: p[:1] + b"?" + p[2:],
    "signed": lambda p: p[:2] + b"\x20" + p[3:],
    "cut off": lambda p: p[:-3],
    "cut to nothing": lambda p: b"",
    "no call": lambda p: MsgpackSerializer().dumps(7),
    "garbage": lambda p: b"\x00\x01\x02garbage",
    "goes on": lambda p: p + b"\x00",
    "code": lambda p: CloudpickleSerializer().dump_call(None, (), {}),
}


@pytest.mark.parametrize("kind", SPOILT)
async def test_a_spoilt_payload_fails_at_once(builtin: AnyStore, bodies: Bodies, kind: str) -> None:
    """F25: kind `undecodable`, no retry, the bytes as they were, and the neighbours run."""
    ran: list[Any] = []
    path = bodies(lambda *args: ran.append(args), "body")
    payload = SPOILT[kind](GOOD)
    async with builtin as store:
        assert not isinstance(store, Five)
        bad = StoredTask(path, payload, max_retries=5)
        await store.enqueue_many([Task(path, ("before",)), bad, Task(path, ("after",))])
        async with running(store, 1, poll_interval=0.05) as pool:
            result = await ended(store, bad.id)
            await ended(store, (await store.list_tasks())[0].id)
            assert pool.running
        assert result.status is TaskStatus.FAILED
        assert result.error is not None
        assert result.error.kind == "undecodable"
        task = await task_of(store, bad.id)
        assert task.attempts == 1
        [shown] = task.args
        assert shown.payload == payload, "the bytes must be kept"
    assert ran == [("before",), ("after",)]


async def test_spoilt_in_the_file(tmp_path: Path, bodies: Bodies) -> None:
    """F25: bytes changed behind OmniQ's back."""
    path = bodies(lambda x: x, "body")
    async with SQLite(tmp_path / "jobs.db") as store:
        bad = await store.enqueue(Task(path, ("x",), max_retries=3))
    with sqlite3.connect(tmp_path / "jobs.db") as conn:
        changed = conn.execute("UPDATE omniq_task SET payload = ?", (b"\xff" * 20,)).rowcount
        assert changed == 1
    conn.close()
    async with SQLite(tmp_path / "jobs.db") as store, running(store, poll_interval=0.05):
        good = await store.enqueue(Task(path, ("y",)))
        assert (await ended(store, bad)).status is TaskStatus.FAILED
        assert (await ended(store, good)).result == "y"


# --- too large -----------------------------------------------------------------------------------


async def test_refused_at_enqueue(builtin: AnyStore) -> None:
    """S5: over 1 MiB, with nothing stored, saying what to do instead."""
    async with builtin as store:
        assert not isinstance(store, Five)
        with pytest.raises(PayloadTooLarge, match="pass a key"):
            await store.enqueue(Task("json.dumps", ("x" * (1 << 20),)))
        await store.enqueue(Task("json.dumps", ("x" * ((1 << 20) - 100),)))
        assert len(await store.list_tasks()) == 1


async def test_refused_at_claim(builtin: AnyStore, bodies: Bodies) -> None:
    """S5: what a store with a larger limit took in is not decoded by a worker with a smaller one."""
    ran: list[int] = []
    async with builtin as store:
        assert not isinstance(store, Five)
        store.max_payload = 10_000
        task_id = await store.enqueue(Task(bodies(lambda x: ran.append(1), "body"), ("x" * 5000,)))
        store.max_payload = 1000
        async with running(store, poll_interval=0.05):
            error = (await ended(store, task_id)).error
    assert error is not None
    assert error.kind == "undecodable"
    assert "1,000" in error.message
    assert ran == []


async def test_a_result_over_the_limit_is_a_failure(builtin: AnyStore, bodies: Bodies) -> None:
    async with builtin as store, running(store, poll_interval=0.05):
        path = bodies(lambda: "x" * (2 << 20), "body")
        error = (await ended(store, await store.enqueue(Task(path, max_retries=0)))).error
    assert error is not None
    assert error.kind == "unserializable"
    assert "store it elsewhere" in error.message


async def test_deep_and_long_values_from_hostile_bytes(bodies: Bodies) -> None:
    """S5: nesting without end and numbers without end are refused, not run out of stack."""
    import msgspec

    deep = MsgpackSerializer().dumps(1)[:3] + b"\x92\x91" + b"\x91" * 100_000 + b"\x01\x80"
    json_head = b"\x01j\x00"
    hostile = [
        deep,
        json_head + b"[" * 200_000,
        json_head + msgspec.json.encode([["x"], {}])[:-1],
        json_head + b"[[" + b"9" * 500_000 + b"],{}]",
    ]
    path = bodies(lambda x: str(type(x)), "body")
    async with Memory() as store, running(store, poll_interval=0.05) as pool:
        for payload in hostile:
            stored = StoredTask(path, payload, max_retries=0)
            await store.enqueue(stored)
            assert (await ended(store, stored.id)).status is TaskStatus.FAILED
        assert pool.running
