"""The file itself: who may read it, and every file that cannot be used is refused in clear words."""

import asyncio
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from omniq import AsyncWorkerPool, Task
from omniq.cli.examine_store import examine
from omniq.errors import (
    CorruptRecord,
    InvalidOption,
    OmniqError,
    SchemaMismatch,
    StoreUnavailable,
    Unsupported,
)
from omniq.storage import SQLiteStorage, open_storage
from omniq.storage.sqlite import _engines, _engines_lock
from omniq.storage.sqlite import engine as engine_module
from omniq.storage.sqlite import file as file_module
from omniq.storage.sqlite.file import check_version
from tests.faults.processes import Child, Field, eventually

NOBODY = 65534


async def refusal(path: Path | str) -> OmniqError:
    with pytest.raises(OmniqError) as refused:
        async with SQLiteStorage(path):
            pass
    return refused.value


# --- S13: who may read ----------------------------------------------------------------------------


async def test_s13_everything_is_for_its_owner_only_whatever_the_umask(database: Path) -> None:
    mask = os.umask(0)
    try:
        async with SQLiteStorage(database) as storage, AsyncWorkerPool(storage):
            await storage.enqueue(Task("builtins.len", ([],)))
            folder = database.with_name("jobs.db-omniq")

            async def sleeps_and_lives() -> bool:
                kinds = {path.suffix for path in folder.iterdir()}
                return {".due", ".alive", ".lock"} <= kinds

            await eventually(sleeps_and_lives)
            modes = {path: stat.S_IMODE(path.stat().st_mode) for path in database.parent.glob("jobs.db*")}
            inner = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    finally:
        os.umask(mask)
    assert modes.pop(folder) == 0o700
    assert {path.name for path in modes} == {"jobs.db", "jobs.db-wal", "jobs.db-shm"}
    assert set(modes.values()) == {0o600}
    assert set(inner.values()) == {0o600}


async def test_s13_a_planted_link_is_refused(tmp_path: Path, database: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    database.symlink_to(tmp_path / "secret")
    refused = await refusal(database)
    assert isinstance(refused, InvalidOption)
    assert "symbolic link" in str(refused)
    assert (tmp_path / "secret").read_text() == "kept"


async def test_s13_a_planted_folder_beside_is_not_used(tmp_path: Path, database: Path) -> None:
    """A link, or a folder that others may write, could let them listen or tell lies about who lives."""
    (tmp_path / "elsewhere").mkdir()
    database.with_name("jobs.db-omniq").symlink_to(tmp_path / "elsewhere")
    async with SQLiteStorage(database) as storage:
        await storage.enqueue(Task("a.b"))
        assert await storage.claim("ann")
        await storage.wait(0.01)
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- what cannot be used --------------------------------------------------------------------------


async def test_a_folder_is_refused(tmp_path: Path) -> None:
    refused = await refusal(tmp_path)
    assert isinstance(refused, InvalidOption)
    assert "is a folder" in str(refused)
    assert str(tmp_path / "jobs.db") in str(refused)


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    refused = await refusal(tmp_path / "no" / "jobs.db")
    assert isinstance(refused, InvalidOption)
    assert str(tmp_path / "no") in str(refused)


async def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    refused = await refusal(tmp_path / ("n" * 300))
    assert isinstance(refused, InvalidOption)
    assert "too long" in str(refused)


def test_sqlites_own_word_for_memory_makes_no_file_of_that_name() -> None:
    for ask in (SQLiteStorage, lambda path: open_storage(f"sqlite:///{path}")):
        with pytest.raises(InvalidOption, match="MemoryStorage"):
            ask(":memory:")


def test_an_address_with_options_is_refused_with_what_to_write() -> None:
    with pytest.raises(InvalidOption, match="takes no options"):
        open_storage("sqlite:///jobs.db?durability=relaxed")


@pytest.mark.parametrize(
    "url", ["sqlite:///jobs.db\n", "sqlite:///jo\tbs.db", "postgresql://host/db\n", "redis://h\r\n"]
)
def test_an_address_with_a_line_break_is_refused(url: str) -> None:
    """As from a file that was read to its end: the break would become a part of the name."""
    with pytest.raises(InvalidOption, match="line break"):
        open_storage(url)


def test_the_scheme_of_an_address_has_no_case() -> None:
    storage = open_storage("SQLite:////var/jobs.db")
    assert isinstance(storage, SQLiteStorage)
    assert storage.path == Path("/var/jobs.db")


@pytest.mark.parametrize("path", ["", "a\x00b"])
def test_what_is_no_path_is_refused_at_once(path: str) -> None:
    with pytest.raises(InvalidOption):
        SQLiteStorage(path)


def test_an_unknown_durability_is_refused_at_once(database: Path) -> None:
    with pytest.raises(InvalidOption, match="fsync"):
        SQLiteStorage(database, durability="sometimes")  # type: ignore[arg-type]


async def test_a_file_that_is_no_database_is_refused_and_kept(database: Path) -> None:
    database.write_bytes(b"Dear diary, " * 1000)
    refused = await refusal(database)
    assert isinstance(refused, CorruptRecord)
    assert "not a SQLite database" in str(refused)
    assert database.read_bytes() == b"Dear diary, " * 1000


async def test_a_truncated_database_is_refused_or_its_damage_is_told(database: Path) -> None:
    async with SQLiteStorage(database) as storage:
        await storage.enqueue_many([Task("a.b", ("x" * 500,)) for _ in range(500)])
    content = database.read_bytes()
    database.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptRecord, match="damaged"):
        async with SQLiteStorage(database) as storage:
            await storage.enqueue(Task("a.b"))
            await storage.claim("ann", limit=1000)
            await storage.list_tasks(limit=1000)
    assert database.stat().st_size == len(content) // 2, "what is left for a rescue was changed"


