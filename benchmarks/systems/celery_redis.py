"""Celery on Redis, a hundred messages ahead, in one process: its pools were no faster.

Its command is as silent if nothing is said: it logs from WARNING on.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.harness import marks
from benchmarks.systems.base import Body, System, address_in

AHEAD = 100
FILL_CHUNK = 1_000
QUEUE = "celery"


class CeleryRedis(System):
    name = "celery-redis"
    store = "redis"
    server = "redis"
    role = "peer"
    promise = "at most once: acknowledged before the run, no results, everything lost with the server"
    delivery = "at most once"
    results = "none"
    package = "celery"
    environment = "peers-celery"
    needs = ("redis", "hiredis", "packaging")
    bodies = ("sync",)
    faces = ("blocking",)
    imports = ("import celery",)
    processes = (1, 2)

    def open(self, folder: Path, concurrency: int) -> None:
        from celery import Celery

        logging.disable(logging.WARNING)
        self.app: Any = Celery("benchmark", broker=address_in(folder))
        self.app.conf.update(
            task_ignore_result=True,
            worker_prefetch_multiplier=AHEAD,
            worker_hijack_root_logger=False,
            worker_send_task_events=False,
            broker_connection_retry_on_startup=True,
        )
        self.task = self.app.task(name="noop")(marks.mark)
        self._producer: Any = None

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
        self.app.pool.force_close_all()

    def fill(self, tasks: int, body: Body) -> None:
        # It has no bulk call: one real message, copied with ids and tags of their own.
        self.put(0.0)
        with self.app.connection_for_write() as connection:
            client = connection.default_channel.client
            message = json.loads(client.lindex(QUEUE, 0))
            for first in range(0, tasks - 1, FILL_CHUNK):
                many = range(min(FILL_CHUNK, tasks - 1 - first))
                client.lpush(QUEUE, *(_copy(message) for _ in many))

    def work(self) -> None:
        options = ("--loglevel=CRITICAL", "--pool=solo", "--without-mingle", "--without-gossip")
        self.app.worker_main(["worker", *options])

    def put(self, stamped: marks.Stamp) -> None:
        if self._producer is None:
            self._producer = self.app.amqp.Producer(self.app.connection_for_write())
        self.task.apply_async((stamped,), producer=self._producer)


def _copy(message: Any) -> str:
    own, tag = str(uuid4()), str(uuid4())
    headers = {**message["headers"], "id": own, "root_id": own}
    properties = {**message["properties"], "correlation_id": own, "delivery_tag": tag}
    return json.dumps({**message, "headers": headers, "properties": properties})
