"""S2, S3: the store names what to run and what went wrong; it decides neither imports nor exceptions."""

import asyncio
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import omniq.crew
from omniq import AsyncWorkerPool, OmniQ, Task, TaskFailed, TaskStatus
from omniq.serializer import MsgpackSerializer
from omniq.storage import SQLiteStorage
from tests.faults.processes import eventually
from tests.security.planting import plant, status_of, tamper

PENDING, RUNNING, SUCCESS = 0, 1, 2

# Paths that a worker for myapp.tasks.* must neither run nor import.
FORBIDDEN = [
    "os.system",
    "subprocess.run",
    "builtins.eval",
    "builtins.exec",
    "importlib.import_module",
    "antigravity.geohash",
    "this.s",
    "myapp.tasks.__builtins__",
    "myapp.tasks.__builtins__.eval",
    "myapp.tasks.os.system",
    "myapp.tasks.subprocess.run",
    "myapp.tasks.allowed.__globals__",
    "myapp.tasks.allowed.__code__",
    "myapp.tasks.Class",
    "myapp.tasks.borrowed",
    "myapp.tasks._private",
    "myapp.tasks:os.system",
    "myapp.secrets.reveal",
    "myapp.tasksecrets.reveal",
    "myapp..tasks",
    ".myapp.tasks.allowed",
    "myapp.tasks.allowed ",
    "myapp/tasks/allowed",
    "myapp.tasks.*",
    "*",
    "a..b",
    "",
    "\n",
    "os;system",
]


@pytest.fixture
def myapp(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An application with a few tasks and a few things that are none."""
    ran: list[str] = []

    def module(name: str) -> ModuleType:
        made = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    def function(owner: ModuleType, name: str) -> None:
        def body(*_: object) -> str:
            ran.append(f"{owner.__name__}.{name}")
            return name

        body.__module__, body.__qualname__, body.__name__ = owner.__name__, name, name
        setattr(owner, name, body)

    package, tasks, secrets = module("myapp"), module("myapp.tasks"), module("myapp.secrets")
    package.__path__ = []  # type: ignore[attr-defined]
    for owner, name in ((tasks, "allowed"), (tasks, "_private"), (secrets, "reveal")):
        function(owner, name)
    tasks.os = __import__("os")  # type: ignore[attr-defined]
    tasks.subprocess = subprocess  # type: ignore[attr-defined]
    tasks.borrowed = secrets.reveal  # type: ignore[attr-defined]
    tasks.Class = type("Class", (), {"__module__": "myapp.tasks"})  # type: ignore[attr-defined]
    return ran


@pytest.fixture(autouse=True)
def warm(tmp_path: Path) -> None:
    """What a worker imports for itself, it has imported before."""

    async def run_once() -> None:
        async with SQLiteStorage(tmp_path / "warm.db") as storage, AsyncWorkerPool(storage.clone()):
            await storage.wait_result(await storage.enqueue(Task("builtins.len", ("abc",))), 20)

    asyncio.run(run_once())


def imported() -> set[str]:
    return set(sys.modules)


async def test_s2_only_what_is_allowed_is_imported_or_run(
    database: Path, myapp: list[str], canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(omniq.crew, "unserved_delay_s", lambda epoch: 3600.0)
    async with SQLiteStorage(database) as storage:
        command = storage.serializer.dump_call(None, (f"touch {canary}",), {})
        ids = [await plant(storage, func_path=path, payload=command) for path in FORBIDDEN]
        fine = await plant(storage, func_path="myapp.tasks.allowed")
        before = imported()
        async with AsyncWorkerPool(storage, concurrency=4, allow=["myapp.tasks.*"]):
            result = await storage.wait_result(fine, 20)
            assert result is not None
            assert result.status is TaskStatus.SUCCESS

            async def nobody_runs() -> bool:
                return all(status_of(database, task_id) != RUNNING for task_id in ids)

            await eventually(nobody_runs)
        assert myapp == ["myapp.tasks.allowed"]
        assert imported() - before == set()
        assert not [path for path, i in zip(FORBIDDEN, ids, strict=True) if status_of(database, i) == SUCCESS]
    assert not canary.exists()


async def test_s2_an_application_runs_registered_tasks_only(
    database: Path, myapp: list[str], canary: Path
) -> None:
    q = OmniQ(SQLiteStorage(database))

    @q.task(name="myapp.tasks.registered")
    async def registered() -> str:
        return "ran"

    async with SQLiteStorage(database) as storage:
        command = storage.serializer.dump_call(None, (f"touch {canary}",), {})
        paths = [*FORBIDDEN, "myapp.tasks.allowed", "myapp.tasks.registered.x"]
        ids = [await plant(storage, func_path=path, payload=command) for path in paths]
        before = imported()
        async with q.async_worker():
            handle = await registered.aenqueue()
            assert await handle.aresult(timeout=20) == "ran"
        assert [status_of(database, task_id) for task_id in ids].count(SUCCESS) == 0
        assert imported() - before == set()
    await q.aclose()
    assert myapp == []
    assert not canary.exists()


@pytest.mark.parametrize("path", ["os.system", "subprocess.getoutput", "antigravity.geohash"])
@pytest.mark.parametrize("beside", ["", "builtins.len"])
async def test_s2_a_path_inside_the_arguments_is_not_trusted_to_choose(
    database: Path, canary: Path, path: str, beside: str
) -> None:
    """A row without a path of its own, or with a harmless one, whose payload names another function."""
    async with SQLiteStorage(database) as storage:
        call = MsgpackSerializer().dump_call(path, (f"touch {canary}",), {})
        task_id = await plant(storage, func_path=beside, payload=call)
        before = imported()
        async with AsyncWorkerPool(storage, allow=["builtins.len"]):
            done = await plant(storage, func_path="builtins.len")
            assert await storage.wait_result(done, 20)
        # Its own path decides; without one, what the payload names is asked for as anything else is.
        assert (status_of(database, task_id) == SUCCESS) == (beside == "builtins.len")
        assert imported() - before == set()
    assert not canary.exists()


async def test_s3_an_exception_is_never_rebuilt_from_its_name(database: Path, canary: Path) -> None:
    q = OmniQ(SQLiteStorage(database))

    @q.task(name="app.fail", max_retries=0)
    async def fail() -> None:
        raise ValueError("on purpose")

    async with q.async_worker():
        handle = await fail.aenqueue()
        with pytest.raises(TaskFailed, match="on purpose"):
            await handle.aresult(timeout=20)
    for name in ("subprocess.Popen", "os.system", "SystemExit", "builtins.KeyboardInterrupt"):
        error = f'{{"type": "{name}", "message": "touch {canary}", "traceback": "", "kind": "error"}}'
        tamper(database, handle.id, error=error)
        before = imported()
        with pytest.raises(TaskFailed) as failed:
            await handle.aresult(timeout=20)
        assert type(failed.value) is TaskFailed
        assert failed.value.error is not None
        assert failed.value.error.type == name
        assert imported() == before
    await q.aclose()
    assert not canary.exists()
