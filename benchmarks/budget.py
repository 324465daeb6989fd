"""Where the microseconds of a no-op task go: `python -m benchmarks.budget STORE [ROUNDS]`.

Three loops drain the same tasks a hundred at a time, in turns: the statements or scripts of the store alone
(`sqlite`, `postgres` or `redis`), its own `exchange`, and a worker. Each has the one before inside, so the
differences are what each layer costs. Time of the processor is counted, of this process and of the server's
processes (from /proc: Linux only).
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
from loguru import logger

from benchmarks.harness.redis import IN_MEMORY
from benchmarks.run import DISK
from benchmarks.systems.raw_postgres import DAY_S
from benchmarks.systems.raw_redis import DAY_US, HEAD, TOKEN, Loaded
from benchmarks.systems.raw_sqlite import recorded_drain, replay
from omniq import OmniQ
from omniq.storage import BaseStorage, PostgresStorage, RedisStorage, SQLiteStorage
from omniq.storage.postgres import NO_PLACES
from omniq.storage.postgres.records import HEAD_COLUMNS
from omniq.storage.postgres.schema import Statements
from omniq.storage.redis import claim_arguments, records
from omniq.task import Claim, Held, Settlement
from tests.postgres.server import Cluster
from tests.redis.server import Private
from tests.redis.stores import wired

TASKS = 20_000
BATCH = 100
ROUNDS = 5
FILL_CHUNK = 10_000
RESULT = b"\x01m\x00\xc0"


class Spent(NamedTuple):
    """Microseconds for each task."""

    here: float
    server: float
    elapsed: float


class Scene(ABC):
    """A full queue, and a watch that is stopped while all connections are still open."""

    def __init__(self, storage: BaseStorage) -> None:
        self.storage = storage
        self.q = OmniQ(self.storage)
        self.body = self.q.task(name="benchmarks.noop")(self._body)
        self._left, self._done = TASKS, asyncio.Event()
        self.spent: Spent | None = None

    @abstractmethod
    async def statements(self) -> None:
        """What the store asks of its server, with nothing around it."""

    @abstractmethod
    async def wipe(self) -> None:
        """Everything of the store."""

    @abstractmethod
    def processes(self) -> list[str]:
        """Whose time is the server's, as paths."""

    async def _body(self, text: str) -> None:
        self._left -= 1
        if self._left == 0:
            self._done.set()

    async def until_done(self) -> None:
        await self._done.wait()

    async def measure(self, drain: Callable[[Scene], Awaitable[None]]) -> Spent:
        await self.storage.migrate()
        async with self.storage:
            for _ in range(TASKS // FILL_CHUNK):
                await self.storage.enqueue_many(self.body.call("x" * 60).task for _ in range(FILL_CHUNK))
            self.start_watch()
            await drain(self)
        await self.wipe()
        assert self.spent is not None
        return self.spent

    def start_watch(self) -> None:
        self._server_before = self._server_s()
        self._cpu_before, self._began = time.process_time(), time.perf_counter()

    def stop_watch(self) -> None:
        elapsed, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu_before
        before = self._server_before
        server = sum(seconds - before.get(pid, 0.0) for pid, seconds in self._server_s().items())
        self.spent = Spent(*(seconds / TASKS * 1e6 for seconds in (cpu, server, elapsed)))

    def _server_s(self) -> dict[str, float]:
        """Seconds of the processor that each process or thread of the server has had."""
        return {one: int(Path(one, "schedstat").read_text().split()[0]) / 1e9 for one in self.processes()}


class Folder:
    """What SQLite has instead of a server."""

    def start(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="omniq-budget-", dir=DISK))

    def remove(self) -> None:
        shutil.rmtree(self.path)


class SQLiteScene(Scene):
    server = Folder

    def __init__(self, folder: Folder) -> None:
        self._path = folder.path / "omniq.db"
        super().__init__(SQLiteStorage(self._path, durability="fsync"))

    async def statements(self) -> None:
        # It is written down on a loop of its own, which this thread has no room for.
        tape, fresh = await asyncio.to_thread(recorded_drain, self._path.with_name("tape"), TASKS, BATCH)
        self.start_watch()
        replay(tape, fresh)
        self.stop_watch()

    async def wipe(self) -> None:
        folder = self._path.parent
        shutil.rmtree(folder)
        folder.mkdir()

    def processes(self) -> list[str]:
        return []


