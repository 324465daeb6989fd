"""One file in one process: a thread that writes, a thread that reads, and the file's schema.

Every storage object of a process on the same file shares them. The writer takes what has queued up
while it committed and commits it together, so that the price of a durable commit is shared:

    jobs ──> BEGIN IMMEDIATE ── job, job, job ── COMMIT ──> answers, in one hop per event loop
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Literal

from loguru import logger

from omniq.clock import Clock
from omniq.errors import CorruptRecord, InvalidOption, OmniqError, SchemaMismatch, StoreUnavailable
from omniq.storage.embedded import Bell
from omniq.storage.rows import Rows
from omniq.storage.sqlite.beside import Beside, Kind
from omniq.storage.sqlite.records import Retention
from omniq.storage.sqlite.rows import SQLiteRows
from omniq.task import Enqueued, StoredTask

SCHEMA_VERSION: Final = 1
BUSY_TIMEOUT_S: Final = 5.0
MAX_JOBS_PER_COMMIT: Final = 1000
LOG_BYTES: Final = 16 << 20  # a log that restarts is cut to this
LARGE_LOG_BYTES: Final = 24 << 20
CHECKPOINT_COMMITS: Final = 500
CHECKPOINT_CHANGES: Final = 5000
Durability = Literal["fsync", "relaxed"]


class Job:
    """One call on its way to a thread, and its answer on the way back."""

    __slots__ = ("answer", "error", "future", "loop", "retention", "run", "tasks")

    def __init__(
        self,
        run: Callable[[Rows], Any],
        retention: Retention,
        tasks: Sequence[StoredTask] | None = None,
    ) -> None:
        self.run = run
        self.retention = retention
        self.tasks = tasks  # what an enqueue brings, so that enqueues can be put together
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.answer: Any = None
        self.error: BaseException | None = None

    def deliver(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


def deliver(jobs: list[Job]) -> None:
    """Bring answers back: one hop per event loop, however many there are."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, ready in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(_deliver_here, ready)


def _deliver_here(jobs: list[Job]) -> None:
    for job in jobs:
        job.deliver()


