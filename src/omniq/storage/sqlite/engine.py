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
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal

from loguru import logger

from omniq.clock import Clock
from omniq.errors import (
    BlockingCallInHandler,
    CorruptRecord,
    InvalidOption,
    OmniqError,
    SchemaMismatch,
    StoreUnavailable,
    Unsupported,
)
from omniq.storage.embedded import Bell
from omniq.storage.rows import Rows
from omniq.storage.sqlite.beside import Beside, Kind
from omniq.storage.sqlite.records import Retention, text_or_bytes
from omniq.storage.sqlite.rows import SQLiteRows
from omniq.task import Enqueued, StoredTask

SCHEMA_VERSION: Final = 1
OLDEST_SQLITE: Final = (3, 35, 0)  # the first with RETURNING
BUSY_TIMEOUT_S: Final = 5.0
MAX_JOBS_PER_COMMIT: Final = 1000
LOG_BYTES: Final = 16 << 20  # a log that restarts is cut to this
LARGE_LOG_BYTES: Final = 24 << 20
# A log that grows makes every sync write its new size too, half as dear again as one that is used again.
CHECKPOINT_COMMITS: Final = 100
CHECKPOINT_CHANGES: Final = 5000
LOOK_AT_LOG_COMMITS: Final = 8
LOOK_AT_FILE_S: Final = 0.01  # at every commit, the look would cost as much as its cheapest statement
Durability = Literal["fsync", "relaxed"]


class Job:
    """One call on its way to a connection, and its answer on the way back."""

    __slots__ = ("answer", "error", "retention", "run", "tasks")

    def __init__(
        self,
        run: Callable[[Rows], Any],
        retention: Retention,
        tasks: Sequence[StoredTask] | None = None,
    ) -> None:
        self.run = run
        self.retention = retention
        self.tasks = tasks  # what an enqueue brings, so that enqueues can be put together
        self.answer: Any = None
        self.error: BaseException | None = None


