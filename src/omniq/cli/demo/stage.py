"""The real processes and the real store of the demo."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

from omniq.cli.demo.ledger import ENVIRONMENT, Ledger, Reader
from omniq.cli.errors import CommandFailed
from omniq.cli.process import python
from omniq.storage.sqlite import SQLiteStorage
from omniq.task import WorkerInfo

PROCESSES: Final = 2
CONCURRENCY: Final = 50
START_WITHIN_S: Final = 30.0
STOP_WITHIN_S: Final = 10.0
LOOK_EVERY_S: Final = 0.02
LAST_LINES: Final = 5


class Stage:
    """A folder with a store and a ledger, and `omniq worker` at work on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = SQLiteStorage(folder / "demo.db")
        self.ledger = Ledger(folder / "ledger")
        self.reader = Reader(folder / "ledger")
        self._log = folder / "worker.log"
        self._command: asyncio.subprocess.Process | None = None

    async def start(self) -> list[WorkerInfo]:
        """The command that people type, with two worker processes below it."""
        await self.storage.open()
        environment = {
            **os.environ,
            "OMNIQ_URL": f"sqlite:///{quote(str(self.storage.path))}",
            ENVIRONMENT: str(self.folder / "ledger"),
        }
        options = ["--processes", str(PROCESSES), "--concurrency", str(CONCURRENCY), "--grace", "5"]
        options += ["--lease", "6", "--log-level", "warning"]
        with self._log.open("wb") as log:
            self._command = await asyncio.create_subprocess_exec(
                *python("omniq", "worker", "omniq.cli.demo.jobs:q", *options),
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops it in good order
            )
        await self.until(self._all_there, START_WITHIN_S, "the worker processes did not start")
        return await self.storage.workers()

    async def _all_there(self) -> bool:
        return len(await self.storage.workers()) == PROCESSES

    async def until(self, condition: Callable[[], Awaitable[bool]], within_s: float, complaint: str) -> None:
        """Wait for a condition, with a bound, as long as the worker lives."""
        try:
            async with asyncio.timeout(within_s):
                while not await condition():
                    self._must_live()
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise CommandFailed(f"{complaint} within {within_s:g} s{self._last_words()}") from None

    def _must_live(self) -> None:
        if self._command is not None and self._command.returncode is not None:
            raise CommandFailed(f"`omniq worker` ended by itself{self._last_words()}")

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "; its log ends with: " + " | ".join(lines) if lines else ""

    async def busiest(self) -> tuple[WorkerInfo, list[str]]:
        """The worker with the most tasks in flight, and their ids."""
        held = {worker.id: await self.storage.held(worker.id) for worker in await self.storage.workers()}
        workers = {worker.id: worker for worker in await self.storage.workers()}
        busiest = max(workers, key=lambda identity: len(held.get(identity, [])))
        return workers[busiest], [one.id for one in held.get(busiest, [])]

    async def stop(self) -> int:
        """SIGTERM, as every service manager does it; the exit code."""
        if self._command is None:
            return 0
        if self._command.returncode is None:
            self._command.send_signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_WITHIN_S):
            return await self._command.wait()

    async def close(self) -> None:
        """Leave nothing running, whatever happened."""
        command = self._command
        if command is not None and command.returncode is None:
            for _ in range(2):  # twice: give back at once
                command.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(command.wait(), STOP_WITHIN_S)
            except TimeoutError:
                command.kill()  # its children notice, and end
        await self.storage.close()
        self.ledger.close()
