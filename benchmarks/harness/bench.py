"""What every measure needs: a fresh folder, processes of a system on it, and a look at how far they are."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.marks import Marks
from benchmarks.harness.postgres import PostgresServer
from benchmarks.harness.processes import Child
from benchmarks.harness.redis import IN_MEMORY, SYNCED, RedisServers
from benchmarks.harness.servers import Server
from benchmarks.plan import Plan
from benchmarks.systems.base import System

LOOK_EVERY_S = 0.003
FILL_LIMIT_S = 900.0  # for a million tasks on a busy machine


def all_servers() -> dict[str, Server]:
    return {
        "postgres": PostgresServer(),
        "redis": RedisServers(IN_MEMORY),
        "redis-aof": RedisServers(SYNCED),
    }


@dataclass(frozen=True)
class Setting:
    """How a system is run where it is not run as in every other measure."""

    concurrency: int | None = None  # None: as the plan has it
    environment: Mapping[str, str] = field(default_factory=dict)


AS_EVER = Setting()


@dataclass
class Bench:
    """Where samples are taken: folders on the disk, marks in memory, an interpreter for each system."""

    plan: Plan
    scratch: Path
    marks: Marks
    pythons: Mapping[str, Path]  # by name of system
    servers: Mapping[str, Server] = field(default_factory=all_servers)

    @contextlib.contextmanager
    def folder(self, system: System | None = None) -> Iterator[Path]:
        """With a place of its own on a server, where the system needs one."""
        made = Path(tempfile.mkdtemp(dir=self.scratch))
        server = self.server_of(system)
        try:
            with contextlib.nullcontext() if server is None else server.place(made):
                yield made
        finally:
            shutil.rmtree(made)

    def lasting_folder(self, system: System) -> Path:
        """One that stays until the run is over."""
        made = Path(tempfile.mkdtemp(dir=self.scratch))
        server = self.server_of(system)
        if server is not None:
            server.make(made)
        return made

    def server_of(self, system: System | None) -> Server | None:
        return self.servers[system.server] if system is not None and system.server is not None else None

    def start(
        self, system: System, verb: str, folder: Path, setting: Setting = AS_EVER, **arguments: Any
    ) -> Child:
        log = folder / f"{verb}-{len(list(folder.glob(f'{verb}-*.log')))}.log"
        width = {"concurrency": setting.concurrency or self.plan.concurrency} if system.bodies else {}
        return Child(
            self.pythons[system.name], self.marks.folder, log, setting.environment, system.name, verb,
            folder=str(folder), **width, **arguments,
        )  # fmt: skip

    def ask(
        self, system: System, verb: str, folder: Path, patience_s: float, setting: Setting = AS_EVER,
        **arguments: Any,
    ) -> Any:  # fmt: skip
        with self.start(system, verb, folder, setting, **arguments) as child:
            return child.answer(patience_s)

    @contextlib.contextmanager
    def worker(
        self, system: System, folder: Path, tasks: int, body: str, setting: Setting = AS_EVER
    ) -> Iterator[Child]:
        """A worker process, with `tasks` tasks that wait for it."""
        if tasks and system.across:
            self.ask(system, "fill", folder, FILL_LIMIT_S, setting, tasks=tasks, body=body)
        self.marks.clear()
        inside = 0 if system.across else tasks
        with self.start(system, "work", folder, setting, tasks=inside, body=body) as child:
            yield child

    def wait_for_starts(self, child: Child, tasks: int, limit_s: float) -> bool:
        end_at = time.monotonic() + limit_s
        while self.marks.started() < tasks:
            if time.monotonic() > end_at:
                return False
            child.check_alive()
            time.sleep(LOOK_EVERY_S)
        return True
