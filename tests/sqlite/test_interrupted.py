"""Signal handlers: whatever they raise or call in the middle of a blocking enqueue, nothing stays locked."""

import fcntl
import itertools
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from omniq import OmniQ, Task
from omniq.errors import BlockingCallInHandler
from omniq.storage import SQLiteStorage
from omniq.storage.rows import Rows
from omniq.storage.sqlite.engine import Engine
from omniq.storage.sqlite.jobs import BlockingJob
from omniq.storage.sqlite.records import Retention
from tests.faults.processes import Field

PACKAGE = str(Path(sys.modules["omniq"].__file__ or "").parent)
MAX_LINES = 1000  # of ours that one enqueue passes through


class Interrupted(BaseException):
    """As a KeyboardInterrupt."""


@pytest.fixture
def storage(database: Path) -> Iterator[SQLiteStorage]:
    """Open, with a loop in another thread, so that this one is free to block."""
    with OmniQ(SQLiteStorage(database, durability="relaxed")) as q:
        q.run(lambda storage: storage.open(), "")
        blocking = q._blocking
        assert isinstance(blocking, SQLiteStorage)
        blocking.enqueue_here([Task("a.b")])
        yield blocking


def engine_of(storage: SQLiteStorage) -> Engine:
    assert storage._engine is not None
    return storage._engine


@contextmanager
def raising_at_line(number: int, exc: BaseException) -> Iterator[None]:
    """Raise `exc` in front of the nth line of ours, as a signal handler may."""
    lines = itertools.count()

    def on_line(frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line" and next(lines) == number:
            raise exc
        return on_line

    before = sys.gettrace()
    sys.settrace(on_line)
    try:
        yield
    finally:
        sys.settrace(before)


def assert_free(storage: SQLiteStorage, database: Path) -> None:
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # nobody has left a transaction open
        other.execute("ROLLBACK")
    with open(Path(f"{database}-omniq") / "write.lock", "r+") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nor kept the turn
    got: list[bool] = []
    writing = engine_of(storage)._writing

    def try_it() -> None:
        got.append(writing.acquire(blocking=False))
        if got[0]:
            writing.release()

    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    assert got == [True], "the writer would wait for ever"


@pytest.mark.parametrize("kind", [Interrupted, TimeoutError])
def test_an_interruption_anywhere_in_an_enqueue_leaves_nothing_behind(
    storage: SQLiteStorage, database: Path, kind: type[BaseException]
) -> None:
    for number in range(MAX_LINES):
        task = Task("a.b", id=f"task-{number}")
        try:
            with raising_at_line(number, kind("from a signal handler")):
                storage.enqueue_here([task])
        except kind:
            assert_free(storage, database)
            storage.enqueue_here([task])
        else:
            break
    assert 30 < number < MAX_LINES, "an exception of the handler's was swallowed"


def test_a_transaction_that_was_left_open_is_ended_by_the_next_write(storage: SQLiteStorage) -> None:
    """An interruption that is interrupted itself."""
    engine_of(storage)._writer.execute("BEGIN IMMEDIATE")
    assert storage.enqueue_here([Task("a.b", id="next")])[0].created


@contextmanager
def on_signal(handler: Callable[[], object]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupted_write(storage: SQLiteStorage) -> None:
    """A write during which the signal comes."""

    def job(rows: Rows) -> None:
        rows.set_paused("half-done", True)
        signal.raise_signal(signal.SIGUSR1)

    engine_of(storage).write_here(BlockingJob(job, Retention(0.0, 0.0)))


@pytest.mark.bound(10)
def test_an_enqueue_in_a_handler_that_interrupted_a_write_is_refused(
    storage: SQLiteStorage, database: Path
) -> None:
    """It cannot wait for what cannot go on before it returns."""
    with (
        on_signal(lambda: storage.enqueue_here([Task("a.b")])),
        pytest.raises(BlockingCallInHandler, match="set a flag"),
    ):
        interrupted_write(storage)
    assert_free(storage, database)
    with closing(sqlite3.connect(database)) as conn:
        assert conn.execute("SELECT count(*) FROM omniq_paused").fetchone() == (0,)
        assert conn.execute("SELECT count(*) FROM omniq_task").fetchone() == (1,)


def test_an_enqueue_in_a_handler_between_two_writes_is_fine(storage: SQLiteStorage) -> None:
    with on_signal(lambda: storage.enqueue_here([Task("a.b", id="of the handler")])):
        signal.raise_signal(signal.SIGUSR1)
    assert not storage.enqueue_here([Task("a.b", id="of the handler")])[0].created


FORKING = """
import os, signal, sys, warnings
from omniq import OmniQ, Task
from omniq.errors import StoreUnavailable
from omniq.storage import SQLiteStorage
from omniq.storage.sqlite.jobs import BlockingJob
from omniq.storage.sqlite.records import Retention

warnings.simplefilter("ignore", DeprecationWarning)
q = OmniQ(SQLiteStorage(sys.argv[1]))
pids = []

@q.task(name="app.job")
def job(number):
    return number

def write(rows):
    rows.set_paused("half-done", True)
    signal.raise_signal(signal.SIGUSR1)
    rows.set_paused("other-half", True)

def say(*words):
    print(*words, flush=True)

job.enqueue(0)
signal.signal(signal.SIGUSR1, lambda *_: pids.append(os.fork()))
try:
    q._blocking._engine.write_here(BlockingJob(write, Retention(0.0, 0.0)))
except StoreUnavailable as exc:
    if pids[0]:
        os.waitpid(pids[0], 0)
    job.enqueue(1)
    say("PARENT" if pids[0] else "CHILD", "closed" in str(exc))
if pids[0] == 0:
    os._exit(0)
say("PAUSED", q.run(lambda storage: storage.paused(), ""))
"""


@pytest.mark.bound(20)
def test_a_fork_in_a_handler_that_interrupted_a_write_gives_that_write_up(field: Field) -> None:
    parent = field.script(FORKING, field.database)
    assert parent.line("CHILD") == "True"
    assert parent.line("PARENT") == "True"
    assert parent.line("PAUSED") == "set()"
    assert parent.wait() == 0, parent.log.read_text()
