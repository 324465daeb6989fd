"""dramatiq on Redis, with eight threads, as many as its command line starts. It has no bulk call."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import Body, System, address_in, configure_logging

THREADS = 8


class DramatiqRedis(System):
    name = "dramatiq-redis"
    store = "redis"
    server = "redis"
    role = "peer"
    promise = "at least once: acknowledged after the run, no results, everything lost with the server"
    delivery = "at least once"
    results = "none"
    logs = True
    package = "dramatiq"
    needs = ("redis", "hiredis")
    bodies = ("sync",)
    faces = ("blocking",)
    imports = ("import dramatiq",)
    processes = (1, 2)

    def open(self, folder: Path, concurrency: int) -> None:
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker

        configure_logging()
        self.broker: Any = RedisBroker(url=address_in(folder))
        dramatiq.set_broker(self.broker)
        self.actor = dramatiq.actor(marks.mark)

    def close(self) -> None:
        self.broker.close()

    def fill(self, tasks: int, body: Body) -> None:
        for _ in range(tasks):
            self.actor.send(0.0)

    def work(self) -> None:
        from dramatiq import Worker

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        worker = Worker(self.broker, worker_threads=THREADS)
        worker.start()
        signal.sigwait({signal.SIGTERM})
        worker.stop()

    def put(self, stamped: marks.Stamp) -> None:
        self.actor.send(stamped)
