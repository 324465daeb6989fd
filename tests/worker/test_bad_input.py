"""Bad input to workers and tasks: an error of the project's own, that says what to write instead."""

from __future__ import annotations

import re
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from omniq import (
    AsyncWorkerPool,
    CorruptRecord,
    InvalidOption,
    OmniqError,
    SchemaMismatch,
    Task,
    TaskStatus,
    UnserializableArgument,
    Worker,
    WorkerPool,
)
from omniq.storage import MemoryStorage, SQLiteStorage, open_storage
from tests.requirements.backends import ListBackend
from tests.worker.scene import Bodies, ended, omniq_threads, running, until
from tests.worker.stores import AnyStore, Five, SQLite

POOLS = [AsyncWorkerPool, WorkerPool]


# --- workers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": -3}, "concurrency"),
        ({"concurrency": 2.5}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": 10**12}, "concurrency"),
        ({"poll_interval": 0}, "poll_interval"),
        ({"poll_interval": float("inf")}, "poll_interval"),
        ({"poll_interval": timedelta(0)}, "poll_interval"),
        ({"lease": 0}, "lease"),
        ({"lease": -1}, "lease"),
        ({"lease": float("nan")}, "lease"),
        ({"lease": "30"}, "lease"),
        ({"base_retry_delay": 0}, "base_retry_delay"),
        ({"max_retry_delay": -1}, "max_retry_delay"),
        ({"queues": []}, "queues"),
        ({"queues": "mail"}, "queues"),
        ({"queues": ["mail", "; DROP TABLE omniq_task"]}, "queue"),
        ({"queues": [7]}, "queue"),
        ({"queues": 5}, "queues"),
        ({"queues": b"mail"}, "queues"),
        ({"allow": "myapp.*"}, "allow"),
        ({"allow": 5}, "allow"),
        ({"allow": [5]}, "allow"),
        ({"serializer": "json"}, "serializer"),
        ({"serializer": dict}, "serializer"),
        ({"concurency": 3}, "did you mean 'concurrency'"),
        ({"process": True}, "has no option 'process'"),
        ({"nonsense": 3}, "known are concurrency"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_options_of_a_pool(kind: type[Any], options: dict[str, Any], names: str) -> None:
    with pytest.raises(InvalidOption, match=names) as refusal:
        kind(MemoryStorage(), **options)
    says_one_line(refusal.value)


def says_one_line(error: BaseException) -> None:
    text = str(error)
    assert "\n" not in text
    assert 10 < len(text) < 400


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("storage", [None, "sqlite:///jobs.db", MemoryStorage, {}])
def test_something_that_is_no_storage(kind: type[Any], storage: Any) -> None:
    with pytest.raises(InvalidOption, match="SQLiteStorage"):
        kind(storage)


@pytest.mark.parametrize("backend", [None, "redis", ListBackend])
def test_something_that_is_no_backend(backend: Any) -> None:
    with pytest.raises(InvalidOption, match="Backend"):
        Worker(backend)


@pytest.mark.parametrize(
    "options", [{"max_concurrency": 0}, {"poll_interval": 0}, {"serializer": "json"}, {"concurrency": 3}]
)
def test_options_of_a_worker(options: dict[str, Any]) -> None:
    [name] = options
    with pytest.raises(InvalidOption, match=name):
        Worker(ListBackend(), **options)


# --- tasks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"func_path": ""}, "func_path"),
        ({"func_path": "no spaces allowed"}, "func_path"),
        ({"func_path": "a..b"}, "func_path"),
        ({"func_path": ".a"}, "func_path"),
        ({"func_path": "a.b()"}, "func_path"),
        ({"func_path": "x" * 600}, "func_path"),
        ({"func_path": 7}, "func_path"),
        ({"args": 1}, "args"),
        ({"args": "text"}, "args"),
        ({"kwargs": {1: 2}}, "kwargs"),
        ({"kwargs": [1]}, "kwargs"),
        ({"eta": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001 - that is the point
        ({"eta": "tomorrow"}, "eta"),
        ({"eta": 60}, "eta"),
        ({"expires_at": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"queue": ""}, "queue"),
        ({"queue": "a b"}, "queue"),
        ({"queue": "'; DROP TABLE omniq_task; --"}, "queue"),
        ({"queue": "\u202egnihtemos"}, "queue"),
        ({"queue": "q" * 129}, "queue"),
        ({"queue": "a\x00b"}, "queue"),
        ({"priority": 10}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"interval": "hourly"}, "interval"),
        ({"interval": float("nan")}, "interval"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": 1.5}, "max_retries"),
        ({"max_losses": 0}, "max_losses"),
        ({"unique_key": ""}, "unique_key"),
        ({"headers": {"a": 1}}, "headers"),
        ({"on_failure": "explode"}, "on_failure"),
        ({"headers": None}, "headers"),
        ({"headers": []}, "headers"),
        ({"headers": 0}, "headers"),
        ({"id": ""}, "id"),
    ],
    ids=lambda value: re.sub(r"\W+", " ", str(value))[:40] if isinstance(value, dict) else None,
)
def test_fields_of_a_task(fields: dict[str, Any], names: str) -> None:
    with pytest.raises(InvalidOption, match=names) as refusal:
        Task(**{"func_path": "a.b", **fields})
    says_one_line(refusal.value)


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("not shown")


class Wordy:
    def __repr__(self) -> str:
        return "two\nlines and \x1b[31m colour"


ODD = {"shy": Shy(), "wordy": Wordy(), "endless": "x" * 100_000, "beyond printing": 10**5000}


@pytest.mark.parametrize("value", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("name", ["args", "kwargs", "queue", "priority", "eta", "timeout", "headers", "id"])
def test_what_cannot_be_shown_is_refused_all_the_same(name: str, value: object) -> None:
    """S19: one line without control characters, whatever was passed."""
    with pytest.raises(InvalidOption, match=name) as refusal:
        Task(**{"func_path": "a.b", name: value})
    says_one_line(refusal.value)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("value", ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("name", ["concurrency", "poll_interval", "lease", "queues", "allow", "serializer"])
def test_nor_by_a_pool(name: str, value: object) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(InvalidOption, match=name) as refusal:
        AsyncWorkerPool(MemoryStorage(), **options)
    says_one_line(refusal.value)


@pytest.mark.parametrize("value", ODD.values(), ids=ODD.keys())
def test_nor_in_place_of_a_storage_or_a_path(value: Any) -> None:
    for kind in (AsyncWorkerPool, WorkerPool, Worker):
        with pytest.raises(InvalidOption, match=r"storage|backend") as refusal:
            kind(value)
        says_one_line(refusal.value)
    if not isinstance(value, str):
        with pytest.raises(InvalidOption, match="path"):
            SQLiteStorage(value)


class NotData:
    pass


@pytest.mark.parametrize(
    ("args", "kwargs", "place"),
    [
        ((1, NotData()), {}, "args[1]"),
        ((), {"x": NotData()}, "kwargs['x']"),
        (([{"deep": [NotData()]}],), {}, "args[0]"),
        ((lambda: 1,), {}, "args[0]"),
        ((open,), {}, "args[0]"),
    ],
    ids=["positional", "keyword", "deep", "lambda", "function"],
)
async def test_arguments_that_cannot_be_stored(builtin: AnyStore, args: Any, kwargs: Any, place: str) -> None:
    """Refused at enqueue, naming the argument and its type, with nothing stored."""
    async with builtin as store:
        assert not isinstance(store, Five)
        with pytest.raises(UnserializableArgument) as refusal:
            await store.enqueue(Task("json.dumps", args, kwargs))
        assert place in str(refusal.value)
        assert await store.list_tasks() == []


# --- files ---------------------------------------------------------------------------------------


def no_database(path: Path) -> None:
    path.write_bytes(b"This is a letter to my aunt, and no database at all." * 100)


def newer_schema(path: Path) -> None:
    import asyncio

    async def make() -> None:
        async with SQLiteStorage(path):
            pass

    asyncio.run(make())
    with sqlite3.connect(path) as conn:
        conn.execute("UPDATE omniq_meta SET value = '999' WHERE key = 'schema'")
    conn.close()


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere.db"))


def missing_folder(path: Path) -> None:
    path.parent.rmdir()


@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        (no_database, CorruptRecord),
        (newer_schema, SchemaMismatch),
        (a_folder, InvalidOption),
        (a_link, InvalidOption),
        (missing_folder, InvalidOption),
    ],
)
@pytest.mark.parametrize("kind", POOLS)
def test_a_file_that_cannot_be_used(
    tmp_path: Path, prepare: Any, error: type[OmniqError], kind: type[Any]
) -> None:
    """A worker says so when it is started; it does not wait for a store that will never come."""
    import asyncio

    path = tmp_path / "folder" / "jobs.db"
    path.parent.mkdir()
    prepare(path)
    before = omniq_threads()
    with pytest.raises(error) as refusal:
        if kind is WorkerPool:
            WorkerPool(SQLiteStorage(path)).start()
        else:
            asyncio.run(AsyncWorkerPool(SQLiteStorage(path)).start())
    assert str(path.parent) in str(refusal.value) or "schema" in str(refusal.value)
    says_one_line(refusal.value)
    assert {t for t in omniq_threads() - before if t.is_alive()} == set()


@pytest.mark.parametrize("url", ["", "jobs.db", "mysql://x", "sqlite://", "sqlite:///", 7, "redis"])
def test_urls(url: Any) -> None:
    with pytest.raises(InvalidOption, match="sqlite:///"):
        open_storage(url)


async def test_a_corrupt_row_among_good_ones(tmp_path: Path, bodies: Bodies) -> None:
    """It stays alone: the worker lives, the neighbours run."""
    path = bodies(lambda n: n, "body")
    async with SQLite(tmp_path / "jobs.db") as store:
        ids = [await store.enqueue(Task(path, (n,))) for n in range(5)]
    with sqlite3.connect(tmp_path / "jobs.db") as conn:
        conn.execute("UPDATE omniq_task SET max_retries = 'many', headers = x'ff00' WHERE id = ?", (ids[2],))
    conn.close()
    async with SQLite(tmp_path / "jobs.db") as store, running(store, 2, poll_interval=0.05) as pool:
        for n in (0, 1, 3, 4):
            assert (await ended(store, ids[n])).result == n
        assert pool.running


async def test_bad_input_does_not_end_a_worker(store: AnyStore, bodies: Bodies) -> None:
    """All of it at once, and then an ordinary task."""
    bad = [
        Task("no.such.thing", max_retries=0),
        Task("json.decoder", max_retries=0),
        Task("json.dumps", (1, 2, 3, 4, 5), max_retries=0),
        Task(bodies(NotData, "NotData"), max_retries=0),
    ]
    async with store, running(store, 2, poll_interval=0.02) as pool:
        for task in bad:
            await store.enqueue(task)
        for task in bad:
            assert (await ended(store, task.id)).status is TaskStatus.FAILED
        assert pool.running
        assert (await ended(store, await store.enqueue(Task("json.dumps", (1,))))).result == "1"


async def test_something_foreign_in_place_of_a_task() -> None:
    """A storage of somebody's own that hands out nonsense does not end the worker."""

    class Nonsense(Five):
        given = 0

        async def dequeue(self, now: datetime | None = None) -> Any:
            self.given += 1
            return "not a task" if self.given <= 2 else await super().dequeue(now)

    store = Nonsense()
    async with running(store, 1, poll_interval=0.02) as pool:
        task_id = await store.enqueue(Task("json.dumps", (1,)))
        await until(lambda: store.given > 2)
        assert (await ended(store, task_id)).result == "1"
        assert pool.running