class Engine:
    """Shared by the storages of one process on one file."""

    def __init__(self, path: Path, clock: Clock, durability: Durability) -> None:
        self.path = path
        self.clock = clock
        self.durability = durability
        self.users = 0
        self.bell = Bell()
        prepare_file(path)
        self._writes: SimpleQueue[Job | None] = SimpleQueue()
        self._reads: SimpleQueue[Job | None] = SimpleQueue()
        with contextlib.ExitStack() as undo, translated(path):
            self._writer = undo.enter_context(contextlib.closing(self._connect()))
            self.beside = undo.enter_context(contextlib.closing(Beside(path)))  # only beside a database
            boot = prepare_schema(self._writer, self.beside.turn())
            self._reader = undo.enter_context(contextlib.closing(self._connect()))
            self._checkpointer = self._connect()
            undo.pop_all()  # all is well: nothing is to be undone
        self._write_rows = SQLiteRows(self._writer, clock, self.beside, boot)
        self._read_rows = SQLiteRows(self._reader, clock, self.beside, boot)
        self.boot = boot
        self._commits = 0
        self._changes_before = 0
        self._writing = threading.Lock()  # held while a thread is at work on its connection
        self._reading = threading.Lock()
        self._threads = [
            threading.Thread(target=self._write_loop, name="omniq-sqlite-writer", daemon=True),
            threading.Thread(target=self._read_loop, name="omniq-sqlite-reader", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _connect(self) -> sqlite3.Connection:
        conn = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            conn.execute("PRAGMA journal_mode = WAL")
            conn.execute(f"PRAGMA synchronous = {'FULL' if self.durability == 'fsync' else 'NORMAL'}")
            # Nobody checkpoints but `_checkpoint`, under the write lock: SQLite before 3.51.3 can corrupt
            # a file when a checkpoint meets another connection's restart of the log.
            conn.execute("PRAGMA wal_autocheckpoint = 0")
            conn.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        except BaseException:
            conn.close()
            raise
        return conn

    # --- from any thread -------------------------------------------------------------------------

    def write(self, job: Job) -> None:
        self._writes.put(job)

    def read(self, job: Job) -> None:
        self._reads.put(job)

    def disconnect(self) -> None:
        """Wait for both threads to be between two jobs, and close everything; before a fork."""
        self._writing.acquire()
        self._reading.acquire()
        for conn in (self._checkpointer, self._reader, self._writer):
            conn.close()

    def reconnect(self) -> None:
        """Go on after `disconnect`."""
        with contextlib.suppress(sqlite3.Error):  # then the next job says what is wrong
            self._writer = self._write_rows.conn = self._connect()
            self._reader = self._read_rows.conn = self._connect()
            self._checkpointer = self._connect()
        self._changes_before = 0
        self._reading.release()
        self._writing.release()

    def close(self) -> None:
        """End both threads; what is queued is done first."""
        self._writes.put(None)
        self._reads.put(None)
        for thread in self._threads:
            thread.join()
        for conn in (self._checkpointer, self._reader, self._writer):
            conn.close()
        self.beside.close()

    # --- the writer ------------------------------------------------------------------------------

    def _write_loop(self) -> None:
        open_for_jobs = True
        while open_for_jobs:
            batch: list[Job] = []
            job = self._writes.get()
            while True:
                if job is None:
                    open_for_jobs = False
                    break
                batch.append(job)
                if self._writes.empty() or len(batch) == MAX_JOBS_PER_COMMIT:
                    break
                job = self._writes.get()
            if batch:
                with self._writing:
                    self._commit(batch)
                    deliver(batch)
                    self._checkpoint_now_and_then()

    def _commit(self, batch: list[Job]) -> None:
        """All jobs in one transaction; a job that raises takes back only its own part."""
        rows = self._write_rows
        rows.rang_due = rows.rang_result = False
        try:
            with translated(self.path), self.beside.turn():
                self._writer.execute("BEGIN IMMEDIATE")
                self._run_all(batch)
                self._writer.execute("COMMIT")
        except Exception as exc:
            self._recover()
            for job in batch:
                job.answer, job.error = None, exc
            return
        self.ring(due=rows.rang_due, result=rows.rang_result)

    def _recover(self) -> None:
        """After a failed transaction: begin anew, on another connection if this one cannot."""
        with contextlib.suppress(sqlite3.Error):
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            return
        with contextlib.suppress(sqlite3.Error):
            self._writer.close()
            self._writer = self._write_rows.conn = self._connect()
            self._changes_before = 0

    def _run_all(self, batch: list[Job]) -> None:
        if len(batch) == 1:
            self._run_alone(batch[0])
            return
        for enqueues, group in groupby(batch, lambda job: job.tasks is not None):
            jobs = list(group)
            if not enqueues or not self._insert_together(jobs):
                for job in jobs:
                    self._run(job)

    def _insert_together(self, jobs: list[Job]) -> bool:
        """Many enqueues as one statement; they need no savepoints, which cost more than they do."""
        tasks = [task for job in jobs for task in job.tasks or ()]
        try:
            if not self._write_rows.insert_new(tasks):
                return False
        except sqlite3.Error:
            raise
        except Exception:  # one of them cannot be written: one by one shows which
            return False
        for job in jobs:
            job.answer = [Enqueued(task.id, created=True) for task in job.tasks or ()]
        return True

    def _run_alone(self, job: Job) -> None:
        """The usual case: what it wrote goes with the transaction, so it needs no savepoint."""
        if not self._did(job):
            self._writer.execute("ROLLBACK")
            self._writer.execute("BEGIN")

    def _run(self, job: Job) -> None:
        self._writer.execute("SAVEPOINT omniq_job")
        if not self._did(job):
            self._writer.execute("ROLLBACK TO omniq_job")
        self._writer.execute("RELEASE omniq_job")

    def _did(self, job: Job) -> bool:
        """Run a job; False when it raised and must be taken back. What breaks SQLite itself is raised."""
        self._write_rows.retention = job.retention
        try:
            job.answer = job.run(self._write_rows)
        except sqlite3.Error as exc:
            if is_away(exc):
                raise
            job.error = explained(exc, self.path)
        except UnicodeEncodeError as exc:
            job.error = InvalidOption(f"text with a lone surrogate cannot be stored: {exc.object!a:.80}")
        except Exception as exc:
            job.error = exc
        return job.error is None

    def ring(self, *, due: bool, result: bool) -> None:
        kinds: list[Kind] = []
        if due:
            kinds.append("due")
        if result:
            kinds.append("result")
        if kinds:
            self.bell.ring(due=due, result=result)
            self.beside.ring(tuple(kinds))

    def _checkpoint_now_and_then(self) -> None:
        # Counted rather than measured: the log is used again from its start, and a file that only ever
        # grew to its limit says nothing about what is in it.
        self._commits += 1
        try:
            changes = self._writer.total_changes - self._changes_before
            if self._commits >= CHECKPOINT_COMMITS or changes >= CHECKPOINT_CHANGES or self._log_is_large():
                self._commits, self._changes_before = 0, self._writer.total_changes
                with self.beside.turn():
                    self._checkpoint()
        except sqlite3.Error as exc:
            logger.warning("no checkpoint of {}: {}", self.path, exc)

    def _log_is_large(self) -> bool:
        try:
            return os.stat(f"{self.path}-wal").st_size > LARGE_LOG_BYTES
        except OSError:
            return False

    def _checkpoint(self) -> None:
        """Move the log into the file while holding the write lock, so that nobody can restart the log."""
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        finally:
            self._writer.execute("ROLLBACK")

    # --- the reader ------------------------------------------------------------------------------

    def _read_loop(self) -> None:
        while (job := self._reads.get()) is not None:
            with self._reading:
                self._look(job)
            deliver([job])

    def _look(self, job: Job) -> None:
        try:
            with translated(self.path):
                self._reader.execute("BEGIN")
                job.answer = job.run(self._read_rows)
        except UnicodeEncodeError as exc:
            job.error = InvalidOption(f"no text with a lone surrogate is stored: {exc.object!a:.80}")
        except Exception as exc:
            job.error = exc
        with contextlib.suppress(sqlite3.Error):
            if self._reader.in_transaction:
                self._reader.execute("COMMIT")


# --- the file ------------------------------------------------------------------------------------


def prepare_file(path: Path) -> None:
    """Make the file for its owner's eyes only; refuse what could be somebody's trap."""
    if path.is_symlink():
        raise InvalidOption(f"{path} is a symbolic link; give the path of the file itself")
    if path.is_dir():
        raise InvalidOption(f"{path} is a folder; give the path of a file, such as {path / 'jobs.db'}")
    try:
        # Only a file that we just made is opened here: closing a descriptor of an existing database drops
        # every lock that this process has on it. The log and the shared-memory file take over this mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        if not os.access(path, os.R_OK | os.W_OK):
            raise InvalidOption(f"{path} cannot be written by this user; change its mode or owner") from None
    except FileNotFoundError as exc:
        raise InvalidOption(f"there is no folder {path.parent}; create it, or give another path") from exc
    except OSError as exc:
        raise InvalidOption(
            f"cannot write {path}: {exc.strerror}; give a path in a folder that this user may write"
        ) from exc


def prepare_schema(conn: sqlite3.Connection, turn: contextlib.AbstractContextManager[None]) -> int:
    """Make the schema, or check its version; this machine's boot as a number.

    A plain look comes first, because the caller may hold the write lock in a transaction of its own.
    """
    boot = known_boot(conn)
    if boot is not None:
        return boot
    with turn:
        conn.execute("BEGIN IMMEDIATE")
        try:
            if not has_schema(conn):
                for statement in statements():
                    conn.execute(statement)
                conn.execute("INSERT INTO omniq_meta VALUES ('schema', ?)", (str(SCHEMA_VERSION),))
            conn.execute("INSERT OR IGNORE INTO omniq_boot (boot_id) VALUES (?)", (boot_id(),))
            conn.execute("COMMIT")
        except BaseException:
            conn.execute("ROLLBACK")
            raise
    boot = known_boot(conn)
    assert boot is not None
    return boot


def has_schema(conn: sqlite3.Connection) -> bool:
    return conn.execute("SELECT 1 FROM sqlite_master WHERE name = 'omniq_meta'").fetchone() is not None


def known_boot(conn: sqlite3.Connection) -> int | None:
    """The number of this boot, if schema and boot are there already; another version is refused."""
    if not has_schema(conn):
        return None
    [version] = conn.execute("SELECT value FROM omniq_meta WHERE key = 'schema'").fetchone() or ["none"]
    if version != str(SCHEMA_VERSION):
        raise SchemaMismatch(
            f"the file has schema version {version}, this OmniQ speaks {SCHEMA_VERSION}; "
            "install the version that made it, or give another path"
        )
    row = conn.execute("SELECT boot FROM omniq_boot WHERE boot_id = ?", (boot_id(),)).fetchone()
    return None if row is None else int(row[0])


def statements() -> Iterator[str]:
    script = files("omniq.storage.sqlite").joinpath("schema.sql").read_text()
    lines = (line.split("--")[0].rstrip() for line in script.splitlines())
    for statement in "\n".join(line for line in lines if line).split(";"):
        if statement.strip():
            yield statement


def boot_id() -> str:
    """Changes when the machine restarts, and its monotonic clock with it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def is_world_writable(folder: Path) -> bool:
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


# --- errors --------------------------------------------------------------------------------------

_AWAY: Final = (
    "locked",
    "busy",
    "disk is full",
    "disk I/O error",
    "readonly",
    "unable to open",
    "interrupted",
)


def is_away(exc: sqlite3.Error) -> bool:
    """Whether the whole transaction is lost with it, not only one statement."""
    return any(word in str(exc) for word in _AWAY)


def explained(exc: sqlite3.Error, path: Path) -> OmniqError:
    text = str(exc)
    if "not a database" in text:
        return CorruptRecord(f"{path} is not a SQLite database; give another path, or move the file away")
    if isinstance(exc, sqlite3.IntegrityError):
        return CorruptRecord(f"{path} contradicts itself: {text}; run `omniq doctor`")
    if "malformed" in text or "corrupt" in text:
        return CorruptRecord(f"{path} is damaged ({text}); restore a copy, or try sqlite3's .recover")
    if "locked" in text or "busy" in text:
        return StoreUnavailable(
            f"{path} is locked by another connection; if that is the caller's own transaction, "
            "open the storage before it begins"
        )
    return StoreUnavailable(f"{path}: {text}")


@contextlib.contextmanager
def translated(path: Path) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise explained(exc, path) from exc
