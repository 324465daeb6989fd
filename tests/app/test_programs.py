"""Real programs: a script run as `__main__`, a package, a fork, a short-lived producer."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

APP = """
import asyncio, sys
from omniq import OmniQ

q = OmniQ("sqlite:///jobs.db")

@q.task
def send(to):
    return f"sent to {to}"

@q.task
async def asend(to):
    return f"sent to {to}"

if __name__ == "__main__":
    print(send.name, asend.name)
    send.enqueue("ann")
    asend.enqueue("bob")
    q.close()
"""

RUN_ALL = """
import sys, importlib
app = importlib.import_module(sys.argv[1])

async def results():
    storage = await app.q.astorage()
    tasks = await storage.list_tasks()
    return sorted([await app.q.handle(task.id).aresult(timeout=20) for task in tasks])

import asyncio

async def main():
    async with app.q, app.q.async_worker(concurrency=2, poll_interval=0.05):
        print(*await results(), sep="|")

asyncio.run(main())
"""


def python(folder: Path, *args: str, **env: str) -> str:
    run = subprocess.run(
        [sys.executable, *args],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    return run.stdout.strip()


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.mark.parametrize(
    ("file", "command", "module"),
    [
        ("app.py", ["app.py"], "app"),
        ("app.py", ["-m", "app"], "app"),
        ("pkg/app.py", ["-m", "pkg.app"], "pkg.app"),
        ("pkg/__main__.py", ["-m", "pkg"], "pkg.__main__"),
    ],
    ids=["script", "module", "in a package", "package"],
)
def test_what_main_enqueued_is_found_by_its_module(
    tmp_path: Path, file: str, command: list[str], module: str
) -> None:
    """A task of a script run as `__main__` is stored under the name that a worker imports."""
    write(tmp_path, file, APP)
    if "/" in file:
        write(tmp_path, "pkg/__init__.py", "")
    assert python(tmp_path, *command) == f"{module}.send {module}.asend"
    assert python(tmp_path, "-c", RUN_ALL, module) == "sent to ann|sent to bob"


def test_a_script_that_works_for_itself(tmp_path: Path) -> None:
    """Producer and worker in one script, as in a first try."""
    write(
        tmp_path,
        "first_try.py",
        """
        from omniq import OmniQ

        q = OmniQ("sqlite:///jobs.db")

        @q.task
        def double(x: int) -> int:
            return x * 2

        if __name__ == "__main__":
            with q.worker(concurrency=2):
                print(double.enqueue(21).result(timeout=20))
            q.close()
        """,
    )
    assert python(tmp_path, "first_try.py") == "42"


def test_without_closing_anything(tmp_path: Path) -> None:
    """A program that forgets to close ends at once, and what it enqueued is there."""
    write(tmp_path, "app.py", APP)
    script = "import app; app.send.enqueue('ann'); app.send.enqueue('eve').status(); print('left')"
    assert python(tmp_path, "-c", script) == "left"
    assert python(tmp_path, "-c", RUN_ALL, "app") == "sent to ann|sent to eve"


FORKING = """
import os, sys, warnings
warnings.simplefilter("ignore")  # newer versions warn of forks beside threads; that is the point here
import app

with app.q.worker(concurrency=2) if sys.argv[1] == "worker" else app.q:
    app.send.enqueue("parent").result(timeout=20) if sys.argv[1] == "worker" else app.send.enqueue("parent")
    children = []
    for name in ("one", "two"):
        pid = os.fork()
        if pid == 0:
            try:
                handle = app.send.enqueue(name)  # the parent's connections and threads are not ours
                handle.status()
                app.q.close()
                os._exit(0)
            except BaseException as exc:
                print(repr(exc), file=sys.stderr)
                os._exit(1)
        children.append(pid)
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    app.send.enqueue("parent again").status()
app.q.close()
print(codes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("mode", ["producer", "worker"])
def test_a_forked_child_has_connections_of_its_own(tmp_path: Path, mode: str) -> None:
    write(tmp_path, "app.py", APP)
    assert python(tmp_path, "-c", FORKING, mode) == "[0, 0]"
    assert (
        python(tmp_path, "-c", RUN_ALL, "app")
        == "sent to one|sent to parent|sent to parent again|sent to two"
    )


PARENT_LEAVES_FIRST = """
import os, sys, warnings
warnings.simplefilter("ignore")
import app

app.send.enqueue("parent")
child_is_in, parent_is_out = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    try:
        app.send.enqueue("child, before")
        os.write(child_is_in[1], b"x")
        os.read(parent_is_out[0], 1)
        app.send.enqueue("child, after")
        app.q.close()
        os._exit(0)
    except BaseException as exc:
        print(repr(exc), file=sys.stderr)
        os._exit(1)
os.read(child_is_in[0], 1)
app.q.close()
os.write(parent_is_out[1], b"x")
print(os.waitpid(pid, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_what_a_forked_child_enqueued_outlives_its_parents_connections(tmp_path: Path) -> None:
    """SQLite remembers locks per process: a child that inherited the memory of them must not rely on it."""
    write(tmp_path, "app.py", APP)
    assert python(tmp_path, "-c", PARENT_LEAVES_FIRST) == "0"
    ran = python(tmp_path, "-c", RUN_ALL, "app")
    assert ran == "sent to child, after|sent to child, before|sent to parent"


FORK_WHILE_BUSY = """
import faulthandler, os, sys, threading, warnings
warnings.simplefilter("ignore")
import app

stop = threading.Event()

def busy():
    while not stop.is_set():
        app.send.enqueue("busy")

app.send.enqueue("first")
for _ in range(3):
    threading.Thread(target=busy, daemon=True).start()
codes = set()
for n in range(20):
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(20, exit=True)
        try:
            app.send.enqueue(f"child {n}")
            os._exit(0)
        except BaseException as exc:
            print(repr(exc), file=sys.stderr)
            os._exit(1)
    codes.add(os.waitpid(pid, 0)[1])
    if codes != {0}:
        break
stop.set()
print(codes, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_at_any_moment(tmp_path: Path) -> None:
    """Whatever other threads held at that moment, a child can enqueue."""
    write(tmp_path, "app.py", APP)
    assert python(tmp_path, "-c", FORK_WHILE_BUSY) == "{0}"


def test_importing_is_cheap(tmp_path: Path) -> None:
    """No store driver, web framework or NumPy is imported by `import omniq`, and nothing happens."""
    script = """
import sys, threading
import omniq
from omniq import OmniQ, Task, AsyncWorkerPool, WorkerPool, Worker, Context, context, TaskHandle
OmniQ()
heavy = {"sqlite3", "numpy", "starlette", "uvicorn", "click", "rich", "cloudpickle"} & set(sys.modules)
print(sorted(heavy), threading.active_count())
"""
    assert python(tmp_path, "-c", script) == "[] 1"
    assert list(tmp_path.iterdir()) == []


def test_every_public_name_is_there() -> None:
    import omniq
    import omniq.storage

    for name in omniq.__all__:
        assert getattr(omniq, name) is not None
    assert callable(omniq.context)
    assert isinstance(omniq.Context, type)
    for name in ("BaseStorage", "Backend", "MemoryStorage", "SQLiteStorage", "open_storage"):
        assert getattr(omniq.storage, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = omniq.no_such_name
