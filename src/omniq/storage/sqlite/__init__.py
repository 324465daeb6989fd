"""The embedded default: one SQLite file, several processes, no server."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from loguru import logger

from omniq.clock import REAL_CLOCK, Clock, wait_for_event
from omniq.errors import InvalidOption
from omniq.storage.base import Capabilities
from omniq.storage.embedded import Bell, EmbeddedStorage
from omniq.storage.rows import Rows
from omniq.storage.sqlite.beside import Ear, Kind
from omniq.storage.sqlite.engine import Durability, Engine, Job, explained
from omniq.storage.sqlite.rows import SQLiteRows
from omniq.task import Enqueued, OnConflict, StoredTask, shown

T = TypeVar("T")
# Where no socket can be made: how often to look whether the file has changed.
LOOK_EVERY_S: Final = 0.1
# After an enqueue on the application's own connection: how long to look for its commit.
WATCH_COMMIT_S: Final = 10.0
WATCH_EVERY_S: Final = 0.005

_engines: dict[tuple[int, str], Engine] = {}
_engines_lock = threading.Lock()


class SQLiteStorage(EmbeddedStorage):
    """Tasks in a SQLite file. `durability="relaxed"` may lose the last moments when the power fails."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        batched=True, leases=True, wakes=True, joins=True, durable=True
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "fsync",
        clock: Clock = REAL_CLOCK,
    ) -> None:
        super().__init__()
        if durability not in ("fsync", "relaxed"):
            raise InvalidOption(f"durability must be 'fsync' or 'relaxed', not {durability!r}")
        if not str(path) or "\x00" in str(path):
            raise InvalidOption(f"{shown(str(path))} is no path; write SQLiteStorage('jobs.db')")
        self.path = Path(path).expanduser().absolute()
        self.durability: Durability = durability
        self.clock = clock
        self._engine: Engine | None = None
        self._ears: dict[Kind, Ear] = {}
        self._commit_watch: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"SQLiteStorage({str(self.path)!r})"

    def clone(self) -> SQLiteStorage:
        return self._like(SQLiteStorage(self.path, durability=self.durability, clock=self.clock))

    async def _connect(self) -> None:
        self._engine = await asyncio.get_running_loop().run_in_executor(None, self._share_engine)
        self._listen()

    def _share_engine(self) -> Engine:
        key = (os.getpid(), os.path.realpath(self.path))
        with _engines_lock:
            engine = _engines.get(key)
            if engine is None:
                engine = _engines[key] = Engine(self.path, self.clock, self.durability)
            engine.users += 1
            return engine

    async def _disconnect(self) -> None:
        if self._commit_watch is not None:
            self._commit_watch.cancel()
            await asyncio.gather(self._commit_watch, return_exceptions=True)
        await self._stop_listening()
        for ear in self._ears.values():
            ear.close()
        self._ears.clear()
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._leave_engine, engine)

    @staticmethod
    def _leave_engine(engine: Engine) -> None:
        with _engines_lock:
            engine.users -= 1
            if engine.users:
                return
            for key, known in list(_engines.items()):
                if known is engine:
                    del _engines[key]
            engine.close()

    def _bell(self) -> Bell:
        assert self._engine is not None
        return self._engine.bell

    # --- jobs ------------------------------------------------------------------------------------

    async def _write(self, job: Callable[[Rows], T]) -> T:
        assert self._engine is not None
        sent = Job(job, (self.result_ttl_s, self.failed_ttl_s))
        self._engine.write(sent)
        answer: T = await sent.future
        return answer

    async def _read(self, job: Callable[[Rows], T]) -> T:
        assert self._engine is not None
        sent = Job(job, (self.result_ttl_s, self.failed_ttl_s))
        self._engine.read(sent)
        answer: T = await sent.future
        return answer

    async def _enqueue(self, stored: list[StoredTask], on_conflict: OnConflict) -> list[Enqueued]:
        assert self._engine is not None
        job = Job(
            lambda rows: rows.enqueue_many(stored, on_conflict),
            (self.result_ttl_s, self.failed_ttl_s),
            stored,
        )
        self._engine.write(job)
        enqueued: list[Enqueued] = await job.future
        return enqueued

    async def lapse(self, limit: int = 100) -> int:
        """Takes the write lock only when there is something to do: this is asked often."""
        if not await self._look(_anything_over):
            return 0
        return await super().lapse(limit)

    async def migrate(self) -> None:
        """Opening makes and checks the schema; there is nothing else to do yet."""
        await self.open()

    # --- waiting ---------------------------------------------------------------------------------

    async def wait(self, timeout: float) -> bool:
        await self.open()
        assert self._listener is not None
        ear = self._ear("due")
        if ear is None:
            return await self._wait_looking(timeout)
        with ear.listening(self._listener.due.set):
            return await super().wait(timeout)

    def _ear(self, kind: Kind) -> Ear | None:
        assert self._engine is not None
        if kind not in self._ears and self._engine.beside.usable:
            try:
                self._ears[kind] = Ear(self._engine.beside, kind)
            except OSError as exc:
                logger.warning("no wake-up socket in {}: {}", self._engine.beside.folder, exc)
                self._engine.beside.usable = False
        return self._ears.get(kind)

    async def _wait_looking(self, timeout: float) -> bool:
        """Without a socket: a cheap look at the file's change counter now and then."""
        assert self._listener is not None
        until = self.clock.monotonic() + timeout
        before = await self._read(_data_version)
        while (left := until - self.clock.monotonic()) > 0:
            if await super().wait(min(left, LOOK_EVERY_S)):
                return True
            if await self._read(_data_version) != before:
                return True
        return False

    async def _watch_results(self) -> None:
        assert self._listener is not None
        ear = self._ear("result")
        if ear is None:
            await super()._watch_results()
            return
        with ear.listening(self._listener.result.set):
            await super()._watch_results()

    # --- the application's own transaction -------------------------------------------------------

    async def _enqueue_on(
        self, conn: Any, stored: list[StoredTask], on_conflict: OnConflict
    ) -> list[Enqueued]:
        """Insert on the caller's connection: seen when they commit, never if they roll back."""
        assert self._engine is not None
        if not isinstance(conn, sqlite3.Connection):
            raise InvalidOption(
                f"conn must be a sqlite3.Connection to {self.path}, not {type(conn).__name__}"
            )
        self._check_same_file(conn)
        if not conn.in_transaction:
            conn.execute("BEGIN IMMEDIATE")
        rows = SQLiteRows(conn, self.clock, self._engine.beside, self._engine.boot)
        factory, conn.row_factory = conn.row_factory, None
        try:
            enqueued = rows.enqueue_many(stored, on_conflict)
        except sqlite3.Error as exc:
            raise explained(exc, self.path) from exc
        finally:
            conn.row_factory = factory
        if self._commit_watch is None or self._commit_watch.done():
            self._commit_watch = asyncio.create_task(self._wake_after_commit(), name="omniq-commit-watch")
        return enqueued

    def _check_same_file(self, conn: sqlite3.Connection) -> None:
        main = next(file for _, name, file in conn.execute("PRAGMA database_list") if name == "main")
        if not main or not os.path.samefile(main, self.path):
            raise InvalidOption(
                f"conn is open on {main or 'a temporary database'}, but this storage is {self.path}; "
                "both must be the same file to share a transaction"
            )

    async def _wake_after_commit(self) -> None:
        """Their commit rings no bell, so look for it a while and ring it for them."""
        assert self._engine is not None
        before = await self._read(_data_version)
        never = asyncio.Event()
        for _ in range(round(WATCH_COMMIT_S / WATCH_EVERY_S)):
            await wait_for_event(REAL_CLOCK, never, WATCH_EVERY_S)
            if await self._read(_data_version) != before:
                self._engine.ring(due=True, result=False)
                return


def _anything_over(rows: Rows) -> bool:
    assert isinstance(rows, SQLiteRows)
    return rows.anything_over()


def _data_version(rows: Rows) -> int:
    assert isinstance(rows, SQLiteRows)
    [version] = rows.conn.execute("PRAGMA data_version").fetchone()
    assert isinstance(version, int)
    return version
