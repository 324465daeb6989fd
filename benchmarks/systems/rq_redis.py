"""rq on Redis, with the worker that runs jobs in its own process: a fork for each is four times slower."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import Body, System, address_in, configure_logging, with_logs

FILL_CHUNK = 1_000
BODY = f"{marks.__name__}.{marks.mark.__name__}"


class RqRedis(System):
    name = "rq-redis"
    store = "redis"
    server = "redis"
    role = "peer"
    promise = "a job whose worker died is marked as failed and not run again; result kept, all in memory"
    delivery = "not run again"
    results = "kept"
    logs = True
    package = "rq"
    needs = ("redis", "hiredis")
    bodies = ("sync",)
    faces = ("blocking", "bulk")
    imports = ("import rq",)
    processes = (1, 2)

    def open(self, folder: Path, concurrency: int) -> None:
        from redis import Redis
        from rq import Queue

        configure_logging()
        self.client: Any = Redis.from_url(address_in(folder))
        self.queue: Any = Queue(connection=self.client)

    def close(self) -> None:
        self.client.close()

    def fill(self, tasks: int, body: Body) -> None:
        for first in range(0, tasks, FILL_CHUNK):
            self.put_many([0.0] * min(FILL_CHUNK, tasks - first))

    def work(self) -> None:
        from rq import SimpleWorker

        SimpleWorker([self.queue], connection=self.client).work(
            logging_level="INFO" if with_logs() else "CRITICAL"
        )

    def put(self, stamped: marks.Stamp) -> None:
        self.queue.enqueue(BODY, stamped)

    def put_many(self, stamps: Sequence[marks.Stamp]) -> None:
        self.queue.enqueue_many([self.queue.prepare_data(BODY, (stamped,)) for stamped in stamps])
