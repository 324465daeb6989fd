"""What `omniq doctor` asks a store."""

from __future__ import annotations

import platform as python_platform
import sqlite3
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from msgspec import Struct

import omniq
from omniq.cli.output import ago
from omniq.cli.text import masked
from omniq.errors import OmniqError
from omniq.storage.base import BaseStorage
from omniq.storage.sqlite import SQLiteStorage
from omniq.storage.sqlite.beside import Beside
from omniq.task import Task, TaskFilter, TaskStatus, WorkerInfo

Level = Literal["ok", "note", "warning", "problem"]
# Between these, a checkpoint that meets another connection's restart of the log can corrupt the file.
WAL_RESET_FROM: Final = (3, 7, 0)
WAL_RESET_TO: Final = (3, 51, 2)
STALE_AFTER: Final = timedelta(seconds=60)
CLOCK_SLACK: Final = timedelta(seconds=2)
MAX_RUNNING: Final = 1000
MAX_LINES: Final = 20


class Finding(Struct, frozen=True):
    level: Level
    about: str
    text: str


def platform(storage: BaseStorage) -> Iterator[Finding]:
    yield Finding("ok", "store", masked(repr(storage)))
    yield Finding("ok", "python", f"{python_platform.python_version()}, OmniQ {omniq.__version__}")


async def examine(storage: BaseStorage) -> list[Finding]:
    """Everything that the store itself can say; one that cannot be opened says why."""
    try:
        async with storage:
            return [finding async for finding in _examine(storage)]
    except OmniqError as exc:
        return [Finding("problem", "store", str(exc))]


async def _examine(storage: BaseStorage) -> AsyncIterator[Finding]:
    workers = await storage.workers()
    beside = Beside(storage.path) if isinstance(storage, SQLiteStorage) else None
    try:
        if isinstance(storage, SQLiteStorage):
            yield wal_reset(sqlite3.sqlite_version_info, len({(w.host, w.pid) for w in workers}))
        vitals = getattr(storage, "vitals", None)  # a store on a server; its driver may not be installed here
        if vitals is not None:
            from omniq.cli.examine_postgres import examine_server

            for finding in examine_server(await vitals()):
                yield finding
        for finding in (*_data(await storage.verify()), *_workers(workers, beside)):
            yield finding
        yield _clock(await _newest(storage, workers), datetime.now(UTC))
        async for finding in _running(storage, beside):
            yield finding
    finally:
        if beside is not None:
            beside.close()


def wal_reset(version: tuple[int, ...], processes: int) -> Finding:
    name = f"SQLite {'.'.join(map(str, version))}"
    if not WAL_RESET_FROM <= version <= WAL_RESET_TO:
        return Finding("ok", "sqlite", name)
    text = (
        f"{name} can damage a file when one connection checkpoints while another restarts the log (fixed in "
        f"3.51.3). OmniQ checkpoints only under the write lock; let no other program checkpoint this file"
    )
    if processes > 1:
        return Finding("warning", "sqlite", f"{text}, or upgrade: {processes} processes work on it")
    return Finding("note", "sqlite", text)


def _data(wrong: list[str]) -> Iterator[Finding]:
    if not wrong:
        yield Finding("ok", "data", "what is stored makes sense, and every rule about tasks holds")
    for line in wrong[:MAX_LINES]:
        yield Finding("problem", "data", line)
    if len(wrong) > MAX_LINES:
        yield Finding("problem", "data", f"and {len(wrong) - MAX_LINES} more")


def _workers(workers: list[WorkerInfo], beside: Beside | None) -> Iterator[Finding]:
    if not workers:
        yield Finding("note", "workers", "none has registered; start one with `omniq worker MODULE:APP`")
    for worker in workers:
        queues = "all queues" if worker.queues is None else f"queues {', '.join(worker.queues)}"
        text = f"{worker.id}: {worker.in_flight} of {worker.concurrency} slots busy, {queues}"
        if _is_gone(worker, beside):
            yield Finding("warning", "workers", f"{worker.id} is gone, last seen {ago(worker.seen_at)}")
        else:
            yield Finding("ok", "workers", f"{text}, seen {ago(worker.seen_at)}")


def _is_gone(worker: WorkerInfo, beside: Beside | None) -> bool:
    if beside is not None and beside.is_held(worker.id):
        return False
    if beside is not None and beside.is_dead(worker.id):
        return True
    return worker.seen_at is None or datetime.now(UTC) - worker.seen_at > STALE_AFTER


async def _newest(storage: BaseStorage, workers: list[WorkerInfo]) -> datetime | None:
    """The latest moment that anybody has written down."""
    tasks = await storage.list_tasks(limit=1)
    moments = [task.enqueued_at for task in tasks] + [worker.seen_at for worker in workers]
    return max((moment for moment in moments if moment is not None), default=None)


def _clock(newest: datetime | None, now: datetime) -> Finding:
    if newest is None or newest <= now + CLOCK_SLACK:
        return Finding("ok", "clock", f"{now.isoformat(sep=' ', timespec='seconds')}")
    ahead_s = (newest - now).total_seconds()
    return Finding(
        "warning", "clock", f"something was written {ahead_s:.0f} s from now: this clock was set back, "
        "and tasks with an eta come late by as much"
    )  # fmt: skip


async def _running(storage: BaseStorage, beside: Beside | None) -> AsyncIterator[Finding]:
    tasks = await storage.list_tasks(TaskFilter(status=TaskStatus.RUNNING), limit=MAX_RUNNING)
    if not tasks:
        yield Finding("ok", "running", "nothing")
    by_owner: dict[str, list[Task]] = {}
    for task in tasks:
        by_owner.setdefault(task.owner or "nobody", []).append(task)
    for owner, held in by_owner.items():
        oldest = min(held, key=lambda task: task.started_at or datetime.now(UTC))
        text = f"{len(held)} by {owner}; {oldest.id} ({oldest.func_path}) started {ago(oldest.started_at)}"
        if beside is not None and beside.is_dead(owner):
            yield Finding("warning", "running", f"{text}; that worker is gone, any other takes them over")
        else:
            yield Finding("ok", "running", text)
