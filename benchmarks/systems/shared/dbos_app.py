"""dbos as a system to be measured, whatever its database: a workflow without steps on a queue.

It polls every second if nothing is said; every ten milliseconds made it fastest. Knows the standard library.
"""

from __future__ import annotations

import signal
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import marks
from benchmarks.systems.base import Body, System, with_logs

LOOK_EVERY_S = 0.01
FILL_CHUNK = 1_000
QUEUE = "benchmark"


class DbosSystem(System):
    role = "peer"
    delivery = "at least once"
    results = "kept"
    logs = True
    widths = True
    package = "dbos"
    environment = "peers-dbos"
    bodies = ("async", "sync")
    faces = ("blocking", "async", "in-flight", "bulk")
    imports = ("import dbos",)

    @abstractmethod
    def url(self, folder: Path) -> str:
        """Of its database, as SQLAlchemy writes it."""

    def open(self, folder: Path, concurrency: int) -> None:
        from dbos import DBOS, DBOSClient

        self.concurrency, self._url = concurrency, self.url(folder)
        DBOS.workflow(name="sync")(marks.mark)
        DBOS.workflow(name="async")(marks.amark)
        made = folder / "prepared"
        if not made.exists():
            self._launch()
            DBOS.destroy()
            made.touch()
        self._client: Any = DBOSClient(system_database_url=self._url)

    def _launch(self) -> None:
        from dbos import DBOS

        DBOS(
            config={
                "name": "benchmark",
                "system_database_url": self._url,
                "log_level": "INFO" if with_logs() else "WARNING",
                "application_version": "1",
            }
        )
        DBOS.launch()
        DBOS.register_queue(
            QUEUE, worker_concurrency=self.concurrency, polling_interval_sec=LOOK_EVERY_S,
            on_conflict="always_update",
        )  # fmt: skip

    def close(self) -> None:
        self._client.destroy()

    def fill(self, tasks: int, body: Body) -> None:
        for first in range(0, tasks, FILL_CHUNK):
            self._together([0.0] * min(FILL_CHUNK, tasks - first), body)

    def _together(self, stamps: Sequence[marks.Stamp], body: Body) -> None:
        """It has no bulk call, but takes part in a transaction of its caller."""
        import sqlalchemy

        engine = self._engine = getattr(self, "_engine", None) or sqlalchemy.create_engine(self._url)
        with engine.begin() as conn:
            for stamped in stamps:
                self._client.enqueue_in_transaction(conn, _wish(body), stamped)

    def work(self) -> None:
        from dbos import DBOS

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._launch()
        signal.sigwait({signal.SIGTERM})
        DBOS.destroy()

    def put(self, stamped: marks.Stamp) -> None:
        self._client.enqueue(_wish("async"), stamped)

    async def aput(self, stamped: marks.Stamp) -> None:
        await self._client.enqueue_async(_wish("async"), stamped)

    def put_many(self, stamps: Sequence[marks.Stamp]) -> None:
        self._together(stamps, "async")


def _wish(body: Body) -> Any:
    return {"workflow_name": body, "queue_name": QUEUE, "app_version": "1"}
