"""What the runner must know of a system, and what a system must be able to do.

The runner reads the class attributes in its own process. Everything else happens in a child process, which
runs in the environment of the system. A file here may therefore import a peer's package only inside its
methods. Knows the standard library only.
"""

from __future__ import annotations

import logging
import os
from abc import ABC
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from benchmarks.harness import marks

ADDRESS = "server.address"  # a file in the folder of a sample that uses a server: where it is

LOGS_VARIABLE = "BENCHMARK_LOGS"  # set: log as much as the system's own command does

Group = Literal["tasks", "pools", "loading", "loaders"]
Body = Literal["async", "sync", "process"]
Face = Literal["blocking", "async", "in-flight", "bulk"]


class System(ABC):
    """Something that keeps tasks, and mostly something that runs them."""

    group: ClassVar[Group] = "tasks"  # measured together, told together
    name: ClassVar[str]
    store: ClassVar[str]  # compared with OmniQ on the same store
    role: ClassVar[Literal["omniq", "peer", "limit"]]
    promise: ClassVar[str]  # what its figures buy: acknowledgement, results, durability
    delivery: ClassVar[str] = ""  # the same in a word: what becomes of a task whose worker has died
    results: ClassVar[str] = ""  # and of what a body returns
    package: ClassVar[str | None] = None  # what must be installed beside us to run it
    environment: ClassVar[str] = "peers"  # where; those that want other versions of the same have their own
    needs: ClassVar[tuple[str, ...]] = ()  # and what else, for what it is asked to do
    bodies: ClassVar[tuple[Body, ...]] = ()
    faces: ClassVar[tuple[Face, ...]] = ()
    imports: ClassVar[tuple[str, ...]] = ()
    across: ClassVar[bool] = True  # another process reaches its workers
    tells_settles: ClassVar[bool] = False  # its worker notes when the store has confirmed an end
    deep: ClassVar[bool] = False  # measured with a million tasks waiting
    server: ClassVar[Literal["postgres", "redis", "redis-aof"] | None] = None  # what must run beside it
    processes: ClassVar[tuple[int, ...]] = (1,)  # how many workers drain together
    widths: ClassVar[bool] = False  # it runs as many at once as it is told
    pools: ClassVar[bool] = False  # one worker also runs bodies in processes of its own
    logs: ClassVar[bool] = False  # it heeds LOGS_VARIABLE
    own_width: ClassVar[int | None] = None  # and so many if it is told nothing

    # --- in a child process ----------------------------------------------------------------------

    def open(self, folder: Path, concurrency: int) -> None:
        """Get ready to produce or to work on the store in `folder`."""
        raise NotImplementedError

    def close(self) -> None:
        """Give everything back."""

    def fill(self, tasks: int, body: Body) -> None:
        """Let `tasks` tasks wait, by the fastest way there is."""
        raise NotImplementedError

    def work(self) -> None:
        """Run tasks, in this process, until SIGTERM."""
        raise NotImplementedError

    def put(self, stamped: marks.Stamp) -> None:
        """Enqueue one task through the blocking face."""
        raise NotImplementedError

    async def aput(self, stamped: marks.Stamp) -> None:
        """Enqueue one task through the async face."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Give back what the async face of this event loop uses."""

    def put_many(self, stamps: Sequence[marks.Stamp]) -> None:
        """Enqueue several tasks with one call."""
        raise NotImplementedError


def with_logs() -> bool:
    """Whether to log as much as the system's own command does."""
    return LOGS_VARIABLE in os.environ


def configure_logging() -> None:
    """For a system on the standard library's logging: silent, or INFO on stderr as its command has it."""
    if with_logs():
        logging.basicConfig(level=logging.INFO)
    else:
        logging.disable(logging.WARNING)


def address_in(folder: Path) -> str:
    return (folder / ADDRESS).read_text(encoding="utf-8")


class Reached(NamedTuple):
    """How many tasks, in how many seconds, with how many seconds of CPU."""

    tasks: int
    seconds: float
    cpu_s: float


class Limit(System):
    """No task queue: what the store itself allows."""

    role = "limit"

    def drain(self, folder: Path, tasks: int, batch: int, limit_s: float, payload_bytes: int) -> Reached:
        """Take and end tasks, `batch` per transaction."""
        raise NotImplementedError

    def insert(self, folder: Path, tasks: int, batch: int, limit_s: float, payload_bytes: int) -> Reached:
        """Store tasks durably, `batch` per transaction."""
        raise NotImplementedError
