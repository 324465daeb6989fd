"""A worker as a program: `python -m tests.faults.worker CONFIG`, where CONFIG is JSON.

It can kill itself at a named point. The points are made by deriving from the pool and the storage, so the
package has no hook for them:

    claimed    the claim is committed, the pool does not know it yet
    starting   the pool has the task, its body has not begun
    running    the body has begun
    ended      the body has ended, its report has not been sent
    settled    the report is committed, the pool does not know it yet
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from loguru import logger

from omniq import AsyncWorkerPool
from omniq.errors import WorkerStuck
from omniq.storage import SQLiteStorage
from omniq.storage.base import Claimed
from omniq.storage.sqlite import engine
from omniq.task import Action, Answer, Claim, Held, Renewal, Settlement, WorkerInfo
from tests.faults.ledger import own_ledger

POINTS = ("claimed", "starting", "running", "ended", "settled")
LATE_S = 60.0
STUCK = 3  # what the program exits with when every slot is stuck


class Trigger:
    """Kills this process when its point is passed for the nth time."""

    def __init__(self, point: str | None, nth: int) -> None:
        self._point, self._left = point, nth

    def passes(self, point: str) -> None:
        if point != self._point:
            return
        self._left -= 1
        if self._left == 0:
            own_ledger().write("KILL", point, os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)


class KilledStorage(SQLiteStorage):
    """A storage that passes the points on its way, and notes each renewal before it is asked for."""

    trigger = Trigger(None, 0)
    late_upkeep = False

    async def exchange(
        self, settlements: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Answer], list[Claimed]]:
        reports = [one for one in settlements if one.action is not Action.GIVE_BACK]
        if reports:
            self.trigger.passes("ended")
        answers, claims = await super().exchange(settlements, claim)
        for report, answer in zip(settlements, answers, strict=True):
            if answer is Answer.STALE:
                own_ledger().write("STALE", report.task.id, report.task.epoch, os.getpid())
        if reports:
            self.trigger.passes("settled")
        if claims:
            self.trigger.passes("claimed")
        return answers, claims

    async def renew(self, worker: str, lease: float, holding: Iterable[Held] = ()) -> Renewal:
        own_ledger().write("RENEW", os.getpid())
        return await super().renew(worker, lease, holding)

    def clone(self) -> "KilledStorage":
        """Made for the upkeep, in another thread. It can be made late, which it may be at any time."""
        kind = LateStorage if self.late_upkeep else KilledStorage
        return kind(self.path, durability=self.durability)


class LateStorage(KilledStorage):
    async def beat(self, worker: WorkerInfo) -> None:
        await asyncio.sleep(LATE_S)
        await super().beat(worker)


class KilledPool(AsyncWorkerPool):
    trigger = Trigger(None, 0)

    def _reset(self) -> None:
        super()._reset()
        start = self._crew.start

        def start_and_pass(task: Claimed) -> None:
            self.trigger.passes("starting")
            start(task)
            # The first step of the body was scheduled before this, so it has begun by then.
            asyncio.get_running_loop().call_soon(self.trigger.passes, "running")

        self._crew.start = start_and_pass  # type: ignore[method-assign]


async def main(config: dict[str, Any]) -> int:
    trigger = Trigger(config.get("point"), config.get("nth", 1))
    KilledStorage.trigger = KilledPool.trigger = trigger
    KilledStorage.late_upkeep = config["late_upkeep"]
    if config["busy_timeout_s"] is not None:
        engine.BUSY_TIMEOUT_S = config["busy_timeout_s"]  # type: ignore[misc]
    pool = KilledPool(KilledStorage(config["database"]), **config.get("options", {}))
    await pool.start()
    stop_on_signals(pool, config.get("grace_s"))
    say("READY", pool.id, time.monotonic())
    try:
        await pool.wait()
    except WorkerStuck as stuck:
        say("STUCK", stuck)
        return STUCK
    finally:
        await stopped(pool)
        say("STALE", pool.stale_reports)
    return 0


def stop_on_signals(pool: AsyncWorkerPool, grace_s: float | None) -> None:
    """The first signal asks for a good end within the grace, the second for one at once."""
    stopping: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        timeout = grace_s if not stopping else 0
        stopping.append(asyncio.create_task(pool.stop(timeout=timeout)))

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)


async def stopped(pool: AsyncWorkerPool) -> None:
    try:
        await pool.stop()
    except WorkerStuck:
        return


def say(word: str, *fields: object) -> None:
    print(word, *fields, flush=True)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    code = asyncio.run(main(given))
    sys.stdout.flush()
    sys.exit(code)