class PostgresScene(Scene):
    server = staticmethod(lambda: Cluster("shared_buffers=128MB"))

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(PostgresStorage(cluster.dsn))
        self._dsn, self._server = cluster.dsn, cluster.pid

    async def statements(self) -> None:
        conn, sql, held = await asyncpg.connect(self._dsn), Statements("omniq")["exchange"], list[Any]()
        for number in range(TASKS // BATCH + 1):
            ids = sorted(row[HEAD_COLUMNS + 1] for row in held)
            said = (ids, [1] * len(ids), (), [RESULT] * len(ids), (), (), ())
            wish = ("raw", None, BATCH, 30.0, f"{number:x}", False, (), 0)
            held = (await conn.fetch(sql, *said, DAY_S, DAY_S, *wish, *NO_PLACES))[:-1]
        self.stop_watch()
        await conn.close()

    async def wipe(self) -> None:
        conn = await asyncpg.connect(self._dsn)
        await conn.execute("SET client_min_messages = warning; DROP SCHEMA omniq CASCADE")
        await conn.close()

    def processes(self) -> list[str]:
        children = Path(f"/proc/{self._server}/task/{self._server}/children").read_text().split()
        return [f"/proc/{pid}" for pid in children]


class RedisScene(Scene):
    server = staticmethod(lambda: Private(IN_MEMORY, port=True))

    def __init__(self, server: Private) -> None:
        super().__init__(RedisStorage(server.url, durability="relaxed"))
        self._url, self._server = server.url, server.pid

    async def statements(self) -> None:
        scripts, held = await Loaded.at(self._url, "exchange"), list[bytes]()
        _, end, result = records.settle_arguments([Settlement.success(Held("", 1), RESULT)])
        for number in range(TASKS // BATCH + 1):
            said = [part for task_id in held for part in (task_id, end, result)]
            wish = claim_arguments(Claim("raw", None, BATCH, 30.0, f"{number:x}"))
            held = (await scripts.call(TOKEN, DAY_US, DAY_US, len(held), *said, *wish))[HEAD::3]
        self.stop_watch()
        scripts.wire.close()

    async def wipe(self) -> None:
        async with wired(self._url) as wire:
            await wire.call("FLUSHALL")

    def processes(self) -> list[str]:
        return [str(thread) for thread in Path(f"/proc/{self._server}/task").iterdir()]


SCENES: dict[str, type[SQLiteScene] | type[PostgresScene] | type[RedisScene]] = {
    "sqlite": SQLiteScene,
    "postgres": PostgresScene,
    "redis": RedisScene,
}


async def statements(scene: Scene) -> None:
    await scene.statements()


async def exchanges(scene: Scene) -> None:
    said: list[Settlement] = []
    for number in range(TASKS // BATCH + 1):
        _, claims = await scene.storage.exchange(said, Claim("store", None, BATCH, 30.0, f"{number:x}"))
        said = [Settlement.success(task, RESULT) for task in claims]
    scene.stop_watch()


async def worker(scene: Scene) -> None:
    async with scene.q.async_worker(concurrency=BATCH):
        await scene.until_done()
        scene.stop_watch()


def main(store: str, rounds: int) -> None:
    logger.remove()
    logger.add(sys.stderr, level="ERROR")  # that a server without a file may lose tasks is known
    found: dict[str, list[Spent]] = {}
    kind: Any = SCENES[store]
    server = kind.server()
    try:
        server.start()
        for _ in range(rounds):
            for drain in (statements, exchanges, worker):
                with asyncio.Runner(loop_factory=_loop) as runner:
                    spent = runner.run(_measured(kind(server), drain))
                found.setdefault(drain.__name__, []).append(spent)
    finally:
        server.remove()
    print("microseconds a task, medians (range)      here          server        elapsed")
    for name, all_spent in found.items():
        columns = [
            f"{statistics.median(c):5.1f} ({min(c):.1f}-{max(c):.1f})" for c in zip(*all_spent, strict=True)
        ]
        print(f"{name:30}", *(f"{column:20}" for column in columns))


async def _measured(scene: Scene, drain: Callable[[Scene], Awaitable[None]]) -> Spent:
    return await scene.measure(drain)


def _loop() -> asyncio.AbstractEventLoop:
    """As the command line has it."""
    import uvloop

    return uvloop.new_event_loop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
