"""The embedded default: one SQLite file, several processes, no server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeVar
from urllib.parse import quote

from loguru import logger

from omniq.clock import REAL_CLOCK, Clock, wait_for_event
from omniq.errors import InvalidOption, StoreUnavailable
from omniq.storage.base import Capabilities, Claimed
from omniq.storage.embedded import EmbeddedStorage, check_claim
from omniq.storage.ringing import Bell
from omniq.storage.rows import Rows
from omniq.storage.sqlite.beside import Ear, Kind
from omniq.storage.sqlite.engine import Durability, Engine, Version
from omniq.storage.sqlite.failures import explained_to_caller
from omniq.storage.sqlite.jobs import AwaitedJob, BlockingJob
from omniq.storage.sqlite.records import Retention, text_or_bytes
from omniq.storage.sqlite.rows import SQLiteRows
from omniq.task import Answer, Claim, Enqueued, OnConflict, Settlement, StoredTask, count, shown

T = TypeVar("T")
# Where no socket can be made: how often to look whether the file has changed.
LOOK_EVERY_S: Final = 0.1
# After an enqueue on the application's own connection: how often and how long to look for its commit.
WATCH_COMMIT_S: Final = 10.0
FIRST_WATCH_S: Final = 0.002
LONGEST_WATCH_S: Final = 0.05

_engines: dict[str, Engine] = {}
_engines_lock = threading.RLock()  # a signal handler may fork while its own thread has it


def _before_fork() -> None:
    """SQLite's locks belong to a process and are remembered in memory: a fork must find none of them."""
    _engines_lock.acquire()
    for engine in _engines.values():
        engine.disconnect()


def _after_fork_in_parent() -> None:
    for engine in _engines.values():
        engine.reconnect()
    _engines_lock.release()


def _after_fork_in_child() -> None:
    global _engines_lock  # noqa: PLW0603 - the parent's threads, which could release it, are not here
    _engines_lock = threading.RLock()
    for engine in _engines.values():
        engine.leave_to_parent()
    _engines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


def _wish(claim: Claim) -> tuple[object, ...]:
    """What of a claim decides whether there is anything for it."""
    return (claim.queues, claim.scarce, claim.scarce_limit)


class _Nothing(NamedTuple):
    """A claim that nothing was due for. While nobody writes, only time can change that."""

    version: Version | None
    wish: tuple[object, ...]
    found_at: datetime
    next_due: datetime | None

    def still_holds(self, version: Version | None, claim: Claim, now: datetime) -> bool:
        # Before `found_at` the wall clock was set back, and what is due then only a claim knows.
        return (
            version is not None
            and (version, _wish(claim)) == (self.version, self.wish)
            and now >= self.found_at
            and (self.next_due is None or now < self.next_due)
        )


