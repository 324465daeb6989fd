"""flexiq on SQLite, polling as often as it can and claiming a hundred at once: far above its defaults."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import Body, System, with_logs


class FlexiqSQLite(System):
    name = "flexiq-sqlite"
    store = "sqlite"
    role = "peer"
    promise = (
        "at least once: run again 42 s after its worker was killed (tried), result stored, no commit synced"
    )
    delivery = "at least once"
    results = "kept"
    logs = True
    widths = True
    own_width = 100
    package = "flexiq"
    bodies = ("async", "sync")
    faces = ("blocking", "bulk")
    imports = ("import flexiq",)

    def open(self, folder: Path, concurrency: int) -> None:
        if not with_logs():
            os.environ["FLEXIQ_LOG_LEVEL"] = "WARNING"
        from flexiq import Queue

        # Without push_dispatch: on SQLite it wakes nobody in another process, and latency becomes seconds.
        self.queue: Any = Queue(
            db_path=str(folder / "flexiq.db"),
            workers=concurrency,
            async_concurrency=concurrency,
            scheduler_poll_interval_ms=1,
            scheduler_batch_size=concurrency,
        )
        self.tasks: dict[Body, Any] = {
            "sync": self.queue.task()(marks.mark),
            "async": self.queue.task()(marks.amark),
        }

    def fill(self, tasks: int, body: Body) -> None:
        self.tasks[body].map([(0.0,)] * tasks)

    def work(self) -> None:
        self.queue.run_worker()

    def put(self, stamped: marks.Stamp) -> None:
        self.tasks["async"].delay(stamped)

    def put_many(self, stamps: Sequence[marks.Stamp]) -> None:
        self.tasks["async"].map([(stamped,) for stamped in stamps])
