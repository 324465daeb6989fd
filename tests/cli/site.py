"""A folder with an application in it, and the real command `omniq` at work there."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from omniq.storage import SQLiteStorage
from omniq.task import Task, TaskFilter, TaskStatus

APP = """
import asyncio, os, threading, time
from loguru import logger
from omniq import OmniQ

q = OmniQ("sqlite:///jobs.db")
ledger = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(word, name):
    os.write(ledger, f"{word} {name} {os.getpid()} {time.monotonic()}\\n".encode())

@q.task
async def nap(name, seconds=0.0):
    note("BEGUN", name)
    await asyncio.sleep(seconds)
    note("ENDED", name)

@q.task
def doze(name, seconds=0.0):
    note("BEGUN", name)
    time.sleep(seconds)
    note("ENDED", name)

@q.task
async def hold(name):
    note("BEGUN", name)
    while not os.path.exists("go"):
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)  # what reached this loop before the file was made, it has heard by now
    note("ENDED", name)

@q.task
async def block(name, seconds):
    note("BEGUN", name)
    time.sleep(seconds)  # on purpose: the whole loop stands still
    note("ENDED", name)

@q.task
def die(name):
    note("BEGUN", name)
    os.kill(os.getpid(), 9)

@q.task
async def cancel_all(name):
    note("BEGUN", name)
    for task in asyncio.all_tasks():
        task.cancel()

@q.task
async def leave(name):
    note("BEGUN", name)
    os._exit(3)

@q.task(timeout=0.3, max_retries=0)
def hang(name):
    note("BEGUN", name)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # for ever

@q.task(max_retries=0)
def boom(secret, *, token):
    raise ValueError("one\\ntwo \\x1b[31m \\u2028 three")

@q.task
def chat():
    logger.warning("evil\\n2020-01-01 00:00:00.000 ERROR   [1] forged \\x1b[31m")
"""

# As the installed command starts: without the working directory on its path.
OMNIQ = (sys.executable, "-P", "-m", "omniq")
WITHIN_S = 20.0
EVERY_S = 0.03


@dataclass(frozen=True)
class Note:
    word: str
    name: str
    pid: int
    at_s: float


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "jobs.py").write_text(APP, encoding="utf-8")
        # PYTHONPATH stays where it leads to a copy with a planted bug (tests/mutants), which is to be run.
        left_out = ("OMNIQ_",) if "MUTANT_SOURCE" in os.environ else ("OMNIQ_", "PYTHONPATH")
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(left_out)
        }

    @property
    def file(self) -> Path:
        return self.folder / "jobs.db"

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """One command, to its end."""
        return subprocess.run(
            [*OMNIQ, *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )

    @contextmanager
    def worker(self, *options: str, app: str = "jobs:q", **environment: str) -> Iterator["Worker"]:
        """`omniq worker`, in a process group of its own as under a shell; nothing outlives the block."""
        log = self.folder / f"worker-{time.monotonic_ns()}.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [*OMNIQ, "worker", app, *options],
                cwd=self.folder,
                env=self.environment | environment,
                stderr=stderr,
                process_group=0,
            )
        worker = Worker(process, log)
        try:
            yield worker
        finally:
            worker.destroy()

    @asynccontextmanager
    async def store(self) -> AsyncIterator[SQLiteStorage]:
        async with SQLiteStorage(self.file) as storage:
            yield storage

    def notes(self, word: str = "", name: str = "") -> list[Note]:
        """What the bodies have written down so far."""
        file = self.folder / "ledger"
        lines = file.read_text().splitlines() if file.exists() else []
        found = [Note(w, n, int(pid), float(at_s)) for w, n, pid, at_s in (line.split() for line in lines)]
        return [note for note in found if word in ("", note.word) and name in ("", note.name)]


class Worker:
    """A running `omniq worker`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self._seen: set[int] = set()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def children(self) -> list[int]:
        """The worker processes that live now."""
        children = [
            int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        ]
        self._seen.update(children)
        return children

    async def ready(self, storage: SQLiteStorage, processes: int = 1) -> list[int]:
        """Wait until that many worker processes have registered, and at least as many live below us."""

        async def registered() -> bool:
            pids = {worker.pid for worker in await storage.workers()}
            return len(pids & set(self.children())) >= processes

        await until(registered, lambda: f"{processes} workers; the log:\n{self.log}")
        return self.children()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def ended(self, within_s: float = WITHIN_S) -> int:
        """The exit code, waited for."""

        async def gone() -> bool:
            return self.process.poll() is not None

        await until(gone, lambda: f"the end of the worker; its log:\n{self.log}", within_s)
        return self.process.returncode

    def destroy(self) -> None:
        with suppress(FileNotFoundError, ProcessLookupError):
            self.children()
        for pid in (self.process.pid, *self._seen):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


async def until(
    condition: Callable[[], Awaitable[bool]], what: str | Callable[[], str], within_s: float = WITHIN_S
) -> None:
    """Look again and again, with a bound; never a plain sleep."""
    give_up_at = time.monotonic() + within_s
    while not await condition():
        if time.monotonic() >= give_up_at:
            raise AssertionError(f"not within {within_s:g} s: {what if isinstance(what, str) else what()}")
        await asyncio.sleep(EVERY_S)


async def until_logged(worker: Worker, text: str) -> None:
    async def logged() -> bool:
        return text in worker.log

    await until(logged, lambda: f"{text!r} in the log, which says:\n{worker.log}")


async def until_begun(site: Site, name: str, times: int = 1) -> None:
    async def begun() -> bool:
        return len(site.notes("BEGUN", name)) >= times

    await until(begun, f"{name} begun {times} times")


async def until_status(
    storage: SQLiteStorage, ids: Sequence[str], *statuses: TaskStatus, within_s: float = WITHIN_S
) -> list[Task]:
    """Wait until every one of these tasks has one of these statuses."""
    tasks: list[Task] = []

    async def reached() -> bool:
        found = [await storage.get_task(task_id) for task_id in ids]
        tasks[:] = [task for task in found if task is not None]
        return len(tasks) == len(ids) and all(task.status in statuses for task in tasks)

    await until(
        reached, lambda: f"{statuses}, but {[(t.func_path, str(t.status), t.error) for t in tasks]}", within_s
    )
    return tasks


async def running(storage: SQLiteStorage) -> list[Task]:
    return await storage.list_tasks(TaskFilter(status=TaskStatus.RUNNING))


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def call(name: str, *args: object, **options: object) -> Task:
    """A task of the application in `APP`."""
    return Task(f"jobs.{name}", args, **options)  # type: ignore[arg-type]
