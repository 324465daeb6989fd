"""One file in one process: a thread that writes, a thread that reads.

Every storage object of a process on the same file shares them. The writer takes what has queued up
while it committed and commits it together, so that the price of a durable commit is shared:

    jobs ──> BEGIN IMMEDIATE ── job, job, job ── COMMIT ──> answers, in one hop per event loop
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from itertools import groupby
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, TypeAlias

from loguru import logger

from omniq.clock import Clock
from omniq.errors import (
    BlockingCallInHandler,
    InvalidOption,
    StoreUnavailable,
)
from omniq.storage.ringing import Bell
from omniq.storage.sqlite.beside import Beside, Kind
from omniq.storage.sqlite.connected import NotAllHeld
from omniq.storage.sqlite.failures import (
    explained,
    has_no_room,
    is_away,
    is_undecodable,
    read_as_bytes,
    too_large,
    translated,
)
from omniq.storage.sqlite.file import check_version, identity, prepare_file, prepare_schema
from omniq.storage.sqlite.jobs import BlockingJob, Job, deliver
from omniq.storage.sqlite.rows import SQLiteRows
from omniq.task import Enqueued

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
Version: TypeAlias = tuple[sqlite3.Connection, int]  # each connection counts for itself
_KINDS: Final[dict[tuple[bool, bool], tuple[Kind, ...]]] = {
    (True, False): ("due",),
    (False, True): ("result",),
    (True, True): ("due", "result"),
}


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
            # Each statement that changes many rows keeps them aside meanwhile: in a file, by default, which
            # cost a quarter of a drain.
            conn.execute("PRAGMA temp_store = MEMORY")
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
            job.wait_with(self.write)
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

    def read_here(self, job: Job) -> bool:
        """Read in the caller's thread, unless the reader is at work; says whether it was done."""
        if not self._reading.acquire(blocking=False):
            return False
        try:
            if self._closed:
                job.error = self._was_closed()
            else:
                self._look(job)
        finally:
            self._reading.release()
        return True

    def version(self) -> Version | None:
        """Changes with every commit of anybody; it reads no page of the file, so it waits for no disk.

        None is no version: the reader is at work, or something is wrong, as whoever reads or writes is told.
        """
        if not self._reading.acquire(blocking=False):
            return None
        try:
            if self._closed:
                return None
            self._look_at_file()
            return self._reader, self._reader.execute("PRAGMA data_version").fetchone()[0]
        except (sqlite3.Error, StoreUnavailable):
            return None
        finally:
            self._reading.release()

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
        with self._writing, self._reading:
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
        rows.to_bury.clear()
        try:
            if self._commit(batch):
                self.ring(due=rows.rang_due, result=rows.rang_result)
                with contextlib.suppress(OSError):  # a file that stays says nothing of anybody
                    for worker in rows.to_bury:
                        self.beside.bury(worker)
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
            self._write_rows.expects_stale = False
            while not self._ran_all(batch):
                self._begin_anew(batch)
            self._look_at_file()
            self._write_rows.write_tallies()
            self._writer.execute("COMMIT")
        except BaseException as exc:  # a signal handler may raise anything, anywhere
            error = explained(exc, self.path) if isinstance(exc, sqlite3.Error) else exc
            for job in batch:  # first, whatever interrupts the rest
                job.answer, job.error = None, error
            self._recover()
            if isinstance(exc, sqlite3.Error) and has_no_room(exc):
                self._make_room()
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

    def _ran_all(self, batch: list[Job]) -> bool:
        """False where it must all be done again in another way; there are two, each taken at most once."""
        try:
            self._run_all(batch)
        except NotAllHeld:
            self._write_rows.expects_stale = True
            return False
        except sqlite3.OperationalError as exc:
            if not read_as_bytes(exc, self._writer):
                raise
            return False
        return True

    def _begin_anew(self, batch: list[Job]) -> None:
        self._writer.execute("ROLLBACK")
        self._write_rows.changes.clear()
        for job in batch:
            job.answer = job.error = None
        self._writer.execute("BEGIN IMMEDIATE")

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
        except NotAllHeld:
            raise
        except sqlite3.Error as exc:
            if is_away(exc) or is_undecodable(exc):
                raise
            job.error = explained(exc, self.path)
        except UnicodeEncodeError as exc:
            job.error = InvalidOption(f"text with a lone surrogate cannot be stored: {exc.object!a:.80}")
        except OverflowError as exc:
            job.error = too_large(exc)
        except Exception as exc:
            job.error = exc
        return job.error is None

    def ring(self, *, due: bool, result: bool) -> None:
        if due or result:
            self.bell.ring(due=due, result=result)
            self.beside.ring(_KINDS[due, result])

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

    def _make_room(self) -> None:
        """What the log holds goes into the file, so that the log is used again from its start."""
        with contextlib.suppress(sqlite3.Error):  # not even that much is left: the next try says so
            self._checkpoint()

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
        except OverflowError as exc:
            job.error = too_large(exc)
        except Exception as exc:
            job.error = exc
        with contextlib.suppress(sqlite3.Error):
            if self._reader.in_transaction:
                self._reader.execute("COMMIT")
