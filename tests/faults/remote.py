"""A worker on a server's store as a program: `python -m tests.faults.remote CONFIG`, where CONFIG is JSON.

It notes its renewals in the ledger. `skew_s` sets the wall clock of its host, as far as it can see.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from loguru import logger

from omniq import AsyncWorkerPool
from omniq.clock import RealClock
from omniq.storage import BaseStorage, open_storage
from omniq.storage.base import Claimed
from omniq.task import Answer, Claim, Held, Renewal, Settlement
from tests.faults.ledger import own_ledger
from tests.faults.worker import say, stop_on_signals, stopped


def take_notes(kind: type[BaseStorage]) -> None:
    """The class itself: what it renews with is a clone, made by itself."""
    renew, exchange = kind.renew, kind.exchange

    async def noted_renew(
        self: BaseStorage, worker: str, lease: float, holding: Iterable[Held] = ()
    ) -> Renewal:
        own_ledger().write("RENEW", os.getpid())
        return await renew(self, worker, lease, holding)

    async def noted_exchange(
        self: BaseStorage, settlements: Sequence[Settlement], claim: Claim | None = None
    ) -> tuple[list[Answer], list[Claimed]]:
        answers, claims = await exchange(self, settlements, claim)
        for report, answer in zip(settlements, answers, strict=True):
            if answer is Answer.STALE:
                own_ledger().write("STALE", report.task.id, report.task.epoch, os.getpid())
        return answers, claims

    kind.renew, kind.exchange = noted_renew, noted_exchange  # type: ignore[method-assign]


def set_clock(skew_s: float) -> None:
    RealClock.now = lambda self: datetime.now(UTC) + timedelta(seconds=skew_s)  # type: ignore[method-assign]


async def main(config: dict[str, Any]) -> None:
    set_clock(config.get("skew_s", 0))
    storage = open_storage(config["url"], **config["storage"])
    take_notes(type(storage))
    pool = AsyncWorkerPool(storage, **config["options"])
    await pool.start()
    stop_on_signals(pool, config.get("grace_s"))
    say("READY", pool.id, time.monotonic())
    try:
        await pool.wait()
    finally:
        await stopped(pool)
        say("STALE", pool.stale_reports)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    asyncio.run(main(given))
    sys.stdout.flush()