@pytest.mark.parametrize("version", ["2", "99", "none of ours"])
async def test_a_newer_schema_is_refused_and_left_alone(database: Path, version: str) -> None:
    async with SQLiteStorage(database):
        pass
    with closing(sqlite3.connect(database)) as conn:
        conn.execute("UPDATE omniq_meta SET value = ? WHERE key = 'schema'", (version,))
        conn.commit()
    refused = await refusal(database)
    assert isinstance(refused, SchemaMismatch)
    assert version in str(refused)
    with closing(sqlite3.connect(database)) as conn:
        assert conn.execute("SELECT value FROM omniq_meta WHERE key = 'schema'").fetchone() == (version,)


async def test_the_applications_own_database_can_be_used(database: Path) -> None:
    with closing(sqlite3.connect(database)) as conn:
        conn.execute("CREATE TABLE orders (number)")
        conn.execute("INSERT INTO orders VALUES (1)")
        conn.commit()
    async with SQLiteStorage(database) as storage:
        await storage.enqueue(Task("a.b"))
        assert await storage.verify() == []
    with closing(sqlite3.connect(database)) as conn:
        assert conn.execute("SELECT * FROM orders").fetchall() == [(1,)]
        tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {name for name in tables if not name.startswith("omniq_")} == {"orders"}


# A program that is nobody in particular, so that a mode means something also when the tests run as root.
# What it imports it imports before, because nobody may not be able to read where Python is installed.
AS_NOBODY = """
import asyncio, os, sys
from omniq import Task
from omniq.errors import OmniqError
from omniq.storage import SQLiteStorage
from omniq.storage.sqlite import _engines, _engines_lock
from omniq.storage.sqlite import file as file_module
from omniq.storage.sqlite.file import check_version

async def work(path):
    try:
        async with SQLiteStorage(path) as storage:
            await storage.enqueue(Task("a.b"))
            return "STORED", len(await storage.claim("ann"))
    except OmniqError as refused:
        return type(refused).__name__, refused

asyncio.run(work(sys.argv[3]))
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
print(*asyncio.run(work(sys.argv[1])), flush=True)
"""


@pytest.fixture
def strict() -> Iterator[Path]:
    """A folder in which modes hold for the child.

    Not one of pytest's: those are for their owner alone, and each pytest that starts sees to that again.
    """
    with tempfile.TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o711)
        folder = Path(open_to_all, "strict")
        folder.mkdir()
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder
        folder.chmod(0o700)  # or whoever is not root could not clear it away


def as_nobody(field: Field, database: Path) -> Child:
    return field.script(AS_NOBODY, database, NOBODY, field.folder / "before.db")


def test_a_read_only_folder_is_told_with_the_way_out(field: Field, strict: Path) -> None:
    strict.chmod(0o555)
    said = as_nobody(field, strict / "jobs.db").line("InvalidOption")
    assert "cannot write" in said
    assert "Permission denied" in said
    assert "may write" in said
    assert list(strict.iterdir()) == []


def test_a_file_in_a_read_only_folder_is_told_with_the_way_out(field: Field, strict: Path) -> None:
    """The file may be written, but its log has no place: that is not a store that will come back."""
    assert as_nobody(field, strict / "jobs.db").line("STORED") == "1"
    strict.chmod(0o555)
    said = as_nobody(field, strict / "jobs.db").line("InvalidOption")
    assert "beside" in said
    assert "may write" in said


