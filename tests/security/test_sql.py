"""S6: no text that somebody passes in is ever part of a statement; it is bound, or refused."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omniq import AsyncWorkerPool, Task
from omniq.errors import InvalidOption, OmniqError
from omniq.storage import SQLiteStorage
from omniq.task import Claim, Held, Settlement, TaskError, TaskFilter, TaskResult, TaskStatus, WorkerInfo
from tests.faults.statements import TABLES

MARK = "Zq"  # no statement of the store has this in it, every nasty text has
BOOM = TaskError("ValueError", "boom")

NASTY = [
    "'; DROP TABLE omniq_task; --",
    '"; DROP TABLE omniq_task; --',
    "'' OR 1=1",
    "\\'; DELETE FROM omniq_task; --",
    "?1",
    ":name",
    "@p",
    "$p",
    "%s",
    "%' AND '%'='",
    "*",
    "a\x00b",
    "\u202e\u2066",
    "\ud800",
    "x" * 65536,
    "\r\nCOMMIT;",
    "/* */",
    "`x`",
    "[x]",
    "NULL",
    "😀",
    "",
]

texts = st.one_of(st.sampled_from(NASTY), st.text(max_size=50)).map(lambda text: MARK + text)

Call = Callable[[SQLiteStorage, str], Awaitable[Any]]

# Every public verb of a storage with text in it, one call per text argument.
CALLS: dict[str, Call] = {
    "enqueue func_path": lambda s, t: s.enqueue(Task(t)),
    "enqueue id": lambda s, t: s.enqueue(Task("a.b", id=t)),
    "enqueue queue": lambda s, t: s.enqueue(Task("a.b", queue=t)),
    "enqueue unique_key": lambda s, t: s.enqueue(Task("a.b", unique_key=t)),
    "enqueue key twice": lambda s, t: s.enqueue_many([Task("a.b", unique_key=t), Task("a.b", unique_key=t)]),
    "enqueue args": lambda s, t: s.enqueue(Task("a.b", (t,), {"k": [t]})),
    "enqueue kwargs": lambda s, t: s.enqueue(Task("a.b", (), {t: 1})),
    "enqueue headers": lambda s, t: s.enqueue(Task("a.b", headers={t: t})),
    "enqueue on_failure": lambda s, t: s.enqueue(Task("a.b", on_failure=t)),  # type: ignore[arg-type]
    "enqueue on_conflict": lambda s, t: s.enqueue_many([Task("a.b")], on_conflict=t),  # type: ignore[arg-type]
    "claim worker": lambda s, t: s.claim(t),
    "claim queues": lambda s, t: s.claim("ann", ["default", t]),
    "claim id": lambda s, t: s.exchange((), Claim("ann", None, 1, 30.0, t)),
    "settle id": lambda s, t: s.settle([Settlement.give_back(Held(t, 1))]),
    "settle success": lambda s, t: s.settle([Settlement.success(Held(t, 1), b"")]),
    "settle error": lambda s, t: s.settle([Settlement.failed(Held("run", 1), TaskError(t, t, t))]),
    "renew": lambda s, t: s.renew(t, 30.0, [Held(t, 1)]),
    "held": lambda s, t: s.held(t),
    "release": lambda s, t: s.release(t),
    "progress": lambda s, t: s.progress(t, 1, 5),
    "cancel": lambda s, t: s.cancel(t),
    "retry": lambda s, t: s.retry(t),
    "reschedule": lambda s, t: s.reschedule(t, datetime.now(UTC)),
    "delete": lambda s, t: s.delete(t),
    "pause": lambda s, t: s.pause(t),
    "resume": lambda s, t: s.resume(t),
    "beat": lambda s, t: s.beat(WorkerInfo(t, t, t, 1, (t,), functions=(t,))),
    "leave": lambda s, t: s.leave(t),
    "get_task": lambda s, t: s.get_task(t),
    "get_result": lambda s, t: s.get_result(t),
    "wait_result": lambda s, t: s.wait_result(t, 0.001),
    "history": lambda s, t: s.history(t),
    "list queue": lambda s, t: s.list_tasks(TaskFilter(queue=t)),
    "list func_path": lambda s, t: s.list_tasks(TaskFilter(func_path=t)),
    "list unique_key": lambda s, t: s.list_tasks(TaskFilter(unique_key=t)),
    "list after": lambda s, t: s.list_tasks(after=t),
    "mark_running": lambda s, t: s.mark_running(t),
    "mark_done": lambda s, t: s.mark_done(t, TaskResult(t, TaskStatus.SUCCESS, t)),
    "mark_failed": lambda s, t: s.mark_failed(t, t),
}


@contextmanager
def statements(storage: SQLiteStorage) -> Iterator[list[str]]:
    """The text of every statement as it was written, before anything is bound to it."""
    seen: list[str] = []
    engine = storage._engine
    assert engine is not None

    class Noting:
        """Passes everything on, and keeps the templates."""

        def __init__(self, conn: Any) -> None:
            self._conn = conn

        def execute(self, sql: str, parameters: Any = ()) -> Any:
            seen.append(sql)
            return self._conn.execute(sql, parameters)

        def executemany(self, sql: str, parameters: Any) -> Any:
            seen.append(sql)
            return self._conn.executemany(sql, parameters)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._conn, name)

    places = [
        (engine, "_writer"),
        (engine, "_reader"),
        (engine._write_rows, "conn"),
        (engine._read_rows, "conn"),
    ]
    real = [(owner, name, getattr(owner, name)) for owner, name in places]
    for owner, name, conn in real:
        setattr(owner, name, Noting(conn))
    try:
        yield seen
    finally:
        for owner, name, conn in real:
            setattr(owner, name, conn)


def tables(database: Path) -> set[str]:
    conn = sqlite3.connect(database)
    try:
        return {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    finally:
        conn.close()


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(some=st.lists(texts, min_size=1, max_size=30))
async def test_s6_no_text_becomes_part_of_a_statement(tmp_path: Path, name: str, some: list[str]) -> None:
    call = CALLS[name]
    database = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"
    async with SQLiteStorage(database, durability="relaxed") as storage:
        await storage.enqueue(Task("a.b", id="run"))
        await storage.claim("ann")
        with statements(storage) as seen:
            for text in [*some, *(MARK + nasty for nasty in NASTY)]:
                try:
                    async with asyncio.timeout(10):
                        await call(storage, text)
                except OmniqError:
                    continue  # refused in words of our own: as good as bound
        assert not [sql for sql in seen if MARK in sql]
        assert await storage.verify() == []
    assert tables(database) >= set(TABLES)


@pytest.mark.parametrize("name", NASTY)
async def test_s6_a_hostile_queue_name_is_refused_everywhere(database: Path, name: str) -> None:
    async with SQLiteStorage(database) as storage:
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: storage.enqueue(Task("a.b", queue=name)),
            lambda: storage.claim("ann", [name]),
            lambda: storage.pause(name),
            lambda: storage.resume(name),
        ]
        for call in calls:
            if name == "NULL":
                continue  # a fine name for a queue
            with pytest.raises(InvalidOption):
                await call()
        if name != "NULL":
            with pytest.raises(InvalidOption):
                AsyncWorkerPool(storage, queues=[name])
        assert tables(database) >= set(TABLES)


async def test_s6_a_queue_called_null_is_a_queue(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        await storage.enqueue(Task("a.b", queue="NULL"))
        [claim] = await storage.claim("ann", ["NULL"])
        assert claim.queue == "NULL"
