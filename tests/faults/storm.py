"""A process of the storm: `python -m tests.faults.storm CONFIG` works with two threads until told to end.

Each thread has its own loop and storage, makes tasks, claims and settles them, and renews what it holds.
Beside them the application writes to the same file with transactions of its own, each five milliseconds long.
Says LATE with the worst heartbeat, and what its producers were promised, when it ends.
"""

import asyncio
import json
import os
import sqlite3
import sys
import threading
import time
from typing import Any

from omniq.errors import StoreUnavailable
from omniq.storage import SQLiteStorage
from omniq.task import Settlement, Task
from tests.faults.ledger import own_ledger

TRANSACTION_S = 0.005


class Thread:
    """One loop with one storage."""

    def __init__(self, config: dict[str, Any], number: int, ended: threading.Event) -> None:
        self.storage = SQLiteStorage(config["database"])
        self.lease_s: float = config["lease_s"]
        self.worker = f"storm-{os.getpid()}-{number}"
        self.ended = ended
        self.worst_s = 0.0
        self.rounds = 0
        self.broken: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as exc:
            self.broken = exc

    async def _main(self) -> None:
        async with self.storage, asyncio.TaskGroup() as group:
            group.create_task(self._work())
            group.create_task(self._beat())

    async def _work(self) -> None:
        while not self.ended.is_set():
            try:
                ids = await self.storage.enqueue_many([Task("a.b") for _ in range(3)])
                own_ledger().write("ENQ", *ids)
                claims = await self.storage.claim(self.worker, limit=3, lease=self.lease_s)
                done = self.storage.serializer.dumps(None)
                await self.storage.settle([Settlement.success(claim, done) for claim in claims])
                self.rounds += 1
            except StoreUnavailable:
                continue  # what was not acknowledged was not promised

    async def _beat(self) -> None:
        every_s = self.lease_s / 3
        due_at = time.monotonic() + every_s
        while not self.ended.is_set():
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))
            await self.storage.renew(self.worker, self.lease_s)
            self.worst_s = max(self.worst_s, time.monotonic() - due_at)
            due_at = time.monotonic() + every_s


def write_as_the_application(database: str, ended: threading.Event) -> None:
    conn = sqlite3.connect(database, timeout=30, isolation_level=None)
    conn.execute("PRAGMA wal_autocheckpoint = 0")
    while not ended.wait(TRANSACTION_S * 10):
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("INSERT INTO app VALUES (?)", (os.getpid(),))
        time.sleep(TRANSACTION_S)  # the transaction itself is this long
        conn.execute("COMMIT")
    conn.close()


def main(config: dict[str, Any]) -> None:
    ended = threading.Event()
    threads = [Thread(config, number, ended) for number in range(2)]
    running = [threading.Thread(target=thread.run) for thread in threads]
    running.append(threading.Thread(target=write_as_the_application, args=(config["database"], ended)))
    for thread in running:
        thread.start()
    print("READY", flush=True)
    sys.stdin.readline()
    ended.set()
    for thread in running:
        thread.join()
    for broken in (thread.broken for thread in threads if thread.broken is not None):
        raise broken
    print("LATE", max(thread.worst_s for thread in threads), flush=True)
    print("ROUNDS", min(thread.rounds for thread in threads), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
