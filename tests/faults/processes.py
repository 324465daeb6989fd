"""Children of a test: programs that it starts, talks to, stops, kills, and never leaves behind."""

import asyncio
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from omniq import Task
from omniq.storage import SQLiteStorage
from tests.faults.ledger import LEDGER, Ledger

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0  # for what should take a moment; only a failure waits this long


class Child:
    """One program. Its standard output is read line by line; its log goes to a file."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str]) -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stdin=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=env,
                start_new_session=True,
            )
        self.log = log
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self, word: str, within_s: float = PATIENCE_S) -> str:
        """Wait for a line that begins with `word`; what follows it."""
        until = time.monotonic() + within_s
        while True:
            head, newline, self._buffer = self._buffer.partition(b"\n")
            if newline and head.decode().startswith(word):
                return head.decode().removeprefix(word).strip()
            if not newline:
                self._buffer = head + self._more(word, until)

    def _more(self, word: str, until: float) -> bytes:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(until - time.monotonic()), f"no {word!r} came\n{self.log.read_text()}"
        chunk = os.read(self.process.stdout.fileno(), 65536)
        assert chunk, f"ended before it said {word!r}\n{self.log.read_text()}"
        return chunk

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait(self, within_s: float = PATIENCE_S) -> int:
        return self.process.wait(within_s)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdout, self.process.stdin):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


class Field:
    """A database, a ledger, and the children that work on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "jobs.db"
        self.ledger = Ledger(folder / "ledger")
        self.children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        for child in self.children:
            child.close()

    def run(self, module: str, config: Any = None, *extra: str) -> Child:
        """Start `python -m module CONFIG ...`."""
        command = [sys.executable, "-m", module, json.dumps(config), *extra]
        return self._started(command)

    def script(self, source: str, *arguments: object) -> Child:
        """Start a program given as text; its arguments are in sys.argv."""
        return self._started([sys.executable, "-c", source, *map(str, arguments)])

    def _started(self, command: list[str]) -> Child:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, LEDGER: str(self.ledger.path), "PYTHONPATH": os.pathsep.join(paths)}
        child = Child(command, self.folder / f"child-{len(self.children)}.log", env)
        self.children.append(child)
        return child

    def worker(
        self,
        *,
        point: str | None = None,
        nth: int = 1,
        grace_s: float | None = None,
        busy_timeout_s: float | None = None,
        late_upkeep: bool = False,
        **options: Any,
    ) -> Child:
        """A worker; it says READY when it runs."""
        config = {
            "database": str(self.database),
            "point": point,
            "nth": nth,
            "grace_s": grace_s,
            "busy_timeout_s": busy_timeout_s,
            "late_upkeep": late_upkeep,
            "options": {"lease": 1.0, "poll_interval": 0.2, **options},
        }
        return self.run("tests.faults.worker", config)

    async def enqueue(self, storage: SQLiteStorage, body: str, *args: Any, **options: Any) -> str:
        """Enqueue a call of one of the bodies, and note that the store has it."""
        task = Task(f"tests.faults.bodies.{body}", args, **options)
        task_id = str(await storage.enqueue(task))
        self.ledger.write("ENQ", task_id)
        return task_id


async def eventually(
    condition: Callable[[], Awaitable[Any]], within_s: float = PATIENCE_S, *, what: str = ""
) -> Any:
    """Look until `condition` gives something true, and return it."""
    until = time.monotonic() + within_s
    while True:
        found = await condition()
        if found:
            return found
        assert time.monotonic() < until, f"not within {within_s:g} s: {what or condition}"
        await asyncio.sleep(0.01)


async def drained(storage: SQLiteStorage, ids: list[str], within_s: float = PATIENCE_S) -> None:
    """Until all of these have ended."""

    async def all_ended() -> bool:
        tasks = [await storage.get_task(task_id) for task_id in ids]
        return all(task is not None and task.status.final for task in tasks)

    await eventually(all_ended, within_s, what="everything has ended")