class AwaitedJob(Job):
    """Its answer goes to a coroutine."""

    __slots__ = ("future", "loop")

    def __init__(
        self,
        run: Callable[[Rows], Any],
        retention: Retention,
        tasks: Sequence[StoredTask] | None = None,
    ) -> None:
        super().__init__(run, retention, tasks)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    def deliver(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


class BlockingJob(Job):
    """Its answer goes to a thread that does nothing else meanwhile."""

    __slots__ = ("done",)

    def __init__(
        self,
        run: Callable[[Rows], Any],
        retention: Retention,
        tasks: Sequence[StoredTask] | None = None,
    ) -> None:
        super().__init__(run, retention, tasks)
        self.done = threading.Lock()  # the cheapest thing that a thread can wait for; taken until the end
        self.done.acquire()

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.answer


def deliver(jobs: list[Job]) -> None:
    """Bring answers back: one hop per event loop, however many there are."""
    by_loop: dict[asyncio.AbstractEventLoop, list[AwaitedJob]] = {}
    for job in jobs:
        if isinstance(job, AwaitedJob):
            by_loop.setdefault(job.loop, []).append(job)
        elif isinstance(job, BlockingJob):
            job.done.release()
    for loop, ready in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(_deliver_here, ready)


def _deliver_here(jobs: list[AwaitedJob]) -> None:
    for job in jobs:
        job.deliver()


class Engine:
    """Shared by the storages of one process on one file."""

    def __init__(self, path: Path, clock: Clock, durability: Durability) -> None:
        self.path = path
        self.clock = clock
        self.durability = durability
        self._stricter = False  # `durability` was raised, and the writer does not know yet
        self.users = 0
        self._closed = False
        self.bell = Bell()
        check_version(sqlite3.sqlite_version_info)
        prepare_file(path)
        self._file = identity(path)
        self._look_at_file_at = 0.0
        self._writes: SimpleQueue[Job | None] = SimpleQueue()
        self._reads: SimpleQueue[Job | None] = SimpleQueue()
        with contextlib.ExitStack() as undo, translated(path):
            self._writer = undo.enter_context(contextlib.closing(self._connect()))
            self.beside = undo.enter_context(contextlib.closing(Beside(path)))  # only beside a database
            boot = prepare_schema(self._writer, self.beside.turn())
            self._reader = undo.enter_context(contextlib.closing(self._connect()))
            self._write_rows = SQLiteRows(self._writer, clock, self.beside, boot)
            self._write_rows.look_at_newest()
            self._checkpointer = self._connect()
            undo.pop_all()  # all is well: nothing is to be undone
        self._read_rows = SQLiteRows(self._reader, clock, self.beside, boot)
        self.boot = boot
        self._commits = 0
        self._changes_before = 0
        # Held while somebody is at work on the writing connection. It knows its owner even where a signal
        # handler cut in right behind `acquire`, before anything here could have taken note of it.
        self._writing = threading.RLock()
        self._holder: int | None = None  # the thread that writes for itself, while it does
        self._writer_waits = False
        self._reading = threading.Lock()
        self._threads = [
            threading.Thread(target=self._write_loop, name="omniq-sqlite-writer", daemon=True),
            threading.Thread(target=self._read_loop, name="omniq-sqlite-reader", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _connect(self) -> sqlite3.Connection:
        if identity(self.path) is None:  # SQLite would make an empty one
            raise sqlite3.OperationalError("unable to open: the file is gone")
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

    def demand(self, durability: Durability) -> None:
        """Whoever wants the most decides for all; what was asked for holds from the next commit on."""
        if durability == "fsync" and self.durability != "fsync":
            self.durability, self._stricter = durability, True

    def write(self, job: Job) -> None:
        self._writes.put(job)
        if self._closed:  # whoever comes later than `close` would wait for ever
            self._refuse(self._writes)

    def write_here(self, job: BlockingJob) -> Any:
        """Write in the caller's thread where the writer has nothing to do: no hop, no wake-up.

        Where it is busy, the job goes along with others in its next commit.
        """
        me, here = threading.get_ident(), False
        if self._holder == me:
            raise BlockingCallInHandler(
                f"this signal handler interrupted a write to {self.path} in its own thread, which cannot go "
                "on before the handler returns; set a flag here and enqueue later, or in another thread"
            )
        try:
            # Whoever writes without a pause must not keep the writer from its turn.
            if not self._writer_waits and self._writing.acquire(blocking=False):
                here, self._holder = True, me
                if self._closed:
                    job.error = self._was_closed()
                else:
                    self._write([job])
                self._holder = None
                self._writing.release()
        except BaseException:
            self._let_go_of(me)
            raise
        if not here:
            self.write(job)
            job.done.acquire()
        return job.result()

    def _let_go_of(self, thread: int) -> None:
        """After a signal handler raised somewhere in a write: nothing of it may stay begun or locked."""
        if self._holder == thread:
            self._recover()
            self.beside.end_turn()
            self._holder = None
        with contextlib.suppress(RuntimeError):  # not ours: it came before the lock, or behind it
            self._writing.release()

    def read(self, job: Job) -> None:
        self._reads.put(job)
        if self._closed:
            self._refuse(self._reads)

    def _refuse(self, queue: SimpleQueue[Job | None]) -> None:
        with contextlib.suppress(Empty):
            while True:
                if (job := queue.get_nowait()) is not None:
                    job.error = self._was_closed()
                    deliver([job])

    def _was_closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.path} was closed; in a forked child, open a storage of its own")

    def disconnect(self) -> None:
        """Wait for both threads to be between two jobs, and close everything; before a fork.

        A signal handler may fork in the middle of its own thread's write. There is nobody to wait for then:
        that write is given up, finds its connection closed, and says so.
        """
        self._writing.acquire()
        self._reading.acquire()
        for conn in (self._checkpointer, self._reader, self._writer):
            conn.close()

    def reconnect(self) -> None:
        """Go on after `disconnect`."""
        with contextlib.suppress(sqlite3.Error):  # then the next job says what is wrong
            if self._holder != threading.get_ident():
                self._writer = self._write_rows.conn = self._connect()
            self._reader = self._read_rows.conn = self._connect()
            self._checkpointer = self._connect()
        self._changes_before = 0
        self._reading.release()
        self._writing.release()

    def leave_to_parent(self) -> None:
        """In a forked child, after `disconnect`: there are no threads here, so whoever asks is refused."""
        self._closed = True
        self.beside.leave_to_parent()
        self._reading.release()
        self._writing.release()

    def close(self) -> None:
        """End both threads; what is queued is done first."""
        self._writes.put(None)
        self._reads.put(None)
        for thread in self._threads:
            thread.join()
        self._closed = True
        self._refuse(self._writes)
        self._refuse(self._reads)
        with self._writing:
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
                self._writer_waits = True
                with self._writing:
                    self._writer_waits = False
                    try:
                        self._write(batch)
                    except BaseException as exc:  # without this thread everybody would wait for ever
                        logger.error("after a commit to {}: {!r}", self.path, exc)

    def _write(self, batch: list[Job]) -> None:
        """Commit, wake whoever sleeps, answer: in this order, or a bell would ring after the next look."""
        rows = self._write_rows
        rows.rang_due = rows.rang_result = False
        try:
            if self._commit(batch):
                self.ring(due=rows.rang_due, result=rows.rang_result)
        finally:
            deliver(batch)
        self._checkpoint_now_and_then()

    def _commit(self, batch: list[Job]) -> bool:
        """All jobs in one transaction; a job that raises takes back only its own part."""
        try:
            self.beside.take_turn()
            if self._stricter:
                self._sync_fully()
            if self._writer.in_transaction:  # left by an interruption that was itself interrupted
                self._writer.execute("ROLLBACK")
            self._writer.execute("BEGIN IMMEDIATE")
            self._write_rows.changes.clear()
            try:
                self._run_all(batch)
            except sqlite3.OperationalError as exc:
                if not read_as_bytes(exc, self._writer):
                    raise
                self._run_anew(batch)
            self._look_at_file()
            self._write_rows.write_tallies()
            self._writer.execute("COMMIT")
        except BaseException as exc:  # a signal handler may raise anything, anywhere
            self._recover()
            error = explained(exc, self.path) if isinstance(exc, sqlite3.Error) else exc
            for job in batch:
                job.answer, job.error = None, error
            if not isinstance(exc, Exception):
                raise
            return False
        finally:
            self.beside.end_turn()
        return True

    def _look_at_file(self) -> None:
        """Refuse to work on where nobody else could see it: in a file that has no name any more."""
        now = time.monotonic()
        if now < self._look_at_file_at:
            return
        if identity(self.path) != self._file:
            raise StoreUnavailable(
                f"{self.path} was deleted or replaced while it was open here; put it back, or restart every "
                "process that uses it"
            )
        self._look_at_file_at = now + LOOK_AT_FILE_S

    def _sync_fully(self) -> None:
        self._writer.execute("PRAGMA synchronous = FULL")  # this connection commits; the others never do
        self._stricter = False

    def _recover(self) -> None:
        """After a failed transaction: begin anew, on another connection if this one cannot."""
        with contextlib.suppress(sqlite3.Error):
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            return
        if self._closed:
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

    def _run_anew(self, batch: list[Job]) -> None:
        self._writer.execute("ROLLBACK")
        self._write_rows.changes.clear()
        for job in batch:
            job.answer = job.error = None
        self._writer.execute("BEGIN IMMEDIATE")
        self._run_all(batch)

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
            self._write_rows.changes.clear()
            self._writer.execute("BEGIN")

    def _run(self, job: Job) -> None:
        self._writer.execute("SAVEPOINT omniq_job")
        before = self._write_rows.changes.copy()
        if not self._did(job):
            self._writer.execute("ROLLBACK TO omniq_job")
            self._write_rows.changes.by_queue = before
        self._writer.execute("RELEASE omniq_job")

    def _did(self, job: Job) -> bool:
        """Run a job; False when it raised and must be taken back. What breaks SQLite itself is raised."""
        self._write_rows.retention = job.retention
        try:
            job.answer = job.run(self._write_rows)
        except sqlite3.Error as exc:
            if is_away(exc) or is_undecodable(exc):
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
            look = self._commits % LOOK_AT_LOG_COMMITS == 0
            if (
                self._commits >= CHECKPOINT_COMMITS
                or changes >= CHECKPOINT_CHANGES
                or (look and self._log_is_large())
            ):
                self._commits, self._changes_before = 0, self._writer.total_changes
                with self.beside.turn():
                    self._checkpoint()
        except sqlite3.Error as exc:
            self._recover()
            logger.warning("no checkpoint of {}: {}", self.path, exc)

    def _log_is_large(self) -> bool:
        try:
            return os.stat(f"{self.path}-wal").st_size > LARGE_LOG_BYTES
        except FileNotFoundError:
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
                self._look_at_file()
                self._reader.execute("BEGIN")
                try:
                    job.answer = job.run(self._read_rows)
                except sqlite3.OperationalError as exc:
                    if not read_as_bytes(exc, self._reader):
                        raise
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


def identity(path: Path) -> tuple[int, int] | None:
    """Which file is at a path. By the path, never by a descriptor: closing one would drop SQLite's locks."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def check_version(version: tuple[int, ...]) -> None:
    if version < OLDEST_SQLITE:
        raise Unsupported(
            f"this Python has SQLite {'.'.join(map(str, version))}, and OmniQ needs "
            f"{'.'.join(map(str, OLDEST_SQLITE))} or newer; use a Python that was built with a newer one"
        )


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


def is_undecodable(exc: sqlite3.Error) -> bool:
    return "Could not decode" in str(exc)


def read_as_bytes(exc: sqlite3.Error, conn: sqlite3.Connection) -> bool:
    """Where text turned out not to be UTF-8: read such text as bytes from now on; True if that is new.

    Only then, because a function of ours for every text costs more than all else that is done with it.
    """
    if not is_undecodable(exc) or conn.text_factory is text_or_bytes:
        return False
    conn.text_factory = text_or_bytes
    return True


def explained(exc: sqlite3.Error, path: Path) -> OmniqError:
    text = str(exc)
    if "not a database" in text:
        return CorruptRecord(f"{path} is not a SQLite database; give another path, or move the file away")
    if isinstance(exc, sqlite3.IntegrityError):
        return CorruptRecord(f"{path} contradicts itself: {text}; run `omniq doctor`")
    if is_undecodable(exc):
        return CorruptRecord(f"{path} has text that is not UTF-8 ({text}); restore a copy")
    if "malformed" in text or "corrupt" in text:
        return CorruptRecord(f"{path} is damaged ({text}); restore a copy, or try sqlite3's .recover")
    if "closed database" in text:
        return StoreUnavailable(
            f"{path} was closed under this call, as by a fork in a signal handler; repeat it"
        )
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