class SQLiteStorage(EmbeddedStorage):
    """Tasks in a SQLite file. `durability="relaxed"` may lose the last moments when the power fails."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        batched=True, leases=True, wakes=True, joins=True, durable=True, here=True
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
            raise InvalidOption(f"durability must be 'fsync' or 'relaxed', not {shown(durability)}")
        if not isinstance(path, str | os.PathLike) or not str(path) or "\x00" in str(path):
            raise InvalidOption(f"{shown(path)} is no path; write SQLiteStorage('jobs.db')")
        if str(path) == ":memory:":  # a file of that name would stay behind, and be found again next time
            raise InvalidOption("a store in memory is MemoryStorage(), or memory:// as an address")
        self.path = Path(path).expanduser().absolute()
        self.durability: Durability = durability
        self.clock = clock
        self._retention = Retention(self.result_ttl_s, self.failed_ttl_s)
        self._engine: Engine | None = None
        self._ears: dict[Kind, Ear] = {}
        self._version_at_claim: Version | None = None
        self._nothing: _Nothing | None = None
        self._commit_watches: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"sqlite:///{quote(str(self.path))}"

    def __repr__(self) -> str:
        return f"SQLiteStorage({str(self.path)!r})"

    def clone(self) -> SQLiteStorage:
        twin = SQLiteStorage(self.path, durability=self.durability, clock=self.clock)
        self._give_settings(twin)
        return twin

    def keep_results(self, result_ttl_s: float, failed_ttl_s: float) -> None:
        super().keep_results(result_ttl_s, failed_ttl_s)
        self._retention = Retention(result_ttl_s, failed_ttl_s)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        # Opening cannot be stopped half-way. Whoever of the two is first says who has the engine: the opener,
        # or nobody, because the caller was cancelled; then it is given back.
        owner: dict[str, Engine | None] = {}

        def share() -> Engine:
            engine = self._share_engine()
            if owner.setdefault("engine", engine) is None:
                self._leave_engine(engine)
            return engine

        try:
            self._engine = await loop.run_in_executor(None, share)
        except asyncio.CancelledError:
            if (engine := owner.setdefault("engine", None)) is not None:
                _ = loop.run_in_executor(None, self._leave_engine, engine)
            raise
        self._listen()

    def _share_engine(self) -> Engine:
        key = os.path.realpath(self.path)
        with _engines_lock:
            engine = _engines.get(key)
            if engine is None:
                engine = _engines[key] = Engine(self.path, self.clock, self.durability)
            engine.demand(self.durability)
            engine.users += 1
            return engine

    async def _disconnect(self) -> None:
        for watch in self._commit_watches:
            watch.cancel()
        await asyncio.gather(*self._commit_watches, return_exceptions=True)
        await self._stop_listening()
        self._close_ears()
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._leave_engine, engine)

    def abandon(self) -> None:
        super().abandon()
        self._close_ears()
        engine, self._engine = self._engine, None
        if engine is not None:
            self._leave_engine(engine)

    def _close_ears(self) -> None:
        for ear in self._ears.values():
            ear.close()
        self._ears.clear()

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
        sent = AwaitedJob(job, self._retention)
        self._engine.write(sent)
        answer: T = await sent.future
        return answer

    def _write_here(self, job: Callable[[Rows], T], tasks: list[StoredTask]) -> T:
        engine = self._engine
        if engine is None:
            raise StoreUnavailable(f"{self.path} was closed")
        sent = BlockingJob(job, self._retention, tasks)
        answer: T = engine.write_here(sent)
        return answer

    async def _read(self, job: Callable[[Rows], T]) -> T:
        assert self._engine is not None
        sent = AwaitedJob(job, self._retention)
        if self.alone_on_loop and self._engine.read_here(sent):
            sent.deliver()
        else:
            self._engine.read(sent)
        answer: T = await sent.future
        return answer

    def _enqueue(self, stored: list[StoredTask], on_conflict: OnConflict) -> Awaitable[list[Enqueued]]:
        assert self._engine is not None
        job = AwaitedJob(lambda rows: rows.enqueue_many(stored, on_conflict), self._retention, stored)
        self._engine.write(job)
        return job.future

    async def lapse(self, limit: int = 100) -> int:
        """Takes the write lock only when there is something to do: this is asked often."""
        count(limit, "limit", least=1)
        if not await self._look(_anything_over):
            return 0
        return await super().lapse(limit)

    async def migrate(self) -> None:
        """Opening makes and checks the schema; there is nothing else to do yet."""
        await self.open()

    # --- waiting ---------------------------------------------------------------------------------

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Answer], list[Claimed]]:
        if claim is None:
            return await super().exchange(settlements, claim)
        check_claim(claim)
        await self.open()
        assert self._listener is not None
        before, self._nothing = self._nothing, None
        is_poll = not settlements and not self._listener.due.rung
        version, now = self._begin_look(is_poll), self._wall()
        if is_poll and before is not None and before.still_holds(version, claim, now):
            self._nothing = before
            return [], []
        answers, claims = await super().exchange(settlements, claim)
        if is_poll and not claims:
            self._nothing = _Nothing(version, _wish(claim), now, self._next_due)
        return answers, claims

    def _begin_look(self, is_poll: bool) -> Version | None:
        """From now on whatever comes up rings; the file's version before that, where somebody will ask."""
        assert self._listener is not None and self._engine is not None
        self._listener.due.clear()
        ear = self._ear("due")
        if ear is not None:
            ear.drain()
        self._version_at_claim = self._engine.version() if is_poll or ear is None else None
        return self._version_at_claim

    async def wait(self, timeout: float) -> bool:
        await self.open()
        assert self._listener is not None
        ear = self._ear("due")
        if ear is None:
            return await self._wait_looking(timeout)
        with ear.listening(self._listener.due.ring):
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
        until = self.clock.monotonic() + timeout
        assert self._engine is not None
        before = self._version_at_claim
        while (left := until - self.clock.monotonic()) > 0:
            if await super().wait(min(left, LOOK_EVERY_S)):
                return True
            if self._engine.version() != before:
                return True
        return False

    def _listening_for_results(self) -> contextlib.AbstractContextManager[object]:
        assert self._listener is not None
        ear = self._ear("result")
        return contextlib.nullcontext() if ear is None else ear.listening(self._listener.result.ring)

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
        factories, ours = (conn.row_factory, conn.text_factory), False
        try:
            conn.row_factory, conn.text_factory = None, text_or_bytes
            self._check_same_file(conn)
            if not conn.in_transaction:
                _check_begins(conn)
                ours = True
                conn.execute("BEGIN IMMEDIATE")
            conn.execute("SAVEPOINT omniq_enqueue")
            rows = SQLiteRows(conn, self.clock, self._engine.beside, self._engine.boot)
            enqueued = rows.enqueue_many(stored, on_conflict)
            rows.write_tallies()
            conn.execute("RELEASE omniq_enqueue")
        except BaseException as exc:
            with contextlib.suppress(sqlite3.Error):
                if ours:  # a transaction of ours must not stay open where theirs never began
                    conn.rollback()
                else:  # whoever catches this and commits must not commit a part of it
                    conn.execute("ROLLBACK TO omniq_enqueue")
                    conn.execute("RELEASE omniq_enqueue")
            if isinstance(exc, sqlite3.ProgrammingError):
                raise InvalidOption(f"conn cannot be used here: {exc}") from exc
            if isinstance(exc, sqlite3.Error):
                raise explained_to_caller(exc, self.path) from exc
            raise
        finally:
            conn.row_factory, conn.text_factory = factories
        self._watch_commit([str(one) for one in enqueued if one.created])
        return enqueued

    def _watch_commit(self, ids: list[str]) -> None:
        if ids:
            watch = asyncio.create_task(self.announce(ids), name="omniq-commit-watch")
            self._commit_watches.add(watch)
            watch.add_done_callback(self._commit_watches.discard)

    def _check_same_file(self, conn: sqlite3.Connection) -> None:
        main = next(file for _, name, file in conn.execute("PRAGMA database_list") if name == "main")
        if not main or not os.path.samefile(main, self.path):
            raise InvalidOption(
                f"conn is open on {main or 'a temporary database'}, but this storage is {self.path}; "
                "both must be the same file to share a transaction"
            )

    async def announce(self, ids: Sequence[str]) -> None:
        """Their commit rings no bell, so look for it a while and ring it for them."""
        if not ids:
            return
        await self.open()
        watch = asyncio.current_task()
        assert watch is not None
        self._commit_watches.add(watch)  # closing the storage ends it
        watch.add_done_callback(self._commit_watches.discard)
        never, pause_s, left_s = asyncio.Event(), FIRST_WATCH_S, WATCH_COMMIT_S
        while left_s > 0:
            if await self._read(partial(_is_there, ids[-1])):
                assert self._engine is not None
                self._engine.ring(due=True, result=False)
                return
            await wait_for_event(REAL_CLOCK, never, pause_s)
            left_s -= pause_s
            pause_s = min(pause_s * 1.5, LONGEST_WATCH_S)


def _check_begins(conn: sqlite3.Connection) -> None:
    """A connection that begins no transactions ends none either: ours would stay open for ever."""
    if conn.isolation_level is None or getattr(conn, "autocommit", None) is True:
        raise InvalidOption(
            "conn does not begin transactions by itself (isolation_level=None or autocommit=True), and none "
            "is open; conn.execute('BEGIN') before this call, and COMMIT or ROLLBACK after it"
        )


def _anything_over(rows: Rows) -> bool:
    assert isinstance(rows, SQLiteRows)
    return rows.anything_over()


def _is_there(task_id: str, rows: Rows) -> bool:
    return rows.get(task_id) is not None
