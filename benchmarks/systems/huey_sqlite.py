"""huey on SQLite, with one thread: it takes one task per transaction, and more threads only cost more CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import Body, System, configure_logging

THREADS = 1


class HueySQLite(System):
    name = "huey-sqlite"
    store = "sqlite"
    role = "peer"
    promise = "at most once: removed before the run, nothing stored for None, every commit synced to the disk"
    delivery = "at most once"
    results = "none for None"
    logs = True
    package = "huey"
    bodies = ("sync",)
    faces = ("blocking",)
    imports = ("import huey",)

    def open(self, folder: Path, concurrency: int) -> None:
        from huey import SqliteHuey

        configure_logging()
        self.huey: Any = SqliteHuey("benchmark", filename=str(folder / "huey.db"), fsync=True)
        self.task = self.huey.task()(marks.mark)

    def close(self) -> None:
        self.huey.storage.close()

    def fill(self, tasks: int, body: Body) -> None:
        # It has no bulk call, so the rows are written as its own enqueue writes them.
        storage = self.huey.storage
        rows = [(storage.name, self.huey.serialize_task(self.task.s(0.0)), 0) for _ in range(tasks)]
        with storage.db(commit=True) as cursor:
            cursor.executemany("insert into task (queue, data, priority) values (?, ?, ?)", rows)

    def work(self) -> None:
        consumer = self.huey.create_consumer(workers=THREADS, worker_type="thread", graceful_signal="TERM")
        consumer.run()

    def put(self, stamped: marks.Stamp) -> None:
        self.task(stamped)
