"""S12, S19: logs and errors show neither what was passed nor what a name or message tries to forge."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from omniq import AsyncWorkerPool, OmniQ, Task, TaskStatus
from omniq.errors import InvalidOption, OmniqError
from omniq.storage import SQLiteStorage, open_storage
from omniq.storage.url import safe_url
from tests.security.planting import plant

SECRET = "s3cret-c4nary"
FORGED = "fine\nERROR | forged line\x1b[31m red\u2028next\u2029end\x85nel\r\x00"
BREAKS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029\x00\x1b]")


@pytest.fixture
def log() -> Iterator[list[str]]:
    """Every record at the most talkative level, with its extras, as a handler sees it."""
    lines: list[str] = []

    def note(message: object) -> None:
        record = message.record  # type: ignore[attr-defined]
        lines.append(f"{record['message']}")

    handler = logger.add(note, level="TRACE", format="{message} {extra}", diagnose=False)
    yield lines
    logger.remove(handler)


async def test_s12_arguments_and_results_are_in_no_log_and_no_error(database: Path, log: list[str]) -> None:
    bodies = ("builtins.len", "builtins.int", "os.path.join", "no.such.function", "operator.itemgetter")
    async with SQLiteStorage(database) as storage:
        ids = [
            await storage.enqueue(Task(path, (SECRET,), {}, headers={"auth": SECRET}, max_retries=0))
            for path in bodies
        ]
        ids.append(await storage.enqueue(Task("builtins.len", (SECRET,), {"k": SECRET}, max_retries=0)))
        ids.append(await plant(storage, payload=b"\x01m\x00" + SECRET.encode()))
        async with AsyncWorkerPool(storage, concurrency=3):
            for task_id in ids:
                assert await storage.wait_result(task_id, 20)
        for task_id in ids:
            task = await storage.get_task(task_id)
            assert task is not None
            if task.error is not None and task.func_path != "builtins.int":  # int() itself says what it got
                assert SECRET not in repr(task.error)
    assert len(log) > len(ids)
    assert not [line for line in log if SECRET in line]


async def test_s12_what_is_refused_is_not_shown(database: Path) -> None:
    class Unfit:
        def __repr__(self) -> str:
            return SECRET

    async with SQLiteStorage(database) as storage:
        for args in ((Unfit(),), ([{"k": Unfit()}],), ("x" * (2 << 20) + SECRET,)):
            with pytest.raises(OmniqError) as refused:
                await storage.enqueue(Task("a.b", args))
            assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@host/db",
        f"redis://:{SECRET}@host:6379/0",
        f"amqp://ann:{SECRET}@host",
        f"postgresql://ann:{SECRET}@host:notaport/db",
        f"postgresql://host/db?password={SECRET}",
    ],
)
def test_s12_the_password_of_a_url_is_never_shown(url: str) -> None:
    assert SECRET not in safe_url(url)
    assert SECRET not in repr(OmniQ(url))
    if url.startswith(("postgresql:", "redis:")):
        assert SECRET not in _shown_or_refused(url)
        return
    with pytest.raises(OmniqError) as refused:
        open_storage(url)
    assert SECRET not in str(refused.value)


def _shown_or_refused(url: str) -> str:
    try:
        return repr(open_storage(url))
    except OmniqError as refused:
        return str(refused)


# --- S19 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["id", "queue", "func_path", "unique_key"])
def test_s19_a_name_that_forges_a_line_is_refused(field: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        Task(**{"func_path": "a.b", field: FORGED})
    assert not BREAKS.search(str(refused.value))


@pytest.mark.parametrize("column", ["id", "func_path", "queue", "owner", "unique_key", "headers", "error"])
async def test_s19_what_was_forged_in_the_store_is_one_line(
    database: Path, log: list[str], column: str
) -> None:
    async with SQLiteStorage(database) as storage:
        for options in ({}, {"allow": ["nothing.*"]}):
            await plant(storage, **{column: f"{FORGED}{len(options)}"})
            good = await storage.enqueue(Task("builtins.len", ("abc",), priority=0, queue="good"))
            async with AsyncWorkerPool(storage.clone(), poll_interval=0.05, **options):  # type: ignore[arg-type]
                if not options:
                    assert await storage.wait_result(good, 20)
            await storage.list_tasks()
            await storage.verify()
    assert log
    assert not [line for line in log if BREAKS.search(line)]


async def test_s19_what_a_body_says_is_one_line(database: Path, log: list[str]) -> None:
    q = OmniQ(SQLiteStorage(database))

    class Bad(Exception):
        pass

    Bad.__qualname__ = Bad.__name__ = FORGED.replace("\x00", "")

    @q.task(name="app.shout", max_retries=1)
    async def shout() -> None:
        raise Bad(FORGED)

    async with q.async_worker(base_retry_delay=0.01), SQLiteStorage(database) as storage:
        handle = await shout.aenqueue()
        result = await storage.wait_result(handle.id, 20)
        assert result is not None
        assert result.status is TaskStatus.FAILED
    await q.aclose()
    assert not [line for line in log if BREAKS.search(line)]


def test_s19_a_worker_with_a_forged_name_is_refused_or_escaped(database: Path, log: list[str]) -> None:
    with pytest.raises(InvalidOption) as refused:
        AsyncWorkerPool(SQLiteStorage(database), name=FORGED)
    assert not BREAKS.search(str(refused.value))
