"""huey on Redis, with four threads: more made it no faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import Body, System, address_in, configure_logging

THREADS = 4
FILL_CHUNK = 1_000


class HueyRedis(System):
    name = "huey-redis"
    store = "redis"
    server = "redis"
    role = "peer"
    promise = "at most once: removed before the run, nothing stored for None, all lost with the server"
    delivery = "at most once"
    results = "none for None"
    logs = True
    package = "huey"
    needs = ("redis", "hiredis")
    bodies = ("sync",)
    faces = ("blocking",)
    imports = ("import huey",)
    processes = (1, 2)

    def open(self, folder: Path, concurrency: int) -> None:
        from huey import RedisHuey

        configure_logging()
        self.huey: Any = RedisHuey("benchmark", url=address_in(folder))
        self.task = self.huey.task()(marks.mark)

    def close(self) -> None:
        self.huey.storage.conn.close()

    def fill(self, tasks: int, body: Body) -> None:
        # It has no bulk call, so the list is filled as its own enqueue fills it.
        storage = self.huey.storage
        for first in range(0, tasks, FILL_CHUNK):
            many = range(min(FILL_CHUNK, tasks - first))
            storage.conn.lpush(storage.queue_key, *(self.huey.serialize_task(self.task.s(0.0)) for _ in many))

    def work(self) -> None:
        consumer = self.huey.create_consumer(workers=THREADS, worker_type="thread", graceful_signal="TERM")
        consumer.run()

    def put(self, stamped: marks.Stamp) -> None:
        self.task(stamped)