def test_a_folder_that_may_not_be_entered_is_told_with_the_way_out(field: Field, strict: Path) -> None:
    strict.chmod(0o600)
    said = as_nobody(field, strict / "jobs.db").line("InvalidOption")
    assert "Permission denied" in said
    assert "may write" in said


def test_a_file_that_cannot_be_looked_at_is_a_store_that_is_away(database: Path) -> None:
    """Not an error of the operating system's own, which would end a worker instead of making it wait."""
    with pytest.raises(StoreUnavailable, match="too long"):
        file_module.identity(database.with_name("n" * 300))


def test_a_file_of_somebody_else_is_told(field: Field, strict: Path) -> None:
    (strict / "jobs.db").touch(0o400)
    if os.getuid() == 0:
        os.chown(strict / "jobs.db", 0, 0)
    said = as_nobody(field, strict / "jobs.db").line("InvalidOption")
    assert "jobs.db" in said


def test_the_child_that_is_nobody_can_work_at_all(field: Field, strict: Path) -> None:
    assert as_nobody(field, strict / "jobs.db").line("STORED") == "1"


def synchronous(storage: SQLiteStorage) -> int:
    assert storage._engine is not None
    [found] = storage._engine._writer.execute("PRAGMA synchronous").fetchone()
    assert isinstance(found, int)
    return found


async def test_whoever_wants_the_most_durability_decides_for_all(database: Path) -> None:
    """They share one writer: what is told to be durable must be, whoever opened the file first."""
    async with SQLiteStorage(database, durability="relaxed") as relaxed:
        await relaxed.enqueue(Task("a.b"))
        assert synchronous(relaxed) == 1
        async with SQLiteStorage(database) as strict:
            await strict.enqueue(Task("a.b"))
            assert synchronous(strict) == 2
        await relaxed.enqueue(Task("a.b"))
        assert synchronous(relaxed) == 2


async def test_an_opening_that_is_cancelled_leaves_no_user_behind(database: Path) -> None:
    """Cancelled while a thread is at it, and when it has just done it."""
    storage = SQLiteStorage(database)
    with _engines_lock:
        opening = asyncio.create_task(storage.open())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)

    late = SQLiteStorage(database)
    opening = asyncio.create_task(late.open())
    while os.path.realpath(database) not in _engines:  # noqa: ASYNC110 - the answer must not arrive yet
        await asyncio.sleep(0)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await late.close()  # where the answer came all the same
    await asyncio.get_running_loop().shutdown_default_executor()  # until the threads have done their part
    assert os.path.realpath(database) not in _engines


# --- exchanged under us ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_file_that_was_exchanged_acknowledges_nothing_more(
    database: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "LOOK_AT_FILE_S", 0.0)  # so that nothing here waits for a look
    aside = tmp_path / "aside.db"
    async with SQLiteStorage(database) as storage:
        kept = await storage.enqueue(Task("a.b"))
        database.rename(aside)
        if how == "replaced":
            database.write_bytes(aside.read_bytes())
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            await storage.enqueue(Task("a.b", id="lost"))
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            await storage.get_task(kept)
        assert database.exists() == (how == "replaced"), "an empty one was made"
        aside.rename(database)  # put back
        assert await storage.get_task("lost") is None
        assert await storage.enqueue(Task("a.b"))


async def test_a_fork_beside_a_deleted_file_makes_no_empty_one(database: Path, tmp_path: Path) -> None:
    async with SQLiteStorage(database) as storage:
        engine = storage._engine
        assert engine is not None
        database.rename(tmp_path / "aside.db")
        engine.disconnect()
        engine.reconnect()
        assert not database.exists()
        (tmp_path / "aside.db").rename(database)
        with pytest.raises(StoreUnavailable):
            await storage.enqueue(Task("a.b"))
        assert await storage.enqueue(Task("a.b"))


async def test_a_sqlite_that_is_too_old_is_refused_in_clear_words(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unsupported, match=r"SQLite 3\.34\.1, and OmniQ needs 3\.35\.0"):
        check_version((3, 34, 1))
    check_version((3, 35, 0))
    monkeypatch.setattr(file_module, "OLDEST_SQLITE", (99, 0, 0))
    assert isinstance(await refusal(database), Unsupported)
    assert not database.exists()
    [finding] = await examine(SQLiteStorage(database))
    assert (finding.level, "newer" in finding.text) == ("problem", True)
